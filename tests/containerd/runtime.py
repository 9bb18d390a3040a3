"""containerd with namespaces of its own on a tests.node.Node: mounts, processes, control groups, a /dev.

The node's network namespace is the host's. All processes end with the first one of their namespace, which ends with this
process, and what they have mounted with them; the control groups are below one folder of each hierarchy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc

from cni.resources.kubelet import services
from tests.callers import CONTAINERD
from tests.containerd import image
from tests.containerd.api import cri_v1_pb2 as cri
from tests.node import BIN, GO_PLUGINS, Node, until, unusable

SECONDS = 300.0  # for anything to come true, on however slow a machine
MULTUS = os.environ.get("RAILCNI_TEST_MULTUS", "")
_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "runc", "ctr")
TOP = "/run/runtime"  # of the files that a test gives the runtime, in the node
_LOG = f"{TOP}/containerd.log"
_ROOT, _STATE = "/var/lib/containerd", "/run/containerd"
SOCKET = f"{_STATE}/containerd.sock"
_CGROUPS = Path("/sys/fs/cgroup")
# Linux takes no process into a group of cpuset that has no processors yet.
_CPUSET = ("cpuset.cpus", "cpuset.mems")
_FIRST = """
read -r go
exec setpriv --pdeathsig KILL unshare --cgroup --pid --mount --ipc --uts --fork --kill-child=KILL --mount-proc sh -ec "$0" sh "$@"
"""
# A /dev of its own: the kernel's devtmpfs is one for the whole machine. Where that has no verbs devices, two device nodes
# stand for them: they are null and zero by other names. The messages of the machine's kernel are not for kubelet: none.
_SETTLE = """
reaper=$1 boot=$2 held=$3; shift 3
if [ "$1" = unified ]; then
    umount /sys/fs/cgroup 2>/dev/null || : # the machine's
    mount -t cgroup2 groups /sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 groups /sys/fs/cgroup
    for controllers; do
        mkdir -p "/sys/fs/cgroup/$controllers"
        options=$controllers
        [ "$controllers" != systemd ] || options=none,name=systemd
        mount -t cgroup -o "$options" groups "/sys/fs/cgroup/$controllers"
    done
fi
mount --bind "$boot" /proc/sys/kernel/random/boot_id
[ "$(cat "$boot")" = 00000000-0000-0000-0000-000000000001 ] || { echo 5.00 5.00 >"$boot.uptime"; mount --bind "$boot.uptime" /proc/uptime; }
if [ -d /dev/infiniband ]; then mkdir -p "$held"; mount --bind /dev/infiniband "$held"; fi
mount -t tmpfs -o mode=755 dev /dev
mkdir /dev/pts /dev/shm /dev/mqueue /dev/infiniband
mount -t devpts -o newinstance,ptmxmode=0666 pts /dev/pts
ln -s pts/ptmx /dev/ptmx
ln -s /proc/self/fd /dev/fd
while read -r name major minor; do mknod -m 666 "/dev/$name" c "$major" "$minor"; done <<END
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
kmsg 1 3
infiniband/uverbs0 1 3
infiniband/rdma_cm 1 5
END
if [ -d "$held" ]; then mount --move "$held" /dev/infiniband; fi
exec "$reaper" -c '
import os, time
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.05)
'
"""
_CONFIG = """
version = 2
root = "{root}"
state = "{state}"
oom_score = 0
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{top}/bin"
    conf_dir = "{top}/net.d"
    max_conf_num = {networks}
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""


def missing(*variables: str) -> str:
    """Why there can be no runtime here, or no cluster for it, which the variables name, and what would help; "" when there can."""
    if why := unusable():
        return why
    if absent := [program for program in _PROGRAMS if not shutil.which(program)]:
        return f"needs {', '.join(absent)}: install containerd and runc"
    if not image.BUSYBOX.exists() or b"/lib64/ld-linux" in image.BUSYBOX.read_bytes()[:4096]:
        return "needs a busybox without libraries for the image: install busybox-static"
    if not (GO_PLUGINS / "loopback").exists():
        return f"needs {GO_PLUGINS}/loopback, which containerd calls: install containernetworking-plugins"
    if absent := [name for name in variables if not os.environ.get(name)]:
        return f"{', '.join(absent)}: to be set for a real kubelet"
    return "" if _hierarchies() else f"needs control groups below {_CGROUPS}"


