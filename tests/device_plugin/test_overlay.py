"""conf/kubernetes/device-plugin: the container fits the command and the DaemonSet, and asks for no right too many.

The models of conf/examples: what their device plugin's part offers, and the objects that kubectl makes of a folder.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni import VERSION
from cni.cli import main as command
from cni.cli.devices import FOLDER, PODS
from cni.documents import networks
from cni.resources import config
from cni.resources.choose import Offer, resources
from cni.resources.node import read_host
from tests.device_plugin.scene import Machine
from tests.linted import lint_text
from tests.node import ROOT
from tests.tools import kustomized, needs_kubectl

HERE = ROOT / "conf/kubernetes/device-plugin"


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((HERE / name).read_text())
    return document


@pytest.fixture
def pod() -> dict[str, Any]:
    found: dict[str, Any] = read("daemonset.yaml")["spec"]["template"]["spec"]
    return found


def test_the_configuration_is_right() -> None:
    found = config.read([("config.json", (HERE / "config.json").read_text())])
    assert found.findings == []
    assert [resource.name for resource in found.resources] == ["rdma/hca_shared_devices_a"]


def test_the_arguments_are_those_of_the_command_and_mean_the_mounted_folders(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    options = command._parser(["device-plugin"]).parse_args(
        [a.replace("$(POD_IP)", "fd00::7") for a in container["args"]]
    )
    mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    hosts = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert options.config == [f"{mounted['device-config']}/config.json"]
    assert (options.kubelet_dir, Path(options.pod_resources).parent) == (FOLDER, Path(PODS).parent)
    assert mounted["kubelet-plugins"] == hosts["kubelet-plugins"] == FOLDER
    assert mounted["pod-resources"] == hosts["pod-resources"] == str(Path(PODS).parent)
    assert all(mounted[name] == options.root + hosts[name] for name in ("dev", "proc", "device-info"))
    assert mounted["sys"] == f"{options.root}/sys"  # the volume is the agent's
    assert options.listen == ("fd00::7", container["ports"][0]["containerPort"])


def test_no_right_is_asked_for_but_to_write_two_folders(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert set(pod) == {"containers", "volumes"}  # no namespace of the host
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {m["name"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"kubelet-plugins", "device-info"}
    assert set(container["resources"]["limits"]) == {"memory"}


def test_it_is_added_to_the_daemon_set_with_an_image_of_its_own(pod: dict[str, Any]) -> None:
    kustomization = read("kustomization.yaml")
    (image,) = kustomization["images"]
    assert (image["name"], image["newTag"]) == (pod["containers"][0]["image"], VERSION)
    assert kustomization["kind"] == "Component"  # an overlay could not lie within its base
    own = yaml.safe_load((HERE.parent / "daemonset.yaml").read_text())
    assert read("daemonset.yaml")["metadata"] == {k: own["metadata"][k] for k in ("name", "namespace")}
    taken = {v["name"] for v in own["spec"]["template"]["spec"]["volumes"]}
    assert not taken & {v["name"] for v in pod["volumes"]}
    (generated,) = kustomization["configMapGenerator"]
    assert {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v} == {generated["name"]}


@needs_kubectl
def test_kubectl_renders_a_daemon_set_with_three_containers(tmp_path: Path) -> None:
    documents = kustomized(HERE.parent, "device-plugin", copy=tmp_path / "kubernetes")
    (pod,) = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "DaemonSet"]
    assert [c["name"] for c in pod["initContainers"]] == ["install"]
    assert {c["name"]: c["image"].rpartition("/")[2] for c in pod["containers"]} == {
        "agent": f"railcni:{VERSION}",
        "device-plugin": f"railcni-device-plugin:{VERSION}",
    }
    assert {d["metadata"]["name"] for d in documents if d["kind"] == "ConfigMap"} == {"railcni-device-plugin"}


@needs_kubectl
def test_the_component_vfs_adds_the_rights_to_make_them_and_no_other(tmp_path: Path, pod: dict[str, Any]) -> None:
    documents = kustomized(HERE.parent, "device-plugin", "device-plugin/vfs", copy=tmp_path / "kubernetes")
    (found,) = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "DaemonSet"]
    (container,) = [c for c in found["containers"] if c["name"] == "device-plugin"]
    (before,) = pod["containers"]
    assert container["securityContext"] == before["securityContext"] | {
        "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE"]}
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(found)
    writable = {m["name"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"kubelet-plugins", "device-info", "sys"}
    assert container["args"] == before["args"]


EXAMPLES = ROOT / "conf/examples"
RESOURCES = {  # what the pods of a model ask for
    "roce-shared": "rdma/hca",
    "sriov-roce": "openshift.io/roce_vf",
    "sriov-dpdk": "openshift.io/dpdk_vf",
    "pf-passthrough": "rdma/pf",
    "host-network": "rdma/hca",
}
PF, VFS = "0000:32:00.0", [f"0000:32:00.{number}" for number in range(1, 5)]


def config_map(model: str) -> str:
    """The configuration of the device plugin in the model's network.yaml."""
    first = next(yaml.safe_load_all((EXAMPLES / model / "network.yaml").read_text()))
    assert first["metadata"] == {"name": "railcni-device-plugin", "namespace": "railcni"}
    return str(first["data"]["config.json"])


def network(model: str) -> dict[str, Any]:
    """The configuration of the first plugin in the model's NAD, as a runtime passes it."""
    _, nad = yaml.safe_load_all((EXAMPLES / model / "network.yaml").read_text())
    config: dict[str, Any] = json.loads(nad["spec"]["config"])
    (step,) = config.pop("plugins", [{}])
    return {**config, **step}


