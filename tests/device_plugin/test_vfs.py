"""The virtual functions that a configuration asks for: what is read, and what would be done on a tree of sysfs.

The real kernel does it in the lab: tests/lab/test_vfs.py.
"""

import errno
import json
import os
import re
import struct
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cni.node.inventory.functions import Function
from cni.resources.config import Config, read
from cni.resources.vfs import cards
from cni.resources.vfs.apply import apply
from cni.resources.vfs.plan import VfPlan, VfStep, plan
from cni.shared.kernel.links import ifinfo
from cni.shared.kernel.netlink import KernelError, attribute
from cni.shared.kernel.vfs import NO_MAC
from tests import command
from tests.device_plugin.scene import Machine
from tests.node import Node

PF = "0000:30:00.0"
OPERATORS = """# as sriov-network-operator's guide has it
apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetworkNodePolicy
metadata:
  name: policy-1
  namespace: sriov-network-operator
spec:
  resourceName: mlxnics
  nodeSelector:
    feature.node.kubernetes.io/network-sriov.capable: "true"
  priority: 90
  mtu: 1500
  numVfs: 6
  nicSelector:
    vendor: "15b3"
    pfNames: ["ens0f0#0-3"]
  deviceType: vfio-pci
---
apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetworkNodePolicyList
items:
- kind: SriovNetworkNodePolicy
  spec:
    resourceName: rest
    priority: 10
    numVfs: 6
    nicSelector: {rootDevices: ["0000:30:00.0#4-5"]}
    isRdma: true
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.nic(0)
    made.tree.put(made.tree.pci(PF), {"sriov_numvfs": 0, "sriov_totalvfs": 8})
    return made


def with_vfs(tmp_path: Path, number: int = 2) -> Machine:
    made = Machine(tmp_path)
    made.nic(0, vfs=number)
    return made


def policy(**more: Any) -> dict[str, Any]:
    return {"nicSelector": {"pfNames": ["ens0f0"]}, "numVfs": 2, **more}


def config(*policies: dict[str, Any]) -> Config:
    return read([("config.json", json.dumps({"virtualFunctions": policies}))])


def planned(machine: Machine, *policies: dict[str, Any], kubelet: str = "") -> VfPlan:
    found = config(*policies)
    assert found.findings == []
    return plan(found.policies, cards.read(str(machine.root), kubelet))


def steps(found: VfPlan) -> list[str]:
    return [step.sentence for step in found.steps]


def railcni(*words: str) -> tuple[int, str, str]:
    """The exit code of the command, and what it said."""
    done = command.run(words, env=os.environ)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_objects_of_sriov_network_operator_are_read_as_they_are() -> None:
    found = read([("policies.yaml", OPERATORS)])
    assert [f"{f.severity} {f.key}" for f in found.findings] == ["warning spec.nodeSelector"]
    assert [(p.priority, p.numVfs, p.deviceType, p.mtu) for p in found.policies] == [
        (10, 6, "netdevice", None),
        (90, 6, "vfio-pci", 1500),
    ]
    first, second = found.resources
    assert (first.name, second.name) == ("openshift.io/mlxnics", "openshift.io/rest")
    assert first.model_dump()["selectors"][0] == {
        **{key: [] for key in ("vendors", "linkTypes", "devices", "pciAddresses", "rootDevices")},
        "drivers": ["vfio-pci"],
        "pfNames": ["ens0f0#0-3"],
        "isRdma": False,
        "needVhostNet": False,
    }


def test_a_resource_of_a_whole_card_names_its_vfs_so_that_the_card_itself_is_never_offered() -> None:
    (resource,) = config(policy(resourceName="all")).resources
    assert resource.model_dump()["selectors"][0]["pfNames"] == ["ens0f0#0-1"]


def test_policies_with_one_resource_name_make_one_resource() -> None:
    found = config(policy(resourceName="a"), policy(resourceName="a", nicSelector={"pfNames": ["ens1f0"]}))
    assert found.findings == []
    (resource,) = found.resources
    assert [s["pfNames"] for s in resource.model_dump()["selectors"]] == [["ens0f0#0-1"], ["ens1f0#0-1"]]


@pytest.mark.parametrize(("member", "finding"), [
    ({"numVfs": -1}, "error virtualFunctions[1].numVfs: -1: want 0 or more (write a number such as"),
    ({"numVfs": None}, 'error virtualFunctions[1].numVfs: numVfs is missing (add "numVfs")'),
    ({"numVfs": "2"}, 'error virtualFunctions[1].numVfs: "2": want an integer'),
    ({"mtu": 10}, "error virtualFunctions[1].mtu: 10: want 68 or more"),
    ({"deviceType": "dpdk"}, '"dpdk": want one of netdevice, vfio-pci (write netdevice or vfio-pci)'),
    ({"deviceType": "vfio-pci", "isRdma": True},
     "error virtualFunctions[1].deviceType: vfio-pci with isRdma: a VF of vfio-pci has neither netdev nor"),
    ({"nicSelector": {"pfNames": ["ens0f0#0-2"]}},
     "error virtualFunctions[1].nicSelector.pfNames[0]: ens0f0#0-2: numVfs 2 makes the VFs 0 to 1"),
    ({"nicSelector": {"pfNames": ["ens0f0#x"]}}, '"ens0f0#x": want a name, or a name with the numbers of VFs'),
    ({"nicSelector": {}}, "want one of pfNames, rootDevices, vendor and deviceID"),
    ({"nicSelector": {"netFilter": "openstack/NetworkID:x", "vendor": "15b3"}}, "netFilter: this is not made here"),
    ({"vdpaType": "virtio"}, "vdpaType: this is not made here (leave this policy to sriov-network-operator)"),
    ({"eSwitchMode": "switchdev"}, "leave the switchdev mode to sriov-network-operator"),
    ({"linkType": "infiniband"}, "write eth or ib"),
    ({"numVf": 3}, 'warning virtualFunctions[1].numVf: there is no key "numVf" (write "numVfs")'),
])  # fmt: skip
def test_a_wrong_policy_has_line_column_key_and_remedy_and_the_right_one_counts(
    member: dict[str, Any], finding: str
) -> None:
    found = config(policy(), policy(**member))
    (told,) = [f"{f.line}:{f.column} {f.severity} {f.key}: {f.message} ({f.fix})" for f in found.findings]
    assert finding in told
    assert told.startswith("1:") and not told.startswith("1:0")
    assert len(found.policies) == (2 if "warning" in finding else 1)


def test_vfs_are_made_with_their_addresses_drivers_and_mtus_after_the_modules_and_the_mtu_of_the_card(
    machine: Machine,
) -> None:
    dpdk = policy(numVfs=3, deviceType="vfio-pci", nicSelector={"pfNames": ["ens0f0#1"]})
    rdma = policy(numVfs=3, isRdma=True, mtu=9216, nicSelector={"rootDevices": [f"{PF}#0"]})
    found = steps(planned(machine, dpdk, rdma))
    made = [step for step in found if ": mac from none to " in step]
    assert [step.partition(": mac")[0] for step in made] == [f"{PF} VF {n}" for n in range(3)]
    assert [step for step in found if step not in made] == [
        "kernel: module from not loaded to vfio-pci", "kernel: module from not loaded to rdma_ucm",
        f"{PF}: mtu from 9000 to 9216", f"{PF}: numVfs from 0 to 3",
        f"{PF} VF 0: driver from none to the kernel's choice", f"{PF} VF 0: mtu to 9216",
        f"{PF} VF 1: driver from none to vfio-pci", f"{PF} VF 2: driver from none to the kernel's choice",
    ]  # fmt: skip


def test_nothing_is_to_be_done_where_all_is_as_it_is_asked_for(tmp_path: Path) -> None:
    assert planned(with_vfs(tmp_path), policy(mtu=9000)) == VfPlan()


def test_one_vf_of_another_kind_changes_alone(tmp_path: Path) -> None:
    machine = with_vfs(tmp_path)
    (machine.root / "sys/bus/pci/drivers/vfio-pci").mkdir()
    wanted = policy(deviceType="vfio-pci", nicSelector={"pfNames": ["ens0f0#1"]})
    assert steps(planned(machine, wanted)) == [f"{PF} VF 1: driver from mlx5_core to vfio-pci"]


def test_the_policy_that_comes_first_by_priority_has_a_vf_that_two_are_about(tmp_path: Path) -> None:
    machine = with_vfs(tmp_path)
    found = planned(machine, policy(mtu=1500), policy(mtu=4000, priority=5, nicSelector={"pfNames": ["ens0f0#1"]}))
    assert steps(found) == [f"{PF} VF 0: mtu from 9000 to 1500", f"{PF} VF 1: mtu from 9000 to 4000"]


def with_macs(machine: Machine, *policies: dict[str, Any], macs: dict[int, str], kubelet: str = "") -> VfPlan:
    """The plan where the card has a permanent MAC, and its VFs these administrative ones."""
    node = cards.read(str(machine.root), kubelet)
    shown = [replace(card, mac="0c:42:a1:00:00:01", macs=macs) for card in node.cards]
    return plan(config(*policies).policies, replace(node, cards=shown))


def test_a_vf_that_is_made_gets_a_mac_of_its_own_before_its_driver_and_the_same_one_each_time(machine: Machine) -> None:
    found = with_macs(machine, policy(numVfs=8), macs={})
    assert [step.what for step in found.steps if step.vf == 0] == ["mac", "driver"]
    given = [step.then for step in found.steps if step.what == "mac"]
    assert len(set(given)) == 8
    assert {int(mac[:2], 16) & 3 for mac in given} == {2}, "locally administered, and no group's"
    assert given == [step.then for step in with_macs(machine, policy(numVfs=8), macs={}).steps if step.what == "mac"]


def test_vfs_of_an_infiniband_card_get_guids_of_their_own_before_their_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = with_vfs(tmp_path)
    machine.tree.put(machine.root / "sys/class/net/ens0f0", {"type": 32})
    for vf in (0, 1):
        machine.tree.put(machine.root / f"sys/class/net/ens0v{vf}", {"flags": "0x1002"})
    given = {0: "00:00:00:00:00:00:00:00", 1: "02:00:00:00:00:00:00:01"}
    monkeypatch.setattr(cards, "read_macs", lambda *_: ("0c:42:a1:03:00:12:34:56", given))
    found = [step for step in planned(machine, policy(linkType="ib")).steps if step.vf >= 0]
    assert [(step.what, step.vf) for step in found] == [("guid", 0), ("rebind", 0)], "VF 1 has a GUID"
    new = [step for step in planned(machine, policy(numVfs=8)).steps if step.vf >= 0]
    assert [step.what for step in new] == ["guid", "driver"] * 8
    guids = {step.then for step in new if step.what == "guid"} - {found[0].then}
    assert len(guids) == 7 and all(re.fullmatch(r"[0-9a-f][26ae](:[0-9a-f]{2}){7}", guid) for guid in guids)


def test_an_infiniband_card_without_a_netdev_is_named_with_the_module_that_makes_one(machine: Machine) -> None:
    tree, card = cards.read(str(machine.root)), policy(nicSelector={"rootDevices": [PF]})
    (one,) = tree.cards
    without = replace(one, function=replace(one.function, link_type="infiniband", netdevs=()))
    found = plan(config(card).policies, replace(tree, cards=[without]))
    assert found.refused == (f"{PF}: its VFs get no GUIDs, which are set through its netdev: load ib_ipoib",)
    assert "numVfs" in [step.what for step in found.steps]


def test_guids_are_planned_on_the_copy_of_a_tree_too(machine: Machine) -> None:
    guid = "0c:42:a1:03:00:12:34:56"
    address = f"00:00:10:29:fe:80:00:00:00:00:00:00:{guid}"
    machine.tree.put(machine.root / "sys/class/net/ens0f0", {"type": 32, "address": address})
    found = planned(machine, policy(linkType="ib"))
    assert [step.what for step in found.steps if step.vf == 0] == ["guid", "driver"]
    (card,) = cards.read(str(machine.root)).cards
    assert card.mac == guid


def test_a_guid_is_read_and_set_by_the_netdev_of_an_infiniband_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soft-RoCE and emulated cards have no such netdev: the messages are compared with pyroute2's."""
    host, sent = Mock(), []
    host.link.return_value.configure_mock(index=7, mac="80:00:00:28:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:12:34:56")
    host.get.return_value = ifinfo(7) + attribute(22, attribute(1, attribute(1, bytes(36)) + NODE_GUID))
    host.request.side_effect = lambda kind, body: sent.append(body)
    monkeypatch.setattr(cards, "_links", lambda root: nullcontext(host))
    card = Function(PF, netdevs=("ib0",), link_type="infiniband")
    assert cards.read_macs(card, [0], "") == ("0c:42:a1:03:00:12:34:56", {0: "02:00:00:00:00:00:00:01"})
    cards.write_mac(card, 0, "02:00:00:00:00:00:00:01", "")
    guids, state = sent
    assert NODE_GUID in guids and NODE_GUID.replace(b"\x0a", b"\x0b", 1) in guids
    assert state.endswith(attribute(5, bytes(8))), "the port follows the card's"


