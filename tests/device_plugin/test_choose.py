"""Which functions a resource has, how many devices it offers, and which device nodes a container gets."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.resources import config
from cni.resources.choose import Offer, Resource, resources, spread
from cni.resources.node import read_host
from cni.resources.selection import Host
from tests.device_plugin.scene import Machine
from tests.node import ROOT


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Two NICs, one of them InfiniBand by its netdev, soft-RoCE, and a NIC without RDMA."""
    machine = Machine(tmp_path_factory.mktemp("mixed"))
    machine.nic(0)
    machine.nic(1)
    machine.tree.put(machine.root / "sys/class/net/ens1f0", {"type": 32})
    machine.tree.netdev("eth0")
    machine.rxe("rxe0", "eth0", 7)
    machine.tree.pci("0000:01:00.0", driver="igb", vendor="0x8086", device="0x1521", **{"class": "0x020000"})
    return machine


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A NIC with four VFs, one without, two functions of igb with the default route on the first, and a disk."""
    machine = Machine(tmp_path_factory.mktemp("functions"))
    machine.nic(0, vfs=4)
    machine.nic(1)
    for number, name in enumerate(("eth0", "eth1")):
        address = f"0000:01:00.{number}"
        machine.tree.pci(address, driver="igb", vendor="0x8086", device="0x1521", **{"class": "0x020000"})
        machine.tree.netdev(name, pci=address)
    route = "Iface\tDestination\n" + "\t".join(["eth0", *["00000000"] * 10])
    machine.tree.put(machine.root / "proc/1/net", {"route": route})
    machine.tree.put(machine.tree.pci("0000:02:00.0"), {"class": "0x010802"})
    return machine


def test_a_nic_that_the_node_needs_is_withheld_with_the_reason_unless_its_policy_lets_it_go(functions: Machine) -> None:
    found = exclusive(functions, {"drivers": ["igb"]})
    assert [offer.name for offer in found.offers] == ["0000:01:00.1"]
    assert list(found.withheld) == ["0000:01:00.0"]
    assert '"eth0" carries the default route (0.0.0.0/0' in found.withheld["0000:01:00.0"]
    policy = functions.root / "etc/cni/net.d/whereabouts.d/railcni.json"
    for listed in ("eth0", "0000:01:00.0"):
        functions.tree.put(policy.parent, {policy.name: json.dumps({"uplinks": [listed]})})
        policy.chmod(0o600)
        found = exclusive(functions, {"drivers": ["igb"]})
        assert (len(found.offers), found.withheld) == (2, {})
    policy.unlink()


def test_ports_of_the_bond_with_the_default_route_are_withheld(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for number in range(3):
        machine.nic(number)
    machine.tree.netdev("bond0", lower=["ens0f0", "ens1f0"])
    machine.tree.netdev("bond0.5", lower=["bond0"])
    route = "Iface\tDestination\n" + "\t".join(["bond0.5", *["00000000"] * 10])
    machine.tree.put(machine.root / "proc/1/net", {"route": route})
    found = exclusive(machine, {"vendors": ["15b3"]})
    assert [offer.name for offer in found.offers] == ["0000:32:00.0"]
    assert [reason.partition(": ")[2].partition(" carries")[0] for reason in found.withheld.values()] == [
        '"bond0.5", on top of "ens0f0",',
        '"bond0.5", on top of "ens1f0",',
    ]


IN_THE_NODES_NAMESPACE = """
for words in "link add ens0f0 type veth peer name other" "link set other up" "link set ens0f0 up" \\
    "address add 10.77.0.1/24 dev ens0f0" \\
    "route add 10.88.0.0/16 via 10.77.0.254 dev ens0f0 proto bgp"; do
    ip $words || exit 1
