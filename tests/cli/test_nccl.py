"""The variables that NCCL needs in a pod, and the GID that NCCL chooses without them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from cni.cli import rdma
from cni.cli.doctor import pods
from cni.cli.doctor.finding import FAULT
from cni.node.inventory import devices as inventory
from cni.node.inventory.devices import Gid, Port
from cni.node.inventory.sandboxes import NamespaceView, SandboxInterface
from cni.shared.spec.errors import CniError
from tests import machines

V1, V2 = "IB/RoCE v1", "RoCE v2"
OWN_FUNCTION = (("fe80::1", V1), ("fe80::1", V2), ("192.168.1.5", V1), ("192.168.1.5", V2))  # as mlx5 has them
SHARED_NIC = (("fe80::1", V2), ("192.168.1.4", V2), ("192.168.1.5", V2))  # of rxe, with another pod's before it


def link(name: str, *addresses: str) -> SandboxInterface:
    return SandboxInterface(name, "macvlan", 9000, True, addresses)


def pod(*links: SandboxInterface) -> NamespaceView:
    return NamespaceView("/run/netns/a", "default/pod-1", links)


class Node:
    """A machine with a RoCE device mlx5_0, mlx5_1, ... for each table of (address, kind) that is added."""

    def __init__(self, root: Path) -> None:
        self.machine = machines.Machine(root)
        self.root = root

    def device(self, number: int, own: str, entries: Sequence[tuple[str, str]]) -> None:
        """`own` is the name of the pod's link, which has the last address of the table."""
        netdev = f"ens{number}f0"
        self.machine.netdev(netdev)
        self.machine.verbs(f"mlx5_{number}", netdev=netdev, size=16)
        for index, (address, kind) in enumerate(entries):
            self.machine.gid(
                f"mlx5_{number}", address, own if address == entries[-1][0] else netdev, kind=kind, index=index
            )

    def advice(self, *links: SandboxInterface) -> tuple[dict[str, str], list[str]]:
        return rdma.nccl_advice(pod(*links), inventory.read([pod(*links)], str(self.root)), str(self.root))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


ONE, TWO = ("net1", "192.168.1.5"), ("net2", "192.168.2.5")
OF_ONE = {"NCCL_IB_HCA": "=mlx5_0:1", "NCCL_SOCKET_IFNAME": "=net1"}
OF_BOTH = {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "NCCL_SOCKET_IFNAME": "=net1,net2"}
SIX = {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}
OWN_SIX = (("fe80::1", V1), ("fe80::1", V2), ("fd00::5", V1), ("fd00::5", V2))
# the table and the pod's link of each device; the pod's links; the variables, and words of each note
ADVICE: dict[str, tuple[list[tuple[str, Sequence[tuple[str, str]]]], list[tuple[str, ...]], dict[str, str], list[str]]] = {
    "a function of the pod's own needs no index from 2.21 on": (
        [("net1", OWN_FUNCTION)], [ONE], OF_ONE, ["NCCL before 2.21 needs NCCL_IB_GID_INDEX=3 too"]),
    "indexes that differ are left to NCCL, with a word on older versions": (
        [("net1", OWN_FUNCTION), ("net2", (("fe80::2", V2), ("192.168.2.5", V2)))], [ONE, TWO], OF_BOTH,
        ["here they differ: 3 of mlx5_0, 1 of mlx5_1"]),
    "on a NIC that pods share the range is the pod's address": (
        [("net1", SHARED_NIC)], [ONE], OF_ONE | {"NCCL_IB_ADDR_RANGE": "192.168.1.5/32"}, [""]),
    "a pod with IPv6 addresses alone gets their family": ([("net1", OWN_SIX)], [("net1", "fd00::5")], OF_ONE | SIX, [""]),
    "NCCL stays with an entry of RoCE v2 at index 0": (
        [("net1", (("fe80::2", V2), ("fd00::6", V2)))], [("net1", "fd00::6")],
        OF_ONE | {"NCCL_IB_GID_INDEX": "1"}, [""]),
    "where no range has the pod's GIDs alone, one index for all": (
        [("net1", SHARED_NIC), ("net2", (("fe80::2", V2), ("192.168.2.4", V2), ("192.168.2.5", V2)))], [ONE, TWO],
        OF_BOTH | {"NCCL_IB_GID_INDEX": "2"}, ["NCCL of every version needs the index"]),
    "where neither a range nor an index has them, that is said and is no error": (
        [("net1", SHARED_NIC), ("net2", (("fe80::2", V2), *((f"192.168.2.{n}", V2) for n in (3, 4, 5))))], [ONE, TWO],
        OF_BOTH, ["2 of mlx5_0, 3 of mlx5_1", "may choose the GID of another pod or link"]),
    "a link's first IPv4 address counts before its IPv6 address": (
        [("net1", (("fe80::1", V2), ("fd00::5", V2), ("192.168.1.5", V2)))], [("net1", "fd00::5", "192.168.1.5")],
        OF_ONE, ["needs NCCL_IB_GID_INDEX=2"]),
    "GIDs of RoCE v1 and of other links are not the pod's": (
        [("net2", (("fe80::1", V2), ("192.168.1.5", V2))),
         ("net1", (("fe80::1", V2), ("192.168.1.5", V1), ("192.168.1.5", V2)))], [ONE],
        OF_ONE | {"NCCL_IB_HCA": "=mlx5_1:1"}, [""]),
}  # fmt: skip


@pytest.mark.parametrize("case", ADVICE)
def test_the_variables_are_those_by_which_nccl_takes_the_pods_gids(node: Node, case: str) -> None:
    tables, links, variables, notes = ADVICE[case]
    for number, (own, entries) in enumerate(tables):
        node.device(number, own, entries)
    told = node.advice(*(link(*one) for one in links))
    assert told[0] == variables
    assert len(told[1]) == len(notes) and all(words in note for words, note in zip(notes, told[1], strict=True)), told


