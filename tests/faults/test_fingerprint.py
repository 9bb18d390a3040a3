"""What a sweep takes for one state, and goes through once: nothing that may matter must be missing from it."""

import base64
import json
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from tests import etcd
from tests.each import quick
from tests.faults.backing import POOLS, RESERVATIONS, EtcdBacking, KubernetesBacking
from tests.faults.backing import unavailable as unavailable_store
from tests.faults.inject import unavailable
from tests.faults.known_good import KnownGood
from tests.faults.scene import IFNAME, MASTER, NETWORK, Scene
from tests.node import STATE

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


@pytest.fixture(scope="module")
def scene(executables: Path) -> Iterator[Scene]:
    """A node with a victim attached."""
    with Scene("macvlan", executables) as found:
        yield found


@pytest.fixture(scope="module")
def known_good(tmp_path_factory: pytest.TempPathFactory) -> KnownGood:
    return KnownGood(tmp_path_factory.mktemp("known"))


@pytest.fixture(autouse=True)
def attached(scene: Scene, known_good: KnownGood) -> str:
    """The fingerprint of the node with a new victim attached."""
    scene.call("ADD", scene.renew()).succeeded()
    return scene.settled(known_good)


def test_a_state_that_is_made_again_is_the_same_state(scene: Scene, known_good: KnownGood, attached: str) -> None:
    """With other times, namespaces, checksums and journals; and later, since the kernel does nothing by itself then."""
    scene.call("ADD", scene.renew()).succeeded()
    assert scene.settled(known_good) == attached
    assert not [a for a in scene.victim.sandbox.view.link(IFNAME).addresses if a.tentative]
    edited("ipam", lambda *_: None)(scene)
    assert scene.fingerprint() == attached


ADDRESS = "0218000014000600{}{}c06c0500c06c0500"  # a part of what the kernel shows of an address: IFA_CACHEINFO


def kept(seconds: int, lifetime: str) -> Callable[[Scene], None]:
    """A record that has an address of the device as the kernel showed it at some time, with that preferred lifetime."""
    device = {"read": seconds, "addresses": [ADDRESS.format(lifetime, "ffffffff")]}
    return edited("link", lambda _, document: document["link"].update(device=device))


def test_of_an_address_in_a_record_it_counts_whether_its_lifetimes_end_and_not_when_it_was_read(scene: Scene) -> None:
    found = []
    for seconds, lifetime in ((1000, "c0a80000"), (2000, "bda80000"), (1000, "ffffffff")):
        kept(seconds, lifetime)(scene)
        found.append(scene.fingerprint())
    assert found[0] == found[1] != found[2]


def record(scene: Scene, part: str = "link", who: str = "victim-1") -> Path:
    return scene.node.path(STATE) / "attachments" / f"{NETWORK}:{who}:{IFNAME}:{part}"


def rewritten(name: str, change: Callable[[bytes], bytes]) -> Callable[[Scene], None]:
    def rewrite(scene: Scene) -> None:
        path = scene.node.path(STATE) / name
        path.write_bytes(change(path.read_bytes()))

    return rewrite


def edited(part: str, change: Callable[[Scene, dict[str, Any]], object]) -> Callable[[Scene], None]:
    """A record with another content and a checksum that is right."""

    def edit(scene: Scene) -> None:
        path = record(scene, part)
        document = json.loads(path.read_bytes())
        del document["checksum"]
        change(scene, document)
        data = json.dumps(document)[:-1].encode()
        path.write_bytes(data + b', "checksum": "%s"}' % blake2b(data, digest_size=16).hexdigest().encode())

    return edit


def claimed_before_the_bystander(scene: Scene, document: dict[str, Any]) -> None:
    document["sequence"] = json.loads(record(scene, "ipam", "bystander").read_bytes())["sequence"] - 1


def sysctl(scene: Scene) -> None:
    scene.victim.sandbox.view.set_sysctl(f"net/ipv4/conf/{IFNAME}/arp_notify", 0)


