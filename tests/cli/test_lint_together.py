"""The lint on several networks together, and on the resources of operators: what one of them alone does not show."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni.documents.networks import NETWORKS, RESOURCE_NAME
from cni.lint.file import lint
from tests.linted import lint_text


def nad(name: str, namespace: str = "default", config: Any = None, **plugin: Any) -> dict[str, Any]:
    network = {"cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": "ens2f0", **plugin}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"config": json.dumps(network) if config is None else config},
    }


def ipam(text: str, **more: Any) -> dict[str, Any]:
    return {"ipam": {"type": "whereabouts", "range": text, **more}}


def resource(kind: str, group: str, name: str = "it", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec}


def config_map(configuration: dict[str, Any]) -> dict[str, Any]:
    """A ConfigMap with two texts: a device plugin's configuration, and another text."""
    data = {"config.json": json.dumps(configuration), "other": "a text"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plugin"}, "data": data}


def asking(document: dict[str, Any], resource: str) -> dict[str, Any]:
    """The NAD with a resource."""
    return {**document, "metadata": {**document["metadata"], "annotations": {RESOURCE_NAME: resource}}}


def pod(*limits: str, networks: str = "") -> dict[str, Any]:
    containers = [{"name": "main", "resources": {"limits": dict.fromkeys(limits, 1)}}]
    metadata = {"name": "pod", "annotations": {NETWORKS: networks} if networks else {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def claiming(name: str, *classes: str, template: bool = True) -> list[dict[str, Any]]:
    """A claim, or its template, and a pod of the network a that has it."""
    requests = [{"name": f"r{n}", "exactly": {"deviceClassName": one}} for n, one in enumerate(classes)]
    requests[-1:] = [
        {"name": "last", "firstAvailable": [{"name": "x", "deviceClassName": one} for one in classes[-1:]]}
    ]
    spec = {"devices": {"requests": requests}}
    kind, key = (
        ("ResourceClaimTemplate", "resourceClaimTemplateName") if template else ("ResourceClaim", "resourceClaimName")
    )
    claim = resource(kind, "resource.k8s.io/v1", name, **({"spec": spec} if template else spec))
    one = pod(networks="a")
    return [claim, {**one, "spec": {**one["spec"], "resourceClaims": [{"name": "nic", key: name}]}}]


VFS = {"resourceName": "vf", "resourcePrefix": "example.com", "selectors": {"isRdma": True}}
HCA = {"configList": [{"resourceName": "hca", "rdmaHcaMax": 9, "devices": ["ens2f0"]}]}
SRIOV, NVIDIA, NV_IPAM = "sriovnetwork.openshift.io/v1", "mellanox.com/v1alpha1", "nv-ipam.nvidia.com/v1alpha1"
CHAIN = {"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "macvlan", "master": "ens2f0"}, {"type": "rdma"}]}
VF = {"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "sriov"}, {"type": "rdma"}]}
MOVED = {"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "host-device", "device": "ens2f0"}, {"type": "rdma"}]}


def told(*documents: Any) -> list[tuple[str, str, str]]:
    found = lint_text("---\n".join(yaml.safe_dump(d) for d in documents), "networks.yaml")
    return [(f.severity, f.key, f.message) for f in found]


@pytest.mark.parametrize(("documents", "findings"), [
    ((nad("a"), nad("a")), [("error", "metadata.name", "this file has another NAD a")]),
    ((nad("a"), nad("a", "other")), []),
    ((nad("a", "Bad_NS"),), [("error", "metadata.namespace", "Kubernetes has no namespace of this name")]),
    ((nad("a", **ipam("10.0.0.0/24")), nad("b", **ipam("10.0.0.0/24"))), []),
    ((nad("a", **ipam("10.0.0.0/24")), nad("b", **ipam("10.0.0.0/16"))),
     [("warning", "ipam.range", "10.0.0.0/16 overlaps with 10.0.0.0/24 of the network a: pods of one subnet")]),
    ((nad("a", **ipam("10.0.0.0/24")), nad("b", **ipam("10.0.0.0/24", network_name="b"))),
     [("warning", "ipam.range", "nothing keeps both from giving the same address")]),
    ((nad("a", **ipam("10.0.0.0/24")), nad("b", master="ens3f0", **ipam("10.0.0.0/24", network_name="b"))), []),
    ((nad("a", **ipam("10.0.0.0/24")), nad("b", **ipam("10.0.0.0/24", enable_overlapping_ranges=False))),
     [("warning", "ipam.range", "nothing keeps both from giving the same address")]),
    ((nad("a", **ipam("10.0.0.0/25")), nad("b", **ipam("10.0.0.128/25"))), []),
    ((nad("a", **ipam("10.0.0.0/24", routes=[{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}])), nad("b", **ipam("10.0.0.0/24"))),
     [("warning", "ipam.range", "10.0.0.0/24 gives 10.0.0.1 to a pod, and the network a has it as a gateway, next hop")]),
    ((nad("b", **ipam("10.0.0.0/24")), nad("a", **ipam("10.0.0.0/24", addresses=[{"address": "10.0.0.9/24"}]))),
     [("warning", "ipam.range", "10.0.0.0/24 gives 10.0.0.9 to a pod, and the network a has it as a gateway, next hop")]),
    (
        (nad("a", **ipam("10.0.0.0/24", gateway="10.0.0.1")), nad("b", **ipam("10.0.0.0/24", exclude=["10.0.0.1"])),
         nad("c", master="ens3f0", **ipam("10.0.0.0/24", exclude=["10.0.0.1"]))),
        [("warning", "ipam.range", "the network a has 10.0.0.0/24 too, on the master ens2f0: a pod with both")],
    ),
    ((nad("a", config=json.dumps(CHAIN)),),
     [("error", "plugins[1].type", "macvlan makes a link beside it: its ADD fails")]),
    ((nad("a", config=json.dumps(MOVED)),), []),
    ((nad("a", mut=9000),), [("warning", "mut", 'the plugin macvlan has no key "mut"')]),
    ((nad("a", config="cniVersion: 1.0.0\ntype: macvlan\nmaster: ens2f0\n"),),
     [("error", "", "not JSON: expecting value")]),
    ((resource("SriovNetworkNodePolicy", SRIOV, numVfs=8, deviceType="vfio-pci", isRdma=True),),
     [("error", "spec.deviceType", "neither netdev nor verbs device")]),
    ((resource("SriovNetworkNodePolicy", SRIOV, numVfs=8, mtu=1500),),
     [("warning", "spec.isRdma", "no /dev/infiniband"), ("warning", "spec.mtu", "RoCE makes 1024 of 1500")]),
    ((resource("SriovNetworkNodePolicy", SRIOV, numVfs=0, isRdma=True),), [("error", "spec.numVfs", "want 1 or more")]),
    ((resource("SriovNetworkNodePolicy", SRIOV, numVfs=8, isRdma=True, mtu=9000),), []),
    (
        (resource("SriovNetworkNodePolicy", SRIOV, numVfs=8, isRdma=True, nicSelector={"pfNames": ["a", "b#0-9"]}),),
        [("error", "spec.nicSelector.pfNames[1]", "numVfs 8 makes the VFs 0 to 7")]),
    (
        (resource("SriovNetworkNodePolicy", SRIOV, numVfs=8, isRdma=True, nicSelector={"pfNames": ["b#3-1"]}),),
        [("error", "spec.nicSelector.pfNames[0]", "the range 3-1 is empty")]),
    ((resource("SriovNetworkNodePolicy", SRIOV, numVfs=8, isRdma=True, nicSelector={"netFilter": "openstack/x"}),), []),
    ((resource("SriovNetwork", SRIOV, resourceName="vf", networkNamespace="Bad_NS"),),
     [("error", "spec.networkNamespace", "Kubernetes has no namespace of this name")]),
    ((resource("SriovNetwork", SRIOV, resourceName="vf", networkNamespace="default", vlan=5000),), [("error", "spec.vlan", "5000")]),
    ((resource("NicClusterPolicy", NVIDIA, rdmaSharedDevicePlugin={"config": '{"configLst": []}'}),),
     [("error", "spec.rdmaSharedDevicePlugin.config", "want an object with configList")]),
    ((resource("NicClusterPolicy", NVIDIA, rdmaSharedDevicePlugin={"config": '{"configList": [{"resourceName": "a", "rdmaHcaMax": 9, "devices": ["x"]},]}'}),),
     [("error", "spec.rdmaSharedDevicePlugin.config", "not JSON: ")]),
    ((resource("NicClusterPolicy", NVIDIA, rdmaSharedDevicePlugin={"config": '{"configList": [{"resourceName": "a", "devices": ["x"]}]}'}),),
     [("error", "spec.rdmaSharedDevicePlugin.config.configList[0].rdmaHcaMax", "rdmaHcaMax is missing")]),
    ((HCA,), []),
    ((config_map(HCA), asking(nad("a"), "rdma/hca"), pod("rdma/hca", "nvidia.com/gpu", "cpu")), []),
    ((config_map(HCA), asking(nad("a"), "rdma/hcb")),
     [("warning", f"metadata.annotations.{RESOURCE_NAME}", "here offers rdma/hcb, but rdma/hca")]),
    ((resource("NicClusterPolicy", NVIDIA, rdmaSharedDevicePlugin={"config": json.dumps(HCA)}), pod("rdma/hc")),
     [("warning", "spec.containers[0].resources.limits.rdma/hc", "here offers rdma/hc, but rdma/hca")]),
    ((HCA, {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod("rdma/hc")}}),
     [("warning", "spec.template.spec.containers[0].resources.limits.rdma/hc", "here offers rdma/hc, but rdma/hca")]),
    (
        (resource("SriovNetworkNodePolicy", SRIOV, numVfs=8, isRdma=True, resourceName="vf"),
         resource("SriovNetwork", SRIOV, resourceName="vg", networkNamespace="default")),
        [("warning", "spec.resourceName", "here offers openshift.io/vg, but openshift.io/vf")],
    ),
    ((asking(nad("a"), "rdma/hcb"), pod("rdma/hc")), []),
    ((asking(nad("a"), "rdma/hca"), pod("rdma/hca", "rdma/hcb", networks="a, other/b@net2")), []),
    ((asking(nad("a"), "rdma/hca"), pod("cpu", networks="a"), pod(networks="a")), []),
    ((asking(nad("a", "other"), "rdma/hca"), pod("rdma/hcb", networks="a")), []),
    *(
        (
            (asking(nad("a", "other"), "rdma/hca"), pod("rdma/hcb", networks=networks)),
            [("warning", f"metadata.annotations.{NETWORKS}", "the network a needs a device of rdma/hca, and the pod asks for rdma/hcb")],
        )
        for networks in ("b,other/a@net1", '[{"name": "a", "namespace": "other"}]')
    ),
    ((config_map({"configList": [{"resourceName": "hca", "rdmaHcaMax": -1, "devices": ["x"]}]}),),
     [("error", "data.config.json.configList[0].rdmaHcaMax", "-1: want 0 or more")]),
    ((resource("NicClusterPolicy", NVIDIA, secondaryNetwork={"ipamPlugin": {"image": "whereabouts"}}),),
     [("warning", "spec.secondaryNetwork.ipamPlugin", "the operator has no whereabouts since 25.10")]),
    ((resource("IPPool", NV_IPAM, subnet="10.0.0.0/16"), nad("b", **ipam("10.0.3.0/24"))),
     [("warning", "ipam.range", "10.0.3.0/24 overlaps with 10.0.0.0/16 of the IPPool it of nv-ipam")]),
    ((nad("b", **ipam("10.0.3.0/24")), resource("CIDRPool", NV_IPAM, cidr="10.0.0.0/16")),
     [("warning", "spec.cidr", "10.0.0.0/16 overlaps with 10.0.3.0/24 of the network b")]),
    ((resource("IPPool", NV_IPAM, subnet="10.0.0.0/33"),), [("error", "spec.subnet", "want a CIDR or an address")]),
    (
        (nad("a", **ipam("10.0.0.0/24")),
         resource("MacvlanNetwork", NVIDIA, "m", master="ens2f0", ipam='{"type": "whereabouts", "range": "10.0.0.0/25"}')),
        [("warning", "spec.ipam.range", "10.0.0.0/25 overlaps with 10.0.0.0/24 of the network a")],
    ),
])  # fmt: skip
def test_documents_are_judged_together(documents: tuple[Any, ...], findings: list[tuple[str, str, str]]) -> None:
    found = [f for f in told(*documents) if f[1] != "cniVersion"]
    assert [(severity, key) for severity, key, _ in found] == [(severity, key) for severity, key, _ in findings], found
    assert all(words in message for (_, _, message), (_, _, words) in zip(found, findings, strict=True)), found


def test_a_finding_about_an_operators_resource_stands_at_its_key_also_within_json() -> None:
    """Those of the networks that it is rendered to: tests/cli/test_nvidia.py."""
    text = """apiVersion: mellanox.com/v1alpha1
kind: NicClusterPolicy
metadata:
  name: nic-cluster-policy
spec:
  rdmaSharedDevicePlugin:
    config: |
      {
        "configList": [
          {"resourceName": "hca", "rdmaHcaMax": "many", "devices": ["ens2f0"]}
        ]
      }
"""
    (place,) = [(f.line, f.column, f.key) for f in lint_text(text, "networks.yaml") if f.severity == "error"]
    assert place == (10, 49, "spec.rdmaSharedDevicePlugin.config.configList[0].rdmaHcaMax")


def test_a_finding_about_a_pod_names_no_network() -> None:
    (found,) = lint_text("---\n".join(yaml.safe_dump(d) for d in (config_map(HCA), pod("rdma/hc"))), "pods.yaml")
    assert found.network == ""


def test_a_device_plugins_own_file_is_recognised_and_judged(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(HCA))
    assert lint([str(file)]) == []
    file.write_text(json.dumps(HCA).replace("rdmaHcaMax", "rdmaHcaMx"))
    assert [(f.severity, f.key) for f in lint([str(file)])] == [
        ("error", "configList[0].rdmaHcaMax"),
        ("warning", "configList[0].rdmaHcaMx"),
    ]


def test_a_folder_without_networks_is_a_fault_and_files_are_read_together(tmp_path: Path) -> None:
    (finding,) = lint([str(tmp_path)])
    assert (finding.severity, finding.message) == ("error", "there is no network in this folder")
    for name, text in (("a", "10.0.0.0/24"), ("b", "10.0.0.0/16")):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(nad(name, **ipam(text))))
    (finding,) = lint([str(tmp_path)])
    assert finding.path.endswith("/b.yaml") and "overlaps" in finding.message
    (finding,) = lint([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")])
    assert "overlaps" in finding.message


OF_HCA = {"selectors": [{"cel": {"expression": 'device.attributes["k8s.cni.cncf.io"].resourceName == "rdma/hca"'}}]}
NEEDS = "the network a needs a device of rdma/hca, and the pod"


@pytest.mark.parametrize(("classes", "more", "message"), [
    (["rdma-hca"], [], ""), (["gpu.nvidia.com", "rdma-hca"], [], ""),
    (["gpu.nvidia.com"], [], ""),  # of other drivers nothing is known
    (["rdma-hcb"], [], f"{NEEDS} claims rdma-hcb"),
    (["rdma-hcb", "gpu.nvidia.com"], [], f"{NEEDS} claims rdma-hcb"),
    (["nics"], [resource("DeviceClass", "resource.k8s.io/v1", "nics", extendedResourceName="rdma/hca")], ""),
    (["nics"], [resource("DeviceClass", "resource.k8s.io/v1", "nics", **OF_HCA)], ""),
    (["nics"], [resource("DeviceClass", "resource.k8s.io/v1", "nics", extendedResourceName="intel.com/vf")],
     f"{NEEDS} claims nics (intel.com/vf)"),
    (["example-com-vf"], [config_map({"resourceList": [VFS]})], f"{NEEDS} claims example-com-vf"),
])  # fmt: skip
def test_a_claim_of_another_resource_is_found(classes: list[str], more: list[dict[str, Any]], message: str) -> None:
    findings = told(asking(nad("a"), "rdma/hca"), *more, *claiming("it", *classes))
    assert [text for _, _, text in findings] == ([message] if message else [])


@pytest.mark.parametrize(("classes", "words"), [
    (["rdma-hca"], " names its claim by resourceClaimName, which Multus does not read"),
    (["rdma-hcb"], " claims rdma-hcb"),
])  # fmt: skip
def test_a_claim_that_no_template_has_made_is_found(classes: list[str], words: str) -> None:
    findings = told(asking(nad("a"), "rdma/hca"), *claiming("it", *classes, template=False))
    assert [text for _, _, text in findings] == [NEEDS + words]


def test_a_request_that_selects_another_resource_of_its_class_is_found() -> None:
    claim, pod = claiming("it", "nics")
    request = claim["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"][0]
    request |= json.loads(json.dumps(OF_HCA).replace("hca", "hcb"))
    (found,) = told(asking(nad("a"), "rdma/hca"), claim, pod)
    assert found[2] == f"{NEEDS} claims nics (rdma/hcb)"
    request |= OF_HCA
    assert told(asking(nad("a"), "rdma/hca"), claim, pod) == []
