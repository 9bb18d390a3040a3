"""CHECK compares the attachment with the configuration that it is given, for every key of every plugin."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from cni.link.features import verbs_device as extra_rdma
from cni.link.plugins import macvlan, rdma
from cni.link.plugins.host_device import plugin as host_device
from cni.link.plugins.sriov import plugin as sriov
from cni.link.plugins.sriov import vf as sriov_vf
from cni.shared import rail
from cni.shared.config import Fault
from cni.shared.kernel import sandbox as sandboxes
from cni.shared.kernel import sysfs
from cni.shared.spec.errors import AttachmentDiffers
from cni.shared.spec.request import parse
from ipam import keys as ipam
from tests.blackbox.test_host_device import PCI, bus
from tests.node import GO_PLUGINS, Node, Pod
from tests.tools import needs_ip
from tests.unit import test_host_device_plan, test_sriov_plan

pytestmark = pytest.mark.forked

LEASES = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
MAC = "02:00:00:00:77:01"
OTHER_PCI = "0000:3b:00.7"


@dataclass
class Scene:
    """An attachment of `plugin` made with `made`, a CHECK with `asked` in its configuration, and the difference."""

    asked: dict[str, Any]
    words: str
    made: dict[str, Any] = field(default_factory=dict)
    plugin: str = "macvlan"


def of_ipam(asked: dict[str, Any], words: str, made: dict[str, Any] | None = None) -> Scene:
    whole = {**LEASES, **(made or {})}
    return Scene({"ipam": {**whole, **asked}}, words, {"ipam": whole})


def host(asked: dict[str, Any], words: str, made: dict[str, Any] | None = None) -> Scene:
    return Scene(asked, words, made or {}, "host-device")


def of_vf(asked: dict[str, Any], words: str) -> Scene:
    return Scene(asked, words, {}, "sriov")


RAIL = {"index": 1, "group": "gpu"}
RANGES = ["192.168.110.0/24", "192.168.111.0/24"]


def of_rail(asked: dict[str, Any], words: str, made: dict[str, Any] | None = None) -> Scene:
    whole = {**RAIL, **(made or {})}
    return Scene({"rail": {**whole, **asked}}, words, {"rail": whole})


RESULT_ONLY = "it is in the result, for the runtime; the kernel does not have it"
DEFAULT_MASTER = "it chooses the default master, which may change"
HOW_ADD_WAITED = "it says how ADD waits for the addresses; none of them shows it"
OF_THE_RECORD = "after the ADD the rail is that of the record: the device may be gone (test_rails)"
OF_THE_IPAM = "the IPAM plugin's CHECK compares its keys: the table of whereabouts"
LOG = "it says where and how much is logged"
ACCESS = "it says how the store is reached, not which one it is"
WITH_DATA_DIR = "compared with the other members of the store's description: the scene of dataDir, stores.same"
NO_EFFECT_LATER = "it decides what ADD and DEL do, and stands in no lease"

Case = Scene | str | Callable[[pytest.MonkeyPatch], None]


def pf_sets(key: str, value: Any, now: Any, **more: Any) -> Case:
    """A key that is set by the PF: `now` it is the VF's."""

    def compare(patch: pytest.MonkeyPatch) -> None:
        state = {**test_sriov_plan.STATE, **({"vlan": 100} if "vlan" in more else {})}
        function = sriov_vf.VirtualFunction(test_host_device_plan.link(name="ens1f0"), 3, state)
        patch.setattr(sriov_vf, "find", lambda pci, host: function)
        plan = test_sriov_plan.planned(test_sriov_plan.facts())
        config, faults = test_sriov_plan.read(**more, **{key: value})
        assert faults == []
        link = test_sriov_plan.facts().device
        found = sriov.differences(plan, config, link, None, None)  # type: ignore[arg-type]
        assert found == [f'{key} of VF 3 of PF "ens1f0" is {now}, configured is {value}']
        same, _ = test_sriov_plan.read(**more, **{key: now})
        assert sriov.differences(plan, same, link, None, None) == []  # type: ignore[arg-type]

    return compare


