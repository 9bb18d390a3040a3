"""sriov on VFs of a real driver (igb): set through the PF, moved, isolated, and given back as they were."""

import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import networks
from tests.lab.machine import Machine, command
from tests.lab.pci import Card, card, netdev, wait_for_netdev
from tests.node import Pod
from tests.view import Link

MACHINES = ("sriov",)
LEASES = {
    "type": "whereabouts", "range": "192.168.111.0/24", "ipRanges": [{"range": "fd00:111::/64"}], "datastore": "file",
}  # fmt: skip
MAC = "02:00:00:00:aa:01"
EVERYTHING = {"vlan": 100, "vlanQoS": 3, "spoofchk": "off", "trust": "on", "max_tx_rate": 100, "mac": MAC}


@pytest.fixture
def nic(machine: Machine) -> Iterator[Card]:
    with card(machine) as made:
        yield made


def network(vf: str, **more: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "vfs", "type": "sriov", "deviceID": vf, "ipam": LEASES, **more}


def whole(machine: Machine, nic: Card) -> list[Any]:
    """All that a person would miss of the VFs and their netdevs."""
    found: list[Any] = [nic.state(n) for n in range(len(nic.vfs))]
    for vf in nic.vfs:
        link = machine.host.link(netdev(vf))
        found.append((link.name, link.mac, link.mtu, link.up, link.alias, sorted(link.altnames)))
    return found


def lasting(link: Link) -> tuple[Any, ...]:
    """What of a link in a pod the kernel does not change by itself a moment later."""
    return link.mac, link.mtu, link.up, link.alias, [text for text in link.texts if not text.startswith("fe80:")]


def ping(pod: Pod, address: str) -> bool:
    done = subprocess.run(["ip", "netns", "exec", pod.name, "ping", "-c", "3", "-W", "5", address], capture_output=True)
    return done.returncode == 0


def test_a_vf_has_what_is_configured_and_comes_back_as_it_was(
    machine: Machine, nic: Card, say: Callable[[str], None]
) -> None:
    before = whole(machine, nic)
    pod = machine.pod("pod1")
    config = network(nic.vfs[0], **EVERYTHING)
    result = machine.cni("sriov", "ADD", config, netns=pod).succeeded()
    wanted = {"name": "net1", "mac": MAC, "mtu": 1400, "sandbox": pod.path, "pciID": nic.vfs[0]}
    assert result["interfaces"] == [wanted]
    state = nic.state(0)
    tag = state["vlan_list"][0]
    say(f"{nic.pf} vf 0: {json.dumps(state)}")
    assert (tag["vlan"], tag["qos"], state["rate"]["max_tx"]) == (100, 3, 100)
    assert (state["spoofchk"], state["trust"], state["address"]) == (False, True, MAC)
    link = pod.view.link("net1")
    assert (link.mac, sorted(link.texts)[0], link.up) == (MAC, "192.168.111.1/24", True)
    machine.cni("sriov", "CHECK", {**config, "prevResult": result}, netns=pod).succeeded()
    command("ip", "link", "set", nic.pf, "vf", "0", "vlan", "5")
    machine.cni("sriov", "CHECK", {**config, "prevResult": result}, netns=pod).refused(100, "vlan", "is 5, was 100")
    other = machine.pod("pod2")
    machine.cni("sriov", "ADD", network(nic.vfs[0]), netns=other, container_id="c2").refused(11, nic.vfs[0], "c1")
    machine.cni("host-device", "ADD", network(nic.vfs[0], type="host-device", deviceID="", pciBusID=nic.vfs[0]), netns=other, container_id="c2").refused(11, "c1")  # fmt: skip
    for _ in range(2):
        machine.cni("sriov", "DEL", config, netns=pod).succeeded()
        assert whole(machine, nic) == before
    assert (machine.leases(), machine.files()) == ([], [])