NODE_GUID = attribute(10, struct.pack("=IIQ", 0, 0, 0x0200000000000001))
DPDK = {"deviceType": "vfio-pci", "nicSelector": {"pfNames": ["ens0f0#1"]}}


@pytest.mark.parametrize(("mac", "use", "more", "wanted"), [
    (NO_MAC, None, {}, ["mac", "rebind"]),
    (NO_MAC, None, {"mtu": 1500}, ["mac", "rebind", "mtu"]),
    (NO_MAC, None, DPDK, ["mac", "driver"]),
    (NO_MAC, "vfio-pci", DPDK, ["mac"]),
    ("0c:42:a1:00:00:07", None, {}, []),
    ("0c:42:a1:00:00:07", None, DPDK, ["driver"]),
    (None, None, {}, []),  # the card's driver does not tell it
    (NO_MAC, "in_a_pod", {}, []),
    (NO_MAC, "open_by_a_process", {}, []),
    (NO_MAC, "given_by_kubelet", {}, []),
    (NO_MAC, "up", {}, []),
])  # fmt: skip
def test_a_vf_without_an_administrative_mac_gets_one_and_its_driver_again_unless_it_is_in_use(
    tmp_path: Path, mac: str | None, use: str | None, more: dict[str, Any], wanted: list[str]
) -> None:
    machine = with_vfs(tmp_path)
    if use == "vfio-pci":
        (machine.tree.pci(machine.vf(0, 1)) / "driver").unlink()
        machine.tree.pci(machine.vf(0, 1), driver="vfio-pci")
    elif use and use != "up":
        globals()[use](machine)
    if use != "up" and (netdev := machine.root / "sys/class/net/ens0v1").exists():
        machine.tree.put(netdev, {"flags": "0x1002"})
    macs = {0: "0c:42:a1:00:00:06", **({1: mac} if mac else {})}
    found = with_macs(machine, policy(**more), macs=macs, kubelet=str(tmp_path))
    assert [step.what for step in found.steps if step.vf == 1] == wanted
    assert found.refused == ()