def kernelpath(patch: pytest.MonkeyPatch) -> None:
    at = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    patch.setattr(sysfs, "path_of", lambda bus, device: f"{at}/virtio2")
    config, plan, link = of_hardware({"kernelpath": at})
    assert host_device.differences(plan, config, link, None, None) == []  # type: ignore[arg-type]
    config, plan, link = of_hardware({"kernelpath": at[:-1] + "1"})
    found = host_device.differences(plan, config, link, None, None)  # type: ignore[arg-type]
    assert found == [f'device is "ens2f0", configured is kernelpath "{at[:-1]}1"']
    config, plan, link = of_hardware({"pciBusID": "0000:3b:00.1"})  # of a virtio device the record has no PCI address
    assert len(host_device.differences(plan, config, link, None, None)) == 1  # type: ignore[arg-type]


def of_hardware(selector: dict[str, str]) -> Any:
    """A configuration with another selector, and the plan of a device of the bus virtio."""
    link = test_host_device_plan.link(parent_bus="virtio", parent_device="virtio2", mac=MAC, permanent_mac=MAC)
    made = test_host_device_plan.request(device="ens2f0")
    plan = host_device.plan(test_host_device_plan.read(made), made, test_host_device_plan.facts(device=link))
    return test_host_device_plan.read(test_host_device_plan.request(**selector)), plan, link


def verbs_device(patch: pytest.MonkeyPatch) -> None:
    differs(patch, {"verbsDevice": "mlx5_9"}, "verbsDevice of container c1 is mlx5_0, configured is mlx5_9")


def of_parent(patch: pytest.MonkeyPatch) -> None:
    differs(patch, {"deviceID": OTHER_PCI}, f"deviceID of container c1 is {PCI}, configured is {OTHER_PCI}")


def differs(patch: pytest.MonkeyPatch, config: dict[str, Any], words: str) -> None:
    """CHECK of the chained plugin rdma for a verbs device of PCI."""
    record = {"device": "mlx5_0", "index": 1, "parent": PCI}
    patch.setattr(sandboxes, "opened", lambda _: nullcontext())
    patch.setattr(rdma, "_exclusive", lambda kind: None)
    whole = {"cniVersion": "1.1.0", "name": "n", "type": "rdma", "prevResult": {"cniVersion": "1.1.0"}, **config}
    request = parse({**test_host_device_plan.ENVIRON, "CNI_COMMAND": "CHECK"}, json.dumps(whole).encode())
    with pytest.raises(AttachmentDiffers, match=words):
        rdma.check(request, SimpleNamespace(read=lambda *_: record))  # type: ignore[arg-type]


def link_local(_: pytest.MonkeyPatch) -> None:
    faults: list[Fault] = []
    config = extra_rdma.read({"ipv6LinkLocal": False}, test_host_device_plan.request(), faults)
    assert config is not None
    assert extra_rdma.unlike({"ipv6LinkLocal": True}, config) == ["rdma.ipv6LinkLocal is true, configured is false"]
    assert extra_rdma.unlike({"ipv6LinkLocal": False}, config) == extra_rdma.unlike(None, config) == []