def test_a_pod_of_infiniband_is_told_its_device_and_nothing_of_roce(tmp_path: Path) -> None:
    machine = machines.infiniband(tmp_path)
    devices = inventory.read(root=str(machine.root))
    own = next(device for device in devices if device.ports[0].link_layer == "InfiniBand")
    inside = SandboxInterface("net1", "", 2044, True, ("10.0.0.5",), bus="pci", device=own.pci)
    told = rdma.nccl_advice(pod(inside), devices, str(machine.root))
    assert told == ({"NCCL_IB_HCA": f"={own.name}:1", "NCCL_SOCKET_IFNAME": "=net1"}, [])


def test_a_link_that_nccl_will_not_use_is_told_beside_those_that_it_uses(tmp_path: Path) -> None:
    machine = machines.Machine(tmp_path)
    links = []
    for number, (layer, state) in enumerate(
        (("InfiniBand", "4: ACTIVE"), ("InfiniBand", "2: INIT"), ("Ethernet", "4: ACTIVE"))
    ):
        nic = machine.nic(f"pci0000:3a/0000:3a:00.0/0000:3{number}:00.0")
        machine.netdev(f"ens{number}", nic)
        machine.verbs(f"mlx5_{number}", nic, f"ens{number}", size=4, link_layer=layer, state=state)
        links.append(SandboxInterface(f"net{number}", "", 9000, True, (f"10.0.{number}.5",), bus="pci", device=nic))
    told, notes = rdma.nccl_advice(pod(*links), inventory.read(root=str(machine.root)), str(machine.root))
    assert told["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert notes == [
        "NCCL leaves out mlx5_1 port 1 (net1) until it is ACTIVE: it is INIT",
        "net2 is left out: mlx5_2 port 1 has no RoCE v2 GID of its addresses; see `railcni doctor`",
    ]


def test_a_pod_without_a_gid_is_told_what_it_has_instead(node: Node) -> None:
    node.device(0, "net1", SHARED_NIC)
    with pytest.raises(CniError, match=r"RoCE v2 GID of default/pod-1, which has net1 192\.168\.1\.9: "):
        node.advice(link("net1", "192.168.1.9"))


@pytest.mark.parametrize(
    ("device", "netdev", "kind"),
    [("irdma0", "ens0f0", {"node_type": "4: RNIC"}), ("rdmap16s25", "", {"link_layer": "Unknown"})],
)
def test_nccl_does_not_use_iwarp_or_efa_by_itself(
    tmp_path: Path, device: str, netdev: str, kind: dict[str, str]
) -> None:
    machine = machines.Machine(tmp_path)
    machine.netdev("ens0f0")
    machine.verbs(device, netdev=netdev, size=1, **kind)
    inside = SandboxInterface("net1", "macvlan", 9000, True, ("10.0.0.5",), lower="ens0f0")
    with pytest.raises(CniError, match=f"^{device} has neither RoCE nor InfiniBand, .* EFA needs aws-ofi-nccl"):
        rdma.nccl_advice(pod(inside), inventory.read([pod(inside)], str(tmp_path)), str(tmp_path))


def port(number: int, *entries: tuple[str, str, str]) -> Port:
    gids = tuple(Gid(index, "", kind, address, ndev) for index, (address, ndev, kind) in enumerate(entries))
    return Port(
        *(f"mlx5_{number}", 1, f"ens{number}f0", "ACTIVE", "LinkUp", "Ethernet", True, "100 Gb/sec", True),
        *(9000, 4096, 16, gids),
    )


FIRST = port(0, ("fe80::1", "ens0f0", V2), ("192.168.1.5", "net1", V2))
SECOND = port(1, ("fe80::2", "ens1f0", V2), ("192.168.2.9", "net7", V2), ("192.168.2.5", "net2", V2))


@pytest.mark.parametrize(("value", "words"), [
    ("-1", ""), ("auto", ""), ("x", "it is no number"),
    ("0", "of mlx5_0 it is fe80::1 of ens0f0, RoCE v2; of mlx5_1 it is fe80::2 of ens1f0, RoCE v2"),
    ("1", "of mlx5_1 it is 192.168.2.9 of net7, RoCE v2"), ("2", "mlx5_0 has no entry there"),
    ("9", "mlx5_0 has no entry there; mlx5_1 has no entry there"),
])  # fmt: skip
def test_an_index_that_is_not_right_for_all_devices_is_told(value: str, words: str) -> None:
    assert rdma.wrong_index(value, [("net1", FIRST), ("net2", SECOND)]) == words


def test_doctor_finds_an_index_in_the_environment_of_a_pods_process_that_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "environ").write_bytes(b"HOME=/root\0NCCL_IB_GID_INDEX=3\0UCX_IB_GID_INDEX=auto\0NCCL_IB_HCA=mlx5\0")
    indexes = pods._indexes(str(tmp_path / "environ"))
    assert indexes == (("NCCL_IB_GID_INDEX", "3"), ("UCX_IB_GID_INDEX", "auto"))
    process = pods.PodProcess(7, ("rdma_cm", "uverbs0"), -1, indexes=indexes[:1])
    attached = [pods.AttachedLink(pod(), link("net1", "192.168.1.5"), (FIRST,))]
    found = [one for one in pods.check_pod(pod(), attached, [process]) if one.level == FAULT]
    assert [one.found for one in found] == ["NCCL_IB_GID_INDEX=3: mlx5_0 has no entry there"]
    assert found[0].remedy.startswith("leave NCCL_IB_GID_INDEX out: the library then chooses")