def without_cdi() -> str:
    """Why containers get no CDI devices here, and what would help; "" when they do: containerd 2.0 has them by default."""
    place = shutil.which("containerd") or ""
    said = subprocess.run([place, "--version"], capture_output=True, text=True, timeout=SECONDS).stdout
    version = re.search(r"\bv?(\d+)\.\d+\.\d+", said)
    if version and int(version[1]) >= 2:
        return ""
    return (
        f"{place} is {version[0] if version else said.strip() or 'of no version'}, without CDI by default: put a folder with"
        " containerd 2.0 or newer, its containerd-shim-runc-v2 and its ctr first in PATH"
    )


class Pod:
    """A sandbox as kubelet asks for it; `id` is "" until it runs."""

    def __init__(self, name: str, namespace: str = "default", uid: str = "") -> None:
        metadata = cri.PodSandboxMetadata(name=name, uid=uid or str(uuid.uuid4()), namespace=namespace)
        linux = cri.LinuxPodSandboxConfig(cgroup_parent="/pods")
        self.config = cri.PodSandboxConfig(metadata=metadata, hostname=name, linux=linux)
        self.id = ""
        self.containers = 0

    def again(self) -> None:
        """The next sandbox of the same pod, as kubelet makes one after the former has ended."""
        self.config.metadata.attempt += 1
        self.id = ""