IPAM_10_7 = {"addresses": [{"address": "10.7.0.1/24"}]}
IPAM_10_8 = {"routes": [{"dst": "10.8.0.0/16"}]}
OTHER_RANGES = {"rail": {**RAIL, "addressing": "same-index", "ranges": ["10.3.0.0/24", "10.4.0.0/24"]}, "ipam": {**LEASES, "range": "10.4.0.0/24"}}  # fmt: skip
TABLES: dict[str, tuple[Any, dict[str, list[Case] | Case]]] = {
    "macvlan": (macvlan.KEYS, {
        "master": [
            Scene({"master": "ens9"}, "master is ens2f0, configured is ens9"),
            Scene({"master": "nope"}, "master is ens2f0, configured is nope, which does not exist on the host"),
        ],
        "mode": [
            Scene({"mode": "vepa"}, "mode is bridge, configured is vepa"),
            Scene({"mode": None}, "mode is vepa, configured is bridge", {"mode": "vepa"}),
            Scene({"mode": "passthru"}, "mode is bridge, configured is passthru"),
        ],
        "mtu": Scene({"mtu": 1500}, "mtu is 9000, configured is 1500"),
        "mac": [
            Scene({"mac": MAC}, f", configured is {MAC}"),
            Scene({"runtimeConfig": {"mac": "02:00:00:00:77:02"}}, f"mac is {MAC}, configured is", {"mac": MAC}),
        ],
        "linkInContainer": Scene({"linkInContainer": True}, "master is ens2f0 on the host, configured is one in the sandbox"),
        "bcqueuelen": Scene({"bcqueuelen": 70}, "bcqueuelen is 50, configured is 70", {"bcqueuelen": 50}),
        "deviceID": DEFAULT_MASTER, "dad": HOW_ADD_WAITED, "ipam": OF_THE_IPAM, "dns": RESULT_ONLY,
    }),
    "host-device": (host_device.KEYS, {
        "device": host({"device": "ens9-peer"}, 'device is "ens9", configured is device "ens9-peer"'),
        "hwaddr": host({"device": None, "hwaddr": MAC}, f'device is "ens9", configured is hwaddr "{MAC}"'),
        "kernelpath": kernelpath,
        "pciBusID": [
            host({"pciBusID": OTHER_PCI}, f'configured is pciBusID "{OTHER_PCI}"', {"device": None, "pciBusID": PCI}),
            host({"runtimeConfig": {"deviceID": OTHER_PCI}}, f'configured is runtimeConfig.deviceID "{OTHER_PCI}"',
                 {"device": None, "runtimeConfig": {"deviceID": PCI}}),
        ],
        "mtu": host({"mtu": 1400}, "mtu is 1500, configured is 1400"),
        "dad": HOW_ADD_WAITED, "ipam": OF_THE_IPAM, "dns": RESULT_ONLY,
    }),
    "sriov": (sriov.KEYS, {
        "deviceID": of_vf({"deviceID": OTHER_PCI}, f"deviceID is {PCI}, configured is {OTHER_PCI}"),
        "vlan": pf_sets("vlan", 200, 0),
        "vlanQoS": pf_sets("vlanQoS", 5, 0, vlan=100),
        "vlanProto": pf_sets("vlanProto", "802.1ad", "802.1q", vlan=100),
        "mac": of_vf({"mac": MAC}, f"configured is {MAC}"),
        "min_tx_rate": pf_sets("min_tx_rate", 10, 0),
        "max_tx_rate": pf_sets("max_tx_rate", 100, 0),
        "spoofchk": pf_sets("spoofchk", "off", "on"),
        "trust": pf_sets("trust", "on", "off"),
        "link_state": pf_sets("link_state", "enable", "auto"),
        "mtu": of_vf({"mtu": 1400}, "mtu is 1500, configured is 1400"),
        "dad": HOW_ADD_WAITED, "logLevel": LOG, "logFile": LOG, "ipam": OF_THE_IPAM, "dns": RESULT_ONLY,
    }),
    "rdma": (rdma.KEYS, {"deviceID": of_parent, "verbsDevice": verbs_device}),
    "rail": (rail.KEYS, {
        "index": of_rail({"index": 2}, "rail.index is 1, configured is 2"),
        "group": of_rail({"group": "cpu"}, "rail.group is gpu, configured is cpu"),
        "routing": [
            of_rail({"routing": False}, "rail has the routing table 7001, configured is none"),
            of_rail({"routing": True}, "rail has no routing table, configured is 7001", {"routing": False}),
        ],
        "tableBase": of_rail({"tableBase": 8000}, "rail.table is 7001, configured is 8001"),
        "addressing": of_rail({"addressing": "same-index", "ranges": RANGES}, "is not among the rails of group gpu", {}),
        "ranges": Scene(OTHER_RANGES, "prevResult has no address of 10.4.0.0/24",
                        {"rail": {**RAIL, "addressing": "same-index", "ranges": RANGES}}),
        "nics": OF_THE_RECORD,
    }),
    "rdma, beside a link": (extra_rdma.KEYS, {
        "required": Scene({"rdma": True}, "rdma has no verbs device, configured is that one is required"),
        "waitSeconds": HOW_ADD_WAITED, "ipv6LinkLocal": link_local,
    }),
    "whereabouts, a range": (ipam.RANGE_KEYS, {
        "range": [
            of_ipam({"range": "10.9.0.0/24"}, "there is no address of the configured range 10.9.0.0/24"),
            of_ipam({"range": "192.168.111.0/25"}, "configured is the prefix length 25"),
        ],
        "range_start": of_ipam({"range_start": "192.168.111.9"}, "192.168.111.1/24, which the configured range"),
        "range_end": of_ipam({"range_start": "192.168.111.2", "range_end": "192.168.111.3"},
                             "192.168.111.9/24, which the configured range", {"range_start": "192.168.111.9"}),
        "exclude": of_ipam({"exclude": ["192.168.111.1"]}, "192.168.111.1/24, which the configured range"),
    }),
    "whereabouts": (ipam.IPAM_KEYS, {
        "ipRanges": of_ipam({"ipRanges": [{"range": "fd00::/64"}]}, "no address of the configured range fd00::/64"),
        "gateway": of_ipam({"gateway": "192.168.111.254"}, "gateway of 192.168.111.1/24 is none, configured is 192.168.111.254"),
        "addresses": [
            of_ipam(IPAM_10_7, "10.7.0.1/24 is not in prevResult"),
            of_ipam({"addresses": [{"address": "10.7.0.1/16"}]}, "address is 10.7.0.1/24, configured is 10.7.0.1/16", IPAM_10_7),
        ],
        "routes": of_ipam(IPAM_10_8, "route 10.8.0.0/16 is not in prevResult"),
        "network_name": of_ipam({"network_name": "blue"}, "in pool 192.168.111.0-24, configured is blue-"),
        "node_slice_size": "for the kubernetes store: the pool's name has the node's then, as network_name's scene",
        "datastore": of_ipam({"datastore": "etcd", "etcd_host": "127.0.0.1:1"},
                             "datastore is file /var/lib/cni/railcni, configured is etcd"),
        "dataDir": of_ipam({"dataDir": "/var/lib/cni/railcni/stores/other"},
                           "datastore is file /var/lib/cni/railcni, configured is file /var/lib/cni/railcni/stores/other"),
        "allow_outside_ranges": "the requested address is compared, as each range is",
        "configuration_path": "it names the file with the keys of this table",
        **dict.fromkeys(("dns.nameservers", "dns.domain", "dns.search", "dns.options"), RESULT_ONLY),
        **dict.fromkeys(("enable_overlapping_ranges", "cooldown_seconds", "preferred_ip_annotation", "requested_addresses"), NO_EFFECT_LATER),
        **dict.fromkeys(("kubernetes.kubeconfig", "etcd_username", "etcd_password", "etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file", "store_timeout"), ACCESS),
        **dict.fromkeys(("etcd_host", "etcd_prefix"), WITH_DATA_DIR), **dict.fromkeys(("log_file", "log_level"), LOG),
    }),
    "whereabouts, an address": (ipam.ADDRESS_KEYS, {
        "address": of_ipam(IPAM_10_7, "10.7.0.1/24 is not in prevResult"),
        "gateway": of_ipam({"addresses": [{"address": "10.7.0.1/24", "gateway": "10.7.0.254"}]},
                           "gateway of 10.7.0.1/24 is none, configured is 10.7.0.254", IPAM_10_7),
    }),
    "whereabouts, a route": (ipam.ROUTE_KEYS, {
        "dst": of_ipam(IPAM_10_8, "route 10.8.0.0/16 is not in prevResult"),
        **{
            key: of_ipam({"routes": [{"dst": "10.8.0.0/16", key: value}]}, f"route 10.8.0.0/16 {key} {value} is not in prevResult", IPAM_10_8)
            for key, value in {"gw": "192.168.111.7", "mtu": 1400, "advmss": 1300, "priority": 7, "table": 70, "scope": 253}.items()
        },
    }),
}  # fmt: skip
CASES = {
    f"{table}: {key}" + (f" ({n + 1})" if n else ""): case
    for table, (_, cases) in TABLES.items()
    for key, of_key in cases.items()
    for n, case in enumerate(of_key if isinstance(of_key, list) else [of_key])
    if not isinstance(case, str)
}
MADE: dict[str, dict[str, Scene]] = {}  # the scenes of each attachment, by its plugin and configuration
for name, case in CASES.items():
    if isinstance(case, Scene):
        MADE.setdefault(f"{case.plugin} {json.dumps(case.made)}", {})[name] = case


