"""Every file in conf/ is what it says: it is read here as a runtime and our plugins read it.

What each makes in a namespace is tested in tests/blackbox/test_conf.py; FILES is the list of both.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni.cli.rails import command
from cni.documents import networks
from cni.documents.networks import NETWORKS as NETWORKS_ANNOTATION
from cni.documents.networks import RESOURCE_NAME, Network
from cni.lint.file import lint
from cni.node.installation.layout import PLAIN
from cni.resources import rails as rails_plan
from cni.shared.spec.errors import CniError
from cni.shared.spec.request import Request
from ipam import config as ipam_config
from ipam import source
from tests.blackbox.command import run_any
from tests.unit.test_ipam_config import Files

CONF = Path(__file__).parents[2] / "conf"
RAIL = {"type": "railcni-macvlan", "master": "ens2f0", "mode": "bridge", "mtu": 9000}
RENDERED = {"type": "macvlan", "master": "ens2f0", "mode": "bridge", "mtu": 1500}
HOST_DEVICE = {"type": "host-device"}
VF = {"type": "railcni-sriov"}
VF_SET = {"vlan": 100, "vlanQoS": 3, "spoofchk": "on", "trust": "off", "max_tx_rate": 10000}
GROUP = {"group": "gpu", "addressing": "same-index", "ranges": ["192.168.120.0/24", "192.168.121.0/24"]}
GPU_RAILS = [
    {"type": "railcni-macvlan", "master": f"ens2f{r}", "mtu": 9000, "rail": {"index": r, **GROUP}} for r in (0, 1)
]

# the first plugin of each network less its ipam block; the types behind it; the first address of each range
NETWORKS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "rdma-net-ipam": (RAIL, [], ["192.168.111.1"]), "rdma-net-l2": (RAIL, [], []),
    "rdma-net-dual-stack": (RAIL, [], ["192.168.112.1", "fd00:192:168:112::1"]),
    "rdma-net-ranges": (RAIL, [], ["192.168.113.16", "192.168.114.10", "192.168.115.16"]),
    "rdma-net-tuning": (RAIL, ["tuning"], ["192.168.116.1"]), "rdma-net-sbr": (RAIL, ["sbr"], ["192.168.117.1"]),
    "rdma-pf-name": ({"type": "railcni-host-device", "device": "ens2f1"}, [], ["192.168.118.1"]),
    "rdma-pf-pci": ({"type": "railcni-host-device", "pciBusID": "0000:18:00.2"}, [], ["192.168.119.1"]),
    "rdma-vf": ({**VF, "deviceID": "0000:18:00.3"}, [], ["192.168.122.1"]),
    "rdma-vf-exclusive": ({**VF, **VF_SET}, ["railcni-rdma"], ["192.168.123.1"]),
    "gpu-rail-0": (GPU_RAILS[0], [], ["192.168.120.1"]), "gpu-rail-1": (GPU_RAILS[1], [], ["192.168.121.1"]),
    "nvidia-macvlan": (RENDERED, [], ["192.168.2.225"]),
    "nvidia-macvlan-plugins": (RENDERED, ["tuning"], ["192.168.2.225"]), "nvidia-macvlan-no-ipam": (RENDERED, [], []),
    "nvidia-host-device": (HOST_DEVICE, [], ["192.168.3.225"]),
    "nvidia-host-device-plugins": (HOST_DEVICE, ["tuning"], ["192.168.3.225"]),
    "nvidia-host-device-no-ipam": (HOST_DEVICE, [], []),
}  # fmt: skip
ELSEWHERE = {"charts", "monitoring", "network-policy"}  # tests/cli/test_chart.py, tests/cli/test_monitoring.py
FILES = {str(p.relative_to(CONF)) for p in CONF.rglob("*") if p.is_file() and not ELSEWHERE & set(p.parts)}
NADS = {n: f"nad/{n}.yaml" for n in NETWORKS if not n.startswith("nvidia-")} | {
    n: f"nad/nvidia/{n.removeprefix('nvidia-')}.yaml" for n in NETWORKS if n.startswith("nvidia-")
}
OURS = [name for name in NADS.values() if "nvidia" not in name]  # NVIDIA's operator renders the plain names
RESOURCES = [n for n in NETWORKS if n.startswith("nvidia-") or n == "rdma-vf-exclusive"]  # or want a device plugin's VF
NUMBERS = dict(zip([n for n in NETWORKS if n not in RESOURCES], (*range(10, 90, 10), 90, 91, 92), strict=True))
CONFLISTS = {name: f"net.d/{number}-{name}.conflist" for name, number in NUMBERS.items()}
RAILS = "rails/rails.yaml"
CRDS = {
    f"kubernetes/crds/{name}.yaml"
    for name in ("addressleases", "ippools", "overlappingrangeipreservations", "nodeslicepools")
}
RBAC = {"kubernetes/rbac.yaml", "kubernetes/agent-rbac.yaml", "kubernetes/admission.yaml"}
DEVICE_PLUGIN = {
    f"kubernetes/device-plugin/{name}"
    for name in ("kustomization.yaml", "daemonset.yaml", "config.json", "vfs/kustomization.yaml", "vfs/daemonset.yaml")
}
DRA = {f"kubernetes/dra/{name}" for name in ("kustomization.yaml", "daemonset.yaml", "rbac.yaml", "config.json")}
MANIFESTS = (
    CRDS | RBAC | {f"kubernetes/{n}.yaml" for n in ("kustomization", "namespace", "serviceaccount", "daemonset")}
)
FLAT_FILES = {
    f"whereabouts.d/{name}.conf" for name in ("whereabouts", "file-store", "etcd-store", "addresslease-store")
}


def read(name: str) -> Network:
    (network,) = networks.read(str(CONF / name), str(CONF / "net.d"))
    return network


def request(network: Network, args: dict[str, str] | None = None) -> Request:
    document = {**network.steps[0].document, "name": network.name, "cniVersion": network.versions[-1]}
    return Request({"CNI_COMMAND": "ADD"}, b"", document, args or {})


def node_with(flat: str) -> Files:
    """A node on which this flat file is installed."""
    files = Files()
    files.content[source.PATHS[0]] = (CONF / flat).read_bytes()
    return files


def test_every_file_is_known_to_these_tests() -> None:
    known = {*NADS.values(), *CONFLISTS.values(), *FLAT_FILES, *MANIFESTS, *DEVICE_PLUGIN, *DRA, RAILS}
    assert known == {name for name in FILES if not name.startswith("examples/")}


def test_every_example_is_used_by_a_page_whose_commands_are_run() -> None:
    """One in a folder by the name of its folder."""
    pages = "".join(path.read_text() for path in (CONF.parent / "docs").glob("*.md"))
    examples = {"/".join(name.split("/")[:2]) for name in FILES if name.startswith("examples/")}
    assert [name for name in sorted(examples) if f"conf/{name}" not in pages] == []


def test_the_examples_have_no_fault_and_their_pods_name_networks_and_resources_that_are_made() -> None:
    folder = CONF / "examples"
    assert lint([str(folder)]) == []
    wanted = rails_plan.read("rails-8.yaml", (folder / "rails-8.yaml").read_text())
    made = rails_plan.rails_of(wanted, [])
    job = yaml.safe_load((folder / "nccl-tests.yaml").read_text())
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    assert worker["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == command.annotation(wanted, made)
    resources = worker["spec"]["containers"][0]["resources"]
    amounts = command.pod(wanted, made)["spec"]["containers"][0]["resources"]["limits"]
    assert resources["limits"] == resources["requests"] == {"nvidia.com/gpu": 8, **amounts}


@pytest.mark.parametrize("name", ["dra-vf", "dra-nic", "dra-gpus"])
def test_the_claims_of_an_example_ask_for_the_class_of_its_networks_resource(name: str, tmp_path: Path) -> None:
    config, nad, claim, pod = yaml.safe_load_all((CONF / f"examples/{name}.yaml").read_text())
    path = tmp_path / "config.json"
    path.write_text(config["data"]["config.json"])
    (made,) = filter(None, yaml.safe_load_all(run_any("dra", "classes", "--config", str(path))))
    assert made["spec"]["extendedResourceName"] == nad["metadata"]["annotations"][RESOURCE_NAME]
    asked = [one["exactly"]["deviceClassName"] for one in claim["spec"]["spec"]["devices"]["requests"]]
    ours = [one for one in asked if one != "gpu.nvidia.com"]
    networks = pod["metadata"]["annotations"][NETWORKS_ANNOTATION].split(",")
    assert (ours, networks) == ([made["metadata"]["name"]] * len(networks), [nad["metadata"]["name"]] * len(networks))


@pytest.mark.parametrize("name", ["examples/hello-rdma.yaml", *OURS, *CONFLISTS.values()])
def test_a_network_names_our_plugins_as_every_install_brings_them(name: str) -> None:
    for step in read(name).steps:
        assert not {*PLAIN} & {step.type, (step.document.get("ipam") or {}).get("type")}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_nad_holds_the_network_of_its_name(name: str) -> None:
    network = read(NADS[name])
    first, behind, _ = NETWORKS[name]
    version = "1.0.0" if "rail" in first else "0.3.1"
    assert (network.name, network.nad, network.versions) == (name, f"default/{name}", (version,))
    document = {k: v for k, v in network.steps[0].document.items() if k not in ("ipam", "name", "cniVersion")}
    assert document == first
    assert [s.type for s in network.steps[1:]] == behind


@pytest.mark.parametrize("name", CONFLISTS)
def test_a_conflist_is_its_nad_with_the_file_store_and_newer_versions(name: str) -> None:
    of_list, of_nad = read(CONFLISTS[name]), read(NADS[name])
    assert networks.find(name, str(CONF / "net.d")) == of_list
    debians = {"tuning", "sbr"} & {s.type for s in of_list.steps}  # 1.1.1 does not speak 1.1.0, not even for a DEL
    assert (of_list.name, of_list.versions) == (name, ("0.4.0", "1.0.0") + (() if debians else ("1.1.0",)))
    wanted = [{k: v for k, v in s.document.items() if k not in ("name", "cniVersion")} for s in of_nad.steps]
    if "ipam" in wanted[0]:
        wanted[0]["ipam"] = {**wanted[0]["ipam"], "datastore": "file"}
    assert [s.document for s in of_list.steps] == wanted


def test_the_flat_file_of_a_cluster_is_what_the_installer_of_whereabouts_writes() -> None:
    directory = "/etc/cni/net.d/whereabouts.d"
    assert json.loads((CONF / "whereabouts.d/whereabouts.conf").read_text()) == {
        "datastore": "kubernetes",
        "configuration_path": directory,
        "kubernetes": {"kubeconfig": f"{directory}/whereabouts.kubeconfig"},
        "reconciler_cron_expression": "30 4 * * *",
    }


@pytest.mark.parametrize(
    ("name", "store"), [("whereabouts.conf", "kubernetes"), ("file-store.conf", "file"), ("etcd-store.conf", "etcd")]
)
def test_a_flat_file_chooses_the_store_for_a_nad_that_names_none(name: str, store: str) -> None:
    seed = request(read("nad/rdma-net-ipam.yaml"), {"K8S_POD_NAME": "rdma-pod-1"})
    assert ipam_config.read(seed, node_with(f"whereabouts.d/{name}")).datastore == store
    with pytest.raises(CniError, match="datastore"):
        ipam_config.read(seed, Files())


def test_the_nads_of_rails_are_those_that_rails_render_makes() -> None:
    wanted = rails_plan.read(RAILS, (CONF / RAILS).read_text())
    rendered = [o for o in command.objects(wanted, rails_plan.rails_of(wanted, [])) if o["kind"].startswith("Network")]
    kept = [yaml.safe_load((CONF / NADS[name]).read_text()) for name in NETWORKS if name.startswith("gpu-rail-")]
    for document in (*rendered, *kept):
        document["spec"]["config"] = json.loads(document["spec"]["config"])
    assert kept == rendered
