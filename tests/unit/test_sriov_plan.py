"""What sriov decides before it touches anything: its keys, and why a VF cannot be attached."""

import json
from typing import Any

import pytest

from cni.link.plugins.host_device import devices
from cni.link.plugins.sriov import plugin as sriov
from cni.link.plugins.sriov import vf as sriov_vf
from cni.shared.config import Fault
from cni.shared.kernel import sysfs
from cni.shared.kernel.links import Link
from cni.shared.log import Log
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from cni.shared.spec.request import Attachment, Request, parse
from tests.unit.test_host_device_plan import ENVIRON, link

VF = "0000:3b:00.2"
STATE = {
    "mac": "00:00:00:00:00:00", "vlan": 0, "vlanQoS": 0, "vlanProto": "802.1q", "min_tx_rate": 0, "max_tx_rate": 0,
    "spoofchk": "on", "trust": "off", "link_state": "auto",
}  # fmt: skip


def request(args: str = "", **config: Any) -> Request:
    whole = {"cniVersion": "1.1.0", "name": "vfs", "type": "sriov", "deviceID": VF, **config}
    return parse({**ENVIRON, "CNI_ARGS": args}, json.dumps(whole).encode())


def read(args: str = "", **config: Any) -> tuple[sriov.SriovConfig, list[str]]:
    faults: list[Fault] = []
    return sriov.read(request(args, **config), faults), [str(fault) for fault in faults]


def facts(**found: Any) -> sriov.SriovFacts:
    made = sriov.SriovFacts()
    made.device = found.get("device", link(parent_bus="pci", parent_device=VF))
    made.state = devices.identity_of(made.device) if made.device else {}
    made.driver = "mlx5_core"
    made.function = sriov_vf.VirtualFunction(link(name="ens1f0", mtu=9000), 3, dict(STATE))
    for name, value in found.items():
        setattr(made, name, value)
    return made


def planned(found: sriov.SriovFacts, **config: Any) -> sriov.SriovPlan:
    asked = request(**config)
    return sriov.plan(sriov.read(asked, []), asked, found)


@pytest.mark.parametrize(("config", "words"), [
    ({"deviceID": "ens1f0v3"}, ["deviceID", "PCI address", "0000:3b:00.2"]),
    ({"deviceID": "../../etc"}, ["deviceID"]), ({"deviceID": 7}, ["deviceID 7", "string"]),
    ({"runtimeConfig": {"deviceID": "mlx5_core.sf.4"}}, ["runtimeConfig.deviceID", "mlx5_core.sf.4"]),
    ({"vlan": 4095}, ["vlan 4095", "0 to 4094"]), ({"vlan": "100"}, ["vlan", "integer"]),
    ({"vlanQoS": 3}, ["vlanQoS 3", "`vlan`"]), ({"vlanProto": "802.1q"}, ["vlanProto", "`vlan`"]),
    ({"vlan": 5, "vlanQoS": 8}, ["vlanQoS 8", "0 to 7"]), ({"vlan": 0, "vlanQoS": 3}, ["vlanQoS 3", "1 to 4094"]),
    ({"vlan": 0, "vlanProto": "802.1ad"}, ["vlanProto", "1 to 4094"]),
    ({"vlan": 5, "vlanProto": "802.1x"}, ["vlanProto", "802.1q, 802.1ad"]),
    ({"mac": "01:00:00:00:00:01"}, ["mac", "multicast"]),
    ({"runtimeConfig": {"mac": "nonsense"}}, ["runtimeConfig.mac", "nonsense"]),
    ({"min_tx_rate": -1}, ["min_tx_rate -1"]),
    ({"min_tx_rate": 200, "max_tx_rate": 100}, ["min_tx_rate 200", "max_tx_rate 100"]),
    ({"spoofchk": True}, ["spoofchk true", "on, off"]), ({"trust": "yes"}, ["trust", "on, off"]),
    ({"link_state": "up"}, ["link_state", "auto, enable, disable"]),
    ({"mtu": 70000}, ["mtu 70000"]), ({"logLevel": "loud"}, ["logLevel", "debug"]),
], ids=json.dumps)  # fmt: skip
def test_a_key_that_is_wrong_is_named_with_what_would_be_right(config: dict[str, Any], words: list[str]) -> None:
    _, faults = read(**config)
    assert len(faults) == 1
    assert all(word in faults[0] for word in words), faults