@pytest.mark.parametrize("table", TABLES)
def test_each_key_has_a_scene_or_a_reason_why_CHECK_has_nothing_to_find(table: str) -> None:
    keys, cases = TABLES[table]
    assert sorted(key.name for key in keys) == sorted(cases)


@pytest.mark.parametrize("attachment", MADE)
def test_CHECK_names_what_is_otherwise_than_configured(node: Node, attachment: str) -> None:
    pod = scenery(node)
    (first, *_) = MADE[attachment].values()
    made = network(first.plugin, **first.made)
    result = node.cni(first.plugin, "ADD", made, netns=pod).succeeded()
    node.cni(first.plugin, "CHECK", {**made, "prevResult": result}, netns=pod).succeeded()
    for name, scene in MADE[attachment].items():
        asked = network(scene.plugin, **{**scene.made, **scene.asked})
        reply = node.cni(scene.plugin, "CHECK", {**asked, "prevResult": result}, netns=pod)
        assert (reply.code, scene.words in reply.msg) == (100, True), (name, reply.document)
    node.cni(first.plugin, "CHECK", {**made, "prevResult": result}, netns=pod).succeeded()  # it changed nothing


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not isinstance(case, Scene)])
def test_what_no_hardware_here_has_is_compared_by_the_functions(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    case = CASES[name]
    assert callable(case)
    case(monkeypatch)


def network(plugin: str, **more: Any) -> dict[str, Any]:
    selected = {"host-device": {"device": "ens9"}, "sriov": {"deviceID": PCI}, "macvlan": {"master": "ens2f0"}}
    base = {"cniVersion": "1.1.0", "name": "checked", "type": plugin, "ipam": LEASES}
    return {k: v for k, v in {**base, **selected[plugin], **more}.items() if v is not None}


def scenery(node: Node) -> Pod:
    node.master()
    node.host.add_veth("ens9", "ens9-peer")
    bus(node, "pci", PCI, "ens9", driver="mlx5_core")
    pod = node.pod()
    pod.view.add_veth("inner0", "inner1")
    return pod


# --- what a key that is absent, or another word for the same, does not ask for ---


@pytest.mark.parametrize(
    ("plugin", "made", "asked"),
    [
        ("macvlan", {"mtu": 1400, "mac": MAC, "bcqueuelen": 50}, {"mtu": None, "mac": None, "bcqueuelen": None}),
        ("macvlan", {}, {"master": None}),
        ("macvlan", {}, {"master": "rdma0"}),
        ("macvlan", {"mode": "passthru"}, {"mode": "passthru", "mac": MAC}),
        ("macvlan", {"master": "inner0", "linkInContainer": True}, {}),
        ("host-device", {"mtu": 1400}, {"mtu": None, "device": None}),
        ("host-device", {}, {"device": "rdma9"}),
        ("host-device", {"device": None, "pciBusID": PCI}, {"device": "ens9"}),
        ("sriov", {}, {"deviceID": PCI.upper()}),
        ("sriov", {"mac": MAC, "mtu": 1400}, {"mac": None, "mtu": None}),
        ("macvlan", {"ipam": {**LEASES, "gateway": "192.168.111.254"}}, {"ipam": LEASES}),
        ("macvlan", {"ipam": {**LEASES, "routes": [{"dst": "10.8.1.1/16"}]}}, {}),
    ],
)
def test_a_key_that_is_absent_or_says_the_same_is_no_difference(
    node: Node, plugin: str, made: dict[str, Any], asked: dict[str, Any]
) -> None:
    pod = scenery(node)
    node.host.add_altname("ens2f0", "rdma0")
    node.host.add_altname("ens9", "rdma9")
    result = node.cni(plugin, "ADD", network(plugin, **made), netns=pod).succeeded()
    config = network(plugin, **{**made, **asked}, prevResult=result)
    node.cni(plugin, "CHECK", config, netns=pod).succeeded()


@pytest.mark.skipif(not (GO_PLUGINS / "macvlan").exists(), reason="needs Go's macvlan: containernetworking-plugins")
def test_what_Gos_macvlan_attached_is_compared_with_the_configuration_too(node: Node) -> None:
    pod = scenery(node)
    config = network("macvlan", cniVersion="1.0.0", ipam={"type": "host-local", "subnet": "10.1.0.0/24"})
    result = node.cni(GO_PLUGINS / "macvlan", "ADD", config, netns=pod).succeeded()
    node.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod).succeeded()
    for asked, words in (
        ({"master": "ens9"}, "master is ens2f0, configured is ens9"),
        ({"mode": "vepa"}, "mode is bridge, configured is vepa"),
        ({"master": "inner0", "linkInContainer": True}, "master is ens2f0, configured is inner0"),
        ({"mtu": 1400}, "mtu is 9000, configured is 1400"),
        ({"mac": MAC}, f", configured is {MAC}"),
    ):
        node.cni("macvlan", "CHECK", {**config, "prevResult": result, **asked}, netns=pod).refused(100, words)


