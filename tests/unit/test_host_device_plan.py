"""What host-device decides before it touches anything, and how it knows a device again."""

import errno
import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.link.plugins.host_device import devices, moved
from cni.link.plugins.host_device import plugin as host_device
from cni.shared.config import Fault, refuse
from cni.shared.kernel.links import Link, ifinfo
from cni.shared.kernel.netlink import KernelError
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from cni.shared.spec.request import Attachment, Request, parse

ENVIRON = {
    "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "net1", "CNI_NETNS": "/run/netns/pod1",
    "CNI_PATH": "/opt/cni/bin",
}  # fmt: skip


def request(**config: Any) -> Request:
    whole = {"cniVersion": "1.1.0", "name": "rdma", "type": "host-device", **config}
    return parse(ENVIRON, json.dumps(whole).encode())


def link(**attributes: Any) -> Link:
    found = Link(ifinfo(0))
    defaults = {"name": "ens2f0", "index": 7, "mtu": 9000, "min_mtu": 68, "max_mtu": 9978, "arphrd": 1}
    for name, value in {**defaults, **attributes}.items():
        setattr(found, name, value)
    return found


def read(asked: Request) -> host_device.HostDeviceConfig:
    faults: list[Fault] = []
    config = host_device.read(asked, faults)
    refuse(faults)
    return config


def facts(**found: Any) -> host_device.HostDeviceFacts:
    made = host_device.HostDeviceFacts()
    device = found.get("device", link())
    made.device = device
    made.state = devices.identity_of(device) if device else {}
    for name, value in found.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(("config", "found", "kind", "words"), [
    ({}, {}, InvalidConfig, ["device", "hwaddr", "kernelpath", "pciBusID", "deviceID"]),
    ({"device": "ens9"}, {"device": None, "names": ["lo"]}, InvalidConfig, ['device "ens9"', "no netdev"]),
    ({"device": "ens2f0"}, {"device": None, "holder": Attachment("storage", "c7", "net3")}, TryAgainLater,
     ["ens2f0", "c7", "net3", "storage"]),
    ({"device": "ens2f0"}, {"reason": "it carries the default route"}, InvalidConfig, ["ens2f0", "default route"]),
    ({"device": "ens2f0", "mtu": 10000}, {}, InvalidConfig, ["mtu 10000", "ens2f0", "9978"]),
    ({"device": "ens2f0", "mtu": 60}, {}, InvalidConfig, ["mtu 60", "68"]),
], ids=["no selector", "absent", "held", "default route", "mtu too large", "mtu too small"])  # fmt: skip
def test_what_cannot_be_moved_is_refused_with_the_reason(
    config: dict[str, Any], found: dict[str, Any], kind: type[CniError], words: list[str]
) -> None:
    asked = request(**config)
    with pytest.raises(kind) as caught:
        host_device.plan(read(asked), asked, facts(**found))
    assert all(word in caught.value.msg[:250] for word in words), caught.value.msg


@pytest.mark.parametrize("config", [
    {"kernelpath": "/sys/class/net/ens2f0"}, {"kernelpath": "/sys/devices/../../etc"}, {"pciBusID": "../../etc"},
    {"pciBusID": "99"},
    {"runtimeConfig": {"deviceID": "a/b"}}, {"runtimeConfig": {"deviceID": 7}}, {"hwaddr": "nonsense"},
    {"device": 7},
], ids=json.dumps)  # fmt: skip
def test_a_selector_that_is_malformed_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        read(request(**config))


def test_hardware_is_known_by_its_parent_and_permanent_mac_whatever_it_is_called() -> None:
    nic = link(
        parent_bus="pci", parent_device="0000:3b:00.0", permanent_mac="02:00:00:00:00:0a", mac="02:00:00:00:00:0a"
    )
    known = devices.identity_of(nic)
    renamed = link(name="net1", parent_bus="pci", parent_device="0000:3b:00.0", permanent_mac="02:00:00:00:00:0a")
    second_port = link(parent_bus="pci", parent_device="0000:3b:00.0", permanent_mac="02:00:00:00:00:0b", index=8)
    impostor = link(name="ens2f0", parent_bus="pci", parent_device="0000:5e:00.0", permanent_mac="02:00:00:00:00:0a")
    assert devices.known_again(known, [impostor, second_port, renamed]) is renamed


VETH = {"kind": "veth", "mac": "02:00:00:00:00:0a", "lower_index": 5}
OUTSIDE = {"lower_netnsid": 0}
NO_MAC = {"mac": "02:00:00:00:00:0b"}
MARK = {"alias": "ens2f0"}


