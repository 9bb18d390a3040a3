"""rails.yaml: what is wrong in it, with its place, and what is made of what is right."""

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni.cli.rails import command
from cni.resources import config as device_plugin_config
from cni.resources import rails as plan
from cni.shared import rail
from cni.shared.spec.errors import InvalidConfig
from tests.blackbox.command import run_any
from tests.linted import lint_text
from tests.machines import Machine

GOOD: dict[str, Any] = {
    "count": 2, "master": "eth_r{rail}", "subnet": "192.168.{rail}.0/24", "addressing": "same-index",
}  # fmt: skip


def rails(**changes: Any) -> tuple[plan.Rails, list[plan.PlannedRail]]:
    document = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    wanted = plan.read("rails.yaml", yaml.safe_dump(document))
    return wanted, plan.rails_of(wanted, [plan.Nic("ens2f0", "0000:18:00.0"), plan.Nic("ens3f0", "0000:3b:00.0")])


def network(wanted: plan.Rails, made: list[plan.PlannedRail], index: int) -> dict[str, Any]:
    nad = command.nad(wanted, made, made[index])
    found: dict[str, Any] = json.loads(nad["spec"]["config"])
    return found


def test_every_rail_is_told_of_all_ranges_and_of_its_own() -> None:
    wanted, made = rails(group="gpu", base=10, gateway=254, exclude=[20], mtu=9000)
    for index in (0, 1):
        found = network(wanted, made, index)
        own = {
            "range": f"192.168.{index}.0/24",
            "range_start": f"192.168.{index}.10",
            "exclude": [f"192.168.{index}.20", f"192.168.{index}.254"],
        }
        assert found["rail"]["ranges"][index] == own
        assert found["ipam"] == {"type": "railcni-whereabouts", **own, "gateway": f"192.168.{index}.254"}
        assert (found["master"], found["mtu"], found["name"]) == (f"eth_r{index}", 9000, f"gpu-rail-{index}")
        assert rail.read(found, []) is not None
    assert network(wanted, made, 0)["rail"]["ranges"] == network(wanted, made, 1)["rail"]["ranges"]


def test_a_pod_asks_for_each_network_and_each_resource_once() -> None:
    wanted, made = rails(subnet=["192.168.{rail}.0/24", "fd00:{rail:x}::/64"])
    pod = command.pod(wanted, made)
    assert pod["metadata"]["annotations"] == {
        "k8s.v1.cni.cncf.io/networks": "default/rails-rail-0@rail0, default/rails-rail-1@rail1"
    }
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"rdma/rails_rail_0": 1, "rdma/rails_rail_1": 1}
    config = json.loads(command.resources(wanted, made)["data"]["config.json"])
    offered = {
        f"{entry['resourcePrefix']}/{entry['resourceName']}": entry["selectors"] for entry in config["configList"]
    }
    assert offered == {f"rdma/rails_rail_{n}": {"ifNames": [f"eth_r{n}"]} for n in (0, 1)}
    assert network(wanted, made, 1)["ipam"]["ipRanges"] == [{"range": "fd00:1::/64"}]


def test_functions_of_sriov_are_chosen_by_their_nic_and_named_in_the_network() -> None:
    addresses = ["0000:18:00.0", "0000:3b:00.0"]
    for kind, vfs, selector, of_vfs in (("sriov", 8, "rootDevices", "#0-7"), ("host-device", None, "pciAddresses", "")):
        wanted, made = rails(
            type=kind, numVfs=vfs, master=None, pci=addresses, resourcePrefix="nvidia.com", routing=False, mtu=9000
        )
        config = json.loads(command.resources(wanted, made)["data"]["config.json"])
        assert [entry["selectors"][selector] for entry in config["resourceList"]] == [[a + of_vfs] for a in addresses]
        nad = command.nad(wanted, made, made[1])
        assert nad["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/resourceName": "nvidia.com/rails_rail_1"}
        found = network(wanted, made, 1)
        assert found["mtu"] == 9000
        assert found["type"] == f"railcni-{kind}" and found["rail"]["routing"] is False and "master" not in found


