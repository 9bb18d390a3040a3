"""The ResourceSlices and DeviceClasses of a configuration, as the API server would take them."""

import json
import re
import sys
from typing import Any

import pytest
import yaml

from cni.cli.main import main
from cni.resources import config
from cni.resources.choose import resources
from cni.resources.dra import slices
from cni.resources.dra.slices import DEVICE_ID, RESOURCE_NAME, Device
from cni.resources.node import read_host, read_topology
from tests.device_plugin.scene import Machine

SHARED = "rdma-a-0000-30-00-0"
VF = "intel-com-vf-0000-31-00-1"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A NIC that pods share, one with two VFs, one that is down, soft-RoCE; a GPU below the first NIC's host bridge."""
    machine = Machine(tmp_path_factory.mktemp("dra"))
    machine.nic(0)
    machine.nic(1, vfs=2)
    machine.nic(2, state="1: DOWN", physical_state="3: Disabled")
    machine.tree.pci("0000:30:01.0", vendor="0x10de", **{"class": "0x030200"})
    machine.tree.netdev("eth0")
    machine.rxe("rxe0", "eth0", 7)
    return machine


def share(name: str, *netdevs: str, most: int = 1000, **more: Any) -> dict[str, Any]:
    return {"configList": [{"resourceName": name, "rdmaHcaMax": most, "selectors": {"ifNames": netdevs}, **more}]}


VFS = {"resourceList": [{"resourceName": "vf", "selectors": [{"pfNames": ["ens1f0#0-1"], "isRdma": True}]}]}


def devices(machine: Machine, *documents: dict[str, Any]) -> dict[str, Device]:
    read = config.read([(f"{number}.json", json.dumps(document)) for number, document in enumerate(documents)])
    assert read.findings == []
    root = str(machine.root)
    host = read_host(root)
    found = slices.devices(resources(read.resources, host), host, read_topology(host, root), read.rails)
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", device.name) for device in found)
    assert len({device.name for device in found}) == len(found)
    return {device.name: device for device in found}


def attributes(device: Device) -> dict[str, Any]:
    """The values by name, each of the one type that its attribute says."""
    given = device.document["attributes"]
    assert len(given) + len(device.document.get("capacity", ())) <= 32
    for value in given.values():
        ((kind, content),) = value.items()
        assert type(content) is {"bool": bool, "int": int, "string": str}[kind]
    return {name: next(iter(value.values())) for name, value in given.items()}


@pytest.mark.parametrize(("name", "document", "wanted"), [
    (SHARED, share("a", "ens0f0"), {RESOURCE_NAME: "rdma/a", DEVICE_ID: "0000:30:00.0"}),
    (SHARED, share("a", "ens0f0"), {"shared": True, "healthy": True, "isSriovVf": False, "rdma": True}),
    (SHARED, share("a", "ens0f0"), {"resource.kubernetes.io/pcieRoot": "pci0000:30", "dra.net/numaNode": 0}),
    (SHARED, share("a", "ens0f0"), {"resource.kubernetes.io/pciBusID": "0000:30:00.0", "linkType": "ethernet"}),
    (SHARED, share("a", "ens0f0"), {"ifName": "ens0f0", "rdmaDevice": "mlx5_0", "firmware": "28.39.1002"}),
    (SHARED, share("a", "ens0f0"), {"mtu": 9000, "activeMtu": 4096, "speedGbps": 100, "roceV2": True}),
    (SHARED, share("a", "ens0f0"), {"gpus": "0000:30:01.0", "gpuDistance": "PHB", "vfID": None}),
    ("rdma-a-0000-32-00-0", share("a", "ens2f0"), {"healthy": False, "gpuDistance": "NODE"}),
    ("rdma-a-rxe0", share("a", "eth0"), {DEVICE_ID: "rxe0", "ifName": "eth0", "vendor": None}),
    ("rdma-a-rxe0", share("a", "eth0"), {"resource.kubernetes.io/pcieRoot": None, "dra.net/numaNode": None}),
    ("rdma-a-all", share("a", "ens0f0", "ens1f0", allNics=True), {DEVICE_ID: "all", "ifName": None}),
    (VF, VFS, {RESOURCE_NAME: "intel.com/vf", DEVICE_ID: "0000:31:00.1", "shared": False, "isSriovVf": True}),
    (VF, VFS, {"vfID": 0, "pfPciAddress": "0000:31:00.0", "PFName": "ens1f0"}),
])  # fmt: skip
def test_a_device_has_the_attributes(
    machine: Machine, name: str, document: dict[str, Any], wanted: dict[str, Any]
) -> None:
    given = attributes(devices(machine, document)[name])
    assert {key: given.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(("name", "document", "wanted"), [
    (SHARED, share("a", "ens0f0"), (1, "gpu")),
    (VF, VFS, (0, "storage")),
    ("rdma-a-rxe0", share("a", "eth0"), (None, None)),
    ("rdma-a-all", share("a", "ens0f0", "ens1f0", allNics=True), (None, None)),
])  # fmt: skip
def test_a_device_has_the_rail_and_the_group_that_the_configuration_names(
    machine: Machine, name: str, document: dict[str, Any], wanted: tuple[int | None, str | None]
) -> None:
    rails = [{"group": "gpu", "nics": ["ens9f0", "ens0f0"]}, {"group": "storage", "nics": ["0000:31:00.0"]}]
    given = attributes(devices(machine, document | {"rails": rails})[name])
    assert (given.get("rail"), given.get("group")) == wanted


def by_two(value: int) -> dict[str, Any]:
    return {"value": str(value), "requestPolicy": {"default": "2", "validRange": {"min": "2", "step": "2"}}}


@pytest.mark.parametrize(("document", "capacity"), [
    # the table has 128 entries, one of which is the host's
    (share("a", "ens0f0"), {"gids": by_two(126)}),
    (share("a", "ens0f0", most=10), {"gids": by_two(20)}),
    (share("a", "ens0f0", most=1), {"gids": {"value": "2", "requestPolicy": {"default": "2", "validValues": ["2"]}}}),
    (share("a", "ens0f0", most=7, gidsPerDevice=0),
     {"devices": {"value": "7", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}}}),
    (VFS, None),
])  # fmt: skip
def test_claims_share_a_nic_as_often_as_the_device_plugin_has_devices_of_it(
    machine: Machine, document: dict[str, Any], capacity: dict[str, Any] | None
) -> None:
    found = next(iter(devices(machine, document).values()))
    assert found.document.get("capacity") == capacity
    assert found.document.get("allowMultipleAllocations") == (None if capacity is None else True)
    if capacity:
        (name,) = capacity
        share = int(capacity[name]["requestPolicy"]["default"])
        assert int(capacity[name]["value"]) // share == len(found.offer.ids)


