"""conf/charts/railcni: the chart installs what conf/kubernetes does, and each of its values does what it says."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import codecs

from cni import VERSION
from cni.cli import main as command
from cni.node.installation.layout import PLAIN
from tests.node import ROOT
from tests.tools import kustomized, needs, needs_kubectl, run

CHART = ROOT / "conf/charts/railcni"
KUSTOMIZE = ROOT / "conf/kubernetes"
PRESETS = sorted((CHART / "presets").glob("*.yaml"))
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
IMAGE = "r/railcni-device-plugin"
DEVICES = {
    "enabled": True, "image": {"repository": IMAGE},
    "config": {
        "configList": [{"resourceName": "hca", "selectors": {"ifNames": ["ens2f0"]}}],
        "rails": [{"group": "gpu", "nics": ["ens2f0"]}]},
}  # fmt: skip
DRA = {
    "devicePlugin.image.repository": IMAGE,
    "dra.enabled": True,
    "dra.config": {
        "configList": [{"resourceName": "hca", "rdmaHcaMax": 9, "selectors": {"ifNames": ["ens2f0"]}}],
        "resourceList": [
            {"resourceName": name, "resourcePrefix": "example.com", "selectors": {"pfNames": ["p0"]}}
            for name in ("VF_a", "a_name_that_is_longer_than_a_DeviceClass_may_have_it")
        ],
        "rails": [{"group": "gpu", "nics": ["ens2f0"]}],
    },
}
WITH_VFS = DEVICES | {"config": {"virtualFunctions": [{"nicSelector": {"pfNames": ["ens2f1"]}, "numVfs": 8}]}}
OPERATORS = ("SecurityContextConstraints", "PodMonitor", "PrometheusRule")  # Kubernetes itself has no such objects

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml takes a tenth of the time

needs_helm = needs("helm", "`.ci/helm` puts it into build/tools")

Document = dict[str, Any]


def documents_in(text: str) -> list[Document]:
    return list(yaml.load_all(text, LOADER))


def render(*options: str, values: Document | None = None, release: str = "railcni") -> list[Document]:
    code, said, fault = template(*options, values=values, release=release)
    assert code == 0, fault
    return [document for document in documents_in(said) if document]


def template(
    *options: str, values: Document | None = None, namespace: str = "railcni", release: str = "railcni"
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `helm template`, without the hooks unless asked for; `values` goes over those of the
    chart."""
    sets = [
        f"--set-json={key}={json.dumps(value)}"
        for key, value in {"image.repository": "r/railcni", **(values or {})}.items()
    ]
    hooks = [] if "--show-only" in options else ["--no-hooks"]
    done = run("helm", "template", release, str(CHART), f"--namespace={namespace}", *sets, *hooks, *options)
    return done.returncode, done.stdout, done.stderr


unchanged = cache(template)  # with the values of the chart


def by_name(documents: list[Document]) -> dict[tuple[str, str, str], Document]:
    return {(d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]): d for d in documents}


def pod_of(documents: list[Document]) -> Document:
    return dict(next(d["spec"]["template"]["spec"] for d in documents if d["kind"] == "DaemonSet"))


def leaves(tree: Document, prefix: str = "") -> set[str]:
    """The paths of all values; a mapping that is empty, or that people fill as they like, is one value."""
    found = set()
    for key, value in tree.items():
        inner = isinstance(value, dict) and value and key not in ("resources", "config", "nodeSelector")
        found |= leaves(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}"}
    return found


def plain(document: Document, of_chart: bool) -> Document:
    """Without the labels, annotations and registries in which a chart and a kustomization differ by their nature."""
    document["metadata"].pop("labels", None)
    for key, value in document["metadata"].pop("annotations", {}).items():
        assert (key, value) == ("helm.sh/resource-policy", "keep")
    if document["kind"] == "DaemonSet":
        pod = document["spec"]["template"]["spec"]
        for container in (*pod.get("initContainers", []), *pod["containers"]):
            container["image"] = container["image"].rpartition("/")[2]
            assert container.pop("imagePullPolicy", "IfNotPresent" if of_chart else "") == ("IfNotPresent" * of_chart)
    return document


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION


def test_the_schema_and_the_values_name_the_same() -> None:
    def named(schema: Document, prefix: str = "") -> set[str]:
        found = set()
        for key, value in schema["properties"].items():
            inner = "properties" in value and key not in ("config", "seLinuxOptions")
            found |= named(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}"}
        return found

    assert named(SCHEMA) - {"global"} == leaves(VALUES)


