"""Nodes that share a store, whatever its kind and however its server does: the fixtures `place` and `shared` of the store tests."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cni.link.plugins import whereabouts
from cni.shared.log import Log
from cni.shared.records import Records
from cni.shared.spec import request as requests
from ipam import ending, local, stores, upkeep
from ipam.group import rails
from ipam.ranges import format_address
from ipam.stores import base
from ipam.stores.base import CREATE, Store
from ipam.stores.ippool import locks
from tests import etcd
from tests.proxy import Proxy
from tests.stores import kubernetes_proxy
from tests.stores.kubernetes_api import ApiServer
from tests.stores.unwell import Unwell, ailing

RANGE = "10.0.0.0/24"
_prefixes = itertools.count()


def called(verb: str, container: str, config: dict[str, Any], state: Path | str, **environ: str) -> list[str]:
    """Call our IPAM plugin in this process; return the addresses that it gives. `environ` has more CNI variables, and
    `state` is the folder of the node's records."""
    variables = {"CNI_COMMAND": verb, "CNI_PATH": "/opt/cni/bin", **environ}
    attachment = {"CNI_CONTAINERID": container, "CNI_IFNAME": "net1", "CNI_NETNS": "/run/no-such-namespace"}
    if verb in ("GC", "STATUS"):
        variables = {name: value for name, value in variables.items() if name not in attachment}
    else:
        variables = attachment | variables
    result = whereabouts.call(requests.parse(variables, json.dumps(config).encode()), Log(), str(state))
    return [a.address for a in result.ips] if result else []


class Place:
    """Nodes that share a store, each with its records. `block` finds the store; a shared one is behind `proxy`, and one that is
    unwell behind `unwell`, too.

    `server` has the pods; for Kubernetes it is the store, too.
    """

    unwell: Unwell | None = None
    is_cut = False

    def __init__(self, directory: Path, block: dict[str, Any], proxy: Proxy | None, server: ApiServer) -> None:
        self.directory = directory
        self.server = server
        self.block = {"range": RANGE, "log_file": str(directory / "log"), "store_timeout": 10, **block}
        self.proxy = proxy
        self.shared = proxy is not None
        self.pods: dict[tuple[str, str], str] = {}  # uids
        self.hurry = pytest.MonkeyPatch()  # undone by `mend`

    def call(self, verb: str, container: str = "c1", pod: str = "", **more: Any) -> list[str]:
        """What an ADD gives, without lengths. `node`, `uid`, `ip`, `ifname`, `config`: else as `ipam`, into the block."""
        node = more.pop("node", "node-1")
        args = (
            f"K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod};K8S_POD_UID={more.pop('uid', '')}" if pod else "IgnoreUnknown=1"
        )
        if ip := more.pop("ip", ""):
            args += f";IP={ip}"
        config = {"cniVersion": "1.1.0", "name": "rdma-net", **more.pop("config", {})}
        environ = {"CNI_ARGS": args, "NODENAME": node, "CNI_IFNAME": more.pop("ifname", "net1")}
        config["ipam"] = self.block | more
        given = called(verb, container, config, self.directory / node, **environ)
        if verb in ("DEL", "GC"):
            self.make_up(node)
        return [address.partition("/")[0] for address in given]

    def make_up(self, node: str = "node-1") -> None:
        """Release what an unwell server has left pending, as the agent does; not while a test keeps the store out of reach."""
        if self.unwell and not self.is_cut:
            self.flush(None, node)

    def flush(self, store_ref: dict[str, Any] | None, node: str = "node-1") -> int:
        """The releases that are left after an attempt, or after some where the server is unwell."""
        records, left = self.records(node), 1
        for _ in range(6 if self.unwell else 1):
            left = upkeep.flush(records, store_ref, 10)
            if not records.is_reminded(0):
                break
        return left

    def add(self, container: str, pod: str = "", **more: Any) -> str:
        return " ".join(self.call("ADD", container, pod, **more))

    def delete(self, container: str, pod: str = "", **more: Any) -> None:
        self.call("DEL", container, pod, **more)

    def collect(self, *valid: str, **more: Any) -> None:
        listed = [{"containerID": container, "ifname": "net1"} for container in valid]
        self.call("GC", config={"cni.dev/valid-attachments": listed}, **more)

    def records(self, node: str = "node-1") -> Records:
        return Records(str(self.directory / node), Log())

    def pending(self) -> list[str]:
        return sorted(a.container_id for a, _, record in self.records().all("ipam") if record["pending"])

    @property
    def store_ref(self) -> dict[str, Any]:
        """The store itself, past the proxy, as the first record names it."""
        found: dict[str, Any] = self.records().all()[0][2]["store"]
        return found

    def check(self, container: str, pod: str, *addresses: str, **more: Any) -> None:
        """CHECK, with these addresses in the previous result."""
        previous = {"cniVersion": "1.1.0", "ips": [{"address": address} for address in addresses]}
        self.call("CHECK", container, pod, config=more.pop("config", {}) | {"prevResult": previous}, **more)

    def store(self, store_ref: dict[str, Any]) -> Store:
        return stores.open_store(store_ref, CREATE, local.restorer(store_ref, self.records()), 5)

    def leased(self, store_ref: dict[str, Any]) -> dict[str, str]:
        if self.unwell:
            self.unwell.catch_up()
        store = self.store(store_ref)
        found = [lease for pool in store.pools() for lease in store.leases(pool.name)]
        return {format_address(lease.family, lease.value): lease.container_id for lease in found}

    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text() if path.exists() else ""

    def age(self) -> None:
        """Let the reminder of pending releases be old."""
        os.utime(self.directory / "node-1/pending", (0, 0))


