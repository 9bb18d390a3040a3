"""railcni ipam flush: the releases that a DEL could not make, in files and in Kubernetes; tests/stores/test_lease_life.py has
those in etcd too."""

import json

import pytest

from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from ipam.leases import PART, Owner, recorded_document
from tests.blackbox.test_kubernetes import DIRECTORY, KUBECONFIG, Server, network, pod, prepared, server  # noqa: F401
from tests.each import each_and
from tests.node import STATE, Node, Pod

pytestmark = pytest.mark.forked


def flush(node: Node, *options: str) -> tuple[int, int]:
    """The exit code, and how many are left; --dry-run says so before."""
    before = json.loads(node.railcni("ipam", "flush", "--dry-run", "-o", "json", *options).stdout)
    assert before["ended"] == []
    done = node.railcni("ipam", "flush", *options)
    assert b"Traceback" not in done.stderr and b"(cold)" not in done.stderr  # which is said of a plugin's call
    words = done.stdout.split()
    if done.stdout == b"nothing is pending\n":
        assert before["left"] == []
        return done.returncode, 0
    assert (words[-3], words[-1]) == (b"ended,", b"left"), words
    assert int(words[-4]) + int(words[-2]) == len(before["left"]) > 0
    return done.returncode, int(words[-2])


@pytest.mark.parametrize("datastore", ["kubernetes", "addresslease"])
def test_a_kubeconfig_alone_reaches_what_a_del_left_in_either_store(node: Node, datastore: str) -> None:
    """The node's own kubeconfig, which the record names, is of no use any more."""
    node.master()
    cluster, netns = prepared(node, datastore), node.pod()
    args = "K8S_POD_NAMESPACE=team;K8S_POD_NAME=web-0"
    config = network(store_timeout=1)
    node.cni("macvlan", "ADD", config, netns=netns, args=args).succeeded()
    own = node.path(DIRECTORY) / "whereabouts.kubeconfig"
    own.rename(node.path("/etc/cni/admin.kubeconfig"))
    node.cni("macvlan", "DEL", config, netns=netns, args=args)
    assert flush(node) == (1, 1)
    assert flush(node, "--kubeconfig", "/etc/cni/admin.kubeconfig") == (0, 0)
    assert (cluster.allocations(), cluster.reservations()) == ({}, [])
    assert node.railcni("ipam", "leases", "--kubeconfig", "/etc/cni/admin.kubeconfig").stdout == b""


def test_what_a_del_left_in_files_out_of_reach_is_released(node: Node) -> None:
    node.master()
    pod1 = node.pod()
    ipam = {"type": "whereabouts", "datastore": "file", "dataDir": f"{STATE}/stores/elsewhere", "range": "10.0.0.0/24"}
    config = {"cniVersion": "1.0.0", "name": "rail", "type": "macvlan", "master": "ens2f0", "ipam": ipam}
    node.cni("macvlan", "ADD", config, netns=pod1).succeeded()
    directory, away = node.path("/var/lib/cni/railcni/stores/elsewhere"), node.path("/var/lib/cni/railcni/stores/away")
    directory.rename(away)
    directory.write_text("no directory")
    assert node.cni("macvlan", "DEL", config, netns=pod1).code == 5
    assert flush(node) == (1, 1)
    directory.unlink()
    away.rename(directory)
    assert node.leases("/var/lib/cni/railcni/stores/elsewhere") == ["10.0.0.1"]
    assert flush(node) == (0, 0)
    assert node.leases("/var/lib/cni/railcni/stores/elsewhere") == []


FOLDER = "/etc/cni/net.d/whereabouts.d"
NEVER_ASKED = {  # keys of the ipam block with which no store is reached, and the code of the ADD
    "a kubeconfig that is not there": (7, {"kubernetes": {"kubeconfig": f"{FOLDER}/typo.kubeconfig"}}),
    "a kubeconfig that is no YAML": (7, {"kubernetes": {"kubeconfig": f"{FOLDER}/broken.kubeconfig"}}),
    "a kubeconfig outside of the folders": (7, {"kubernetes": {"kubeconfig": "/var/lib/broken.kubeconfig"}}),
    "AddressLeases of a server that does not run": (
        11, {"datastore": "addresslease", "kubernetes": {"kubeconfig": f"{FOLDER}/dead.kubeconfig"}}),
    "etcd that does not run": (11, {"etcd_host": "127.0.0.1:1"}),
    "etcd over TLS that does not run": (11, {"etcd_host": "https://127.0.0.1:1", "etcd_ca_cert_file": f"{FOLDER}/typo.crt"}),
    "a data directory that is a file": (5, {"datastore": "file", "dataDir": f"{STATE}/stores/typo/leases"}),
}  # fmt: skip


