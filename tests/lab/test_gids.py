"""The key `rdma` on a real verbs device (soft-RoCE): what ADD waits for and tells, and what CHECK, STATUS and DEL see."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.machine import Machine, command, gids
from tests.node import Pod

MACHINES = ("roce",)

Say = Callable[[str], None]

RANGE = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
BOTH = {**RANGE, "ipRanges": [{"range": "fd00:111::/64"}]}
DEVINFO = "/run/k8s.cni.cncf.io/devinfo/cni/team-p1-net1.json"


def network(plugin: str = "macvlan", **more: Any) -> dict[str, Any]:
    base = {"cniVersion": "1.1.0", "name": "rdma-net", "type": plugin, "master": "ens2f0", "device": "ens2f0"}
    return {**base, "ipam": RANGE, "runtimeConfig": {"CNIDeviceInfoFile": DEVINFO}, **more}


@pytest.fixture
def pod(machine: Machine) -> Iterator[Pod]:
    machine.dummy()
    machine.soft_roce()
    machine.remember()
    return machine.pod()


def add(machine: Machine, pod: Pod, config: dict[str, Any], **how: Any) -> tuple[dict[str, Any], str]:
    """The result, and what the plugin wrote to its log."""
    reply = machine.cni(config["type"], "ADD", config, netns=pod, **how)
    return reply.succeeded(), reply.stderr


def delete(machine: Machine, pod: Pod | str | None, config: dict[str, Any], **how: Any) -> None:
    machine.cni(config["type"], "DEL", config, netns=pod, **how).succeeded()


def entries(link: str = "net1") -> dict[str, int]:
    """The index of each GID of that link, by its last 32 bits."""
    return {value[-9:]: index for index, (value, kind, ndev) in gids().items() if ndev == link and kind == "RoCE v2"}


def test_add_returns_when_the_gid_of_each_address_is_there(machine: Machine, pod: Pod, say: Say) -> None:
    result, log = add(machine, pod, network(ipam=BOTH))
    found = entries()
    assert {"c0a8:6f01", "0000:0001"} <= set(found)  # 192.168.111.1, fd00:111::1
    assert log == ""
    say(f"mlx5_0: {gids()}")
    info = json.loads(Path(DEVINFO).read_text())
    say(f"device-info: {json.dumps(info)}")
    addresses = {a["address"].partition("/")[0]: a for a in result["ips"]}
    assert info["rdma"]["gid-index"] == {"192.168.111.1": found["c0a8:6f01"], "fd00:111::1": found["0000:0001"]}
    assert set(addresses) == set(info["rdma"]["gid-index"])
    assert (info["type"], info["rdma"]["rdma-device"], info["rdma"]["port"]) == ("rdma", "mlx5_0", 1)
    config = network(ipam=BOTH)
    machine.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod).succeeded()
    delete(machine, pod, config)
    assert machine.leftovers() == []
    assert not Path(DEVINFO).exists()
    assert entries() == {}


@pytest.mark.parametrize("device", ["mlx5_0", "mlx5_0-3"])
def test_without_a_master_the_netdev_of_the_allocated_device_is_taken(machine: Machine, pod: Pod, device: str) -> None:
    config = {**network(runtimeConfig={"deviceID": device}), "master": None}
    result, _ = add(machine, pod, config)
    assert pod.view.link("net1").lower == machine.host.link("ens2f0").index
    machine.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod).succeeded()
    delete(machine, pod, config)
    assert machine.leftovers() == []


def test_a_gid_is_found_through_a_vlan_and_a_bond(machine: Machine, pod: Pod) -> None:
    command("ip", "link", "add", "link", "ens2f0", "name", "ens2f0.100", "type", "vlan", "id", "100")
    command("ip", "link", "set", "ens2f0.100", "up")
    machine.remember()
    config = network(master="ens2f0.100", rdma=True)
    add(machine, pod, config)
    assert json.loads(Path(DEVINFO).read_text())["rdma"]["gid-index"] == {"192.168.111.1": entries()["c0a8:6f01"]}
    delete(machine, pod, config)
    command("ip", "link", "add", "bond0", "type", "bond", "mode", "active-backup")
    machine.dummy("ens3f0")
    command("ip", "link", "set", "ens3f0", "down")
    command("ip", "link", "set", "ens3f0", "master", "bond0")
    command("ip", "link", "set", "bond0", "up")
    machine.soft_roce("mlx5_bond_0", "bond0")
    machine.remember()
    config = network(master="bond0", rdma=True, mtu=1500)
    add(machine, pod, config)
    assert json.loads(Path(DEVINFO).read_text())["rdma"]["rdma-device"] == "mlx5_bond_0"
    delete(machine, pod, config)
    assert machine.leftovers() == []


def test_a_master_in_the_sandbox_is_found_by_netlink(machine: Machine, pod: Pod) -> None:
    with pod.view.rtnl() as ipr:
        ipr.link("add", ifname="inner", kind="dummy")
    reply = machine.cni("macvlan", "ADD", network(master="inner", linkInContainer=True, rdma=True), netns=pod)
    reply.refused(7, '"inner"', "no verbs device")
    assert "mlx5_0 port 1 (ens2f0)" in reply.document["details"]


def test_another_ipam_plugin_gives_the_address_as_well(machine: Machine, pod: Pod, tmp_path: Path) -> None:
    others = tmp_path / "anothers-ipam"
    others.write_text(
        '#!/bin/sh\n[ "$CNI_COMMAND" != ADD ] || echo \'{"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.7/24"}]}\'\n'
    )
    others.chmod(0o755)
    config = network(ipam={"type": others.name}, rdma=True)
    add(machine, pod, config, path=[machine.executables, tmp_path])
    assert json.loads(Path(DEVINFO).read_text())["rdma"]["gid-index"] == {"10.9.0.7": entries()["0a09:0007"]}
    delete(machine, pod, config, path=[machine.executables, tmp_path])
    assert machine.leftovers() == []


def test_check_finds_a_gid_that_went_with_its_address(machine: Machine, pod: Pod, say: Say) -> None:
    config = network()
    result, _ = add(machine, pod, config)
    command("ip", "-n", "pod1", "address", "del", "192.168.111.1/24", "dev", "net1")
    reply = machine.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod)
    assert reply.code == 100
    say(reply.msg)
    assert "192.168.111.1 of net1 has no RoCE v2 GID on mlx5_0 port 1" in reply.msg
    command("rdma", "link", "delete", "mlx5_0")
    reply = machine.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod)
    assert "verbs device mlx5_0 is gone" in reply.msg
    delete(machine, pod, config)
    assert machine.leftovers() == []


def test_required_fails_without_a_verbs_device_and_auto_does_not(machine: Machine, pod: Pod) -> None:
    command("rdma", "link", "delete", "mlx5_0")
    machine.cni("macvlan", "ADD", network(rdma=True), netns=pod).refused(7, "required", "ens2f0", "no verbs device")
    assert machine.leftovers() == []
    machine.cni("macvlan", "STATUS", network(rdma=True)).refused(50, "ens2f0", "no verbs device")
    _, log = add(machine, pod, network())
    assert log == ""
    assert not Path(DEVINFO).exists()
    delete(machine, pod, network())


def test_a_required_gid_that_does_not_come_is_an_error_and_nothing_stays(machine: Machine, pod: Pod, say: Say) -> None:
    """Moving the netdev of soft-RoCE ends its verbs device, so that no GID can come."""
    config = network("host-device", rdma={"required": True, "waitSeconds": 1})
    reply = machine.cni("host-device", "ADD", config, netns=pod)
    reply.refused(11, "192.168.111.1 of net1", "mlx5_0 port 1", "the verbs device is gone", "rxe")
    say(reply.msg)
    assert machine.leftovers() == []
    assert not Path(DEVINFO).exists()


def test_one_that_is_not_required_is_a_warning_and_check_does_not_miss_it(machine: Machine, pod: Pod, say: Say) -> None:
    config = network("host-device", rdma={"waitSeconds": 0})
    result, log = add(machine, pod, config)
    assert "[warning]" in log and "the verbs device is gone" in log
    say(log.strip())
    machine.soft_roce("mlx5_0", "lo")  # a device of that name, without the address
    machine.cni("host-device", "CHECK", {**config, "prevResult": result}, netns=pod).succeeded()
    delete(machine, pod, config)
    assert not Path(DEVINFO).exists()


def test_without_a_link_local_address_its_gid_is_saved(machine: Machine, pod: Pod) -> None:
    add(machine, pod, network(ipam=BOTH))
    assert len(entries()) == 3  # 192.168.111.1, fd00:111::1, fe80
    delete(machine, pod, network(ipam=BOTH))
    config = network(ipam=BOTH, rdma={"ipv6LinkLocal": False, "required": True})
    add(machine, pod, config)
    assert set(entries()) == {"c0a8:6f01", "0000:0001"}
    assert "fe80" not in command("ip", "-n", "pod1", "-6", "address", "show", "dev", "net1")
    delete(machine, pod, config)
    assert machine.leftovers() == []


def test_a_small_mtu_is_a_warning_with_the_roce_mtu_and_what_is_needed(machine: Machine, pod: Pod, say: Say) -> None:
    _, log = add(machine, pod, network(mtu=1500))
    assert "MTU 1500 of net1 makes a RoCE MTU of 1024" in log and "4192" in log
    say(log.strip())
    delete(machine, pod, network())
    _, log = add(machine, pod, network(mtu=4192))
    assert log == ""
    delete(machine, pod, network())


def test_a_table_that_is_nearly_full_is_a_warning_and_a_full_one_is_named(machine: Machine, pod: Pod, say: Say) -> None:
    def fill(upto: int) -> None:
        lines = [f"address add 10.{n >> 16}.{n >> 8 & 255}.{n & 255}/32 dev ens2f0\n" for n in range(len(gids()), upto)]
        Path("/run/batch").write_text("".join(lines))
        command("ip", "-batch", "/run/batch")

    size = len(list(Path("/sys/class/infiniband/mlx5_0/ports/1/gids").iterdir()))
    fill(size * 8 // 10)
    _, log = add(machine, pod, network())
    assert f"of {size} entries in use" in log
    say(log.strip())
    delete(machine, pod, network())
    fill(size)
    reply = machine.cni("macvlan", "ADD", network(rdma={"required": True, "waitSeconds": 0}), netns=pod)
    reply.refused(11, "192.168.111.1 of net1", f"its table is full, {size} of {size}", "ipv6LinkLocal")
    say(reply.msg)
    assert machine.leftovers() == []


def test_status_tells_a_port_that_is_not_active(machine: Machine, pod: Pod, say: Say) -> None:
    machine.cni("macvlan", "STATUS", network()).succeeded()
    command("ip", "link", "set", "ens2f0", "down")
    machine.cni("macvlan", "STATUS", network()).refused(51, "ens2f0", "down")
    command("ip", "link", "set", "ens2f0", "up")
    command("ip", "link", "set", "ens2f0", "carrier", "off")
    machine.cni("macvlan", "STATUS", network()).refused(51, "ens2f0", "no carrier")
    reply = machine.cni("host-device", "STATUS", network("host-device"))
    reply.refused(51, "port 1 of verbs device mlx5_0", "ens2f0", "is DOWN")
    say(reply.msg)


def test_a_device_info_file_that_cannot_be_removed_keeps_neither_link_nor_lease(
    machine: Machine, pod: Pod, say: Say
) -> None:
    config = network()
    add(machine, pod, config)
    folder = str(Path(DEVINFO).parent)
    command("mount", "--bind", folder, folder)
    try:
        command("mount", "-o", "remount,bind,ro", folder)
        reply = machine.cni("macvlan", "DEL", config, netns=pod)
    finally:
        command("umount", folder)
    reply.refused(5, DEVINFO, "repeat the DEL")
    say(reply.msg)
    assert "net1" not in pod.view.names()
    assert machine.leases() == []
    changed = network(rdma=False, runtimeConfig={})  # a DEL goes by the record
    delete(machine, pod, changed)
    assert not Path(DEVINFO).exists()
    assert machine.leftovers() == []


def test_the_device_info_file_goes_also_when_the_sandbox_is_gone(machine: Machine, pod: Pod) -> None:
    config = network()
    add(machine, pod, config)
    machine.delete_pod(pod)
    delete(machine, pod.path, config)
    assert not Path(DEVINFO).exists()
    assert machine.leftovers(settle=10) == []