def _file(directory: Path) -> Iterator[Place]:
    server = ApiServer()
    yield Place(directory, {"datastore": "file", "dataDir": str(directory / "data")}, None, server)
    server.close()


def _etcd(directory: Path, is_unwell: bool = False) -> Iterator[Place]:
    if etcd.unusable():
        pytest.skip(etcd.unusable())
    server = ApiServer()
    prefix = f"/railcni-life-{os.getpid()}-{next(_prefixes)}"
    for proxy, unwell in _reached(etcd.shared(etcd.LARGE).members[0].port, True, is_unwell):
        block = {"datastore": "etcd", "etcd_host": f"127.0.0.1:{proxy.port}", "etcd_prefix": prefix}
        place = Place(directory, block, proxy, server)
        place.unwell = unwell
        yield place
    server.close()


def _kubernetes(directory: Path, is_unwell: bool = False, datastore: str = "kubernetes") -> Iterator[Place]:
    if is_unwell and kubernetes_proxy.path():
        pytest.skip("a real server is well")
    server = kubernetes_proxy.start()
    if is_unwell:
        server.lag()
    for proxy, unwell in _reached(server.port, False, is_unwell):
        kubeconfig = Path(server.kubeconfig(directory))
        kubeconfig.write_text(kubeconfig.read_text().replace(f":{server.port}", f":{proxy.port}"))
        block = {"datastore": datastore, "kubernetes": {"kubeconfig": str(kubeconfig)}}
        place = Place(directory, block, proxy, server)
        place.unwell = unwell
        yield place
    server.close()


def _reached(port: int, is_etcd: bool, is_unwell: bool) -> Iterator[tuple[Proxy, Unwell | None]]:
    with ExitStack() as stack:
        unwell = stack.enter_context(ailing(port, is_etcd)) if is_unwell else None
        yield stack.enter_context(Proxy(unwell.port if unwell else port)), unwell


def _addresslease(directory: Path, is_unwell: bool = False) -> Iterator[Place]:
    yield from _kubernetes(directory, is_unwell, "addresslease")


MAKERS: dict[str, Callable[[Path], Iterator[Place]]] = {
    "file": _file,
    "etcd": _etcd,
    "kubernetes": _kubernetes,
    "addresslease": _addresslease,
    "etcd, unwell": partial(_etcd, is_unwell=True),
    "kubernetes, unwell": partial(_kubernetes, is_unwell=True),
    "addresslease, unwell": partial(_addresslease, is_unwell=True),
}
SHARED = tuple(MAKERS)[1:]


def made(request: pytest.FixtureRequest, directory: Path, default: str = "") -> Iterator[Place]:
    """The place that a fixture's parameter names."""
    for place in MAKERS[getattr(request, "param", default)](directory):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(locks, "DIRECTORY", str(directory / "run"))
            yield place
        place.hurry.undo()


HURRY_SECONDS = 0.3  # in place of SHARED_SECONDS, for a store that gives no answer anyway


def silent(place: Place, when: Callable[[bytes], bool] = lambda data: True) -> None:
    """From now on requests `when` so get no answer."""
    fail(place, lambda data: "hold" if when(data) else "")


def cut(place: Place) -> None:
    fail(place, lambda data: "request")


def fail(place: Place, fault: Callable[[bytes], str]) -> None:
    assert place.proxy
    place.proxy.fault = fault
    place.is_cut = True
    for module in (base, ending, rails):
        place.hurry.setattr(module, "SHARED_SECONDS", HURRY_SECONDS)
    place.hurry.setattr(upkeep, "_FLUSH_SECONDS", HURRY_SECONDS)


def mend(place: Place) -> None:
    assert place.proxy
    place.proxy.fault = lambda data: ""
    place.is_cut = False
    place.hurry.undo()
