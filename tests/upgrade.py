"""Two versions of the plugins on one node: the one under test, and the one before it, whose commit tests/previous names."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.node import ROOT, Call, Node, Pod, Reply

PREVIOUS = (ROOT / "tests/previous").read_text().strip()


def build_previous(target: Path) -> Path:
    """Make the version before in `target`; the directory of its executables. LookupError: this clone lacks it."""
    command = ["git", "-C", str(ROOT), "archive", PREVIOUS, "cni", "ipam", "bin", "Makefile"]
    try:
        archived = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        raise LookupError("needs git: install it") from None
    if archived.returncode:
        raise LookupError(f"this clone lacks commit {PREVIOUS}, the version before: git fetch --unshallow")
    subprocess.run(["tar", "-x", "-C", str(target)], input=archived.stdout, check=True)
    subprocess.run(["make", "-s", "plugins", f"PYTHON={sys.executable}"], cwd=target, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", target / "cni", target / "ipam"], check=True)
    return target / "bin"


@dataclass
class Network:
    """A network of `plugin` on `node`, and calls for its attachments by any version of the plugins."""

    node: Node
    plugin: str
    device: str = "ens9"
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        ranges = [{"range": "fd00:9::/64"}]
        ipam = {"type": "whereabouts", "datastore": "file", "range": "10.9.0.0/24", "ipRanges": ranges}
        link = {"master": "ens2f0", "mtu": 8000} if self.plugin == "macvlan" else {"device": self.device}
        return {"cniVersion": "1.1.0", "name": "rail", "type": self.plugin, "ipam": ipam, **link, **self.more}

    def environ(self, version: Path, verb: str, pod: Pod, container: str) -> dict[str, str]:
        """What a runtime sets for the call."""
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod.name.partition('.')[0]}"
        of_pod = {"CNI_CONTAINERID": container, "CNI_IFNAME": "net1", "CNI_NETNS": pod.path, "CNI_ARGS": args}
        return {"CNI_COMMAND": verb, "CNI_PATH": str(version), **of_pod}

    def start(self, version: Path, verb: str, pod: Pod, container: str = "c1", **keys: Any) -> Call:
        """Start a call of the plugins in the directory `version`."""
        environ = self.environ(version, verb, pod, container)
        how = {"container_id": container, "netns": pod, "args": environ["CNI_ARGS"], "path": [version]}
        return self.node.start_cni(version / self.plugin, verb, self.config | keys, **how)

    def call(self, version: Path, verb: str, pod: Pod, container: str = "c1", **keys: Any) -> Reply:
        """The answer to it."""
        return self.start(version, verb, pod, container, **keys).finish()

    def collect(self, version: Path, *valid: str) -> Reply:
        """GC, with the containers `valid`."""
        listed = [{"containerID": container, "ifname": "net1"} for container in valid]
        return self.node.cni(
            version / self.plugin, "GC", {**self.config, "cni.dev/valid-attachments": listed}, path=[version]
        )
