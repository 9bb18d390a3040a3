"""podman, a runtime that nobody here wrote, attaches containers by our executables: its CNI backend, Debian's 4.3.

Everything that podman keeps lies in the node's own tmpfs; the image is one static busybox.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import callers
from tests.containerd import calls, image
from tests.containerd.image import BUSYBOX
from tests.node import GO_PLUGINS, ROOT, Node

APPLETS = ("sh", "ip", "ping", "sleep")
RUN = ("--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--network=rdma-net-ipam")
CONTAINERS_CONF = """
[network]
network_backend = "cni"
cni_plugin_dirs = [%s]
network_config_dir = "/run/podman-test/net.d"
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "none"
[containers]
log_driver = "k8s-file"
"""
STORAGE_CONF = """
[storage]
driver = "vfs"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
"""
CONFLIST = ROOT / "conf/net.d/10-rdma-net-ipam.conflist"
HOST_LOCAL = {"type": "host-local", "ranges": [[{"subnet": "192.168.111.0/24", "gateway": "192.168.111.254"}]]}


def missing() -> str:
    absent = [tool for tool in ("podman", "crun") if not shutil.which(tool)]
    if not BUSYBOX.exists() or b"/lib64/ld-linux" in BUSYBOX.read_bytes():
        absent.append("busybox-static")
    if absent:
        return f"needs {' '.join(absent)}: apt-get install --no-install-recommends podman crun busybox-static"
    return ""


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class Podman:
    """podman on a node, with its state in there, and the plugins in `folders`."""

    def __init__(self, node: Node, folders: list[Path]) -> None:
        self.node = node
        for mount in ("-t cgroup2 cgroup2 /sys/fs/cgroup", "-t tmpfs tmpfs /dev/shm"):
            node.run(["mount", *mount.split()]).check_returncode()
        top = node.path("/run/podman-test")
        (top / "net.d").mkdir(parents=True)
        (top / "containers.conf").write_text(CONTAINERS_CONF % ", ".join(f'"{f}"' for f in folders))
        (top / "storage.conf").write_text(STORAGE_CONF)
        self.networks = top / "net.d"

    def call(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        top = "/run/podman-test"
        own = {
            "HOME": top,
            "CONTAINERS_CONF": f"{top}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{top}/storage.conf",
        }
        return self.node.run(["podman", *arguments], env={**(callers.PODMAN.unit or {}), **own}, stdin=stdin)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        done = self.call(*arguments, stdin=stdin)
        assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr.decode()}"
        return done.stdout.decode()

    def network(self, ipam: str) -> None:
        """Give it the network of our conflist, with this IPAM plugin."""
        conflist = json.loads(CONFLIST.read_text())
        if ipam == "host-local":
            conflist["plugins"][0]["ipam"] = HOST_LOCAL
        (self.networks / CONFLIST.name).write_text(json.dumps(conflist))

    def import_busybox(self) -> None:
        links = [(f"bin/{applet}", "busybox") for applet in APPLETS]
        self("import", "-", "busybox", stdin=image.tar([("bin/busybox", BUSYBOX.read_bytes()), *links]))

    def start(self, name: str) -> None:
        self("run", "--detach", "--name", name, *RUN, "busybox", "/bin/sleep", "100")


def address(podman: Podman, name: str) -> str:
    return podman("exec", name, "/bin/ip", "address", "show", "dev", "eth0")


@pytest.fixture
def wired(node: Node) -> Node:
    node.master()
    return node


@pytest.fixture
def podman(wired: Node) -> Iterator[Podman]:
    podman = Podman(wired, [wired.executables, GO_PLUGINS])
    podman.import_busybox()
    yield podman
    podman("rm", "--all", "--force", "--time", "0")


@pytest.mark.parametrize("ipam", ["whereabouts", pytest.param("host-local", marks=pytest.mark.long)])
def test_two_containers_ping_each_other_and_leave_nothing(wired: Node, podman: Podman, ipam: str) -> None:
    podman.network(ipam)
    for name in ("one", "two"):
        podman.start(name)
    for words in ("mtu 9000", "inet 192.168.111.1/24 brd 192.168.111.255 scope global eth0"):
        assert words in address(podman, "one")
    assert "inet 192.168.111.2/24" in address(podman, "two")
    for size in ("56", "8972"):
        ping = ("/bin/ping", "-c", "1", "-W", "5", "-s", size, "192.168.111.2")
        assert " 0% packet loss" in podman("exec", "one", *ping)
    if ipam == "whereabouts":
        assert wired.leases() == ["192.168.111.1", "192.168.111.2"]
    podman("rm", "--force", "--time", "0", "one")
    podman.start("three")  # gets the address that is free again
    assert "inet 192.168.111." in address(podman, "three")
    podman("rm", "--all", "--force", "--time", "0")
    assert wired.leftovers(settle=5) == []


def test_a_container_restarts_on_its_network(wired: Node, podman: Podman) -> None:
    podman.network("whereabouts")
    podman.start("one")
    podman("restart", "--time", "0", "one")
    assert "inet 192.168.111.1/24" in address(podman, "one")
    assert wired.leases() == ["192.168.111.1"]
    podman("rm", "--all", "--force", "--time", "0")
    assert wired.leftovers(settle=5) == []


def test_the_variables_arguments_and_order_of_its_calls_are_those_of_the_table(wired: Node) -> None:
    recorder = wired.path(str(calls.recorder(wired, "macvlan")))
    recorder.rename(recorder.with_name("railcni-macvlan"))
    podman = Podman(wired, [Path("/run/recorder"), wired.executables, GO_PLUGINS])
    podman.import_busybox()
    podman.network("whereabouts")
    podman.start("one")
    podman("rm", "--all", "--force", "--time", "0")
    found = [call for call in calls.recorded(wired) if call["CNI_COMMAND"] != "VERSION"]
    wanted = callers.PODMAN.order
    assert [(call["CNI_COMMAND"], bool(call["CNI_NETNS"])) for call in found] == [step[:2] for step in wanted]
    assert {call["CNI_ARGS"] for call in found} == {callers.PODMAN.args_of("one", "")}
    ours = ("CNI_", "CONTAINERS_", "_CONTAINERS_", "_OCI_", "HOME")
    added, removed = ({n: v for n, v in call.items() if not n.startswith(ours)} for call in found)
    assert added | {"HOME": "/root"} == callers.PODMAN.environ
    assert removed.items() <= added.items()  # of `podman rm`, or of the cleanup that conmon starts, with few variables