def test_the_files_of_the_chart_are_copies_of_those_of_the_kustomization() -> None:
    """Also where there is no helm to compare the rest."""
    for copy in (CHART / "files").iterdir():
        folder = {
            "crd": "crds/", "podmonitor": "monitoring/", "prometheusrule": "monitoring/", "dashboard": "monitoring/",
            "networkpolicy": "network-policy/", "dra": "dra/",
        }  # fmt: skip
        of = "device-plugin/daemonset.yaml" if copy.name == "device-plugin.yaml" else ""
        name = of or folder.get(re.split(r"[-.]", copy.name)[0], "") + re.sub("^(crd|dra)-", "", copy.name)
        assert copy.read_text() == (KUSTOMIZE / name).read_text(), copy.name
    assert len(list(CHART.glob("files/crd-*"))) == len(list(KUSTOMIZE.glob("crds/*")))


@needs_helm
@needs_kubectl
def test_the_chart_installs_what_the_kustomization_does() -> None:
    ours = by_name([plain(d, True) for d in render()])
    theirs = by_name([plain(d, False) for d in kustomized(KUSTOMIZE)])
    del theirs["Namespace", "", "railcni"]  # that of a release is made by --create-namespace
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name] == theirs[name], name


@needs_helm
def test_helm_test_runs_the_command_test_in_a_job_of_the_agents_image_and_nothing_else_installs_it() -> None:
    values = {"image.repository": "r/x", "fullnameOverride": "rails"}
    [job] = render("--show-only", "templates/tests/plugins.yaml", values=values)
    assert (job["kind"], job["metadata"]["name"]) == ("Job", "rails-test")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "test"
    known = json.loads(json.dumps(codecs.from_dict(job).to_dict(), default=str))
    assert missing(job, known) == []
    [container] = job["spec"]["template"]["spec"]["containers"]
    [agent] = pod_of(everything := render(values=values))["containers"]
    assert container["image"] == agent["image"] and "Job" not in {d["kind"] for d in everything}
    options = command._parser(["test"]).parse_args(container["args"])
    assert options.run.__module__ == "cni.cli.pair"


@needs_helm
@needs_kubectl
def test_the_network_policy_is_that_of_the_kustomization_and_names_the_ports_of_the_pods(tmp_path: Path) -> None:
    components = "device-plugin", "dra", "network-policy", "monitoring"
    theirs = kustomized(KUSTOMIZE, *components, copy=tmp_path / "kubernetes")
    values = {"metrics.networkPolicyFrom": "monitoring", "devicePlugin": DEVICES}
    ours, other = (
        next(plain(d, True) for d in found if d["kind"] == "NetworkPolicy") for found in (render(values=values), theirs)
    )
    assert ours == other
    (rule,) = ours["spec"]["ingress"]
    pods = [d["spec"]["template"] for d in theirs if d["kind"] == "DaemonSet"]
    ports = {port["name"] for pod in pods for container in pod["spec"]["containers"] for port in container["ports"]}
    assert {port["port"] for port in rule["ports"]} == ports
    (monitor,) = (d for d in theirs if d["kind"] == "PodMonitor")
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} == ports
    (dashboard,) = (d["data"]["railcni.json"] for d in theirs if "railcni.json" in d.get("data", {}))
    assert dashboard == (KUSTOMIZE / "monitoring/dashboard.json").read_text()
    for selector in (ours["spec"]["podSelector"], monitor["spec"]["selector"]):
        (wanted,) = selector["matchExpressions"]
        assert sorted(wanted["values"]) == sorted(pod["metadata"]["labels"][wanted["key"]] for pod in pods)


@needs_helm
@needs_kubectl
@pytest.mark.parametrize(
    ("devices", "components"),
    [(DEVICES, ["device-plugin"]), (WITH_VFS, ["device-plugin", "device-plugin/vfs"])],
    ids=["devices", "VFs"],
)
def test_the_device_plugin_is_that_of_the_kustomization(
    devices: Document, components: list[str], tmp_path: Path
) -> None:
    documents = render(values={"devicePlugin": devices})
    ours, theirs = (
        next(c for c in pod_of(found)["containers"] if c["name"] == "device-plugin")
        for found in (documents, kustomized(KUSTOMIZE, *components, copy=tmp_path / "kubernetes"))
    )
    for container in (ours, theirs):
        container["volumeMounts"].sort(key=lambda mount: str(mount["name"]))  # kustomize puts a changed one first
    assert ours == theirs | {"image": f"{IMAGE}:{VERSION}", "imagePullPolicy": "IfNotPresent"}
    (config,) = (d for d in documents if d["kind"] == "ConfigMap")
    assert json.loads(config["data"]["config.json"]) == devices["config"]
    assert config["metadata"]["name"] == "railcni-device-plugin"