def test_a_log_file_where_the_node_allows_none_is_told_and_not_written(capfd: pytest.CaptureFixture[str]) -> None:
    log = Log()
    sriov.direct_log(request(logFile="/etc/passwd"), log)
    assert log.path == ""
    assert "logFile /etc/passwd is not in logRoots" in capfd.readouterr().err
    assert read(logFile="/etc/passwd")[1] == []


@pytest.mark.parametrize(
    ("config", "settings"),
    [({}, {}), ({"vlan": None, "spoofchk": "", "trust": "", "link_state": ""}, {}),
     ({"vlan": 0}, {"vlan": 0, "vlanQoS": 0, "vlanProto": "802.1q"}),
     ({"vlan": 7, "vlanProto": "802.1AD"}, {"vlan": 7, "vlanQoS": 0, "vlanProto": "802.1ad"}),
     ({"max_tx_rate": 100}, {"min_tx_rate": 0, "max_tx_rate": 100}),
     ({"spoofchk": "off", "trust": "on", "link_state": "enable"}, {"spoofchk": "off", "trust": "on", "link_state": "enable"})],
    ids=json.dumps,
)  # fmt: skip
def test_only_what_is_configured_is_set_with_upstreams_defaults(
    config: dict[str, Any], settings: dict[str, Any]
) -> None:
    config_read, faults = read(**config)
    assert (config_read.settings(), faults) == (settings, [])


def test_the_runtimes_mac_comes_before_that_of_cni_args_and_the_configuration() -> None:
    macs = {"mac": "02:00:00:00:00:01"}
    assert read(**macs)[0].mac == "02:00:00:00:00:01"
    assert read("MAC=02:00:00:00:00:02", **macs)[0].mac == "02:00:00:00:00:02"
    of_runtime = {"runtimeConfig": {"mac": "CA:FE:C0:FF:EE:00"}}
    assert read("MAC=02:00:00:00:00:02", **macs, **of_runtime)[0].mac == "ca:fe:c0:ff:ee:00"