class Runtime:
    """`with Runtime(node, conflist) as runtime`: containerd on the node, in its default configuration but for paths and the
    number of networks, which are the `conflists`; `more` are plugins."""

    def __init__(self, node: Node, *conflists: Mapping[str, Any], more: Mapping[str, Path] | None = None) -> None:
        self.node = node
        self._conflists = conflists
        self._more = more or {}
        self._boot = 0
        self._group = ""
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Runtime:
        try:
            self._install()
            self.boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._power_off()
        for folder in (TOP, _ROOT, _STATE):
            shutil.rmtree(self.node.path(folder), ignore_errors=True)

    def _install(self) -> None:
        for folder in ("bin", "net.d"):
            self.node.path(f"{TOP}/{folder}").mkdir(parents=True)
        plugins = {name: BIN / name for name in ("macvlan", "host-device", "rdma", "whereabouts")}
        for name, place in {**plugins, "loopback": GO_PLUGINS / "loopback", **self._more}.items():
            self.node.path(f"{TOP}/bin/{name}").symlink_to(place)
        for number, conflist in enumerate(self._conflists):
            self.node.path(f"{TOP}/net.d/{10 + number}-rails.conflist").write_text(json.dumps(conflist))
        networks = len(self._conflists)
        names = {
            "root": _ROOT, "state": _STATE, "socket": SOCKET, "image": image.NAME, "top": TOP, "networks": networks,
        }  # fmt: skip
        self.node.path(f"{TOP}/config.toml").write_text(_CONFIG.format(**names))
        image.write(self.node.path(f"{TOP}/image.tar"))

    # --- the machine ---

    def boot(self) -> None:
        """Have a first process, and containerd."""
        self._boot += 1
        boot = f"{TOP}/boot_id"
        self.node.path(boot).write_text(f"{uuid.UUID(int=self._boot)}\n")
        self._group = f"railcni-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        controllers = _hierarchies()
        for group in [group for each in controllers for group in _place(each).glob("railcni-*-*")]:
            owner = group.name.split("-")[1]
            if owner.isdigit() and not Path("/proc", owner).exists():  # of a run that was killed
                _remove_group(group)
        words = ["sh", "-ec", _FIRST, _SETTLE, sys.executable, boot, f"{TOP}/infiniband", *controllers]
        self._first = self.node.start(words, env={"PATH": os.environ["PATH"]})
        self._processes.append(self._first)
        for controller in controllers:
            _join(_place(controller) / self._group, self._first.pid)
        assert self._first.stdin is not None
        self._first.stdin.write(b"go\n")
        self._first.stdin.flush()
        assert until(lambda: self._is_settled(), SECONDS), self._ended()
        if "unified" in controllers:  # of version 2 a group that has groups below it can have no process
            _join(_CGROUPS / self._group / "first", *map(int, _processes(_CGROUPS / self._group)))
        self.start_containerd()
        if self._boot == 1:
            self.enter(["ctr", f"--address={SOCKET}", "-n=k8s.io", "images", "import", f"{TOP}/image.tar"])

    def reboot(self) -> None:
        """The machine loses its power and comes up: processes, namespaces and /run are gone, and the boot is another."""
        self._power_off()
        for path in self.node.path("/run").iterdir():
            if path.name in ("containerd", "netns-cni"):
                shutil.rmtree(path)
        self.boot()

    def _power_off(self) -> None:
        Node.end(self._processes)
        self._processes.clear()
        for controller in _hierarchies() if self._group else ():
            _remove_group(_place(controller) / self._group)
        self._group = ""

    def _is_settled(self) -> bool:
        """Whether the first process of the namespace runs the last program of its script."""
        found = children(self._first.pid)
        if self._first.poll() is not None or not found:
            return False
        self._init = found[0]
        return Path(f"/proc/{self._init}/cmdline").read_bytes().startswith(f"{sys.executable}\0".encode())

    def _ended(self) -> str:
        self._first.kill()
        return self._first.communicate()[1].decode()

    def start(
        self, words: Sequence[str], log: IO[bytes], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program in the runtime's namespaces: the child of the process that is returned."""
        words = [*self._inside(), *words]
        process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def enter(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a program in the runtime's namespaces. AssertionError: it failed."""
        done = subprocess.run([*self._inside(), *words], capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"
        return done

    def _inside(self) -> list[str]:
        return ["nsenter", f"--target={self._init}", "--mount", "--net", "--pid", "--cgroup", "--ipc", "--uts", "--"]

    # --- containerd ---

    def start_containerd(self) -> None:
        """Start it, and wait until it is ready for pods, its network too."""
        with self.node.path(_LOG).open("ab") as log:
            # That of the tests' PATH, of which the unit knows nothing.
            words = [str(shutil.which("containerd")), f"--config={TOP}/config.toml"]
            self._containerd = self.start(words, log, CONTAINERD.unit)
        # containerd's socket lies in the node, which has a path of its own for this process.
        self.channel = grpc.insecure_channel(f"unix:{self.node.root}{SOCKET}")
        self.stub = services.client(cri.DESCRIPTOR.services_by_name["RuntimeService"], self.channel)
        assert until(self._is_ready, SECONDS), self.log()

    def kill_containerd(self) -> None:
        """Kill containerd alone: its shims, and with them the containers, go on."""
        for pid in children(self._containerd.pid):
            os.kill(pid, 9)
        self._containerd.wait()
        self.channel.close()

    def log(self) -> str:
        """The end of what containerd said."""
        return self.node.path(_LOG).read_text(errors="replace")[-6000:]

    def _is_ready(self) -> bool:
        try:
            status = self.stub.Status(cri.StatusRequest(), timeout=5).status
        except grpc.RpcError:
            time.sleep(0.05)
            return False
        return len(status.conditions) >= 2 and all(condition.status for condition in status.conditions)

    # --- as kubelet does ---

    def run_pod(self, pod: Pod) -> str:
        """RunPodSandbox; the id. grpc.RpcError."""
        pod.id = self.stub.RunPodSandbox(cri.RunPodSandboxRequest(config=pod.config), timeout=SECONDS).pod_sandbox_id
        return pod.id

    def begin_pod(self, pod: Pod) -> Any:
        """RunPodSandbox, without waiting for its end."""
        return self.stub.RunPodSandbox.future(cri.RunPodSandboxRequest(config=pod.config), timeout=SECONDS)

    def container(
        self, pod: Pod, given: Any = None, mounts: Sequence[str] = (), capabilities: Sequence[str] = ()
    ) -> str:
        """CreateContainer and StartContainer, with what a device plugin has `given`, and `mounts` of the host, which are
        read-only; the id."""
        pod.containers += 1
        metadata = cri.ContainerMetadata(name=f"c{pod.containers}")
        config = cri.ContainerConfig(metadata=metadata, image=cri.ImageSpec(image=image.NAME))
        for device in given.devices if given else ():
            config.devices.add(
                container_path=device.container_path, host_path=device.host_path, permissions=device.permissions
            )
        for name, value in given.envs.items() if given else ():
            config.envs.add(key=name, value=value)
        for path in mounts:
            config.mounts.add(container_path=path, host_path=path, readonly=True)
        config.linux.security_context.capabilities.add_capabilities.extend(capabilities)
        asked = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
        made = str(self.stub.CreateContainer(asked, timeout=SECONDS).container_id)
        self.stub.StartContainer(cri.StartContainerRequest(container_id=made), timeout=SECONDS)
        return made

    def begin_in(self, container: str, *words: str) -> Any:
        """ExecSync, without waiting for its end."""
        asked = cri.ExecSyncRequest(container_id=container, cmd=words)
        return self.stub.ExecSync.future(asked)

    def run_in(self, container: str, *words: str) -> str:
        """ExecSync; stdout. AssertionError: it failed."""
        done = self.begin_in(container, *words).result(2 * SECONDS)
        assert done.exit_code == 0, (words, done.stdout, done.stderr)
        return str(done.stdout.decode())

    def end_pod(self, pod_id: str, times: int = 1) -> None:
        """StopPodSandbox and RemovePodSandbox, each so many times. grpc.RpcError."""
        for _ in range(times):
            self.stub.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod_id), timeout=SECONDS)
        for _ in range(times):
            self.stub.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod_id), timeout=SECONDS)

    def sandboxes(self) -> dict[str, bool]:
        """Those that containerd knows, and whether each is ready."""
        items = self.stub.ListPodSandbox(cri.ListPodSandboxRequest(), timeout=SECONDS).items
        return {item.id: item.state == cri.SANDBOX_READY for item in items}

    def pid_of(self, sandbox: str) -> int:
        """The sandbox's first process, as this process sees it."""
        folder = Path(f"/proc/{self._init}/root/run/containerd/io.containerd.runtime.v2.task/k8s.io/{sandbox}")
        inside = (folder / "init.pid").read_text()
        every = [pid for shim in children(self._init) for pid in children(shim)]
        status = {pid: Path(f"/proc/{pid}/status").read_text() for pid in every}
        return next(
            pid for pid, text in status.items() if f"\t{inside}\t" in text.split("NSpid:")[1].split("\n")[0] + "\t"
        )

    def remains(self) -> list[str]:
        """What is left of pods: ours, as `leftovers` says, and containerd's: sandboxes, containers, tasks, namespaces,
        control groups, processes."""
        found = self.node.leftovers(settle=5)
        found += [f"sandbox {one}" for one in self.sandboxes()]
        containers = self.stub.ListContainers(cri.ListContainersRequest(), timeout=SECONDS).containers
        found += [f"container {one.id}" for one in containers]
        until(lambda: not self._tasks(), SECONDS)
        return found + self._tasks()

    def _tasks(self) -> list[str]:
        top = Path(f"/proc/{self._init}/root")
        found = [f"namespace {path.name}" for path in top.glob("run/netns/cni-*")]
        found += [
            f"task {path.name}" for path in top.glob(f"run/containerd/{'io.containerd.runtime.v2.task'}/k8s.io/*")
        ]
        found += [
            f"snapshot of {path.name}" for path in top.glob(f"{_STATE[1:]}/io.containerd.grpc.v1.cri/sandboxes/*")
        ]
        for controller in _hierarchies():
            found += [f"group {p.name}" for p in (_place(controller) / self._group / "pods").glob("*") if p.is_dir()]
        listed = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] for pid in children(self._init)]
        return found + [f"process {name.decode()}" for name in listed if b"shim" in name]