@needs_helm
@needs_kubectl
def test_the_driver_is_that_of_the_kustomization_and_the_device_classes_those_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DRA["dra.config"]))
    printed = run(str(ROOT / "bin/railcni"), "dra", "classes", "--config", str(tmp_path / "config.json"))
    ours = by_name([plain(d, True) for d in render(values=DRA)])
    theirs = by_name([plain(d, False) for d in kustomized(KUSTOMIZE, "dra", copy=tmp_path / "kubernetes")])
    theirs |= by_name(documents_in(printed.stdout))
    del theirs["Namespace", "", "railcni"]
    assert ours.keys() == theirs.keys()
    config = ours["ConfigMap", "railcni", "railcni-dra"]["data"]
    theirs["ConfigMap", "railcni", "railcni-dra"]["data"] = config
    assert json.loads(config["config.json"]) == DRA["dra.config"]
    for name in ours:
        assert ours[name] == theirs[name], name


# The names of a release whose objects have others than those of the kustomization.
NAMES: dict[str, tuple[Document, str, str]] = {
    "nameOverride": ({"nameOverride": "rdma"}, "net-rdma", "net-rdma"),
    "nameOverride in the release's name": ({"nameOverride": "net"}, "net", "net"),
    "fullnameOverride": ({"nameOverride": "rdma", "fullnameOverride": "cni"}, "cni", "cni"),
    "serviceAccount.name": ({"fullnameOverride": "cni", "serviceAccount.name": "agents"}, "cni", "agents"),
    "all in the namespace of the leases": (
        {"serviceAccount.name": "agents", "leaseNamespace": "railcni"}, "railcni", "agents"),
}  # fmt: skip


@needs_helm
@pytest.mark.parametrize("case", NAMES)
def test_each_object_has_the_name_by_which_others_mean_it(case: str) -> None:
    values, name, account = NAMES[case]
    everything = {"devicePlugin": DEVICES, "metrics.dashboard": True, "metrics.podMonitor": True} | DRA | values
    del everything["devicePlugin.image.repository"]
    documents = by_name(render(f"--values={CHART}/presets/openshift.yaml", values=everything, release="net"))
    made = {(kind, of) for kind, namespace, of in documents if namespace == "railcni"}
    assert {("DaemonSet", name), ("DaemonSet", f"{name}-dra"), ("PodMonitor", name)} <= made
    accounts = {("ServiceAccount", account), ("ServiceAccount", f"{name}-dra")}
    pods = [(d, d["spec"]["template"]["spec"]) for d in documents.values() if d["kind"] == "DaemonSet"]
    assert {("ServiceAccount", pod["serviceAccountName"]) for _, pod in pods} == accounts <= made
    assert (
        {("ConfigMap", v["configMap"]["name"]) for _, pod in pods for v in pod["volumes"] if "configMap" in v}
        == {("ConfigMap", f"{name}-dra"), ("ConfigMap", f"{name}-device-plugin")}
        <= made
    )
    bound = {(s["kind"], s["name"], s["namespace"]) for d in documents.values() for s in d.get("subjects", [])}
    plugins = ("ServiceAccount", "railcni", values.get("leaseNamespace", "kube-system"))
    assert bound == {(*one, "railcni") for one in accounts} | {plugins}
    users = {f"system:serviceaccount:{namespace}:{of}" for _, of, namespace in bound}
    assert set(documents["SecurityContextConstraints", "", "railcni"]["users"]) == {
        f"system:serviceaccount:railcni:{of}" for _, of in accounts
    }
    policies = [json.dumps(d) for d in documents.values() if d["kind"] == "ValidatingAdmissionPolicy"]
    assert {one for text in policies for one in re.findall("system:serviceaccount:[^']*", text)} == users