def test_a_default_route_that_has_moved_since_is_no_difference(node: Node) -> None:
    pod = scenery(node)
    node.host.add_route("ens2f0", "0.0.0.0/0")
    result = node.cni("macvlan", "ADD", network("macvlan", master=None), netns=pod).succeeded()
    node.host.delete_route("ens2f0", "0.0.0.0/0")
    node.host.add_route("ens9", "0.0.0.0/0")
    node.cni("macvlan", "CHECK", network("macvlan", master=None, prevResult=result), netns=pod).succeeded()


def test_a_master_that_was_renamed_is_told_by_its_present_name(node: Node) -> None:
    pod = scenery(node)
    result = node.cni("macvlan", "ADD", network("macvlan"), netns=pod).succeeded()
    node.host.set("ens2f0", state="down")
    node.host.set("ens2f0", ifname="rail0")
    reply = node.cni("macvlan", "CHECK", network("macvlan", prevResult=result), netns=pod)
    reply.refused(100, "master is rail0, configured is ens2f0, which does not exist on the host")
    node.host.set("rail0", state="up")
    node.cni("macvlan", "CHECK", network("macvlan", master="rail0", prevResult=result), netns=pod).succeeded()


def test_an_mtu_that_the_network_does_not_ask_for_is_the_chains(node: Node) -> None:
    pod = scenery(node)
    for plugin, ifname in (("macvlan", "net1"), ("host-device", "net2")):
        result = node.cni(plugin, "ADD", network(plugin), netns=pod, ifname=ifname).succeeded()
        pod.view.set(ifname, mtu=1400)
        node.cni(plugin, "CHECK", network(plugin, prevResult=result), netns=pod, ifname=ifname).succeeded()


