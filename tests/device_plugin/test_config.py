"""The configuration of the device plugin: the files of the two that came before, read as they are."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from cni.documents.diagnostic import ERROR
from cni.resources.config import PERIOD, Config, read
from cni.resources.models import Exclusive, ExclusiveSelectors, NicSelector, Shared, SharedSelectors, VfPolicy

MELLANOX = """{
  "periodicUpdateInterval": 300,
  "configList": [{
      "resourceName": "hca_shared_devices_a",
      "resourcePrefix": "example_prefix.com",
      "rdmaHcaMax": 1000,
      "devices": ["ib0", "ib1"]
    },
    {
      "resourceName": "hca_shared_devices_b",
      "rdmaHcaMax": 500,
      "selectors": {"vendors": ["15b3"], "deviceIDs": ["1017"], "drivers": ["mlx5_core"], "ifNames": ["ib3", "ib4"],
                    "linkTypes": ["infiniband"]}
    }
  ]
}
"""
SRIOV = """{"resourceList": [
  {"resourceName": "intel_sriov_netdevice",
   "selectors": [{"vendors": ["8086"], "devices": ["154c", "10ed"], "drivers": ["i40evf", "iavf"]}]},
  {"resourceName": "intel_sriov_dpdk", "resourcePrefix": "intel.com",
   "selectors": [{"vendors": ["8086"], "drivers": ["vfio-pci"], "pfNames": ["enp0s0f0#0,2-7,9"], "needVhostNet": true}]},
  {"resourceName": "old_syntax", "selectors": {"rootDevices": ["0000:86:00.0#0-1,3"], "isRdma": true}},
  {"resourceName": "more", "selectors": [{"pciAddresses": ["0000:86:02.0"]}], "excludeTopology": true,
   "additionalInfo": {"*": {"token": "3e49"}}}
]}
"""


def one(text: str) -> Config:
    return read([("config.json", text)])


def told(text: str) -> list[str]:
    return [f"{f.line}:{f.column} {f.severity} {f.key}: {f.message} ({f.fix})" for f in one(text).findings]


def test_the_file_of_the_rdma_shared_device_plugin_is_read_as_it_is() -> None:
    config = one(MELLANOX.replace("example_prefix.com", "example-prefix.com"))
    assert config.findings == []
    assert config.period == 300
    first, second = config.resources
    assert isinstance(first, Shared) and isinstance(second, Shared)
    assert (first.name, first.rdmaHcaMax) == ("example-prefix.com/hca_shared_devices_a", 1000)
    assert first.selectors.ifNames == ["ib0", "ib1"]
    assert (second.name, second.selectors.deviceIDs) == ("rdma/hca_shared_devices_b", ["1017"])


def test_the_file_of_the_sriov_device_plugin_is_read_as_it_is() -> None:
    config = one(SRIOV)
    assert config.findings == []
    assert config.period == PERIOD
    names = [resource.name for resource in config.resources]
    assert names == ["intel.com/" + n for n in ("intel_sriov_netdevice", "intel_sriov_dpdk", "old_syntax", "more")]
    assert all(isinstance(resource, Exclusive) for resource in config.resources)
    old = config.resources[2]
    assert isinstance(old, Exclusive) and [s.isRdma for s in old.selectors] == [True]


def test_both_lists_may_be_in_one_file_and_several_files_are_one_configuration() -> None:
    both = json.dumps({**json.loads(MELLANOX.replace("_prefix.com", "")), **json.loads(SRIOV)})
    assert len(one(both).resources) == 6
    assert len(read([("a", MELLANOX.replace("_prefix.com", "")), ("b", SRIOV)]).resources) == 6


def test_keys_match_without_regard_to_case_and_null_is_absent_as_in_go() -> None:
    config = one('{"CONFIGLIST": [{"ResourceName": "a", "RDMAHCAMAX": 1, "devices": ["x"], "selectors": null}]}')
    assert config.findings == []
    assert [resource.name for resource in config.resources] == ["rdma/a"]


@pytest.mark.parametrize(("member", "finding"), [
    ({"rdmaHcaMax": -1}, "1:{rdmaHcaMax} error configList[1].rdmaHcaMax: -1: want 0 or more (write a number such as"),
    ({"rdmaHcaMax": "5"}, '1:{rdmaHcaMax} error configList[1].rdmaHcaMax: "5": want an integer (write a number'),
    ({"rdmaHcaMax": 10**6}, "error configList[1].rdmaHcaMax: 1000000: want 40000 at most"),
    ({"rdmaHcaMax": None}, 'error configList[1].rdmaHcaMax: rdmaHcaMax is missing (add "rdmaHcaMax")'),
    ({"resourceName": "a/b"}, 'error configList[1].resourceName: "a/b": want letters, digits'),
    ({"resourceName": "good"}, "error configList[1].resourceName: rdma/good is there already"),
    ({"resourcePrefix": "Rdma!"}, 'error configList[1].resourcePrefix: "Rdma!": want a domain in small letters'),
    ({"resourcePrefix": "kubernetes.io"}, "kubelet takes no resource of this prefix (write a domain such as"),
    ({"selectors": {"linkTypes": ["Ethernet"]}, "devices": None},
     '"Ethernet": want one of ether, infiniband (write ether'),
    ({"selectors": {"vendors": ["15b3"]}}, "want one of devices and selectors"),
    ({"devices": []}, "want one of devices and selectors"),
    ({"devices": "ens2f0"}, 'error configList[1].devices: "ens2f0": want a list'),
])  # fmt: skip
def test_a_wrong_resource_has_line_column_key_and_remedy_and_the_right_one_is_served(
    member: dict[str, Any], finding: str
) -> None:
    wrong = {"resourceName": "wrong", "rdmaHcaMax": 5, "devices": ["ens2f0"], **member}
    good = {"resourceName": "good", "rdmaHcaMax": 5, "devices": ["ens2f1"]}
    text = json.dumps({"configList": [good, wrong]})
    (key,) = {"rdmaHcaMax"} & set(member) or {"resourceName"}
    at = text.rindex(f'"{key}": ') + len(f'"{key}": ') + 1
    (found,) = told(text)
    assert finding.replace("{rdmaHcaMax}", str(at)) in found
    assert [resource.resourceName for resource in one(text).resources] == ["good"]


@pytest.mark.parametrize(("member", "finding"), [
    ({"selectors": [{"pfNames": ["ens2f0#a"]}]}, '"ens2f0#a": want a name, or a name with the numbers of VFs'),
    ({"selectors": [{"pciAddresses": ["86:00.0"]}]}, '"86:00.0": want a PCI address (write addresses such as'),
    ({"selectors": [{"ddpProfiles": ["x"]}]},
     "error resourceList[0].selectors[0].ddpProfiles: ddpProfiles: this device"),
    ({"selectors": {"vdpaType": "vhost"}}, "error resourceList[0].selectors.vdpaType: vdpaType: this device plugin"),
    ({"deviceType": "accelerator"}, '"accelerator": want netDevice (leave this resource to the SR-IOV device plugin)'),
    ({"selectors": None}, "selectors is missing"),
    ({"selectors": []}, "[]: want 1 or more members"),
])  # fmt: skip
def test_a_selector_that_would_choose_something_else_is_refused(member: dict[str, Any], finding: str) -> None:
    wrong = {"resourceName": "wrong", "selectors": [{"vendors": ["15b3"]}], **member}
    (found,) = told(json.dumps({"resourceList": [wrong]}))
    assert finding in found


@pytest.mark.parametrize("form", ["{}", "[{}]"])
def test_the_place_of_a_fault_is_that_of_its_value_also_where_one_selector_stands_for_a_list(form: str) -> None:
    selectors = form.replace("{}", '{"pfNames": ["ens2f0#5-1"]}')
    text = f'{{"resourceList": [{{"resourceName": "a", "selectors": {selectors}}}]}}'
    (found,) = one(text).findings
    assert found.column == text.index('"ens2f0#5-1"') + 1


@pytest.mark.parametrize(("text", "finding"), [
    ('{"configList": [{"resourceName": "a", "rdmaHcaMax": 1, "device": ["x"], "devices": ["x"]}]}', 'write "devices"'),
    ('{"configList": [{"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"ifName": ["x"], "vendors": ["15b3"]}}]}',
     'write "ifNames"'),
    ('{"periodicInterval": 5, "configList": [{"resourceName": "a", "rdmaHcaMax": 1, "devices": ["x"]}]}',
     'write "periodicUpdateInterval"'),
    ('{"nonsense": 5, "configList": [{"resourceName": "a", "rdmaHcaMax": 1, "devices": ["x"]}]}', "remove it"),
])  # fmt: skip
def test_an_unknown_key_is_a_warning_with_the_key_that_was_meant(text: str, finding: str) -> None:
    (found,) = told(text)
    assert " warning " in found
    assert found.endswith(f"({finding})")


@pytest.mark.parametrize("text", ["", "{", '{"configList": [}', "[]", "{}", '{"configlists": []}'])
def test_a_file_that_is_no_configuration_is_not_whole(text: str) -> None:
    config = one(text)
    assert not config.is_whole
    assert [f.severity for f in config.findings][:1] == ["error"]


@pytest.mark.parametrize(
    ("given", "period"), [("0", 0.0), ("null", PERIOD), ("-3", PERIOD), ('"5"', PERIOD), ("true", PERIOD)]
)
def test_the_period_is_a_number_of_seconds(given: str, period: float) -> None:
    member = '{"resourceName": "a", "rdmaHcaMax": 1, "devices": ["x"]}'
    config = one(f'{{"periodicUpdateInterval": {given}, "configList": [{member}]}}')
    assert config.period == period
    assert bool(config.findings) == (given not in ("0", "null"))


@pytest.mark.parametrize("kind", ["configList", "resourceList", "virtualFunctions"])
def test_a_value_of_the_wrong_kind_has_a_remedy_whatever_key_it_is_of(kind: str) -> None:
    kinds: dict[str, tuple[type[BaseModel], str, type[BaseModel]]] = {
        "configList": (Shared, "selectors", SharedSelectors),
        "resourceList": (Exclusive, "selectors", ExclusiveSelectors),
        "virtualFunctions": (VfPolicy, "nicSelector", NicSelector),
    }
    model, inner, chosen = kinds[kind]
    wrong: list[Any] = ["text", {"resourceName": "a", "rdmaHcaMax": 1, "numVfs": 1}]
    wrong += [{key: 1.5} for key in model.model_fields] + [{inner: {key: 1.5}} for key in chosen.model_fields]
    for member in wrong:
        faults = [f for f in one(json.dumps({kind: [member]})).findings if f.severity == ERROR]
        assert faults and all(f.fix for f in faults), (member, faults)


def test_selectors_that_are_empty_are_absent() -> None:
    selectors = {"vendors": ["15b3"], "acpiIndexes": [], "ddpProfiles": None, "vdpaType": "", "pKeys": []}
    config = one(json.dumps({"resourceList": [{"resourceName": "r", "selectors": [selectors]}]}))
    assert (config.findings, [resource.name for resource in config.resources]) == ([], ["intel.com/r"])


@pytest.mark.parametrize(("text", "message", "fix"), [
    ("", "the file is empty", 'write {"configList": [...]}'),
    (" \n", "the file is empty", 'write {"configList": [...]}'),
    ('{"configList": []}', "configList is empty: nothing is offered by it", "add a member, or remove the key"),
    ("configList: [{resourceName: a, rdmaHcaMax: 1, selectors: {deviceIDs: [1017]}}]",
     "1017: want text in quotes, since YAML reads these digits as a number",
     'write a list of IDs such as ["15b3"]'),
    ('{"configList": [{"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"vendors": ["mellanox"]}}]}',
     '"mellanox": want four hexadecimal digits', 'write a list of IDs such as ["15b3"]'),
    ('{"resourceList": [{"resourceName": "a", "selectors": {"pfNames": ["ens1f0#3-0"]}}]}',
     '"ens1f0#3-0": the range 3-0 is empty: want the lower number first', "write NETDEV, NETDEV#3 or NETDEV#0-3,7"),
])  # fmt: skip
def test_what_chooses_nothing_is_told_with_the_remedy(text: str, message: str, fix: str) -> None:
    (finding,) = one(text).findings
    assert (finding.message, finding.fix) == (message, fix)


RAILS = {"group": "gpu", "nics": ["eth_r0", "eth_r1"]}


def with_rails(*rails: object) -> str:
    return json.dumps({"configList": [{"resourceName": "a", "rdmaHcaMax": 1, "devices": ["x"]}], "rails": rails})


def test_the_nics_of_rails_are_read() -> None:
    config = one(with_rails(RAILS, {"group": "storage", "nics": ["0000:3b:00.0"]}))
    assert config.findings == []
    assert [(rails.group, rails.nics) for rails in config.rails] == [
        ("gpu", ["eth_r0", "eth_r1"]),
        ("storage", ["0000:3b:00.0"]),
    ]


@pytest.mark.parametrize(("rails", "finding"), [
    ([{"nics": ["x"]}], 'rails[0].group: group is missing (add "group")'),
    ([{"group": "g p u", "nics": ["x"]}], 'rails[0].group: "g p u": want at most 63 letters, digits'),
    ([{"group": "gpu", "nics": []}], "rails[0].nics: []: want 1 or more members (write the NIC of each rail"),
    ([{"group": "gpu", "nics": [f"e{n}" for n in range(33)]}], "want 32 members at most (write the NIC of each rail"),
    ([{"group": "gpu", "nics": "x"}], 'rails[0].nics: "x": want a list (write the NIC of each rail'),
    ([{"group": "gpu", "nics": ["x", "x"]}], "rails[0].nics: x is a rail twice: the first one counts"),
    ([RAILS, {"group": "b", "nics": ["eth_r1"]}], "rails[1].nics: eth_r1 is a rail twice: the first one counts"),
    ([{**RAILS, "nic": "x"}], 'rails[0].nic: there is no key "nic" (write "nics")'),
])  # fmt: skip
def test_wrong_rails_are_told_with_their_place_and_the_resources_are_served(rails: list[Any], finding: str) -> None:
    (found,) = told(with_rails(*rails))
    assert finding in found
    assert [resource.resourceName for resource in one(with_rails(*rails)).resources] == ["a"]


def test_a_whole_configmap_is_read() -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"config.json": SRIOV}}
    config = read([("configmap.yaml", json.dumps(manifest))])
    assert (config.findings, len(config.resources)) == ([], 4)
    manifest["data"] = {"config.json": '{"configList": ['}
    (finding,) = read([("configmap.yaml", json.dumps(manifest))]).findings
    assert finding.place.startswith("configmap.yaml, config.json:1:")