def pods(folder: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / folder / "pods.yaml").read_text()))


def machine_of(model: str, folder: Path) -> Machine:
    """A node whose ens2f0 has a verbs device, and the VFs that the model makes; of another NIC no model has anything."""
    machine = Machine(folder)
    machine.nic(3)
    machine.nic(2, vfs=len(VFS) if model == "sriov-roce" else 0)
    for number, address in enumerate(VFS if model == "sriov-dpdk" else ()):
        function = machine.tree.pci(address, driver="vfio-pci", physical=PF, vendor="0x15b3", **{"class": "0x020000"})
        group = machine.root / f"sys/kernel/iommu_groups/{number}"
        machine.tree.put(group, {"type": "DMA"})
        machine.tree.link(function.relative_to(machine.tree.root) / "iommu_group", group)
        machine.node(f"vfio/{number}")
    machine.node("vfio/vfio")
    return machine


def nodes(offer: Offer) -> list[str]:
    return [path.removeprefix("/dev/") for path, _ in offer.nodes]


@pytest.mark.parametrize(("model", "wanted"), [
    ("roce-shared", {PF: (63, ["infiniband/uverbs2", "infiniband/rdma_cm"])}),
    ("sriov-roce", {vf: (1, [f"infiniband/uverbs{300 + n}", "infiniband/rdma_cm"]) for n, vf in enumerate(VFS)}),
    ("sriov-dpdk", {vf: (1, ["vfio/vfio", f"vfio/{number}"]) for number, vf in enumerate(VFS)}),
    ("pf-passthrough", {PF: (1, ["infiniband/uverbs2", "infiniband/rdma_cm"])}),
    ("host-network", {PF: (1000, ["infiniband/uverbs2", "infiniband/rdma_cm"])}),
])  # fmt: skip
def test_the_device_plugin_offers_the_devices_of_a_model_with_the_nodes_that_its_program_needs(
    model: str, wanted: dict[str, tuple[int, list[str]]], tmp_path: Path
) -> None:
    read = config.read([("config.json", config_map(model))])
    assert read.findings == []
    (found,) = resources(read.resources, read_host(str(machine_of(model, tmp_path).root)))
    assert found.name == RESOURCES[model]
    assert {o.name: (len(o.ids), nodes(o)) for o in found.offers} == wanted
    assert all(offer.fault == "" for offer in found.offers)


def test_the_host_network_of_a_guest_of_alibaba_has_the_devices_of_erdma(tmp_path: Path) -> None:
    """Its verbs device is a function of its own, without a netdev."""
    machine, address = Machine(tmp_path), "0000:00:06.0"
    machine.tree.pci(address, driver="erdma", vendor="0x1ded", device="0x107f", **{"class": "0x028000"})
    machine.tree.verbs("erdma_0", pci=address, node_type="4: RNIC", size=1, nodes={"uverbs0": "infiniband_verbs"})
    machine.node("infiniband/uverbs0")
    text = config_map("host-network").replace('"ifNames": ["ens2f0"]', '"drivers": ["erdma"]')
    (found,) = resources(config.read([("config.json", text)]).resources, read_host(str(machine.root)))
    assert [(o.name, len(o.ids), nodes(o)) for o in found.offers] == [
        (address, 1000, ["infiniband/uverbs0", "infiniband/rdma_cm"])
    ]


@needs_kubectl
@pytest.mark.parametrize(("model", "gpu"), [*((model, False) for model in RESOURCES), ("roce-shared", True)])
def test_kubectl_makes_two_pods_of_a_folder_that_ask_for_its_network_and_resource(
    model: str, gpu: bool, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    kustomization = tmp_path / "examples" / model / "kustomization.yaml"
    text = kustomization.read_text()
    if gpu:
        kustomization.write_text(text.replace("components: [] # [../gpu]", "components: [../gpu] #"))
    found = kustomized(kustomization.parent)
    made = [one for one in found if one["kind"] == "Pod"]
    nads = [one for one in found if one["kind"] == "NetworkAttachmentDefinition"]
    assert len(made) == 2 and bool(nads) == (model != "host-network")
    for pod in made:
        (container,) = pod["spec"]["containers"]
        asked = {name for name in container["resources"]["limits"] if "/" in name}
        assert asked == {RESOURCES[model], *(["nvidia.com/gpu"] if gpu else [])}
        assert ({"name": "CUDA", "value": "--use_cuda=0"} in container["env"]) == gpu
        assert pod["spec"].get("hostNetwork", False) == (model == "host-network")
        wanted = json.loads(pod["metadata"].get("annotations", {}).get("k8s.v1.cni.cncf.io/networks", "[]"))
        assert [one["name"] for one in wanted] == [nad["metadata"]["name"] for nad in nads]
        assert {key for one in wanted for key in one} - {"name"} <= {
            key for nad in nads for key in capabilities(json.loads(nad["spec"]["config"]))
        }
    for nad in nads:
        assert lint_text(yaml.safe_dump(nad), "nad.yaml") == []
        resource = nad["metadata"].get("annotations", {}).get(networks.RESOURCE_NAME, "")
        assert resource == ("" if model == "roce-shared" else RESOURCES[model])


def capabilities(network: dict[str, Any]) -> set[str]:
    return {key for step in network.get("plugins", [network]) for key, on in step["capabilities"].items() if on}