def test_pods_hear_each_other_in_one_vlan_and_not_across(
    machine: Machine, nic: Card, say: Callable[[str], None]
) -> None:
    first, second = machine.pod("pod1"), machine.pod("pod2")
    machine.cni("sriov", "ADD", network(nic.vfs[0], vlan=100), netns=first).succeeded()
    machine.cni("sriov", "ADD", network(nic.vfs[1], vlan=100), netns=second, container_id="c2").succeeded()
    assert ping(first, "192.168.111.2")
    assert ping(first, "fd00:111::2")
    machine.cni("sriov", "DEL", network(nic.vfs[1]), netns=second, container_id="c2").succeeded()
    machine.cni("sriov", "ADD", network(nic.vfs[1], vlan=200), netns=second, container_id="c2").succeeded()
    assert not ping(first, "192.168.111.2")
    say("VLAN 100 and 100: ping passes, IPv4 and IPv6; VLAN 100 and 200: none of 3 comes back")


def test_the_first_plugin_of_our_chain_for_vfs_sets_all_its_keys(machine: Machine, nic: Card) -> None:
    """conf/nad/rdma-vf-exclusive.yaml; `rdma` behind it is tested where there are verbs devices: test_rdma_chain.py."""
    networks.keep_leases_in_a_file()
    before = whole(machine, nic)
    chain = networks.nad("rdma-vf-exclusive")
    own = {"cniVersion": chain["cniVersion"], "name": chain["name"], "runtimeConfig": {"deviceID": nic.vfs[0]}}
    config, pod = {**chain["plugins"][0], **own, "max_tx_rate": 100}, machine.pod("pod1")  # of a card with 1 Gbit/s
    networks.call(machine, "ADD", config, pod).succeeded()
    state = nic.state(0)
    tag = state["vlan_list"][0]
    assert (tag["vlan"], tag["qos"], state["spoofchk"], state["trust"]) == (100, 3, True, False)
    networks.call(machine, "DEL", config, pod).succeeded()
    assert whole(machine, nic) == before


FRAMES = r"""
import socket, sys
link, kind = socket.socket(socket.AF_PACKET, socket.SOCK_RAW), bytes.fromhex("88b5")  # for local experiments
link.bind(("net1", 0))
for source in sys.argv[1:]:
    link.send(b"\xff" * 6 + bytes.fromhex(source.replace(":", "")) + kind + bytes(50))
"""


def heard(receiver: Pod, sender: Pod, *sources: str) -> list[str]:
    """Which of the frames from these MAC addresses, which `sender` broadcasts, reach `receiver`, up to the last one."""
    with receiver.view.entered():
        link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
        link.bind(("net1", 0x88B5))
    link.settimeout(30)
    command("ip", "netns", "exec", sender.name, sys.executable, "-c", FRAMES, *sources)
    found: list[str] = []
    with link:
        while sources[-1] not in found:
            found.append(link.recv(100)[6:12].hex(":"))
    return found


def test_what_spoofchk_and_the_rates_are_is_reported_by_the_pf_and_enforced_by_the_card(
    machine: Machine, nic: Card, say: Callable[[str], None]
) -> None:
    """QEMU's igb keeps the bits for anti-spoofing (DTXSWC) and the rate (RTTBCNRC), and looks at neither when it sends
    (hw/net/igb_core.c, igb_process_tx_desc): a frame from another's MAC arrives whatever spoofchk says, and nothing is
    slowed down. So here it is what the PF reports that counts, and what arrives is told. VLANs it does keep apart."""
    first, second = machine.pod("pod1"), machine.pod("pod2")
    machine.cni("sriov", "ADD", network(nic.vfs[1]), netns=second, container_id="c2").succeeded()
    own, foreign = machine.host.link("ens1f0v0").mac, "02:00:00:00:ee:ee"
    for spoofchk, rate in (("off", 100), ("on", 0)):
        config = network(nic.vfs[0], spoofchk=spoofchk, max_tx_rate=rate)
        machine.cni("sriov", "ADD", config, netns=first).succeeded()
        assert (nic.state(0)["spoofchk"], nic.state(0)["rate"]["max_tx"]) == (spoofchk == "on", rate)
        found = heard(second, first, foreign, own)
        arrives = "arrives" if foreign in found else "is dropped"
        say(
            f"spoofchk {spoofchk}: a frame from another's MAC {arrives}; max_tx_rate {rate} is reported, and not measured"
        )
        if spoofchk == "off":
            assert foreign in found
        machine.cni("sriov", "DEL", config, netns=first).succeeded()


