"""conf/kubernetes/validate: its manifests fit together, and its script says what is so between two real pods.

ib_write_bw itself runs in the lab alone: here is no RDMA.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import codecs

from cni.library.documents import networks
from cni.library.lint import lint
from tests.cli.test_conf import CONF
from tests.node import Node, Pod

FOLDER = CONF / "kubernetes/validate"
ROLES = ("server", "client")


def job(role: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FOLDER / f"{role}.yaml").read_text())
    return document


def environment(role: str) -> dict[str, str]:
    (container,) = job(role)["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def requested(role: str) -> dict[str, Any]:
    """What the pod asks of Multus."""
    (asked,) = json.loads(job(role)["spec"]["template"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    return dict(asked)


@pytest.mark.parametrize("role", ROLES)
def test_a_job_is_one_for_kubernetes_and_asks_for_what_the_walk_through_does(role: str) -> None:
    (loaded,) = codecs.load_all_yaml((FOLDER / f"{role}.yaml").read_text())
    assert type(loaded).__name__ == "Job"
    spec = job(role)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == container["resources"]["requests"] == {"rdma/hca_shared_devices_a": 1}
    (term,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    labels = job(role)["spec"]["template"]["metadata"]["labels"]
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()
    assert spec["volumes"][0]["configMap"]["name"] == "rdma-validate"


def test_each_pod_knows_the_address_that_the_other_asks_for() -> None:
    server, client = (environment(role) for role in ROLES)
    assert (server["OWN"], server["PEER"]) == (client["PEER"], client["OWN"])
    for role in ROLES:
        assert requested(role)["ips"] == [environment(role)["OWN"] + "/24"]
        assert requested(role)["name"] == "rdma-validate"


def test_the_nad_is_without_fault_and_the_kustomization_has_every_file() -> None:
    assert lint([str(FOLDER / "nad.yaml")]) == []
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    files = {*listed["resources"], *listed["configMapGenerator"][0]["files"], "kustomization.yaml"}
    assert files == {p.name for p in FOLDER.iterdir()}


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl, which renders kustomizations")
def test_kubectl_renders_it_with_the_script_that_the_jobs_mount() -> None:
    done = subprocess.run(["kubectl", "kustomize", FOLDER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    documents = {(d["kind"], d["metadata"]["name"].partition("-rdma")[0]): d for d in yaml.safe_load_all(done.stdout)}
    (script,) = [d for (kind, _), d in documents.items() if kind == "ConfigMap"]
    assert script["data"]["validate.sh"] == (FOLDER / "validate.sh").read_text()
    for kind, name in documents:
        if kind == "Job":
            volume = documents[kind, name]["spec"]["template"]["spec"]["volumes"][0]
            assert volume["configMap"]["name"] == script["metadata"]["name"]


def attach(node: Node, role: str, mtu: int = 9000) -> Pod:
    """The pod of `role`, by the NAD, as Multus hands it on with the addresses that the pod asks for."""
    (network,) = networks.read(str(FOLDER / "nad.yaml"))
    document = {**network.steps[0].document, "mtu": mtu, "runtimeConfig": {"ips": requested(role)["ips"]}}
    document["ipam"] = {**document["ipam"], "datastore": "file"}
    pod = node.pod(role)
    args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=rdma-validate-{role}"
    reply = node.cni("macvlan", "ADD", document, container_id=role, netns=pod, args=args)
    assert reply.status == 0, reply.document
    return pod


def validate(
    node: Node, role: str, script: Path = FOLDER / "validate.sh", **more: str
) -> tuple[int, dict[str, list[str]], str]:
    """The script in the pod of `role`: its exit code, the rows of its table, its last line."""
    env = {**environment(role), "SECONDS_TO_WAIT": "3", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **more}
    inside = f"mount -t sysfs none /sys && exec bash {script}"
    done = node.run(["nsenter", f"--net=/run/netns/{role}", "unshare", "-m", "bash", "-c", inside], env=env)
    lines = done.stdout.decode().splitlines()
    assert lines, done.stderr.decode()
    rows = {line[:24].strip(): line[24:].split(None, 1) for line in lines[1:-1] if not line.startswith("    ")}
    return done.returncode, rows, lines[-1]


def test_the_script_says_what_is_so_between_two_pods_and_what_the_image_lacks(node: Node) -> None:
    node.master()
    for role in ROLES:
        assert attach(node, role).view.link("net1").texts == requested(role)["ips"]
    code, rows, verdict = validate(node, "client")
    assert rows["link"] == ["PASS", "net1 has MTU 9000"]
    if shutil.which("ping"):
        assert rows["jumbo ping"][0] == "PASS"
    else:
        assert rows["jumbo ping"] == ["MISSING", "the image has no ping: install iputils-ping"]
    if not shutil.which("ib_write_bw"):
        assert rows["ib_write_bw -x"] == ["MISSING", "the image has no ib_write_bw: install perftest"]
        assert rows["ib_write_bw -R"] == ["MISSING", "the image has no ib_write_bw: install perftest"]
    assert (code, verdict) == (1, "FAIL")  # nothing is called valid that was not tried


def test_the_script_finds_a_wrong_mtu_and_a_missing_gid(node: Node, tmp_path: Path) -> None:
    node.master()
    attach(node, "client", mtu=8000)
    tool = tmp_path / "ib_write_bw"
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    code, rows, verdict = validate(node, "client", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert rows["link"] == ["FAIL", "net1 has MTU 8000, want 9000"]
    assert rows["gid"][0] == "FAIL"
    assert "192.168.127.2 has no RoCE v2 GID" in rows["gid"][1]
    assert (code, verdict) == (1, "FAIL")


GPU_TOOL = """#!/bin/sh
case "$*" in
*--help*) echo ' --use_cuda=<cuda device id>'; exit ;;
esac
echo "$*" >>"${0%/*}/calls"
echo ' 65536      5000             97.70              97.65              0.186'
"""


def test_with_a_gpu_the_bandwidth_of_its_memory_is_a_row_of_its_own(node: Node, tmp_path: Path) -> None:
    node.master()
    attach(node, "client")
    tool = tmp_path / "bin/ib_write_bw"
    tool.parent.mkdir()
    tool.write_text(GPU_TOOL)
    tool.chmod(0o755)
    port = tmp_path / "class/mlx5_0/ports/1"
    for folder, text in (("gids", "0000:0000:0000:0000:0000:ffff:c0a8:7f02"), ("gid_attrs/types", "RoCE v2")):
        (port / folder).mkdir(parents=True)
        (port / folder / "3").write_text(text + "\n")
    script = (FOLDER / "validate.sh").read_text().replace("/dev/nvidia0", f"{tmp_path}/nvidia0")
    (tmp_path / "validate.sh").write_text(script)
    more = {"PATH": f"{tool.parent}:/usr/bin:/bin", "SYS": f"{tmp_path}/class"}
    _, rows, _ = validate(node, "client", tmp_path / "validate.sh", **more)
    assert rows["gid"] == ["PASS", "mlx5_0, index 3"]
    assert rows["ib_write_bw, GPU"] == ["SKIP", "no GPU here, or a perftest without CUDA"]
    (tmp_path / "nvidia0").touch()
    _, rows, _ = validate(node, "client", tmp_path / "validate.sh", **more)
    assert rows["ib_write_bw, GPU"] == ["PASS", "97.65 Gb/s"]
    called = (tool.parent / "calls").read_text().splitlines()[-3:]
    assert ["-x 3" in line for line in called] == [True, False, True]
    assert ["-R" in line for line in called] == [False, True, False] and "--use_cuda=0" in called[-1]


def test_the_script_finds_the_gid_of_its_address(tmp_path: Path) -> None:
    port = tmp_path / "mlx5_1/ports/1"
    for index, (gid, kind) in enumerate(
        [
            ("fe80:" + "0:" * 6 + "1", "RoCE v2"),
            ("0000:0000:0000:0000:0000:ffff:c0a8:7f02", "IB/RoCE v1"),
            ("0000:0000:0000:0000:0000:ffff:c0a8:7f02", "RoCE v2"),
        ]
    ):
        for folder, text in (("gids", gid), ("gid_attrs/types", kind)):
            (port / folder).mkdir(parents=True, exist_ok=True)
            (port / folder / str(index)).write_text(text + "\n")
    text = (FOLDER / "validate.sh").read_text().partition("printf '%-24s %-8s %s\\n' CHECK")[0]
    done = subprocess.run(
        ["bash", "-c", text + "\nfind_gid"],
        env={"SYS": str(tmp_path), "OWN": "192.168.127.2", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "mlx5_1 2\n", done.stderr