@pytest.mark.parametrize("kind", ["macvlan", "sriov", "host-device"])
def test_the_device_plugins_take_the_resources_and_ours_has_a_config_map_of_its_own(kind: str) -> None:
    wanted, made = rails(type=kind, group="gpu-a.b", numVfs=8 if kind == "sriov" else None, mtu=9000)
    others, ours = (command.resources(wanted, made, own) for own in (False, True))
    content, for_ours = (json.loads(config_map["data"]["config.json"]) for config_map in (others, ours))
    vfs = {"nicSelector": {"pfNames": ["eth_r0", "eth_r1"]}, "numVfs": 8, "isRdma": True, "mtu": 9000}
    own = {"rails": [{"group": "gpu-a.b", "nics": ["eth_r0", "eth_r1"]}]}
    assert for_ours == {**content, **({"virtualFunctions": [vfs]} if kind == "sriov" else {}), **own}
    assert ours["metadata"] == {"name": "railcni-device-plugin", "namespace": "railcni"}
    assert command.objects(wanted, made, True)[0] == ours
    read = device_plugin_config.read([("config.json", ours["data"]["config.json"])])
    assert read.findings == []
    assert all(re.fullmatch("[A-Za-z0-9_]+", resource.resourceName) for resource in read.resources)
    asked = command.pod(wanted, made)["spec"]["containers"][0]["resources"]["limits"]
    assert {resource.name for resource in read.resources} == set(asked)


@pytest.mark.parametrize(("changes", "selectors", "nics"), [
    ({}, {"ifNames": ["eth_r0", "eth_r1"]}, ["eth_r0", "eth_r1"]),
    ({"type": "host-device"}, {"pfNames": ["eth_r0", "eth_r1"], "isRdma": True}, ["eth_r0", "eth_r1"]),
    ({"type": "sriov", "numVfs": 8, "master": None, "pci": ["0000:18:00.0", "0000:3b:00.0"]},
     {"rootDevices": ["0000:18:00.0#0-7", "0000:3b:00.0#0-7"], "isRdma": True}, ["0000:18:00.0", "0000:3b:00.0"]),
])  # fmt: skip
def test_one_network_and_resource_for_all(changes: dict[str, Any], selectors: dict[str, Any], nics: list[str]) -> None:
    both = {"group": "gpu_a", "gateway": 254, "exclude": [20], "base": 5, "mtu": 9000, "shared": 50}
    both["subnet"] = ["192.168.{rail}.0/24", "fd00:{rail:x}::/64"]
    objects = command.objects(*rails(**both, **changes, oneNetwork=True), True)
    config_map, nad, pod = objects
    (offered,) = device_plugin_config.read([("config.json", config_map["data"]["config.json"])]).resources
    assert offered.name == "rdma/gpu_a"
    (entry,) = next(v for k, v in json.loads(config_map["data"]["config.json"]).items() if k.endswith("List"))
    assert entry["selectors"] == selectors and entry.get("rdmaHcaMax", 100) == 100
    assert nad["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/resourceName": "rdma/gpu_a"}
    assert pod["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "default/gpu-a@rail0, default/gpu-a@rail1"}
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"rdma/gpu_a": 2}
    found = json.loads(nad["spec"]["config"])
    assert found["rail"]["nics"] == nics
    for one, alone in zip(rail.each(found), map(json.loads, configs(*rails(**both, **changes))), strict=True):
        first, second = one["ipam"].pop("ipRanges")
        own = {"type": "railcni-whereabouts", "ipRanges": [second], **first, **one["ipam"]}
        assert rail.read(one, []) and own == alone["ipam"]
    printed = "---\n".join(yaml.safe_dump(one) for one in objects)
    assert [finding.sentence for finding in lint_text(printed, "rails.yaml")] == []


def configs(wanted: plan.Rails, made: list[plan.PlannedRail]) -> list[str]:
    return [command.nad(wanted, made, one)["spec"]["config"] for one in made]


def test_a_pairing_takes_the_nics_of_the_node_in_their_order() -> None:
    wanted, made = rails(master=None, pairing="gpu")
    assert [network(wanted, made, index)["master"] for index in (0, 1)] == ["ens2f0", "ens3f0"]
    with pytest.raises(InvalidConfig, match="this node has 2 NICs for 3 rails"):
        rails(master=None, pairing="numa", count=3)