done
exec "$@"
"""


def test_in_the_nodes_own_network_namespace_the_kernel_is_asked_as_the_plugins_ask_it() -> None:
    """`railcni vfs` on the node, and the device plugin with the node's network."""
    code = "from cni.node.inventory import topology; print(topology.uplinks('/proc/self'), topology.uplinks('/proc/1'))"
    command = ["unshare", "--net", "sh", "-c", IN_THE_NODES_NAMESPACE, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert '"ens0f0" carries the route 10.88.0.0/16 via 10.77.0.254 of a routing daemon' in done.stdout, done.stderr
    assert done.stdout.count("10.88.0.0/16") == 1  # process 1 is in another namespace


def chosen(machine: Machine, document: dict[str, Any], before: Host | None = None) -> list[Resource]:
    read = config.read([("config.json", json.dumps(document))])
    assert read.findings == []
    return resources(read.resources, read_host(str(machine.root), before))


def shared(machine: Machine, most: int = 100, **more: Any) -> Resource:
    member = {"resourceName": "a", "rdmaHcaMax": most, "selectors": {"vendors": ["15b3"]}, **more}
    (found,) = chosen(machine, {"configList": [member]})
    return found


def exclusive(machine: Machine, *selectors: dict[str, Any], before: Host | None = None, **more: Any) -> Resource:
    member = {"resourceName": "vf", "selectors": list(selectors), **more}
    (found,) = chosen(machine, {"resourceList": [member]}, before)
    return found


def names(resource: Resource) -> list[str]:
    return [offer.name for offer in resource.offers]


def paths(offer: Offer) -> list[str]:
    return [path.removeprefix("/dev/") for path, _ in offer.nodes]


def test_each_nic_has_devices_of_its_own_and_they_bring_its_nodes_alone(machine: Machine) -> None:
    for number in range(2):
        machine.nic(number)
    first, second = shared(machine).offers
    assert (first.name, first.ids[0], first.ids[-1]) == ("0000:30:00.0", "0000:30:00.0-0", "0000:30:00.0-49")
    assert paths(first) == ["infiniband/uverbs0", "infiniband/rdma_cm"]
    assert paths(second) == ["infiniband/uverbs1", "infiniband/rdma_cm"]
    assert (first.numa_nodes, second.numa_nodes) == ((0,), (1,))


def test_umad_and_issm_are_given_where_they_are_asked_for(machine: Machine) -> None:
    machine.nic(0)
    (offer,) = shared(machine, umad=True).offers
    assert paths(offer) == [f"infiniband/{name}" for name in ("uverbs0", "umad0", "issm0", "rdma_cm")]


def test_a_container_can_be_given_every_nic_at_once(machine: Machine) -> None:
    for number in range(2):
        machine.nic(number)
    machine.port("mlx5_1", "1: DOWN")
    (offer,) = shared(machine, allNics=True).offers
    assert (offer.name, offer.ids[0], offer.fault, offer.numa_nodes) == ("all", "all-0", "", (0, 1))
    assert paths(offer) == ["infiniband/uverbs0", "infiniband/rdma_cm"]
    machine.port("mlx5_1", "4: ACTIVE")
    (offer,) = shared(machine, allNics=True).offers
    assert paths(offer) == [f"infiniband/{name}" for name in ("uverbs0", "rdma_cm", "uverbs1")]


@pytest.mark.parametrize(("selectors", "wanted"), [
    ({"vendors": ["15b3"]}, ["0000:30:00.0", "0000:31:00.0"]),
    ({"vendors": ["8086"]}, []),
    ({"vendors": ["15B3"], "deviceIDs": ["0x101d"]}, ["0000:30:00.0", "0000:31:00.0"]),
    ({"deviceIDs": ["1017"]}, []),
    ({"drivers": ["mlx5_core"], "ifNames": ["ens1f0"]}, ["0000:31:00.0"]),
    ({"ifNames": ["ens0f0", "eth9"]}, ["0000:30:00.0"]),
    ({"linkTypes": ["infiniband"]}, ["0000:31:00.0"]),
    ({"linkTypes": ["ether"]}, ["0000:30:00.0", "rxe0"]),
    ({"drivers": ["rdma_rxe"]}, ["rxe0"]),
    ({"ifNames": ["eth0"]}, ["rxe0"]),
])  # fmt: skip
def test_shared_nics_are_chosen_by_all_selectors(mixed: Machine, selectors: dict[str, Any], wanted: list[str]) -> None:
    assert names(shared(mixed, selectors=selectors)) == wanted


def test_soft_roce_is_offered_with_its_own_node(machine: Machine) -> None:
    machine.tree.netdev("eth0")
    machine.rxe("rxe0", "eth0", 7)
    (offer,) = shared(machine, selectors={"ifNames": ["eth0"]}).offers
    assert (offer.ids[:1], paths(offer)) == (("rxe0-0",), ["infiniband/uverbs7", "infiniband/rdma_cm"])


def test_the_number_is_bounded_by_the_free_gids_of_each_port(machine: Machine) -> None:
    machine.nic(0, size=64)
    machine.tree.gid("mlx5_0", "fe80::1", ndev="ens0f0", kind="IB/RoCE v1")  # beside its RoCE v2 entry
    for number in range(5):
        machine.tree.gid("mlx5_0", f"192.168.1.{number}", ndev="net1")  # of pods: they have devices already
    assert shared(machine, 1000).healthy == (64 - 2) // 4
    assert shared(machine, 1000, gidsPerDevice=1).healthy == 62
    assert shared(machine, 1000, gidsPerDevice=0).healthy == 1000


def test_what_one_nic_has_no_room_for_the_others_take(machine: Machine) -> None:
    machine.nic(0, size=11)
    machine.nic(1, size=256)
    assert [len(offer.ids) for offer in shared(machine, 60).offers] == [5, 55]


def test_the_gids_of_pods_whose_links_have_the_name_of_another_netdev_of_the_host_are_not_the_hosts(
    machine: Machine,
) -> None:
    machine.nic(0, size=256)
    machine.tree.netdev("eth1")  # of the host, on no RDMA NIC
    machine.tree.netdev("ens0f0.7", lower=["ens0f0"])
    for pod in range(20):
        for kind in ("IB/RoCE v1", "RoCE v2"):
            machine.tree.gid("mlx5_0", f"192.168.1.{pod}", ndev="eth1", kind=kind)
    assert shared(machine, 1000).healthy == (256 - 1) // 4
    machine.tree.gid("mlx5_0", "192.168.7.1", ndev="ens0f0.7")
    machine.tree.gid("mlx5_0", "fe80::7", ndev="ens0f0.7")
    machine.tree.gid("mlx5_0", "fd00::7", ndev="ens0f0.7")
    assert shared(machine, 1000).healthy == (256 - 4) // 4


@pytest.mark.parametrize(("first", "second", "wanted"), [
    ({"rdmaHcaMax": 1000}, {"rdmaHcaMax": 1000}, (31, 31)),
    ({"rdmaHcaMax": 10}, {"rdmaHcaMax": 1000}, (10, 53)),
    ({"rdmaHcaMax": 1000, "gidsPerDevice": 1}, {"rdmaHcaMax": 1000, "gidsPerDevice": 4}, (126, 31)),
    ({"rdmaHcaMax": 1000, "gidsPerDevice": 0}, {"rdmaHcaMax": 1000}, (1000, 63)),
    ({"rdmaHcaMax": 1000, "allNics": True}, {"rdmaHcaMax": 1000}, (31, 31)),
])  # fmt: skip
def test_resources_that_choose_one_nic_divide_its_gids(
    machine: Machine, first: dict[str, Any], second: dict[str, Any], wanted: tuple[int, int]
) -> None:
    machine.nic(0, size=256)
    machine.tree.gid("mlx5_0", "fe80::1", ndev="ens0f0", kind="IB/RoCE v1")
    members = [{"resourceName": name, "devices": ["ens0f0"], **more} for name, more in (("a", first), ("b", second))]
    assert tuple(found.healthy for found in chosen(machine, {"configList": members})) == wanted


def test_a_number_that_the_gid_tables_do_not_allow_is_told_with_the_reason(machine: Machine) -> None:
    machine.nic(0, size=256)
    machine.tree.gid("mlx5_0", "fe80::1", ndev="ens0f0", kind="IB/RoCE v1")
    assert shared(machine, 1000).limit == "63 of 1000: the GID table has 256 entries, 4 a device"
    assert shared(machine, 63).limit == shared(machine, 1000, gidsPerDevice=0).limit == ""
    machine.nic(1, size=128)
    told = "126 of 1000: the GID tables of 2 NICs have 128 to 256 entries, 2 to 4 a device"
    assert shared(machine, 1000).limit == told


def test_in_the_exclusive_mode_of_rdma_no_shared_device_is_healthy(machine: Machine) -> None:
    machine.nic(0)
    mode = machine.root / "sys/module/ib_core/parameters"
    machine.tree.put(mode, {"netns_mode": "N"})
    found = shared(machine)
    assert (found.healthy, "rdma system set netns shared" in found.offers[0].fault) == (0, True)
    assert exclusive(machine, {"vendors": ["15b3"]}).healthy == 1
    machine.tree.put(mode, {"netns_mode": "Y"})
    assert shared(machine, 50).healthy == 50


@pytest.mark.parametrize(("key", "member", "told"), [
    ("configList", {"devices": ["ens0"]}, "ifNames ens0: there are ens0f0, ens0v0, ens0v1"),
    ("configList", {"devices": ["bond0"]}, "ifNames bond0: bond0 is a link on top of ens0f0, eth9: name these"),
    ("configList", {"devices": ["en1"]}, "ifNames en1: there are ens0f0, ens0v0, ens0v1"),
    ("configList", {"devices": ["eno1"]}, "ifNames eno1: eno1 has no verbs device"),
    ("configList", {"selectors": {"vendors": ["8086"]}}, "vendors 8086: eno1 has no verbs device"),
    ("configList", {"selectors": {"drivers": ["mlx5_ib"]}}, "drivers mlx5_ib: there is mlx5_core"),
    ("configList", {"selectors": {"vendors": ["8086"], "linkTypes": ["infiniband"]}},
     "vendors 8086: eno1 has no verbs device (`railcni doctor` names a verbs driver that is not loaded); linkTypes"),
    ("resourceList", {"selectors": {"pfNames": ["ens0f0#2-7"]}}, "pfNames ens0f0#2-7: ens0f0 has the VFs 0 to 1"),
    ("resourceList", {"selectors": {"pfNames": ["eno1#0"]}}, "pfNames eno1#0: eno1 has no VF"),
    ("resourceList", {"selectors": {"rootDevices": ["0000:99:00.0"]}},
     "rootDevices 0000:99:00.0: there are 0000:01:00.0, 0000:30:00.0"),
    ("resourceList", {"selectors": {"drivers": ["igb"], "isRdma": True}}, "no function matches all of drivers"),
    ("resourceList", {"selectors": [{"vendors": ["1dd8"]}, {"devices": ["1002"]}]},
     "vendors 1dd8: there are 15b3, 8086; devices 1002: there are 101d, 1521"),
])  # fmt: skip
def test_a_resource_without_a_device_names_each_selector_with_what_there_is(
    machine: Machine, key: str, member: dict[str, Any], told: str
) -> None:
    machine.nic(0, vfs=2)
    machine.tree.pci("0000:01:00.0", driver="igb", vendor="0x8086", device="0x1521", **{"class": "0x020000"})
    machine.tree.netdev("eno1", pci="0000:01:00.0")
    machine.tree.netdev("eth9")
    machine.tree.netdev("bond0", lower=["ens0f0", "eth9"])
    if key == "configList":
        member = {"rdmaHcaMax": 10, **member}
    (found,) = chosen(machine, {key: [{"resourceName": "a", **member}]})
    assert found.unchosen.startswith(f"no NIC or function is chosen: {told}")
    assert found.offers == ()


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_shared_resource_of_a_nic_without_its_verbs_driver_says_that(machine: Machine, is_alone: bool) -> None:
    if not is_alone:
        machine.nic(0)
    machine.tree.pci("0000:01:00.0", driver="bnxt_en", vendor="0x14e4", device="0x1760", **{"class": "0x020000"})
    told = shared(machine, selectors={"drivers": ["bnxt_en"]}).unchosen
    assert "0000:01:00.0 has no verbs device (`railcni doctor` names a verbs driver that is not loaded)" in told


def test_a_resource_of_functions_says_that_a_software_device_is_none(machine: Machine) -> None:
    machine.tree.netdev("eth0")
    machine.rxe("rxe0", "eth0", 7)
    told = exclusive(machine, {"pfNames": ["eth0"]}).unchosen
    assert "eth0 is not on PCI: a resource of configList can have it" in told


def test_a_resource_whose_functions_an_earlier_one_has_names_them(machine: Machine) -> None:
    machine.nic(0)
    members = [{"resourceName": name, "selectors": {"vendors": ["15b3"]}} for name in ("first", "second")]
    first, second = chosen(machine, {"resourceList": members})
    assert (first.unchosen, second.unchosen) == (
        "",
        "no NIC or function is chosen: earlier resources have 0000:30:00.0",
    )


@given(st.integers(0, 500), st.lists(st.integers(0, 100), max_size=8))
def test_devices_are_spread_evenly_within_the_bounds(total: int, bounds: list[int]) -> None:
    counts = spread(total, bounds)
    assert all(count <= bound for count, bound in zip(counts, bounds, strict=True))
    assert sum(counts) == min(total, sum(bounds))
    open_ = [count for count, bound in zip(counts, bounds, strict=True) if count < bound]
    assert not open_ or max(counts) - min(open_) <= 1


@pytest.mark.parametrize(("broken", "fault"), [
    (lambda m: m.port("mlx5_0", "1: DOWN"), "mlx5_0 port 1 is DOWN (LinkUp)"),
    (lambda m: (m.root / "dev/infiniband/uverbs0").unlink(), "/dev/infiniband/uverbs0: there is no such device node"),
    (lambda m: os.unlink(m.root / "sys/class/infiniband_verbs/uverbs0"), "has no uverbs device: modprobe ib_uverbs"),
    (lambda m: os.unlink(m.root / "sys/bus/pci/devices/0000:30:00.0/driver"), "0000:30:00.0 has no driver"),
])  # fmt: skip
def test_a_nic_that_cannot_be_used_is_not_healthy_and_says_why(machine: Machine, broken: Any, fault: str) -> None:
    machine.nic(0)
    machine.nic(1)
    broken(machine)
    found = shared(machine)
    assert fault in found.offers[0].fault
    assert (found.offers[1].fault, found.healthy, len(found.offers[0].ids)) == ("", 50, 50)


def test_a_node_without_rdma_cm_offers_its_nics_all_the_same(machine: Machine) -> None:
    machine.nic(0)
    (machine.root / "dev/infiniband/rdma_cm").unlink()
    (offer,) = shared(machine).offers
    assert (offer.fault, paths(offer)) == ("", ["infiniband/uverbs0"])


VFS = [f"0000:30:00.{n}" for n in range(1, 5)]


@pytest.mark.parametrize(("selectors", "wanted"), [
    ({"pfNames": ["ens0f0"]}, VFS),
    ({"pfNames": ["ENS0F0#0,2-3"]}, [VFS[0], VFS[2], VFS[3]]),
    ({"rootDevices": ["0000:30:00.0#1"]}, [VFS[1]]),
    ({"rootDevices": ["0000:31:00.0"]}, ["0000:31:00.0"]),
    ({"pciAddresses": [VFS[2], "0000:99:00.0"]}, [VFS[2]]),
    ({"vendors": ["15b3"], "devices": ["101d"]}, [*VFS, "0000:31:00.0"]),
    ({"vendors": ["15b3"], "isRdma": True}, [*VFS, "0000:31:00.0"]),
    ({"drivers": ["igb"]}, ["0000:01:00.1"]),
    ({"drivers": ["igb"], "isRdma": True}, []),
    ({"linkTypes": ["infiniband"]}, []),
    ({}, ["0000:01:00.1", *VFS, "0000:31:00.0"]),
])  # fmt: skip
def test_exclusive_functions_are_chosen_by_all_selectors(
    functions: Machine, selectors: dict[str, Any], wanted: list[str]
) -> None:
    assert names(exclusive(functions, selectors)) == wanted


@pytest.mark.parametrize("driver", ["mlx5_core", "vfio-pci"])
@pytest.mark.parametrize(("selectors", "is_chosen"), [
    ({"pfNames": ["ens5"]}, "netdev"),
    ({"rootDevices": ["0000:00:05.0"]}, "yes"),
    ({"pciAddresses": ["0000:00:05.0"]}, "yes"),
    ({"vendors": ["15b3"], "devices": ["101e"]}, "yes"),
    ({"drivers": ["mlx5_core"], "isRdma": True}, "netdev"),
    ({"drivers": ["vfio-pci"]}, "vfio"),
    ({"pfNames": ["ens5#0-3"]}, "no"),
    ({"rootDevices": ["0000:00:05.0#0"]}, "no"),
])  # fmt: skip
def test_a_vf_in_a_virtual_machine_where_its_pf_is_not_is_chosen_as_itself(
    machine: Machine, driver: str, selectors: dict[str, Any], is_chosen: str
) -> None:
    """A range is of VFs that this machine makes: with one, the PF of a card whose SR-IOV is off would be given away."""
    address = "0000:00:05.0"
    attributes = {"vendor": "0x15b3", "device": "0x101e", "class": "0x020000"}
    folder = machine.tree.pci(address, driver=driver, **attributes)
    if driver == "mlx5_core":
        machine.tree.netdev("ens5", pci=address)
        machine.tree.verbs("mlx5_0", pci=address, netdev="ens5", nodes={"uverbs0": "infiniband_verbs"})
        machine.node("infiniband/uverbs0")
    else:
        group = machine.root / "sys/kernel/iommu_groups/0"
        machine.tree.put(group, {"name": "vfio-noiommu"})
        machine.tree.link(folder.relative_to(machine.tree.root) / "iommu_group", group)
        for name in ("vfio/vfio", "vfio/noiommu-0"):
            machine.node(name)
    found = exclusive(machine, selectors)
    wanted = is_chosen == "yes" or is_chosen == {"mlx5_core": "netdev", "vfio-pci": "vfio"}[driver]
    assert (names(found), found.healthy) == (([address], 1) if wanted else ([], 0))
    if is_chosen == "no" and (driver == "mlx5_core" or "rootDevices" in selectors):
        assert "itself is offered, such as a VF in a virtual machine" in found.unchosen


def test_a_function_is_the_first_resources_that_chooses_it(machine: Machine) -> None:
    machine.nic(0, vfs=4)
    some = {"resourceName": "some", "selectors": {"pfNames": ["ens0f0#0-1"]}}
    rest = {"resourceName": "rest", "selectors": [{"pfNames": ["ens0f0"]}, {"vendors": ["15b3"]}]}
    first, second = chosen(machine, {"resourceList": [some, rest]})
    assert (names(first), names(second)) == (VFS[:2], VFS[2:])


def test_an_rdma_function_brings_its_nodes_and_says_so(machine: Machine) -> None:
    machine.nic(0, vfs=1)
    more = {"additionalInfo": {"*": {"token": "all", "x": 1}, VFS[0]: {"token": "one"}}}
    (offer,) = exclusive(machine, {"pfNames": ["ens0f0"], "isRdma": True}, **more).offers
    assert paths(offer) == ["infiniband/uverbs100", "infiniband/rdma_cm"]
    assert offer.info == {
        "generic": {"deviceID": VFS[0]},
        "rdma": {"uverbs": "/dev/infiniband/uverbs100", "rdma_cm": "/dev/infiniband/rdma_cm", "rdma_dev": "mlx5_0v0"},
        "extra": {"token": "one", "x": 1},
    }
    pci = {"pci-address": VFS[0], "pf-pci-address": "0000:30:00.0", "rdma-device": "mlx5_0v0"}
    assert offer.file == {"type": "pci", "version": "1.1.0", "pci": pci}
    assert offer.numa_nodes == (0,)
    assert exclusive(machine, {"pfNames": ["ens0f0"]}, excludeTopology=True).offers[0].numa_nodes == ()


@pytest.mark.parametrize(("name", "on_host"), [("", "vfio/42"), ("vfio-noiommu", "vfio/noiommu-42")])
def test_a_function_of_vfio_brings_the_node_of_its_group(machine: Machine, name: str, on_host: str) -> None:
    machine.nic(0)
    folder = machine.tree.pci(
        "0000:30:00.1", driver="vfio-pci", physical="0000:30:00.0", vendor="0x15b3", **{"class": "0x020000"}
    )
    group = machine.root / "sys/kernel/iommu_groups/42"
    machine.tree.put(group, {"name": name} if name else {"type": "DMA"})
    machine.tree.link(folder.relative_to(machine.tree.root) / "iommu_group", group)
    for path in ("vfio/vfio", on_host):
        machine.node(path)
    (offer,) = exclusive(machine, {"drivers": ["vfio-pci"]}).offers
    assert offer.fault == ""
    assert offer.nodes == (("/dev/vfio/vfio", "/dev/vfio/vfio"), ("/dev/vfio/42", f"/dev/{on_host}"))
    assert offer.info["vfio"] == {"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/42"}
    (machine.root / "dev" / on_host).unlink()
    assert f"/dev/{on_host}" in exclusive(machine, {"drivers": ["vfio-pci"]}).offers[0].fault


def test_vhost_net_is_shared_where_the_node_has_it(machine: Machine) -> None:
    machine.nic(0)
    assert exclusive(machine, {"needVhostNet": True}).offers[0].nodes == ()
    for name in ("vhost-net", "net/tun"):
        machine.node(name)
    assert paths(exclusive(machine, {"needVhostNet": True}).offers[0]) == ["vhost-net", "net/tun"]


def test_a_function_in_a_pod_is_still_the_resources(machine: Machine) -> None:
    """The netdev of a VF and, in RDMA's exclusive mode, its verbs device are hidden while a pod has them."""
    machine.nic(0, vfs=2)
    machine.nic(1)
    before = read_host(str(machine.root))
    for address, netdev, verbs in ((VFS[0], "ens0v0", "mlx5_0v0"), ("0000:31:00.0", "ens1f0", "mlx5_1")):
        folder = machine.root / "sys/bus/pci/devices" / address
        (folder / "net" / netdev).rename(machine.root / netdev)
        (folder / "infiniband" / verbs).rename(machine.root / verbs)
        os.unlink(machine.root / "sys/class/infiniband" / verbs)
        os.unlink(machine.root / "sys/class/net" / netdev)
    vfs = exclusive(machine, {"pfNames": ["ens0f0"], "linkTypes": ["ether"], "isRdma": True})
    assert (names(vfs), vfs.healthy) == (VFS[:2], 2)
    assert names(exclusive(machine, {"pfNames": ["ens1f0"]}, before=before)) == ["0000:31:00.0"]


def test_a_nic_without_umad_and_issm_is_offered(tmp_path: Path) -> None:
    """k8s-rdma-shared-dev-plugin #94, #113, #159: "missing RDMA device spec ..., RDMA device issm not found"."""
    machine = Machine(tmp_path)
    kinds = {"vendor": "0x8086", "device": "0x1592", "class": "0x020000"}
    machine.tree.pci("0000:b5:00.0", driver="ice", **kinds)
    machine.tree.netdev("ens9f0", pci="0000:b5:00.0")
    machine.tree.verbs("irdma0", pci="0000:b5:00.0", netdev="ens9f0", nodes={"uverbs4": "infiniband_verbs"})
    machine.node("infiniband/uverbs4")
    text = '{"configList": [{"resourceName": "a", "rdmaHcaMax": 5, "selectors": {"vendors": ["8086"]}, "umad": %s}]}'
    for asked in ("false", "true"):
        read = config.read([("config.json", text % asked)])
        (found,) = resources(read.resources, read_host(str(tmp_path)))
        (offer,) = found.offers
        assert (offer.fault, found.healthy) == ("", 5)
        assert [path for path, _ in offer.nodes] == ["/dev/infiniband/uverbs4", "/dev/infiniband/rdma_cm"]