@pytest.mark.parametrize("mtu", [None, 4000])
def test_a_master_whose_mtu_was_lowered_is_told_as_that(node: Node, mtu: int | None) -> None:
    pod = scenery(node)
    config = network("macvlan", mtu=mtu)
    result = node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    node.host.set("ens2f0", mtu=1500)
    was = mtu or 9000
    reply = node.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod)
    reply.refused(100, f"master ens2f0 has been given the MTU 1500, was {was}")


def test_what_was_changed_in_the_kernel_is_told_from_what_was_changed_in_the_configuration(node: Node) -> None:
    pod = scenery(node)
    config = network("macvlan", mtu=4000)
    result = node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    pod.view.set("net1", mtu=1400)
    checked = {"prevResult": result}
    node.cni("macvlan", "CHECK", network("macvlan", **checked), netns=pod).refused(100, "mtu is 1400, was 4000")
    for mtu, words in ((4000, ", was 4000"), (1400, ", was 4000"), (1500, ", was 4000, configured is 1500")):
        node.cni("macvlan", "CHECK", config | checked | {"mtu": mtu}, netns=pod).refused(100, f"mtu is 1400{words}")


@needs_ip
@pytest.mark.parametrize(("key", "value"), [("priority", 7), ("table", 70), ("mtu", 1300), ("advmss", 1200)])
def test_a_route_of_the_result_that_the_kernel_has_otherwise_is_a_difference(node: Node, key: str, value: int) -> None:
    pod = scenery(node)
    config = network("macvlan", ipam={**LEASES, "routes": [{"dst": "10.8.0.0/16", key: value}]})
    result = node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    node.cni("macvlan", "CHECK", config | {"prevResult": result}, netns=pod).succeeded()
    table = str(value) if key == "table" else "main"
    change = f"ip route flush table {table} 10.8.0.0/16; ip route add 10.8.0.0/16 dev net1"
    node.run(["nsenter", f"--net={pod.path}", "sh", "-ec", change]).check_returncode()
    reply = node.cni("macvlan", "CHECK", config | {"prevResult": result}, netns=pod)
    reply.refused(100, f"route 10.8.0.0/16 {key} {value} is not on net1")