@each_and("scene", list(NEVER_ASKED), plugins=("macvlan", "host-device"))
def test_an_add_that_reached_no_store_leaves_nothing_and_corrected_works(node: Node, plugin: str, scene: str) -> None:
    code, block = NEVER_ASKED[scene]
    node.master()
    netns = node.pod()
    node.write(f"{FOLDER}/broken.kubeconfig", "foo: [")
    node.write(f"{STATE}/stores/typo", "no directory")
    node.write(f"{FOLDER}/dead.kubeconfig", KUBECONFIG.replace(":8001", ":1"))
    node.allow(storeHosts=["127.0.0.1"])
    node.remember()
    base = {"cniVersion": "1.0.0", "name": "rail", "type": plugin}
    base |= {"master": "ens2f0"} if plugin == "macvlan" else {"device": "ens2f0"}
    ipam = {"type": "whereabouts", "range": "192.168.8.0/24"}
    wrong = {**base, "ipam": {**ipam, "store_timeout": 1, **block}}
    right = {**base, "ipam": {**ipam, "datastore": "file"}}
    args = "K8S_POD_NAMESPACE=team;K8S_POD_NAME=web-0"
    for container in ("c1", "c2"):  # kubelet makes a new sandbox each time
        reply = node.cni(plugin, "ADD", wrong, container_id=container, netns=netns, args=args)
        assert (reply.code, node.leftovers()) == (code, []), reply.document
        node.cni(plugin, "DEL", wrong, container_id=container, netns=netns, args=args)
        assert node.leftovers() == []
    assert flush(node) == (0, 0)
    node.cni(plugin, "ADD", right, container_id="c1", netns=netns, args=args).succeeded()
    node.ended(plugin, right, container_id="c1", netns=netns, args=args)


def unaddressed(node: Node, container: str, store: dict[str, object]) -> None:
    """A record as an earlier version wrote it on the DEL of an ADD that had failed."""
    document = recorded_document(store, (), Owner(Attachment("rail", container, "net1")))
    Records(str(node.path(STATE))).write(Attachment("rail", container, "net1"), PART, {**document, "pending": True})


def test_a_delete_succeeds_although_only_a_newer_version_knows_the_store_and_flush_can_give_the_address_up(
    node: Node,
) -> None:
    """As after a return to an older version."""
    config = {"cniVersion": "1.1.0", "name": "n", "type": "macvlan"}
    config["ipam"] = {"type": "whereabouts", "datastore": "file", "range": "10.0.0.0/24"}
    node.cni("whereabouts", "ADD", config, netns="/dev/null").succeeded()
    records = Records(str(node.path(STATE)))
    ((attachment, _, record),) = records.all()
    records.write(attachment, PART, {**record, "store": {"kind": "tape"}})
    assert node.cni("whereabouts", "DEL", config, netns="/dev/null").succeeded() is None
    assert flush(node) == (1, 1)
    assert node.railcni("ipam", "flush", "--drop", "--yes").returncode == 0
    assert records.all() == []


def test_a_pending_record_without_an_address_ends_when_its_store_cannot_be_opened(node: Node) -> None:
    unaddressed(node, "c1", {"kind": "kubernetes", "kubeconfig": "/etc/cni/typo.kubeconfig"})
    assert flush(node) == (0, 0)
    assert node.files() == []


def test_a_pending_record_without_an_address_does_not_hold_up_an_add_in_another_store(node: Node) -> None:
    node.master()
    netns = node.pod()
    store = {"kind": "etcd", "endpoints": ["http://127.0.0.1:1"], "prefix": "/gone"}
    unaddressed(node, "c1", {**store, **dict.fromkeys(("user", "ca", "cert", "key"), "")})
    ipam = {"type": "whereabouts", "datastore": "file", "range": "192.168.8.0/24"}
    config = {"cniVersion": "1.0.0", "name": "rail", "type": "macvlan", "master": "ens2f0", "ipam": ipam}
    node.cni("macvlan", "ADD", config, netns=netns).succeeded()


def test_what_cannot_be_released_is_named_everywhere_and_given_up(node: Node, pod: Pod, server: Server) -> None:  # noqa: F811
    args = "K8S_POD_NAMESPACE=team;K8S_POD_NAME=web-0"
    config = network(store_timeout=1)
    node.cni("macvlan", "ADD", config, netns=pod, args=args).succeeded()
    (node.path(DIRECTORY) / "whereabouts.kubeconfig").rename(node.path("/etc/cni/away"))
    node.cni("macvlan", "DEL", config, netns=pod, args=args).succeeded()
    other = {**config, "ipam": {**config["ipam"], "datastore": "file"}}
    node.cni("macvlan", "ADD", other, netns=pod, args=args).refused(7, "192.168.111.1", "railcni ipam flush --drop")
    assert b"0 live, 0 whose namespace is gone, 1 with a pending release" in node.railcni("status").stdout
    for argv in ("attachments", "doctor -o json", f"ipam audit --data-dir {STATE}"):
        flat = b" ".join(node.railcni(*argv.split()).stdout.split())
        assert b"192.168.111.1" in flat and b"cannot be read" in flat, (argv, flat)
    assert flush(node) == (1, 1)
    asked = node.railcni("ipam", "flush", "--drop")
    assert (asked.returncode, b"--yes" in asked.stderr, len(node.files()) > 0) == (2, True, True)
    done = node.railcni("ipam", "flush", "--drop", "--yes")
    assert b"rdma-net net1 of container c1 (192.168.111.1)" in b" ".join(done.stdout.split())
    assert (done.returncode, node.files()) == (0, [])
    node.cni("macvlan", "ADD", other, netns=pod, args=args).succeeded()