def test_resources_whose_names_differ_by_a_sign_alone_have_devices_of_their_own(machine: Machine) -> None:
    long = "a" * 59  # 64 characters with the prefix, the most of an attribute
    found = devices(machine, share("a_b", "ens0f0"), share("a.b", "ens0f0"), share(long, "ens0f0"))
    assert [device.resource.name for device in found.values()] == ["rdma/a_b", "rdma/a.b", f"rdma/{long}"]


@pytest.mark.parametrize("count", [0, 1, 128, 129, 300])
def test_a_pool_has_slices_of_at_most_128_devices(machine: Machine, count: int) -> None:
    device = next(iter(devices(machine, VFS).values()))
    found = slices.documents([device] * count, "node-1", 7)
    assert sum(len(one["spec"]["devices"]) for one in found) == count
    for number, one in enumerate(found):
        spec = one["spec"]
        assert spec["pool"] == {"name": "node-1", "generation": 7, "resourceSliceCount": len(found)}
        assert len(spec["devices"]) <= 128
        assert one["metadata"]["name"] == f"node-1-railcni.io-{number}"


@pytest.fixture
def command(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(verb: str, document: dict[str, Any], *more: str) -> tuple[int, str, str]:
        (machine.root / "c.json").write_text(json.dumps(document))
        where = [f"--root={machine.root}"] if verb == "show" else []
        monkeypatch.setattr(sys, "argv", ["railcni", "dra", verb, f"--config={machine.root}/c.json", *where, *more])
        return main(), *capsys.readouterr()

    return call


def test_show_prints_a_line_for_each_device_and_why_there_is_none(command: Any) -> None:
    none = {"resourceName": "none", "selectors": [{"pfNames": ["ens9f0"]}]}
    document = {**share("a", "ens0f0", "ens2f0"), "resourceList": [*VFS["resourceList"], none]}
    code, out, err = command("show", document)
    assert (code, err) == (1, "")
    lines = [line.split() for line in out.splitlines()[1:]]
    assert lines[0][:8] == [SHARED, "rdma/a", "0000:30:00.0", "63", "pci0000:30", "0", "PHB", "0000:30:01.0"]
    assert "mlx5_2 port 1 is DOWN (Disabled)" in out
    assert "intel.com/none" in out and "pfNames ens9f0: there are ens0f0" in out


@pytest.mark.parametrize("verb", ["show", "classes"])
def test_a_resource_with_a_name_that_no_slice_takes_has_neither_devices_nor_a_class(command: Any, verb: str) -> None:
    code, out, err = command(verb, share("a" * 60, "ens0f0"))
    assert code == 1
    assert " ".join((out + err).split()).count("has 65 characters, and a ResourceSlice takes 64: shorten the name") == 1
    assert "0000:30" not in out and "DeviceClass" not in out


def test_show_prints_the_slices_for_programs(command: Any) -> None:
    code, out, err = command("show", VFS, "-o", "json", "--node", "n1")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["kind"], document["spec"]["nodeName"]) == ("ResourceSlice", "n1")
    assert [device["name"] for device in document["spec"]["devices"]] == [VF, VF[:-1] + "2"]


def test_a_class_chooses_the_healthy_devices_of_its_resource(command: Any) -> None:
    code, out, err = command("classes", share("hca_a", "ens0f0"))
    assert (code, err) == (0, "")
    document = yaml.safe_load(out)
    assert json.loads(command("classes", share("hca_a", "ens0f0"), "-o", "json")[1]) == document
    assert (document["kind"], document["metadata"]["name"]) == ("DeviceClass", "rdma-hca-a")
    assert document["spec"]["extendedResourceName"] == "rdma/hca_a"
    (selector,) = document["spec"]["selectors"]
    assert selector["cel"]["expression"] == (
        'device.driver == "railcni.io" && device.attributes["k8s.cni.cncf.io"].resourceName == "rdma/hca_a"'
        ' && device.attributes["railcni.io"].healthy'
    )


@pytest.mark.parametrize("verb", ["show", "classes"])
def test_a_fault_of_the_configuration_is_printed_with_its_place(command: Any, verb: str) -> None:
    code, _, err = command(verb, share("a", "ens0f0", most=-5))
    assert code == 1
    assert "error: configList[0].rdmaHcaMax: -5: want 0 or more" in err