def test_what_the_driver_cannot_is_refused_by_its_key_and_leaves_nothing(machine: Machine, nic: Card) -> None:
    before = whole(machine, nic)
    pod = machine.pod("pod1")
    for more, words in (
        ({"link_state": "enable", "vlan": 7}, ("link_state enable", f'VF 0 of PF "{nic.pf}"', "leave the key out")),
        ({"min_tx_rate": 10, "vlan": 7}, ("min_tx_rate 10", "the PF's driver")),
    ):
        machine.cni("sriov", "ADD", network(nic.vfs[0], **more), netns=pod).refused(101, *words)
        assert whole(machine, nic) == before
    machine.cni("sriov", "ADD", network(nic.vfs[0], mtu=9000), netns=pod).refused(7, "mtu 9000", nic.pf, "1500")
    pf = (Path("/sys/class/net") / nic.pf / "device").resolve().name
    machine.cni("sriov", "ADD", network(pf), netns=pod).refused(7, pf, "physical function")
    assert (whole(machine, nic), machine.leases(), machine.files()) == (before, [], [])


def test_a_late_delete_resets_nothing_of_a_vf_that_another_pod_has(machine: Machine, nic: Card) -> None:
    """sriov-cni #219, with a sandbox that died: the kernel has brought the VF back under the pod's name."""
    before = whole(machine, nic)
    old = network(nic.vfs[0], **EVERYTHING)
    machine.cni("sriov", "ADD", old, netns=machine.pod("pod1"), container_id="old").succeeded()
    machine.delete_pod(machine.pods["pod1"])
    wait_for_netdev(nic.vfs[0], "net1")
    second = machine.pod("pod2")
    new = network(nic.vfs[0], vlan=300)
    machine.cni("sriov", "ADD", new, netns=second, container_id="new").succeeded()
    state, link = nic.state(0), lasting(second.view.link("net1"))
    assert (state["vlan_list"][0]["vlan"], state["trust"], state["rate"]["max_tx"]) == (300, False, 0)
    machine.cni("sriov", "DEL", old, netns="/run/netns/pod1", container_id="old").succeeded()
    assert (nic.state(0), lasting(second.view.link("net1"))) == (state, link)
    machine.cni("sriov", "DEL", new, netns=second, container_id="new").succeeded()
    assert whole(machine, nic) == before


def test_a_vf_of_a_sandbox_that_died_is_restored_by_gc(machine: Machine, nic: Card) -> None:
    before = whole(machine, nic)
    config = network(nic.vfs[0], **EVERYTHING)
    machine.cni("sriov", "ADD", config, netns=machine.pod("pod1")).succeeded()
    machine.delete_pod(machine.pods["pod1"])
    wait_for_netdev(nic.vfs[0], "net1")
    machine.cni("sriov", "GC", {**config, "cni.dev/valid-attachments": []}).succeeded()
    assert (whole(machine, nic), machine.leases(), machine.files()) == (before, [], [])


def test_a_mac_is_given_in_spite_of_an_administrative_one_and_that_comes_back(machine: Machine, nic: Card) -> None:
    command("ip", "link", "set", nic.pf, "vf", "0", "mac", "02:00:00:00:bb:01")
    before = whole(machine, nic)
    pod = machine.pod("pod1")
    config = network(nic.vfs[0], mac=MAC)
    machine.cni("sriov", "ADD", config, netns=pod).succeeded()
    assert (pod.view.link("net1").mac, nic.state(0)["address"]) == (MAC, MAC)
    machine.cni("sriov", "DEL", config, netns=pod).succeeded()
    assert whole(machine, nic) == before