def test_nics_are_paired_with_the_gpus_that_are_near(tmp_path: Path) -> None:
    machine = Machine(tmp_path, nodes=2)
    machine.gpu("pci0000:80/0000:80:01.0/0000:81:00.0", numa=1)
    machine.gpu("pci0000:00/0000:00:01.0/0000:82:00.0")
    for number, place in enumerate(("pci0000:00/0000:00:01.0/0000:18:00.0", "pci0000:80/0000:80:01.0/0000:83:00.0")):
        nic = machine.nic(place, numa=number)
        machine.netdev(f"ens{number}", nic)
        machine.verbs(f"mlx5_{number}", nic, f"ens{number}", size=1)
    assert [nic.pci for nic in plan.nodes_nics("numa", str(tmp_path))] == ["0000:18:00.0", "0000:83:00.0"]
    assert [nic.pci for nic in plan.nodes_nics("gpu", str(tmp_path))] == ["0000:83:00.0", "0000:18:00.0"]


@pytest.mark.parametrize("changes", [{"namespace": "Bad_NS"}, {"count": 0, "mastr": "x"}, {"subnet": "10.0.0.0/24"}])
def test_each_fault_is_printed_once(changes: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "rails.yaml"
    file.write_text(yaml.safe_dump({**GOOD, **changes}))
    said = run_any("rails", "render", str(file), code=1)
    assert re.findall(r":\d+:\d+: (\w+)", said) == [*changes] and "kind:" not in said, said


def test_what_is_printed_is_what_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "rails.yaml"
    file.write_text(yaml.safe_dump(GOOD))

    objects = command.objects(*rails())
    assert list(yaml.safe_load_all(run_any("rails", "render", str(file)))) == objects
    assert run_any("rails", "render", str(file), data=True)["items"] == objects
    text = run_any("rails", "render", str(file), "-o", "table")
    assert "default/rails-rail-1@rail1" in text and "7001" in text
    run_any("rails", "render", str(tmp_path / "none"), code=1)
    run_any("rails", "render", str(file), "-o", "xml", code=2)
    file.write_text(yaml.safe_dump({**GOOD, "oneNetwork": True}))
    text = run_any("rails", "render", str(file), code=1)
    assert "oneNetwork" in text and "want --devices railcni" in text and text.count("\n") == 1
    run_any("rails", "render", str(file), "--devices", "railcni")


@pytest.mark.parametrize(
    ("text", "words"),
    [("count: 2\nmaster: eth\nsubnet: 10.0.0.0/24\naddressing: same-index\n", ["rails.yaml:2:9: master: ", "rails.yaml:3:9: subnet[0]: 10.0.0.0/24 of rail 1 overlaps"]),
     ("count: 0\nmtu: big\ntyp: x\n", ["5 faults", "1:8: count: 0: want 1 or more", '2:6: mtu: "big": want an integer', '3:6: typ: "x": is no key here', "subnet: subnet is missing", "addressing: addressing is missing"]),
     ("count: 2\nsubnet: 192.168.{rail}.0/24\nmaster: e{rail}\n", ['rails.yaml:1:1: addressing: addressing is missing; write "addressing": "same-index"', "until now", 'or "addressing": "plain"']),
     ("count: 2\nsubnet: 192.168.{rail}.0/24\nmaster: e{rail}\naddressing: same\n", ['4:13: addressing: "same": want one of same-index, plain']),
     ("count: 2\nsubnet: 192.168.{rail}.0/24\naddressing: same-index\n", ["master, pci and pairing: want one of them, and there are none"]),
     ("count: 2\nsubnet: 192.168.{rail}.7/24\nmaster: e{rail}\naddressing: same-index\n", ['2:9: subnet[0]: "192.168.{rail}.7/24": is no subnet for rail 0: want a pattern such as']),
     ("count: 2\nsubnet: 192.168.{rail}.0/31\nmaster: e{rail}\naddressing: same-index\n", ["2:9: subnet[0]: 192.168.0.0/31 of rail 0 gives no index from 1 on: want a larger one"]),
     ("count: 2\nsubnet: ['fd00:{rail}::/128']\nmaster: e{rail}\naddressing: same-index\n", ["fd00::/128 of rail 0 gives no index from 1 on: want a larger one"]),
     ("count: 2\nsubnet: 192.168.{node}.0/24\nmaster: e{rail}\naddressing: same-index\n", ["is no subnet for rail 0"]),
     ("count: 2\nsubnet: 192.168.{rail}.0/24\nmaster: e{nic}\naddressing: same-index\n", ['3:9: master: "e{nic}": want "{rail}" alone']),
     ("count: 2\nsubnet: 192.168.{rail}.0/24\nmaster: 'e{rail.x}'\naddressing: same-index\n", ['3:9: master: "e{rail.x}": want "{rail}" alone']),
     ("count: 2\nsubnet: '192.168.{rail[0]}.0/24'\nmaster: e{rail}\naddressing: same-index\n", ["is no subnet for rail 0"]),
     ("count: 2\nsubnet: 192.168.{rail}.0/30\nmaster: e{rail}\nbase: 9\ngateway: 3\naddressing: same-index\n", ["4:7: base: 9 is outside", "5:10: gateway"]),
     ("count: 2\nsubnet: 192.168.{rail}.0/24\npci: ['0000:18:00.0', x]\ntype: sriov\naddressing: same-index\n", ['3:23: pci[1]: "x": want a PCI address such as']),
     ("count: 2\nsubnet: 192.168.{rail}.0/24\nmaster: eth_r{rail}\nexclude: [9, 300]\naddressing: same-index\n", ["4:14: exclude[1]: 300 is outside of the smallest subnet, of 256 addresses: want less than 255"]),
     ("count: 3\nsubnet: 192.168.{rail}.0/24\npci: ['0000:18:00.0']\ntype: sriov\naddressing: same-index\n", ["pci: has 1 addresses, and count is 3"]),
     ("count: 1\nsubnet: 192.168.{rail}.0/24\nmaster: e\ntype: sriov\naddressing: same-index\n", ["4:7: type: sriov needs the number of VFs of each NIC: want numVfs"]),
     ("count: 1\nsubnet: 192.168.{rail}.0/24\nmaster: e\nnumVfs: 8\naddressing: same-index\n", ["4:9: numVfs: a macvlan takes no VFs"]),
     ("count: 1\nsubnet: 192.168.{rail}.0/24\nmaster: e\noneNetwork: true\naddressing: plain\n", ["4:13: oneNetwork: needs one index on all rails: want addressing same-index"]),
     ("count: 1\nsubnet: 192.168.{rail}.0/24\npci: ['0000:18:00.0']\naddressing: same-index\n", ["a macvlan needs the netdev's name"]),
     ("count: 2\nsubnet: 192.168.{rail}.0/24\nmaster: e{rail}\nresourcePrefix: rdma{rail}\naddressing: same-index\n", ['4:17: resourcePrefix: "rdma{rail}": want a domain in small letters']),
     ("count: [\n", ["rails.yaml:2:1: not YAML"]), ("", ["rails.yaml: want the keys count, subnet, addressing, and"]),
     ("- 1\n", ["rails.yaml: want the keys count, subnet, addressing, and"])],
)  # fmt: skip
def test_all_faults_are_told_with_their_places(text: str, words: list[str]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        plan.read("rails.yaml", text)
    told = f"{caught.value.msg}\n{caught.value.details}"
    assert all(told.count(word) == 1 for word in words), told


@pytest.mark.parametrize("key", plan.Rails.model_fields)
@pytest.mark.parametrize(
    "value", [None, True, -1, 1 << 40, 1.5, "", "-", [], [None], ["-"], [-1], {}, {1: 2}, date(2024, 1, 1)]
)
def test_whatever_a_key_is_set_to_is_refused_in_our_words(key: str, value: Any) -> None:
    document = {**GOOD, key: value}
    try:
        plan.read("rails.yaml", yaml.safe_dump(document))
    except InvalidConfig as fault:
        assert f" {key}" in fault.msg and ("want" in fault.msg or "start with" in fault.msg), fault.msg
        assert not re.search(r"[Ii]nput|[Vv]alue error|should|[Vv]alid", fault.msg), fault.msg