@pytest.mark.parametrize(
    ("config", "found", "kind", "words"),
    [({"deviceID": None}, {}, InvalidConfig, ["no VF", "resourceName", "`deviceID`"]),
     ({}, {"exists": False}, InvalidConfig, [VF, "no PCI device"]),
     ({}, {"is_physical": True}, InvalidConfig, [VF, "physical function", "host-device"]),
     ({}, {"holder": Attachment("storage", "c7", "net3")}, TryAgainLater, [VF, "c7", "net3", "storage"]),
     ({}, {"holder": "/run/netns/pod9"}, TryAgainLater, [VF, "Go's sriov-cni", "/run/netns/pod9"]),
     ({}, {"device": None, "driver": ""}, InvalidConfig, [VF, "no driver", "vfio-pci"]),
     ({}, {"device": None, "driver": "pci-stub"}, InvalidConfig, [VF, "pci-stub"]),
     ({"vlan": 5, "trust": "on"}, {"function": None}, InvalidConfig, ["vlan, trust", "virtual machine"]),
     ({}, {"reason": "it carries the default route"}, InvalidConfig, [VF, "default route"]),
     ({"mtu": 9500}, {}, InvalidConfig, ["mtu 9500", "9000", "ens1f0"])],
    ids=[
        "no VF", "absent", "PF", "held", "held by Go's", "unbound", "foreign driver", "no PF", "default route",
        "mtu above the PF's",
    ],
)  # fmt: skip
def test_a_vf_that_cannot_be_attached_is_refused_with_the_reason(
    config: dict[str, Any], found: dict[str, Any], kind: type[CniError], words: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        planned(facts(**found), **config)
    assert all(word in caught.value.msg[:250] for word in words), caught.value.msg


def test_what_is_set_is_what_will_be_put_back_and_nothing_else() -> None:
    made = planned(facts(), vlan=7, mac="02:00:00:00:00:01")
    assert made.keys == ["vlan", "vlanQoS", "vlanProto", "mac"]
    assert made.former == STATE
    assert planned(facts()).keys == []
    assert planned(facts(function=None), mac="02:00:00:00:00:01").keys == []  # no PF keeps one


def test_a_vf_of_a_userspace_driver_is_not_moved_and_told_with_its_administrative_mac() -> None:
    bound = {"device": None, "driver": "vfio-pci"}
    made = planned(facts(**bound), vlan=7)
    assert (made.device, made.mtu, sriov.without_link(made)) == ({}, 0, ("", 9000))
    function = sriov_vf.VirtualFunction(link(name="ens1f0", mtu=1500), 3, STATE | {"mac": "02:00:00:00:00:0a"})
    assert sriov.without_link(planned(facts(**bound, function=function))) == ("02:00:00:00:00:0a", 1500)
    assert sriov.without_link(planned(facts(**bound, function=None))) == ("", 0)
    with pytest.raises(InvalidConfig, match="^mac: only the PF"):
        planned(facts(**bound, function=None), mac="02:00:00:00:00:01")


def test_the_mtu_of_a_vf_without_a_netdev_is_told_or_refused() -> None:
    bound = {"device": None, "driver": "vfio-pci"}
    assert sriov.without_link(planned(facts(**bound), mtu=4000)) == ("", 4000)
    assert sriov.without_link(planned(facts(**bound, function=None), mtu=9600)) == ("", 9600)
    for of_pf, mtu, words in (({}, 67, "give 68 to"), ({"function": None}, 1, "give 68 to"), ({}, 9001, "above 9000")):
        with pytest.raises(InvalidConfig, match=f"^mtu {mtu} .*{words}"):
            planned(facts(**bound, **of_pf), mtu=mtu)


def test_a_record_holds_the_whole_plan_and_whether_the_device_was_given_back() -> None:
    before = planned(facts(), vlan=7, spoofchk="off", mac="02:00:00:00:00:01", mtu=1400)
    after = sriov.load(json.loads(json.dumps(before.document())))
    assert vars(after) == vars(before) and not after.returned
    assert devices.MovePlan(before.document() | {"returned": True}).returned


def test_a_vf_whose_permanent_mac_follows_its_own_is_known_again() -> None:
    """As igbvf's does; a second port of one function is still another device."""
    vf = link(parent_bus="pci", parent_device=VF, permanent_mac="02:00:00:00:00:0a", index=7, name="ens1f0v3")
    known = devices.identity_of(vf)
    given = {"parent_bus": "pci", "parent_device": VF, "permanent_mac": "02:00:00:00:00:0b"}
    assert devices.is_same(known, link(**given, index=7, name="net1"))
    assert devices.is_same(known, link(**given, index=9, alias="ens1f0v3"))
    assert not devices.is_same(known, link(**given, index=9))


def test_no_setting_of_a_vf_is_reset_while_it_is_in_a_lost_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its VLAN keeps it apart from others as long as it lives."""

    class Host:
        def link(self, index: int) -> None:
            return None

        def links(self) -> list[Link]:
            return []

    def found(pci: str, host: object) -> None:
        raise AssertionError("a setting was looked at to be reset")

    monkeypatch.setattr(sriov_vf, "find", found)
    monkeypatch.setattr(sysfs, "has_netdev", lambda bus, device: (bus, device) == ("pci", VF), raising=False)
    plan = planned(facts(), vlan=100)
    with pytest.raises(TryAgainLater, match="not back on the host"):
        sriov.remove(plan, Host(), None, Log(""))  # type: ignore[arg-type]