@needs_helm
@pytest.mark.parametrize("preset", [None, *PRESETS], ids=lambda p: p.stem if p else "default")
def test_helm_finds_no_fault_and_kubernetes_models_know_each_field(preset: Path | None) -> None:
    options = [f"--values={preset}"] if preset else []
    done = run("helm", "lint", "--strict", "--quiet", str(CHART), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    everything = {"devicePlugin": DEVICES, "metrics": {"dashboard": True}, **DRA}
    for document in render(*options, values=everything):
        if document["kind"] in OPERATORS:
            continue
        known = json.loads(json.dumps(codecs.from_dict(document).to_dict(), default=str))
        assert missing(document, known) == []


def missing(given: Any, known: Any, at: str = "") -> list[str]:
    """The paths of what Kubernetes' models do not have."""
    if isinstance(given, dict) and isinstance(known, dict):
        unknown = [f"{at}.{key}" for key in given if key not in known]
        return unknown + [f for k in given if k in known for f in missing(given[k], known[k], f"{at}.{k}")]
    if isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        pairs = enumerate(zip(given, known, strict=True))
        return [fault for number, pair in pairs for fault in missing(*pair, f"{at}[{number}]")]
    return [] if given == known or isinstance(given, type(known)) else [at]


@needs_helm
@pytest.mark.parametrize("preset", [None, *PRESETS], ids=lambda p: p.stem if p else "default")
def test_the_arguments_are_those_of_the_command_and_mean_the_mounted_folders(preset: Path | None) -> None:
    pod = pod_of(render(*([f"--values={preset}"] if preset else [])))
    hosts = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    for container in (*pod["initContainers"], *pod["containers"]):
        argv = [argument.replace("$(POD_IP)", "fd00::7") for argument in container["args"]]
        options = command._parser(argv[:1]).parse_args(argv)
        mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        assert all(mounted[name] == options.root + hosts[name] for name in set(mounted) & set(hosts))
        assert (options.plugin_dir, options.state_dir) == (hosts["plugins"], hosts["state"])
    assert f"{options.conf_dir}/whereabouts.d" == hosts["networks"]


@needs_helm
@pytest.mark.parametrize("devices", [DEVICES, WITH_VFS], ids=["devices", "VFs"])
def test_the_constraints_of_openshift_allow_what_the_pods_ask_for_and_no_privilege(devices: Document) -> None:
    documents = render(f"--values={CHART}/presets/openshift.yaml", values={"devicePlugin": devices})
    (allowed,) = (d for d in documents if d["kind"] == "SecurityContextConstraints")
    pod = pod_of(documents)
    assert {key for volume in pod["volumes"] for key in volume} - {"name"} == set(allowed["volumes"])
    assert allowed["users"] == [f"system:serviceaccount:railcni:{pod['serviceAccountName']}"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    capabilities = allowed.pop("allowedCapabilities")
    assert [key for key, value in allowed.items() if key.startswith("allow") and value] == ["allowHostDirVolumePlugin"]
    assert pod["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    given = {name for c in pod["containers"] for name in c["securityContext"]["capabilities"].get("add", [])}
    assert given == set(capabilities)


# A value of each, and the text that its render has for it; "-" before a text: it is gone.
EFFECTS: dict[str, tuple[Any, str]] = {
    "image.repository": ("r.example.org/x", f"image: r.example.org/x:{VERSION}"),
    "image.tag": ("9.9", "image: r/railcni:9.9"),
    "image.digest": (f"sha256:{'0' * 64}", f"image: r/railcni@sha256:{'0' * 64}"),
    "image.pullPolicy": ("Always", "imagePullPolicy: Always"),
    "global.imageRegistry": ("r.example.org", f"image: r.example.org/r/railcni:{VERSION}"),
    "global.imagePullSecrets": ([{"name": "mine"}], "imagePullSecrets:\n        - name: mine"),
    "imagePullSecrets": ([{"name": "mine"}], "imagePullSecrets:\n        - name: mine"),
    "nameOverride": ("rdma", "name: railcni-rdma"),
    "fullnameOverride": ("rdma", "kind: DaemonSet\nmetadata:\n  name: rdma\n"),
    "serviceAccount.create": (False, "-kind: ServiceAccount\nmetadata:\n  name: railcni\n  namespace: railcni"),
    "serviceAccount.name": ("agents", "serviceAccountName: agents"),
    "serviceAccount.annotations": ({"a": "b"}, "annotations:\n    a: b"),
    "dra.enabled": (DRA, "name: railcni-dra"), "dra.config": (DRA, '"resourceName": "VF_a"'),
    "logLevel": ("warning", "- --log-level=warning"), "minReadySeconds": (7, "minReadySeconds: 7"),
    "extraArgs": (["--every=20"], "- --every=20\n          env:"),
    "extraVolumes": ([{"name": "x", "emptyDir": {}}], "- emptyDir: {}\n          name: x"),
    "extraVolumeMounts": ([{"name": "x", "mountPath": "/x"}], "- mountPath: /x\n              name: x"),
    "cniConf.binDir": ("/usr/cni", "--plugin-dir=/usr/cni"),
    "cniConf.confDir": ("/etc/kubernetes/cni/net.d", "--conf-dir=/etc/kubernetes/cni/net.d"),
    "netnsDir": ("/var/run/netns", "mountPath: /host/var/run/netns"),
    "replace": (True, "- --replace"), "store": ("kubernetes", "--datastore=kubernetes"),
    "leaseNamespace": ("leases", "--plugin-account=leases/railcni"),
    "admissionPolicies": (False, "-kind: ValidatingAdmissionPolicy"),
    "collector.enabled": (False, "- --no-collect"), "collector.grace": (90, "--grace=90"),
    "crds.install": (False, "-kind: CustomResourceDefinition"),
    "crds.whereabouts": (False, "-name: ippools.whereabouts.cni.cncf.io"),
    "crds.keep": (False, "-helm.sh/resource-policy"), "metrics.port": (9200, "--listen=[$(POD_IP)]:9200"),
    "metrics.podMonitor": (True, "kind: PodMonitor"), "metrics.prometheusRule": (True, "kind: PrometheusRule"),
    "metrics.dashboard": (True, "grafana_dashboard"),
    "metrics.networkPolicyFrom": ("prom", 'kubernetes.io/metadata.name: "prom"'),
    "metrics.labels": ({"release": "prom"}, "release: prom"),  # of a PodMonitor
    "devicePlugin.enabled": (DEVICES, "- device-plugin"), "devicePlugin.config": (DEVICES, '"resourceName": "hca"'),
    "devicePlugin.image.repository": (DEVICES | {"image": {"repository": "r/d"}}, f"image: r/d:{VERSION}"),
    "devicePlugin.image.tag": (DEVICES | {"image": {"repository": "r/d", "tag": "7"}}, "image: r/d:7"),
    "devicePlugin.image.digest": (
        DEVICES | {"image": {"repository": "r/d", "digest": f"sha256:{'1' * 64}"}}, f"image: r/d@sha256:{'1' * 64}"),
    "resources": ({"requests": {"cpu": "77m"}}, "cpu: 77m"),
    "nodeSelector": ({"kubernetes.io/arch": None, "rdma": "yes"}, 'kubernetes.io/os: linux\n        rdma: "yes"'),
    "tolerations": ([{"key": "gpu", "operator": "Exists"}], "- key: gpu"),
    "affinity": ({"nodeAffinity": {}}, "nodeAffinity: {}"), "priorityClassName": ("mine", "priorityClassName: mine"),
    "updateStrategy": ("OnDelete", "type: OnDelete\n  template:"),
    "maxUnavailable": (3, "maxUnavailable: 3"),
    "extraEnv": ([{"name": "KUBERNETES_SERVICE_HOST", "value": "h"}],
                 "- name: KUBERNETES_SERVICE_HOST\n              value: h"),
    "podAnnotations": ({"a": "b"}, "annotations:\n        a: b"),
    "podLabels": ({"team": "net"}, "team: net"),
    "seLinuxOptions": ({"type": "spc_t"}, "seLinuxOptions:\n          type: spc_t"),
    "openshift.securityContextConstraints": (True, "kind: SecurityContextConstraints"),
}  # fmt: skip


def test_every_value_has_its_effect_in_the_table() -> None:
    assert set(EFFECTS) == leaves(VALUES)


@needs_helm
@pytest.mark.parametrize("name", EFFECTS)
def test_a_value_has_its_effect(name: str) -> None:
    value, text = EFFECTS[name]
    given: Document = value if value is DRA else {name: value}
    if name == "metrics.labels":
        given["metrics.podMonitor"] = True
    elif value is not True and name.startswith("devicePlugin."):
        given = {"devicePlugin": value}
    _, shown, fault = template(values=given)
    assert shown, fault
    _, before, _ = unchanged()
    gone = re.match("-[^ -]", text) is not None
    text = text.removeprefix("-") if gone else text
    assert (text in shown, text in before) == (not gone, gone), text


@needs_helm
def test_a_list_in_replace_takes_these_plain_names_alone() -> None:
    listed = SCHEMA["properties"]["replace"]["items"]["enum"]
    assert listed == list(PLAIN)
    for values, names in ((["macvlan"], ("macvlan",)), (listed, PLAIN), (True, None)):
        argv = pod_of(render(values={"replace": values}))["initContainers"][0]["args"]
        options = command._parser(argv[:1]).parse_args(argv)
        assert (options.replace, options.plugins) == (True, names)


@needs_helm
@pytest.mark.parametrize(("namespace", "kept", "lines"), [
    ("railcni", "true", ["kubectl railcni status ", "It keeps the leases."]),
    ("other", "false",
     ["kubectl railcni --agents-in other status ", "deletes the leases, because crds.keep is false."]),
])  # fmt: skip
def test_the_notes_name_the_agents_namespace_and_the_leases_fate(namespace: str, kept: str, lines: list[str]) -> None:
    values = ["--set=image.repository=r/x", f"--set=crds.keep={kept}"]
    done = run("helm", "install", "x", str(CHART), f"--namespace={namespace}", "--dry-run=client", *values)
    notes = done.stdout.partition("NOTES:")[2]
    assert all(line in notes for line in lines), notes


@needs_helm
@pytest.mark.parametrize(("version", "count"), [("1.30.9", 0), ("1.31.0", 6)])
def test_policies_are_for_servers_that_bind_tokens_to_nodes_and_name_the_releases_accounts(
    version: str, count: int
) -> None:
    documents = render(f"--kube-version={version}", "--namespace=agents", values={"leaseNamespace": "leases"})
    policies = [document for document in documents if document["kind"] == "ValidatingAdmissionPolicy"]
    assert len(policies) == count
    names = {name for one in policies for name in re.findall(r"system:serviceaccount:[^']*", json.dumps(one))}
    accounts = {"system:serviceaccount:agents:railcni", "system:serviceaccount:leases:railcni"}
    assert names == (accounts if count else set())


# Values that are refused, and what the message names.
REFUSED: dict[str, tuple[Document, str]] = {
    "a name that is not known": ({"image.tga": "1"}, "'tga'"),
    "a relative folder": ({"cniConf.binDir": "opt/cni"}, "/cniConf/binDir"),
    "a folder in which no plugin looks for the flat file": (
        {"cniConf.confDir": "/var/lib/rancher/k3s/agent/etc/cni/net.d"}, "/cniConf/confDir"),
    "a store that is not in the cluster": ({"store": "etcd"}, "/store"),
    "a name that no plugin has": ({"replace": ["macvlan", "macvlna"]}, "/replace/1"),
    "no plain name": ({"replace": []}, "/replace"), "an invalid port": ({"metrics.port": 0}, "/metrics/port"),
    "a namespace that cannot be": ({"metrics.networkPolicyFrom": "a: b"}, "/metrics/networkPolicyFrom"),
    "a digest of another kind": ({"image.digest": "md5:1"}, "/image/digest"),
    "no image": ({"image.repository": ""}, "image.repository is empty: push the image that `make image` makes"),
    "no image of the device plugin": (
        {"devicePlugin": DEVICES | {"image": {}}}, "--set devicePlugin.image.repository=HOST/railcni"),
    "a pull secret in the old form": ({"imagePullSecrets": ["mine"]}, "/imagePullSecrets/0"),
    "a driver without a configuration": (DRA | {"dra.config": {}}, "dra.config is empty"),
    "a name that no slice takes": (
        DRA | {"dra.config": {"configList": [{"resourceName": "a" * 60}]}},
        "has 65 characters, and a ResourceSlice takes 64: shorten the name"),
    "devices without a configuration": ({"devicePlugin.enabled": True}, "devicePlugin.config is empty"),
}  # fmt: skip


@needs_helm
@pytest.mark.parametrize("fault", REFUSED)
def test_a_wrong_value_is_refused_by_its_name(fault: str) -> None:
    values, named = REFUSED[fault]
    code, _, said = template(values=values)
    assert (code != 0, named in said) == (True, True), said
    code, _, said = template(namespace="kube-system")
    assert code != 0 and "install the chart into another" in said


@needs_helm
def test_the_level_of_the_log_is_that_of_all_programs() -> None:
    values = {**DRA, "devicePlugin": DEVICES, "logLevel": "error"}
    del values["devicePlugin.image.repository"]
    pods = [d["spec"]["template"]["spec"] for d in render(values=values) if d["kind"] == "DaemonSet"]
    found = [container["args"] for pod in pods for container in pod["containers"]]
    assert len(found) == 3 and all("--log-level=error" in arguments for arguments in found), found
