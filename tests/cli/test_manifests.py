"""conf/kubernetes: the manifests fit together, name arguments that the command takes, and ask for no right too many.

What the containers do is tested in tests/blackbox/test_image.py.
"""

from functools import reduce
from typing import Any

import pytest
import yaml

from cni import VERSION
from cni.cli import main as command
from cni.resources.containers import CDI_FOLDER, INFO_FOLDER
from cni.shared.records import STATE
from tests.cli.test_conf import CONF, MANIFESTS

FOLDER = CONF / "kubernetes"


RESTRICTED = {
    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
}  # fmt: skip


def read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / name).read_text()))


@pytest.fixture
def pod() -> dict[str, Any]:
    """The pod of the DaemonSet."""
    return dict(read("daemonset.yaml")["spec"]["template"]["spec"])


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["initContainers"], *pod["containers"]]


def test_the_kustomization_lists_every_manifest() -> None:
    resources = {f"kubernetes/{name}" for name in read("kustomization.yaml")["resources"]}
    assert {*resources, "kubernetes/kustomization.yaml"} == MANIFESTS
    own = read("namespace.yaml")["metadata"]["name"]
    assert {read(f"{name}.yaml")["metadata"]["namespace"] for name in ("serviceaccount", "daemonset")} == {own}


def test_the_image_is_one_value_for_all_containers(pod: dict[str, Any]) -> None:
    (image,) = read("kustomization.yaml")["images"]
    assert {c["image"] for c in containers(pod)} == {image["name"]}
    assert image["newTag"] == VERSION


def test_every_node_is_served_in_steps_by_pods_with_bounded_memory_that_no_cpu_limit_throttles(
    pod: dict[str, Any],
) -> None:
    spec = read("daemonset.yaml")["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert pod["serviceAccountName"] == read("serviceaccount.yaml")["metadata"]["name"]
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    assert spec["updateStrategy"]["type"] == "RollingUpdate"
    for container in containers(pod):
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert set(container["resources"]["limits"]) == {"memory"}


def test_no_right_is_asked_for_but_to_be_root_and_to_write_three_folders(pod: dict[str, Any]) -> None:
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert pod["securityContext"] == {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}
    for container in containers(pod):
        assert container["securityContext"] == RESTRICTED
    assert pod["automountServiceAccountToken"] is False
    assert read("serviceaccount.yaml")["automountServiceAccountToken"] is False
    paths = {v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert paths == {"/opt/cni/bin", "/var/lib/cni/railcni", "/etc/cni/net.d/whereabouts.d", "/run/netns", "/sys"}
    (agent,) = pod["containers"]
    writable = {"/host/var/lib/cni/railcni", "/host/etc/cni/net.d/whereabouts.d"}
    assert {m["mountPath"] for m in agent["volumeMounts"] if not m.get("readOnly")} == writable
    (install,) = pod["initContainers"]
    assert "token" not in {m["name"] for m in install["volumeMounts"]}


def test_the_arguments_are_those_of_the_command_and_mean_the_mounted_folders(pod: dict[str, Any]) -> None:
    hosts = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    for container, verb in zip(containers(pod), ("install", "agent"), strict=True):
        argv = [argument.replace("$(POD_IP)", "fd00::7") for argument in container["args"]]
        options = command._parser().parse_args(argv)
        assert argv[0] == verb and options.run.__module__.startswith(f"cni.cli.{verb}")
        mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        assert all(mounted[name] == options.root + hosts[name] for name in set(mounted) & set(hosts))
        assert (options.plugin_dir, options.state_dir) == (hosts["plugins"], hosts["state"])
    assert (f"{options.conf_dir}/whereabouts.d", options.service_account) == (hosts["networks"], mounted["token"])
    assert options.plugin_account == "kube-system/railcni"


def test_the_probes_ask_the_port_on_which_the_agent_listens_and_that_is_the_documents(pod: dict[str, Any]) -> None:
    (agent,) = pod["containers"]
    (port,) = agent["ports"]
    options = command._parser().parse_args([a.replace("$(POD_IP)", "10.0.0.7") for a in agent["args"]])
    assert options.listen == ("10.0.0.7", port["containerPort"])
    assert "--listen=[$(POD_IP)]:9108" in agent["args"]
    said = " ".join((CONF.parent / "docs/install.md").read_text().split())
    assert "answers on 127.0.0.1:9108. `--listen` names another address; the DaemonSet names the pod's" in said
    assert command._parser().parse_args(["agent"]).listen == ("127.0.0.1", 9108)
    names = {"NODENAME": "spec.nodeName", "POD_IP": "status.podIP"}
    assert agent["env"] == [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": p}}} for n, p in names.items()]
    for probe in (agent["readinessProbe"]["httpGet"], agent["livenessProbe"]["tcpSocket"]):
        assert probe["port"] == port["name"]


def test_no_start_is_a_warning_event_of_a_readiness_probe() -> None:
    """A startup probe comes before the others: it waits, asks each second whether the port listens, and has readiness asked."""
    for name in ("daemonset.yaml", "device-plugin/daemonset.yaml", "dra/daemonset.yaml"):
        (container,) = read(name)["spec"]["template"]["spec"]["containers"]
        probe = container["startupProbe"]
        assert probe["tcpSocket"]["port"] == container["readinessProbe"]["httpGet"]["port"]
        assert (probe["initialDelaySeconds"], probe["periodSeconds"]) == (5, 1)


def test_the_columns_of_an_address_lease_tell_a_lease_from_a_note() -> None:
    (version,) = read("crds/addressleases.yaml")["spec"]["versions"]
    columns = {one["name"]: one["jsonPath"] for one in version["additionalPrinterColumns"]}
    assert list(columns)[:2] == ["Address", "State"]
    known = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for path in columns.values():
        assert path == ".metadata.creationTimestamp" or path.split(".")[2] in known


def test_the_container_of_the_dra_driver_has_the_folders_that_its_command_uses_and_no_capability() -> None:
    pod = read("dra/daemonset.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    values = {"$(POD_IP)": "fd00::7", "$(NODE)": "node-1"}
    argv = [reduce(lambda text, name: text.replace(name, values[name]), values, text) for text in container["args"]]
    options = command._parser(argv[:1]).parse_args(argv)
    assert options.run.__module__ == "cni.cli.devices" and options.node == "node-1"
    assert options.listen == ("fd00::7", container["ports"][0]["containerPort"])
    hosts = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"] if m["name"] in hosts}
    of_kubelet = {name for name in hosts if hosts[name].startswith(options.kubelet_root)}
    assert {hosts[name].rpartition("/")[2] for name in of_kubelet} == {"plugins", "plugins_registry", "pod-resources"}
    for name, path in hosts.items():
        assert mounted[name] == (path if name in of_kubelet else options.root + path)
    assert {CDI_FOLDER, INFO_FOLDER, STATE} <= {*hosts.values()}
    writable = {m["name"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"plugins", "plugins-registry", "cdi", "device-info", "state"}  # of the last only the locks
    assert container["securityContext"] == RESTRICTED
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