def conflist(master: str = "ens2f0", subnet: str = "192.168.111.0/24", name: str = "rails") -> dict[str, Any]:
    """macvlan on `master` with whereabouts, whose leases are in a file of the node."""
    leases = {"type": "whereabouts", "range": subnet, "datastore": "file"}
    return {
        "cniVersion": "1.0.0",
        "name": name,
        "plugins": [{"type": "macvlan", "master": master, "mode": "bridge", "mtu": 9000, "ipam": leases}],
    }


PODS = 10  # of the tests that count warm calls, each with the networks RAILS
RAILS = [conflist(subnet=f"192.168.{111 + rail}.0/24", name=f"rail{rail}") for rail in range(4)]


def multus(*inner: Mapping[str, Any], **more: object) -> dict[str, Any]:
    """Multus with `inner` as the networks that each pod has."""
    plugin = {"type": "multus", "name": "multus", "delegates": [*inner], "logLevel": "verbose", **more}
    return {"cniVersion": "1.0.0", "name": "multus-net", "plugins": [plugin]}


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _hierarchies() -> list[str]:
    """The controllers of each hierarchy of version 1, as mount takes them, else "unified" for version 2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return ["unified"]
    return [p.name for p in sorted(_CGROUPS.iterdir()) if (p / "tasks").exists() and not p.is_symlink()]


def _place(controller: str) -> Path:
    return _CGROUPS if controller == "unified" else _CGROUPS / controller


def _processes(group: Path) -> list[str]:
    return (group / "cgroup.procs").read_text().split()


def _join(group: Path, *pids: int) -> None:
    group.mkdir()
    for name in _CPUSET:
        if (group / name).exists() and not (group / name).read_text().strip() and group.parent.name == "cpuset":
            (group / name).write_text((group.parent / name).read_text())
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))


def _remove_group(group: Path) -> None:
    """Remove a group and those below it, whose processes have ended: the kernel needs a moment."""
    folders: Callable[[], list[Path]] = lambda: sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True)  # noqa: E731
    deadline = time.monotonic() + SECONDS
    for folder in [*folders(), group]:
        while folder.exists():
            try:
                folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