def test_host_device_attaches_a_vf_with_an_administrative_mac_and_an_ipv6_address(machine: Machine, nic: Card) -> None:
    """igb refuses such a VF even its own MAC, by whose setting IPv6 addresses are announced; and from when the VF is
    next set up, which is in the pod, it has the administrative one, and cannot get its former one back."""
    before = whole(machine, nic)
    command("ip", "link", "set", nic.pf, "vf", "0", "mac", "02:00:00:00:bb:01")
    pod = machine.pod("pod1")
    config = {"cniVersion": "1.1.0", "name": "vfs", "type": "host-device", "pciBusID": nic.vfs[0], "ipam": LEASES}
    machine.cni("host-device", "ADD", config, netns=pod).succeeded()
    assert "fd00:111::1/64" in pod.view.link("net1").texts
    machine.cni("host-device", "DEL", config, netns=pod).succeeded()
    name, mac, *rest = whole(machine, nic)[2]
    assert (name, rest) == (before[2][0], list(before[2][2:]))
    assert mac in (before[2][1], "02:00:00:00:bb:01")
    assert (machine.leases(), machine.files()) == ([], [])


def test_a_vf_whose_pf_is_elsewhere_attaches_and_keys_of_the_pf_are_named(machine: Machine, nic: Card) -> None:
    elsewhere, pod = machine.pod("elsewhere"), machine.pod("pod1")
    command("ip", "link", "set", nic.pf, "netns", "elsewhere")
    try:
        refusal = machine.cni("sriov", "ADD", network(nic.vfs[0], vlan=7, trust="on"), netns=pod)
        refusal.refused(7, "vlan, trust", nic.vfs[0], "remove the key")
        machine.cni("sriov", "ADD", network(nic.vfs[0]), netns=pod).succeeded()
        assert pod.view.link("net1").up
        machine.cni("sriov", "DEL", network(nic.vfs[0]), netns=pod).succeeded()
        assert netdev(nic.vfs[0]) == "ens1f0v0"
    finally:
        with elsewhere.view.entered():
            command("ip", "link", "set", nic.pf, "netns", "1")


def attached_by_go(machine: Machine, nic: Card) -> Pod:
    """A pod as Go's sriov-cni leaves it: the VF renamed in the sandbox, and two files."""
    pod = machine.pod("pod1")
    state = {"HostIFName": "ens1f0v0", "EffectiveMAC": machine.host.link("ens1f0v0").mac, "MTU": 1400, "SpoofChk": True}
    state |= {"AdminMAC": nic.state(0)["address"], "VlanProto": 0x8100, "LinkState": 0}
    document = {**network(nic.vfs[0]), "vlan": 100, "vlanQoS": 0, "vlanProto": "802.1q", "trust": "on", "MAC": MAC}
    document |= {"Master": nic.pf, "VFID": 0, "OrigVfState": state}
    top = machine.path("/var/lib/cni/sriov/pci")
    top.mkdir(mode=0o700, parents=True)
    for path, text in ((top.parent / "c1-net1", json.dumps(document)), (top / nic.vfs[0], pod.path)):
        path.write_text(text)
        os.chmod(path, 0o600)
    command("ip", "link", "set", nic.pf, "vf", "0", "vlan", "100", "trust", "on")
    command("ip", "link", "set", "ens1f0v0", "down")
    command("ip", "link", "set", "ens1f0v0", "netns", "pod1", "name", "net1")
    return pod


def test_a_delete_ends_what_gos_sriov_cni_has_attached(machine: Machine, nic: Card) -> None:
    before = whole(machine, nic)
    pod = attached_by_go(machine, nic)
    machine.cni("sriov", "ADD", network(nic.vfs[0]), netns=machine.pod("pod2"), container_id="c2").refused(
        11, "Go's sriov-cni"
    )
    machine.cni("sriov", "DEL", network(nic.vfs[0]), netns=pod).succeeded()
    after = whole(machine, nic)
    assert after[:2] == before[:2]
    assert after[2][:3] == before[2][:3]  # what else there was Go's plugin has not kept
    assert machine.files() == []