@pytest.mark.parametrize(
    ("found", "known"),
    [({"name": "net1"} | OUTSIDE, True), (NO_MAC | MARK | OUTSIDE, True), (NO_MAC | OUTSIDE, True),
     ({"kind": "macvlan"} | MARK | OUTSIDE, False), (NO_MAC | {"lower_index": 6} | OUTSIDE, False),
     ({"index": 9} | MARK | OUTSIDE, True), ({"index": 9} | OUTSIDE, True),
     ({"index": 9, "lower_index": 6} | OUTSIDE, False),
     ({"index": 9} | NO_MAC | MARK | {"lower_index": 6} | OUTSIDE, False), ({"index": 9} | MARK, False), (MARK, False)],
    ids=[
        "index and MAC", "index and mark", "index and its other end", "another kind", "index alone",
        "MAC and mark", "MAC and its other end", "MAC alone", "mark alone", "a pair within the sandbox",
        "a pair within the sandbox with the index of the device",
    ],
)  # fmt: skip
def test_a_virtual_device_is_known_there_by_its_index_or_by_several_signs(found: dict[str, Any], known: bool) -> None:
    remembered = devices.identity_of(link(**VETH))
    candidate = link(**VETH | found)
    assert (devices.known_again(remembered, [candidate], away=True) is candidate) is known


@pytest.mark.parametrize(("found", "in_sandbox", "on_host"), [
    ({}, False, True), ({"name": "net1"}, False, False), ({"name": "net1"} | MARK, True, True),
    ({"index": 9} | MARK, True, True), ({"index": 9}, False, False), ({"kind": "sit"} | MARK, False, False),
], ids=["index and name", "index alone", "index and mark", "mark alone", "name alone", "another kind"])  # fmt: skip
@pytest.mark.parametrize("mac", ["", "00:00:00:00", "00:00:00:00:00:00"])
def test_a_device_without_a_mac_is_known_in_a_sandbox_by_its_mark_alone(
    mac: str, found: dict[str, Any], in_sandbox: bool, on_host: bool
) -> None:
    """The sandbox has a `lo` and a tunl0 of its own, often with the index that they have on the host."""
    bare = {"kind": "ipip", "mac": mac}
    remembered = devices.identity_of(link(**bare))
    candidate = link(**bare | found)
    assert (devices.known_again(remembered, [candidate], away=True) is candidate) is in_sandbox
    assert (devices.known_again(remembered, [candidate]) is candidate) is on_host


def test_hardware_without_a_mac_is_known_in_a_sandbox_by_its_parent() -> None:
    can = {"parent_bus": "pci", "parent_device": "0000:3b:00.0"}
    remembered = devices.identity_of(link(**can))
    device = link(**can, name="net1", index=9)
    assert devices.known_again(remembered, [device], away=True) is device


def test_a_virtual_device_on_the_host_is_not_known_by_its_name() -> None:
    remembered = devices.identity_of(link(**VETH))
    device = link(**VETH)
    namesake = link(**VETH | NO_MAC | {"index": 3})
    assert devices.known_again(remembered, [namesake]) is None
    assert devices.known_again(remembered, [namesake, device]) is device


def test_the_link_with_the_index_of_the_device_comes_before_one_that_bears_its_signs() -> None:
    remembered = devices.identity_of(link(**VETH))
    planted = link(**VETH | MARK | OUTSIDE | {"index": 2})
    device = link(**VETH | NO_MAC | OUTSIDE)
    assert devices.known_again(remembered, [planted, device], away=True) is device


def test_a_record_holds_the_whole_plan() -> None:
    asked = request(device="ens2f0", mtu=4200)
    before = host_device.plan(read(asked), asked, facts())
    after = host_device.load(json.loads(json.dumps(before.document())))
    assert after.mtu == 4200
    assert vars(after) == vars(before)


_SEEN = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["ens1", "ens2"]), "alias": st.sampled_from(["", "ens1"]),
        "index": st.sampled_from([7, 8]), "kind": st.just(""),
        "mac": st.sampled_from(["", "02:00:00:00:00:01", "02:00:00:00:00:02"]),
        "permanent_mac": st.sampled_from(["", "02:00:00:00:00:01", "02:00:00:00:00:02"]), "parent_bus": st.just("pci"),
        "parent_device": st.sampled_from(["", "0000:3b:00.0", "0000:3b:00.1"]),
    }
)  # fmt: skip


@given(_SEEN, _SEEN)
def test_a_record_of_hardware_holds_a_sign_by_which_it_is_looked_for(then: dict[str, Any], now: dict[str, Any]) -> None:
    remembered, device = devices.identity_of(link(**then)), link(**now)
    signs = devices.signs_of(device)
    if signs and devices.is_same(remembered, device):
        assert any(codec.dumps(sign) in codec.dumps(remembered) for sign in signs if sign)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENETDOWN, "set the link below it up"), (errno.EIO, "see the kernel log for its driver")],
)
def test_a_device_that_cannot_be_set_up_is_told_with_the_remedy(number: int, remedy: str) -> None:
    planned: Any = SimpleNamespace(device={"name": "eth0.5", "lower": 7})  # a VLAN is refused while its NIC is down
    assert moved.refused_up(planned, KernelError(number)).endswith(f": {os.strerror(number)}; {remedy}")
