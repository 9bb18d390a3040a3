"""The image that `make image` makes, run by podman as the kubelet runs it for conf/kubernetes/daemonset.yaml: with its
arguments, its mounts and its few rights. What it installs is then called from a root that holds nothing else.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni import VERSION
from cni.cli.cluster import doctor_pod
from cni.cli.kubectl import NodeAgent
from tests import bundles
from tests.blackbox import test_podman
from tests.blackbox.test_podman import Podman
from tests.node import IS_BUNDLE, ROOT, Node, until

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(test_podman.missing()), reason=test_podman.missing()),
    pytest.mark.skipif(bool(bundles.missing()), reason=bundles.missing()),
    pytest.mark.skipif(IS_BUNDLE, reason="an image is built from the checkout"),
]
IMAGE = f"localhost/railcni:{VERSION}"
POD: dict[str, Any] = yaml.safe_load((ROOT / "conf/kubernetes/daemonset.yaml").read_text())["spec"]["template"]["spec"]
HOSTS: dict[str, str] = {v["name"]: v["hostPath"]["path"] for v in POD["volumes"] if "hostPath" in v}
RUN = ("--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
HOST = "/var/lib/test-host"  # of the node: where the pod's hostPath volumes lie
PLUGINS = f"{HOST}/opt/cni/bin"


@pytest.fixture(scope="module")
def archive() -> Path:
    """The image's file."""
    target = ROOT / "build/tests/image"
    argv = ["sh", ".ci/image", os.path.realpath(sys._base_executable), "--output", str(target)]  # type: ignore[attr-defined]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(target.glob("*.oci.tar"))


@pytest.fixture
def podman(node: Node, archive: Path) -> Iterator[Podman]:
    podman = Podman(node, [node.executables])
    podman("load", "--input", str(archive))
    for path in HOSTS.values():
        node.path(HOST + path).mkdir(parents=True)
    yield podman
    podman("rm", "--all", "--force", "--time", "0")


def as_kubelet(container: dict[str, Any]) -> list[str]:
    """The options of `podman run` for a container of the pod."""
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    options = ["--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges"]
    options += ["--user=0:0", *RUN]
    for mount in container["volumeMounts"]:
        how = "ro" if mount.get("readOnly") else "rw"
        if mount["name"] in HOSTS:  # there is no API server that would issue a token
            options.append(f"--volume={HOST}{HOSTS[mount['name']]}:{mount['mountPath']}:{how}")
    return options


def install(podman: Podman) -> str:
    (container,) = POD["initContainers"]
    return podman("run", "--rm", "--network=none", *as_kubelet(container), IMAGE, *container["args"])


def call(node: Node, *argv: str) -> subprocess.CompletedProcess[bytes]:
    """Run a plugin in a root that holds the host's folders alone."""
    return node.run(["chroot", HOST, *argv], env={"CNI_COMMAND": "VERSION", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


def test_it_runs_the_command(podman: Podman) -> None:
    assert podman("run", "--rm", "--network=none", *RUN, IMAGE, "--version") == f"railcni {VERSION}\n"


def test_the_init_container_installs_plugins_that_run_on_a_host_with_nothing(node: Node, podman: Podman) -> None:
    assert f"railcni {VERSION}" in install(podman)
    assert "nothing had to be changed" in install(podman)
    for name in ("macvlan", "host-device", "sriov", "rdma", "whereabouts"):
        done = call(node, f"/opt/cni/bin/railcni-{name}")
        assert json.loads(done.stdout)["cniVersion"] == "1.1.0", done.stderr


def test_the_agent_is_ready_when_the_plugins_run_and_says_what_is_wrong_when_not(node: Node, podman: Podman) -> None:
    install(podman)
    (container,) = POD["containers"]
    arguments = [a.replace("$(POD_IP)", "127.0.0.1") for a in container["args"]]
    podman("run", "--detach", "--name=agent", "--network=host", *as_kubelet(container), IMAGE, *arguments)
    port = container["ports"][0]["containerPort"]

    def asked() -> tuple[int, str]:
        program = (
            "import http.client; c = http.client.HTTPConnection('127.0.0.1', %d); c.request('GET', '%s');"
            "r = c.getresponse(); print(r.status, r.read().decode())"
        )
        path = container["readinessProbe"]["httpGet"]["path"]
        done = node.run([shutil.which("python3") or "python3", "-c", program % (port, path)])
        status, _, text = done.stdout.decode().partition(" ")
        return int(status or 0), text

    assert until(lambda: asked()[0] == 200, 20), podman("logs", "agent")
    node.path(f"{PLUGINS}/railcni-macvlan").unlink()
    status, text = asked()
    assert status == 503
    assert "/opt/cni/bin/railcni-macvlan is missing" in text


def test_doctor_runs_on_the_node_in_the_pod_that_kubectl_railcni_makes(node: Node, podman: Podman) -> None:
    install(podman)
    container = {"name": "agent", "image": IMAGE, "args": [f"--plugin-dir={PLUGINS}"]}
    agent = NodeAgent("n1", "railcni-x", "railcni", {"containers": [container]}, "")
    node.master("ens7f0")
    spec = doctor_pod(agent, ["--output=json"])["spec"]
    (container,) = spec["containers"]
    assert (spec["hostNetwork"], spec["hostPID"], container["securityContext"]) == (True, True, {"privileged": True})
    program, *arguments = container["command"]
    rights = ("--privileged", "--network=host", "--volume=/:/host:rslave")  # without cgroups podman gives no --pid=host
    done = podman.call("run", "--rm", *RUN, *rights, f"--entrypoint={program}", IMAGE, *arguments)
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)
    assert told["faults"] == len([one for one in told["findings"] if one["level"] == "fault"])
    assert {"devices", "congestion", "plugins"} <= {one["check"] for one in told["findings"]}