def test_a_taken_name_keeps_no_pod_of_gos_sriov_cni_from_ending(machine: Machine, nic: Card) -> None:
    before = nic.state(0)
    pod = attached_by_go(machine, nic)
    command("ip", "link", "add", "ens1f0v0", "type", "dummy")
    try:
        told = machine.cni("sriov", "DEL", network(nic.vfs[0]), netns=pod)
        told.refused(11, 'is on the host as "dev0"', "ip link set dev0 name ens1f0v0")
        assert nic.state(0) == before
        machine.cni("sriov", "DEL", network(nic.vfs[0]), netns=pod).succeeded()
        assert machine.files() == []
    finally:
        command("ip", "link", "del", "ens1f0v0")
        command("ip", "link", "set", "dev0", "down", "name", "ens1f0v0")


WAYS = ("DEL", "GC", "ADD again and DEL", "the sandbox's end and DEL", "the sandbox's end and GC")


def _goes_on(machine: Machine, vf: str, asked: dict[str, Any], pod: Pod, way: str) -> Pod:
    """What a runtime does after a call was killed; the pod for the next one."""

    def call(verb: str, **more: Any) -> None:
        machine.cni(asked["type"], verb, {**asked, **more}, netns=pod.path).succeeded()

    if way.startswith("ADD"):
        call("ADD")
    elif way.startswith("the sandbox"):
        machine.delete_pod(pod)
        wait_for_netdev(vf)
    if way.endswith("GC"):
        call("GC", **{"cni.dev/valid-attachments": []})
    else:
        call("DEL")
    return pod if Path(pod.path).exists() else machine.pod("pod1")


def _sweep(
    machine: Machine, nic: Card, verb: str, calls: dict[str, range], say: Callable[[str], None], **config: Any
) -> None:
    before = whole(machine, nic)
    pod = machine.pod("pod1")
    asked = {**network(nic.vfs[0]), **config}
    points, ways = 0, itertools.cycle(WAYS)
    for call, numbers in calls.items():
        for number in numbers:
            if verb == "DEL":
                machine.cni(asked["type"], "ADD", asked, netns=pod).succeeded()
            if not networks.killed(machine, verb, asked, pod, f"{call}:{number}"):
                if verb == "ADD":
                    machine.cni(asked["type"], "DEL", asked, netns=pod).succeeded()
                break
            points += 1
            way = next(ways)
            pod = _goes_on(machine, nic.vfs[0], asked, pod, way)
            left = (whole(machine, nic), machine.leases(), machine.files(), pod.view.names())
            assert left == (before, [], [], []), f"{verb} killed at {call} {number}, then {way}"
    say(
        f"{asked['type']} {verb}: killed at {points} points; {', '.join(WAYS)} in turn left nothing, and the VF as it was"
    )
    assert points


SAMPLE = {"sendto": range(3, 80, 5), "fsync": range(1, 30, 3), "rename": range(1, 20), "unlink": range(1, 20)}
ALL = {"sendto": range(1, 100), "rename": range(1, 20), "unlink": range(1, 20), "fsync": range(1, 30)}
by_both = pytest.mark.parametrize(
    "config", [EVERYTHING, {"type": "host-device", "deviceID": None, "pciBusID": "own"}], ids=["sriov", "host-device"]
)


@by_both
@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_call_killed_at_some_points_leaves_nothing_that_a_delete_does_not_clear(
    machine: Machine, nic: Card, verb: str, config: dict[str, Any], say: Callable[[str], None]
) -> None:
    own = {key: nic.vfs[0] if value == "own" else value for key, value in config.items()}
    _sweep(machine, nic, verb, SAMPLE, say, **own)


@pytest.mark.long
@by_both
@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_call_killed_at_every_point_leaves_nothing_that_a_delete_does_not_clear(
    machine: Machine, nic: Card, verb: str, config: dict[str, Any], say: Callable[[str], None]
) -> None:
    own = {key: nic.vfs[0] if value == "own" else value for key, value in config.items()}
    _sweep(machine, nic, verb, ALL, say, **own)
