"""conf/kubernetes/device-plugin: the container fits the command and the DaemonSet, and asks for no right too many."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cni import VERSION
from cni.cli import main as command
from cni.cli.devices import FOLDER, PODS
from cni.resources import config
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