def test_the_macs_are_read_and_set_in_the_nodes_own_namespace(node: Node, tmp_path: Path) -> None:
    machine = with_vfs(tmp_path)
    node.master("ens0f0")
    (card,) = [card.function for card in cards.read(str(machine.root)).cards]
    copied = (machine.root / "sys/class/net/ens0f0/address").read_text().strip()
    assert cards.read_macs(card, (0, 1), str(machine.root)) == (copied, {}), "the copy of a tree has no namespace"
    (machine.root / "proc/1/ns").mkdir(parents=True)
    (machine.root / "proc/1/ns/net").symlink_to(node.host.path)
    assert cards.read_macs(card, (0, 1), str(machine.root)) == (node.host.link("ens0f0").mac, {}), "a veth has no VFs"
    with pytest.raises(OSError, match="not supported"):
        cards.write_mac(card, 0, "02:00:00:00:00:01", str(machine.root))


def test_without_the_right_to_enter_the_nodes_namespace_vfs_are_made_without_macs_and_this_is_said(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(cards, "read_macs", refused)
    found = planned(machine, policy())
    assert [step.what for step in found.steps if step.vf >= 0] == ["driver", "driver"]
    (reason,) = found.refused
    assert "get no administrative MAC" in reason and "CAP_SYS_ADMIN" in reason


def test_a_driver_that_refuses_macs_is_named_once_and_its_card_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = with_vfs(tmp_path, 3)
    for vf in range(3):
        machine.tree.put(machine.root / f"sys/class/net/ens0v{vf}", {"flags": "0x1002"})
    for vf in (0, 1):
        (machine.tree.pci(machine.vf(0, vf)) / "driver").unlink()
        machine.tree.pci(machine.vf(0, vf), driver="vfio-pci")

    def refused(*_: object) -> None:
        raise KernelError(errno.EOPNOTSUPP)

    monkeypatch.setattr(cards, "read_macs", lambda *_: ("0c:42:a1:00:00:01", dict.fromkeys(range(3), NO_MAC)))
    monkeypatch.setattr(cards, "write_mac", refused)
    dpdk = policy(numVfs=3, deviceType="vfio-pci", nicSelector={"pfNames": ["ens0f0#0-1"]})
    done: list[VfStep] = []
    wanted = config(dpdk, policy(numVfs=3, mtu=1500)).policies
    (reason,) = apply(wanted, str(machine.root), "", done.append)
    assert "VF 0: the card's driver refuses an administrative MAC: Operation not supported" in reason
    assert [(step.what, step.vf) for step in done if step.vf >= 0] == [("mtu", 2)]


def in_a_pod(machine: Machine) -> str:
    for path in (machine.root / "sys/bus/pci/devices" / machine.vf(0, 1) / "net").iterdir():
        for each in sorted(path.rglob("*"), reverse=True):
            each.rmdir() if each.is_dir() and not each.is_symlink() else each.unlink()
        path.rmdir()
        (machine.root / "sys/class/net" / path.name).unlink()
    return "a network namespace"


def below_a_macvlan(machine: Machine) -> str:
    machine.tree.netdev("macvlan7", lower=["ens0v1"])
    return "macvlan7 of the host"


def open_by_a_process(machine: Machine) -> str:
    fds = machine.root / "proc/4242/fd"
    fds.mkdir(parents=True)
    (fds / "7").symlink_to("/dev/infiniband/uverbs101")
    (machine.root / "proc/4242/comm").write_text("ib_write_bw\n")
    return "process 4242 (ib_write_bw)"


def of_the_default_route(machine: Machine) -> str:
    net = machine.root / "proc/1/net"
    net.mkdir(parents=True)
    (net / "route").write_text("Iface Dest\nens0v1 00000000 0101A8C0 0003 0 0 0 00000000 0 0 0\n")
    return '"ens0v1" carries the default route (0.0.0.0/0 via 192.168.1.1, table main)'


def of_the_way_to_storage(machine: Machine) -> str:
    """By the longest prefix of several; the server and the metric are as the kernel shows them."""
    net = machine.root / "proc/1/net"
    (net / "nfsfs").mkdir(parents=True)
    (net / "nfsfs/servers").write_text("NV SERVER   PORT USE HOSTNAME\nv4 0a000064  801   1 nas\n")
    lines = (
        "eth0 00000000 0101A8C0 0003 0 0 0 00000000 0 0 0", "eth0 0000000A 00000000 0001 0 0 0 000000FF 0 0 0",
        "eth0 0000000A 00000000 0001 0 0 200 00FFFFFF 0 0 0", "ens0v1 0000000A 00000000 0001 0 0 100 00FFFFFF 0 0 0",
        "",
    )  # fmt: skip
    (net / "route").write_text("\n".join(("Iface Dest", *lines)))
    return '"ens0v1" carries the route to the NFS server 10.0.0.100'


def of_the_way_to_storage_over_ipv6(machine: Machine) -> str:
    connection = machine.root / "sys/class/iscsi_connection"
    machine.tree.put(connection, {"connection1:0/address": "fd00::7", "connection2:0/address": "not an address"})
    net = machine.root / "proc/1/net"
    net.mkdir(parents=True)
    near, zero = f"fd{0:030x}", "0" * 32
    lines = (
        f"{near} 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001   ens0v1",
        f"{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0",
        "",
    )
    (net / "ipv6_route").write_text("\n".join(lines))
    return '"ens0v1" carries the route to the iSCSI server fd00::7'


def given_by_kubelet(machine: Machine) -> str:
    entry = {"PodUID": "ab-12", "ContainerName": "main", "DeviceIDs": {"0": [machine.vf(0, 1)]}}
    text = json.dumps({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1})
    (machine.root / cards.CHECKPOINT).write_text(text)
    return "container main of the pod with UID ab-12"


@pytest.mark.parametrize("use", [
    in_a_pod, below_a_macvlan, open_by_a_process, of_the_default_route, of_the_way_to_storage,
    of_the_way_to_storage_over_ipv6, given_by_kubelet,
], ids=lambda u: u.__name__)  # fmt: skip
@pytest.mark.parametrize(("wanted", "about"), [
    (policy(numVfs=4), "the number of VFs changes from 2 to 4"),
    (policy(numVfs=0), "the number of VFs changes from 2 to 0"),
    (policy(deviceType="vfio-pci"), "the driver of VF 1 changes"),
], ids=["more", "none", "driver"])  # fmt: skip
def test_a_vf_in_use_keeps_its_whole_card_as_it_is(
    tmp_path: Path, use: Any, wanted: dict[str, Any], about: str
) -> None:
    machine = with_vfs(tmp_path)
    user = use(machine)
    found = planned(machine, wanted, kubelet=str(tmp_path))
    assert [step for step in found.steps if step.card] == []
    (reason,) = found.refused
    assert about in reason and f"VF 1 {machine.vf(0, 1)} by {user}" in reason and "VF 0" not in reason
    assert planned(machine, policy(), kubelet=str(tmp_path)).refused == ()  # nothing of it would go


@pytest.mark.parametrize(
    "call", ["listdir", "readlink"]
)  # refused to others than root, and to root without capabilities
def test_a_vf_whose_users_cannot_be_seen_counts_as_used(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = with_vfs(tmp_path)
    open_by_a_process(machine)
    opened = machine.root / "proc/4242/fd/7"
    opened.unlink()
    opened.symlink_to("/dev/null")
    real = getattr(os, call)

    def refused(path: str) -> Any:
        if "/fd" in path.removeprefix(str(tmp_path)):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    assert planned(machine, policy(numVfs=4)).refused == ()
    monkeypatch.setattr(os, call, refused)
    (reason,) = planned(machine, policy(numVfs=4)).refused
    assert "a process perhaps, since open files cannot be read here without CAP_SYS_PTRACE" in reason


def test_a_file_that_is_closed_meanwhile_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = with_vfs(tmp_path)
    user = open_by_a_process(machine)
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [*("3" * path.endswith("/fd")), *listdir(path)])
    (reason,) = planned(machine, policy(numVfs=4)).refused
    assert user in reason


@pytest.mark.parametrize(("policies", "reason"), [
    ([policy(numVfs=9)], "numVfs 9: it can have 8 VFs; more need a setting of the card's firmware"),
    ([policy(), policy(numVfs=3)], "two policies want 2 and 3 VFs: write the same numVfs in both"),
    ([policy(externallyManaged=True)], "it has 0 VFs of 2, and with externallyManaged others make them"),
    ([policy(nicSelector={"pfNames": ["ens9f9"]})], "no card that can have VFs is chosen by pfNames ens9f9"),
    ([policy(nicSelector={"vendor": "8086", "pfNames": ["ens0f0"]})],
     "no card that can have VFs is chosen by vendor 8086, pfNames"),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_the_reason(
    machine: Machine, policies: list[dict[str, Any]], reason: str
) -> None:
    found = planned(machine, *policies)
    assert steps(found) == []
    (refused,) = found.refused
    assert reason in refused


def test_the_command_shows_plans_and_says_what_is_wrong_in_a_file(machine: Machine, tmp_path: Path) -> None:
    root = f"--root={tmp_path}"
    shown = [railcni("vfs", "show", same, "-o", "json") for same in (root, f"{root}/", f"{root}//")]
    assert shown[0] == shown[1] == shown[2]
    (card,) = json.loads(shown[0][1])
    assert (card["card"], card["most"], card["vfs"]) == (PF, 8, [])
    file = tmp_path / "policies.yaml"
    file.write_text(OPERATORS)
    code, out, err = railcni("vfs", "plan", root, f"--config={file}", "-o", "json")
    assert code == 0, err
    assert {"of": PF, "what": "numVfs", "now": "0", "then": "6"} in json.loads(out)["steps"]
    file.write_text(OPERATORS.replace("numVfs: 6\n  nicSelector", "numVfs: six\n  nicSelector"))
    code, _, err = railcni("vfs", "plan", root, f"--config={file}")
    assert code == 1 and f"{file}:13:11: error: spec.numVfs" in err and "write a number such as" in err
    for verb in ("plan", "apply"):  # what a file asks for that cannot be read is not known
        assert railcni("vfs", verb, root, "--config=/nonexistent")[:2] == (1, "")


@pytest.mark.parametrize("words", [("device-plugin", "--show"), ("dra", "show")])
def test_show_names_the_command_that_makes_the_functions_of_its_configuration(
    machine: Machine, tmp_path: Path, words: tuple[str, str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"virtualFunctions": [policy(resourceName="vf")]}))
    code, out, err = railcni(*words, f"--root={tmp_path}", f"--config={file}")
    assert code == 1 and "virtual functions that are not there yet: `railcni vfs plan` shows the steps" in err
    assert "has no VF" in out and "itself is offered" not in out


@pytest.mark.parametrize("words", [("device-plugin", "--show"), ("dra", "show")])
def test_show_says_that_no_resource_is_offered(machine: Machine, tmp_path: Path, words: tuple[str, str]) -> None:
    code, out, err = railcni(*words, f"--root={tmp_path}", "--config=/nonexistent")
    assert (code, out) == (1, "") and err.endswith("\nno resource is offered\n")


def test_apply_says_what_the_kernel_refuses_and_leaves_that_card(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"virtualFunctions": [policy()]}))
    (machine.root / "sys/bus/pci/devices" / PF / "sriov_numvfs").unlink()
    code, _, err = railcni("vfs", "apply", f"--root={tmp_path}", f"--config={file}")
    assert code == 1 and "numVfs 2: the kernel refuses 2 to" in err
    assert "the driver of the card does not offer this" in err