CHANGES: dict[str, Callable[[Scene], object]] = {
    "a member of a record": edited("link", lambda _, document: document.update(netns="/run/netns/other")),
    "a namespace in a record": edited("link", lambda _, document: document["sandbox"].update(inode=4026531840)),
    "the order of times": edited("ipam", claimed_before_the_bystander),
    "a wrong checksum": rewritten("attachments/faults:victim-1:net1:link", lambda data: data[:-3] + b'x"}'),
    "a byte of the lease file": rewritten("leases.db", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "a hot journal": rewritten("leases.db-journal", lambda data: b"\xd9" + data[1:]),
    "a file's mode": lambda scene: record(scene).chmod(0o640),
    "a temporary file": lambda scene: record(scene).with_name(".a.tmp").touch(),
    "a missing record": lambda scene: record(scene).unlink(),
    "a symbolic link": lambda scene: record(scene).with_name("a").symlink_to("b"),
    "an MTU": lambda scene: scene.victim.sandbox.view.set(IFNAME, mtu=1400),
    "a name": lambda scene: scene.victim.sandbox.view.set(IFNAME, state="down", ifname="other"),
    "an alias": lambda scene: scene.victim.sandbox.view.set(IFNAME, ifalias="other"),
    "an address": lambda scene: scene.victim.sandbox.view.add_address(IFNAME, "192.168.111.77/24"),
    "a route": lambda scene: scene.victim.sandbox.view.add_route(IFNAME, "10.99.0.0/16", gateway="192.168.111.9"),
    "a sysctl": sysctl,
    "the host's master": lambda scene: scene.node.host.set(MASTER, ifalias="other"),
    "a missing sandbox": lambda scene: scene.drop_sandbox(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_state_in_which_something_differs_is_another_state(scene: Scene, attached: str, what: str) -> None:
    CHANGES[what](scene)
    found = scene.fingerprint()
    scene.node.host.set(MASTER, ifalias="")
    assert found != attached


def put(entry: tuple[str, str]) -> Callable[[EtcdBacking], object]:
    key, value = ((b"/railcni/v1/" + entry[0].encode()), entry[1].encode())
    request = {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}
    return lambda backing: etcd.post(backing.url, "kv/put", request)


def without(prefix: str) -> Callable[[EtcdBacking], object]:
    start = b"/railcni/v1/" + prefix.encode()
    request = {"key": base64.b64encode(start).decode(), "range_end": base64.b64encode(start[:-1] + b"0").decode()}
    return lambda backing: etcd.post(backing.url, "kv/deleterange", request)


def patched(kind: str, operation: dict[str, Any]) -> Callable[[KubernetesBacking], object]:
    def patch(backing: KubernetesBacking) -> None:
        name = backing.objects(kind)[0]["metadata"]["name"]
        backing.ask("PATCH", f"{kind}/{name}", [operation], "application/json-patch+json")

    return patch


SERVED: dict[str, dict[str, Callable[[Any], object]]] = {
    "etcd": {"a key more": put((f"void/{NETWORK}/victim-1/{IFNAME}/{1:016x}", "")),
             "another value": put((f"reserved//{0xC0A86F02:08x}", "other")), "a key less": without("node/")},
    "kubernetes": {
        "another container": patched(POOLS, {"op": "replace", "path": "/spec/allocations/2/id", "value": "other"}),
        "an allocation less": patched(POOLS, {"op": "remove", "path": "/spec/allocations/2"}),
        "an annotation": patched(POOLS, {"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}),
        "a reservation less": lambda backing: backing.ask("DELETE", f"{RESERVATIONS}/192.168.111.2"),
    },
}  # fmt: skip


@pytest.mark.parametrize("store", quick(SERVED, "etcd"))
def test_what_a_server_holds_is_a_part_of_the_state(executables: Path, tmp_path: Path, store: str) -> None:
    if unavailable_store(store):
        pytest.skip(unavailable_store(store))
    known_good = KnownGood(tmp_path)
    with Scene("macvlan", executables, store=store) as scene:
        scene.call("ADD", scene.renew()).succeeded()
        first = scene.settled(known_good)
        for what, change in SERVED[store].items():
            scene.call("ADD", scene.renew()).succeeded()
            assert scene.settled(known_good) == first, f"before {what}"
            change(scene.backing)
            assert scene.settled(known_good) != first, what
