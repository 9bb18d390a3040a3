"""host-device against a real kernel: the device goes into the pod as a whole and comes back as it was."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from tests.node import GO_PLUGINS, STATE, Node, Pod, until
from tests.view import Link, lasting

pytestmark = pytest.mark.forked

LEASES = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
PCI, AUXILIARY = "0000:3b:00.2", "mlx5_core.sf.4"

needs_go = pytest.mark.skipif(
    not (GO_PLUGINS / "host-device").exists(), reason="needs the package containernetworking-plugins"
)


def network(version: str = "1.1.0", **more: Any) -> dict[str, Any]:
    base = {"cniVersion": version, "name": "pf-net", "type": "host-device", "device": "ens9", "ipam": LEASES}
    return {key: value for key, value in {**base, **more}.items() if value is not None}


@pytest.fixture
def device(node: Node) -> Link:
    """A device of the host that has something of everything that a move takes away."""
    node.host.add_veth("ens9", "ens9-peer", mtu=4200)
    node.host.add_altname("ens9", "rdma-rail-0", "enp59s0f2np0-a-name-longer-than-fifteen-bytes")
    node.host.set("ens9", ifalias="rail 0, port 2", address="02:00:00:00:09:09")
    node.host.add_address("ens9", "10.9.0.1/24")
    node.host.add_address("ens9", "10.9.1.1/32")
    node.host.add_address("ens9", "fd00:9::1/64")
    node.host.add_route("ens9", "10.10.0.0/16", gateway="10.9.0.254", priority=50)
    node.host.add_route("ens9", "fd00:10::/64", gateway="fd00:9::fe")
    node.remember()
    return node.host.link("ens9")


@pytest.fixture
def pod(node: Node, device: Link) -> Pod:
    return node.pod()


def add(node: Node, pod: Pod, config: dict[str, Any], **how: Any) -> dict[str, Any]:
    result: dict[str, Any] = node.cni(config["type"], "ADD", config, netns=pod, **how).succeeded()
    return result


def delete(node: Node, pod: Pod | str | None, config: dict[str, Any], **how: Any) -> None:
    assert node.cni(config["type"], "DEL", config, netns=pod, **how).succeeded() is None


def refused(node: Node, pod: Pod | str, config: dict[str, Any], code: int, *words: str, **how: Any) -> None:
    """ADD fails with `code` and changes nothing on the host or in the pod."""
    before = as_it_was(node)
    node.cni(config["type"], "ADD", config, netns=pod, **how).refused(code, *words)
    assert (node.leftovers(), as_it_was(node)) == ([], before)


def as_it_was(node: Node) -> dict[str, dict[str, Any]]:
    """Every link of the host with all that a person would miss, but its index, which a move may change."""
    return {name: lasting(link) for name, link in node.host.links().items()}


# --- ADD ---


def test_a_device_may_go_without_addresses(node: Node, pod: Pod) -> None:
    ipam: dict[str, Any] | None
    for version, ipam in (("0.3.0", {}), ("1.1.0", None)):
        before = as_it_was(node)
        assert "ips" not in add(node, pod, network(version, ipam=ipam))
        assert (pod.view.link("net1").up, pod.view.link("net1").texts) == (True, [])
        delete(node, pod, network(version, ipam=ipam))
        assert (node.leftovers(), as_it_was(node)) == ([], before)


@pytest.mark.parametrize("place", ["key", "device", pytest.param("key, host-local", marks=needs_go)])
def test_an_mtu_that_is_too_small_for_ipv6_is_refused(node: Node, pod: Pod, place: str) -> None:
    if place == "device":
        node.host.set("ens9", mtu=1279)
    ipam = {**LEASES, "ipRanges": [{"range": "fd00:111::/64"}]}
    if "host-local" in place:
        ipam = {"type": "host-local", "ranges": [[{"subnet": "fd00:111::/64"}]]}
    mtu = 0 if place == "device" else 1279
    refused(node, pod, network("1.0.0", mtu=mtu, ipam=ipam), 7, "mtu 1279", "fd00:111::", "1280")


def bus(node: Node, kind: str, name: str, netdev: str = "", driver: str = "") -> None:
    """A device on a bus, in a tree of its own over /sys/bus."""
    if not node.path("/sys/bus/ours").exists():
        node.run(["mount", "-t", "tmpfs", "tmpfs", "/sys/bus"]).check_returncode()
        node.path("/sys/bus/ours").touch()
    at = node.path(f"/sys/bus/{kind}/devices/{name}")
    at.mkdir(parents=True)
    if netdev:
        (at / "net" / netdev).mkdir(parents=True)
    if driver:
        drivers = node.path(f"/sys/bus/{kind}/drivers/{driver}")
        drivers.mkdir(parents=True)
        (at / "driver").symlink_to(f"../../drivers/{driver}")


OTHER, PATH = "0000:3b:00.7", f"/sys/devices/ours/{PCI}"
SELECTORS: dict[str, dict[str, Any]] = {
    "device": {"device": "ens9"},
    "altname": {"device": "rdma-rail-0"},
    "hwaddr": {"hwaddr": "02:00:00:00:09:09"},
    "hwaddr as Go reads it": {"hwaddr": "0200.0000.0909"},
    "kernelpath": {"kernelpath": PATH},
    "pciBusID": {"pciBusID": PCI},
    "PCI deviceID": {"runtimeConfig": {"deviceID": PCI}},
    "auxiliary deviceID": {"runtimeConfig": {"deviceID": AUXILIARY}},
    "the runtime's before the configured": {"pciBusID": OTHER, "runtimeConfig": {"deviceID": PCI}},
}


def by(selector: str) -> dict[str, Any]:
    return {"device": None} | SELECTORS[selector]


@pytest.fixture
def buses(node: Node, device: Link) -> None:
    """The places in sysfs where the selectors look."""
    bus(node, "pci", PCI, "ens9")
    bus(node, "pci", OTHER, "ens9-peer")
    bus(node, "auxiliary", AUXILIARY, "ens9")
    node.run(["mount", "-t", "tmpfs", "tmpfs", "/sys/devices"]).check_returncode()
    (node.path(PATH) / "net" / "ens9").mkdir(parents=True)


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_a_function_that_a_userspace_driver_holds_gets_addresses_and_stays(node: Node, pod: Pod, version: str) -> None:
    for number, driver in enumerate(("vfio-pci", "uio_pci_generic", "igb_uio")):
        address = f"0000:3b:01.{number}"
        bus(node, "pci", address, driver=driver)
        config = network(version, device=None, pciBusID=address)
        result = add(node, pod, config)
        interface = {"name": "net1", "sandbox": pod.path}
        if version == "1.1.0":
            interface["pciID"] = address
        assert result["interfaces"] == [interface]
        assert result["ips"][0]["address"] == "192.168.111.1/24"
        assert pod.view.names() == []
        node.cni("host-device", "CHECK", {**config, "prevResult": result}, netns=pod).succeeded()
        node.ended("host-device", config, netns=pod)


def test_the_mtu_of_a_function_that_a_userspace_driver_holds_is_in_the_result_or_refused(node: Node, pod: Pod) -> None:
    bus(node, "pci", "0000:3b:01.0", driver="vfio-pci")
    config = network(device=None, pciBusID="0000:3b:01.0")
    ipv6 = {"ipam": {**LEASES, "range": "fd00:1::/64"}}
    refused(node, pod, config | {"mtu": 67}, 7, "mtu 67", "0000:3b:01.0", "68 to 65535")
    refused(node, pod, config | ipv6 | {"mtu": 1279}, 7, "mtu 1279", "IPv6")
    result = add(node, pod, config | {"mtu": 9000})
    assert result["interfaces"][0]["mtu"] == 9000
    checked = config | {"prevResult": result}
    node.cni("host-device", "CHECK", checked | {"mtu": 9000}, netns=pod).succeeded()
    node.cni("host-device", "CHECK", checked | {"mtu": 1500}, netns=pod).refused(100, "mtu is 9000, configured is 1500")
    node.ended("host-device", config, netns=pod)


# --- ADD: what is refused ---


@pytest.mark.parametrize("selector", SELECTORS)
def test_each_selector_finds_the_device_and_one_that_is_away_is_in_use(
    node: Node, pod: Pod, device: Link, buses: None, selector: str
) -> None:
    config = network(**by(selector))
    assert add(node, node.pod("pod2"), config, container_id="holder")["interfaces"][0]["mac"] == device.mac
    records, holder = Records(str(node.path(STATE))), Attachment("pf-net", "holder", "net1")
    record = records.read(holder, "link") or {}
    hardware = {"auxiliary deviceID": ("auxiliary", AUXILIARY), "kernelpath": ("virtio", PCI)}  # which a veth is not
    if selector in hardware:
        kind, parent = hardware[selector]
        record["link"]["device"] |= {"bus": kind, "parent": parent}
        devices = node.path(f"/sys/bus/{kind}/devices")
        shutil.rmtree(devices, ignore_errors=True)
        devices.mkdir(parents=True)
        (devices / parent).symlink_to(f"../../../devices/ours/{parent}")
        shutil.rmtree(node.path(PATH) / "net")
        records.write(holder, "link", record)
    node.cni("host-device", "ADD", config, netns=pod).refused(11, "holder", "in use")
    node.cni("host-device", "STATUS", config).succeeded()
    for another in ({"device": "ens77"}, {"kernelpath": "/sys/devices/ours/none"}, {"pciBusID": "0000:77:00.0"}):
        node.cni("host-device", "ADD", network(**{"device": None} | another), netns=pod).refused(7, "names no netdev")


def test_a_device_that_cannot_leave_its_namespace_is_refused(node: Node, pod: Pod) -> None:
    """The pod has a lo of its own, which is the same but for its namespace."""
    refused(node, pod, network(device="lo"), 101, "lo")


# --- DEL ---


@pytest.mark.parametrize(
    ("kind", "selector"), [("veth", "device"), ("bridge", "hwaddr"), ("veth to another pod", "hwaddr")]
)
def test_a_repeated_delete_ends_beside_a_link_of_the_pod_that_looks_like_the_device(
    node: Node, pod: Pod, device: Link, kind: str, selector: str
) -> None:
    before = as_it_was(node)
    config = network(**by(selector))
    add(node, pod, config)
    node.pod("pod2")
    made = {"veth": "veth peer name other", "bridge": "bridge"}.get(kind, "veth peer name other netns pod2")
    planted = f"add net1 address {device.mac} type {made}"
    for change in ("set net1 down", "set net1 name away1", planted, "set net1 alias ens9"):
        node.run(["ip", "-netns", "pod1", "link", *change.split()]).check_returncode()
    for _ in range(3):
        delete(node, pod, config)
        assert (node.leases(), node.files(), as_it_was(node)) == ([], [], before)
        assert pod.view.link("net1").mac == device.mac


ENDS = ("DEL", "GC", "the sandbox goes, DEL", "another pod has it, DEL")


@pytest.mark.parametrize(
    ("plugin", "end"), [(p, end) for p in ("host-device", "sriov") for end in ENDS[: 3 if p == "sriov" else 4]]
)
def test_the_attachment_of_a_device_that_was_probed_anew_ends(node: Node, pod: Pod, plugin: str, end: str) -> None:
    """As unbind and bind of the driver, or sriov_numvfs 0 and 2: the netdev goes, and the host has another one of its name."""
    bus(node, "pci", PCI, "ens9", driver="mlx5_core")
    selected = {"pciBusID": PCI} if plugin == "host-device" else {"deviceID": PCI}
    config = network(type=plugin, **{"device": None} | selected)
    add(node, pod, config)
    pod.view.delete("net1")
    node.host.add_veth("ens9", "ens9-peer", mtu=4200)
    node.host.set("ens9", address="02:00:00:00:0a:0a")
    node.remember()
    new, other = as_it_was(node), node.pod("pod2")
    if end.startswith("another"):
        add(node, other, config, container_id="c2")
    if end.startswith("the sandbox"):
        node.delete_pod(pod)
    if end == "GC":
        node.cni(plugin, "GC", config | {"cni.dev/valid-attachments": []}).succeeded()
    else:
        delete(node, pod.path, config)
    if end.startswith("another"):
        assert (other.view.names(), node.leases()) == (["net1"], ["192.168.111.2"])
        delete(node, other, config, container_id="c2")
    assert (node.leftovers(), as_it_was(node)) == ([], new)
    add(node, other, config, container_id="c3")


def test_the_key_of_Go_that_copies_the_hosts_addresses_is_refused_by_name(node: Node, pod: Pod) -> None:
    refused(node, pod, network(useInterfaceNetwork=True), 7, "useInterfaceNetwork", "`ipam`")
    delete(node, pod, network(useInterfaceNetwork=True))
    add(node, pod, network(useInterfaceNetwork=False))


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
@pytest.mark.parametrize("is_dead", [False, True], ids=["in the pod", "the pod is gone"])
def test_another_device_with_the_mac_of_a_record_keeps_its_own_state(node: Node, is_dead: bool, verb: str) -> None:
    def make(altname: str) -> None:
        node.master("rail0")  # each time with another index
        node.host.set("rail0", address="02:00:00:00:09:99")
        node.host.add_altname("rail0", altname)

    pod, config = node.pod(), network(device="rail0")
    make("former")
    node.host.add_address("rail0", "10.9.7.1/24")
    add(node, pod, config)
    pod.view.delete("net1")
    make("new")
    if is_dead:
        node.delete_pod(pod)
    before = as_it_was(node)
    if verb == "ADD":
        pod = node.pod("pod2") if is_dead else pod
        add(node, pod, config)
        assert pod.view.link("net1").altnames == ("new",)
    delete(node, pod.path, config)
    assert as_it_was(node) == before


@pytest.mark.parametrize("netns", [None, ""])
def test_a_delete_without_a_namespace_brings_the_device_back(node: Node, pod: Pod, netns: str | None) -> None:
    before = as_it_was(node)
    add(node, pod, network())
    delete(node, netns, network())
    assert (node.leftovers(), as_it_was(node)) == ([], before)


def test_a_host_name_that_is_taken_meanwhile_is_an_error_that_a_retry_clears(node: Node, pod: Pod) -> None:
    before = as_it_was(node)
    add(node, pod, network())
    node.host.add_veth("ens9", "usurper")
    node.cni("host-device", "DEL", network(), netns=pod).refused(11, "ens9", "dev0", "ip link set ens9 name")
    assert (pod.view.names(), node.leases()) == ([], [])
    node.host.delete("ens9")
    delete(node, pod, {"cniVersion": "1.1.0", "name": "pf-net", "type": "host-device"})  # all else is in the record
    assert (node.leftovers(), as_it_was(node)) == ([], before)


@pytest.mark.parametrize("is_dead", [False, True], ids=["DEL in the pod", "the pod is gone"])
def test_a_host_name_that_stays_taken_is_told_and_the_delete_ends(node: Node, pod: Pod, is_dead: bool) -> None:
    before = as_it_was(node)["ens9"]
    add(node, pod, network())
    node.host.add_veth("ens9", "usurper")
    if is_dead:
        pod.view.move("net1", node.host)
        node.delete_pod(pod)
    node.cni("host-device", "DEL", network(), netns=pod.path).refused(11, "ens9")
    reply = node.cni("host-device", "DEL", network(), netns=pod.path)
    reply.succeeded()
    assert "ens9" in reply.stderr
    assert (node.leases(), node.files()) == ([], [])
    name = "net1" if is_dead else "dev0"
    assert as_it_was(node)[name] == {**before, "identity": (name, *before["identity"][1:])}


def test_a_record_of_an_earlier_boot_restores_nothing_on_the_device(node: Node, pod: Pod) -> None:
    add(node, pod, network())
    node.delete_pod(pod)  # a veth goes with it
    assert until(lambda: "ens9-peer" not in node.host.names())
    node.host.add_veth("ens9", "ens9-peer", mtu=1500)  # and here it is again, as the kernel makes it
    node.host.set("ens9", address="02:00:00:00:09:09")
    before = as_it_was(node)
    node.reboot()
    delete(node, pod.path, network())
    assert as_it_was(node) == before
    assert (node.leases(), node.files()) == ([], [])


# --- beside Go's plugin ---


GO_LEASES = {"type": "host-local", "ranges": [[{"subnet": "192.168.111.0/24"}]]}


@needs_go
@pytest.mark.parametrize("selector", ["device", "altname", "hwaddr"])
def test_an_attachment_of_gos_plugin_is_taken_back(node: Node, pod: Pod, device: Link, selector: str) -> None:
    config = network("1.0.0", **{"ipam": GO_LEASES} | by(selector))
    node.host.set("ens9", ifalias="")
    node.cni(GO_PLUGINS / "host-device", "ADD", config, netns=pod).succeeded()
    assert pod.view.names() == ["net1"]
    for _ in range(2):
        node.ended("host-device", config, netns=pod)
    link = node.host.link("ens9")
    assert (link.name, link.alias, link.mac, link.altnames) == ("ens9", "", device.mac, device.altnames)


@needs_go
def test_a_device_that_go_attached_comes_home_under_another_name_and_its_lease_is_freed(
    node: Node, pod: Pod, device: Link
) -> None:
    config = network("1.0.0", ipam=GO_LEASES)
    node.host.set("ens9", ifalias="")
    node.cni(GO_PLUGINS / "host-device", "ADD", config, netns=pod).succeeded()
    node.host.add_veth("ens9", "usurper")
    told = "rename it (ip link set ens9 name ...), then the device (ip link set dev0 name ens9)"
    reply = node.cni("host-device", "DEL", config, netns=pod)
    reply.refused(11, "dev0", told)
    assert "stay reserved" not in reply.msg
    assert (pod.view.names(), node.leases(), node.files()) == ([], [], [])
    delete(node, pod, config)
    node.host.set("ens9", ifname="other")
    node.run(told.rpartition("(")[2].rstrip(")").split()).check_returncode()
    assert node.host.link("ens9").mac == device.mac


@needs_go
def test_gos_plugin_can_take_back_an_attachment_of_ours(node: Node, pod: Pod, device: Link) -> None:
    config = network("1.0.0", ipam={})
    add(node, pod, config)
    assert pod.view.link("net1").alias == "ens9"
    node.cni(GO_PLUGINS / "host-device", "DEL", config, netns=pod).succeeded()
    assert node.host.link("ens9").mac == device.mac
    delete(node, pod, config)
    assert (node.files(), node.host.link("ens9").alias) == ([], device.alias)


# --- CHECK, GC, STATUS ---


def test_gc_keeps_the_address_of_a_device_that_cannot_return(node: Node, pod: Pod) -> None:
    before = as_it_was(node)
    add(node, pod, network())
    nested = node.namespace("nested")
    pod.view.move("net1", nested)
    empty = network() | {"cni.dev/valid-attachments": []}
    node.cni("host-device", "GC", empty).refused(11, "ens9")
    assert node.leases() == ["192.168.111.1"]
    nested.move("net1", pod.view)
    node.cni("host-device", "GC", empty).succeeded()
    assert (node.leftovers(), as_it_was(node)) == ([], before)


def test_status_knows_whether_the_device_is_there(node: Node, pod: Pod) -> None:
    assert node.cni("host-device", "STATUS", network()).succeeded() is None
    node.cni("host-device", "STATUS", network(device="ens77")).refused(50, "ens77")
    node.cni("host-device", "STATUS", network(mtu=30)).refused(50, "mtu 30", "ens9")
