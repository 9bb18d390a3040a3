"""A node of its own for a test: mount and network namespace, state directories, pods, and calls of CNI executables.

The executables run with their real paths and defaults, and the machine sees nothing of it. A thread of this process keeps
the namespaces and starts what runs in them (tests/namespaces.py); when it ends, the kernel takes all that lived in them.

Of tests marked `forked`, `cni` forks a call of a plugin from a process that has imported the product (tests/command.py);
all others run the executables, and so do all with RAILCNI_TEST_COLD=1. RAILCNI_TEST_WARM=1 lets warm workers serve the
calls (tests/warm.py).

RAILCNI_BIN names another directory of executables, such as a bundle's bin/. RAILCNI_CHROOT names a root in which they
and the command then run: a host of another kind, which has what tests/roots.py puts there, and of this one the kernel's
file systems, the state, the configuration and the executables.
"""

from __future__ import annotations

import ipaddress
import json
import os
import select
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cni.link.plugins import EXECUTABLES
from cni.shared.policy import PATHS
from cni.warm import protocol
from tests import command, warm
from tests.namespaces import Namespaces, add_veth, mount, unshare, up
from tests.view import View

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(os.environ.get("RAILCNI_BIN", ROOT / "bin")).resolve()
IS_BUNDLE = (BIN / "python3").exists()
COMMAND: list[str | Path] = [BIN / "railcni"] if IS_BUNDLE else [sys.executable, "-IP", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from cni.cli.main import main; sys.exit(main())"]  # fmt: skip
INTERPRETER = str(BIN / "python3") if IS_BUNDLE else sys.executable  # one that can be executed where the plugins can
IS_WARM = bool(os.environ.get("RAILCNI_TEST_WARM"))
IS_COLD = bool(os.environ.get("RAILCNI_TEST_COLD"))
CHROOT = os.environ.get("RAILCNI_CHROOT", "")
GO_PLUGINS = Path("/usr/lib/cni")
STATE = "/var/lib/cni/railcni"
VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")

_PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_PIPE = subprocess.PIPE
_TOOLS = ("nsenter", "unshare", "mount")
_TOPS = ("/var/lib", "/var/log", "/run", "/etc/cni", "/etc/kubernetes", "/host/etc/cni", "/host/etc/kubernetes")
_INTO_ROOT = """
for top in /dev /tmp $2 $3; do mount --rbind --make-rprivate "$top" "$1$top"; done
mount --make-rshared / # what a test mounts from now on is mounted in there, too
for top in /proc /sys /run /var/lib /var/log /etc; do mount --rbind "$top" "$1$top"; done
"""


def _settle() -> None:
    """Make the calling thread's namespaces those of a node: state of its own, `lo` up."""
    unshare()
    for top in _TOPS:
        if os.path.isdir(top):
            mount("tmpfs", top, "tmpfs")
    mount("sysfs", "/sys", "sysfs")
    os.mkdir("/run/netns")
    up("lo")
    if CHROOT:
        subprocess.run(["sh", "-ec", _INTO_ROOT, "sh", CHROOT, ROOT, BIN.parent], check=True)


def unusable() -> str:
    """Why no Node can be made here, and what would make it possible; "" when it can."""
    if os.geteuid() != 0:
        return "needs root for mount and network namespaces: run the tests with sudo"
    missing = [t for t in _TOOLS if not shutil.which(t)]
    return f"needs {', '.join(missing)}: install util-linux and mount" if missing else ""


def railcni(*argv: str | Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the command beside the tests, with exactly `env`; forked where that is possible: tests/command.py."""
    if IS_BUNDLE:
        return subprocess.run([*COMMAND, *argv], capture_output=True, text=True, env=dict(env), timeout=60)
    done = command.run(argv, env=env, cwd=os.getcwd())
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@dataclass(frozen=True)
class Reply:
    """What a plugin answered: its exit code, stdout as JSON (None when empty), and stderr."""

    status: int
    document: Any
    stderr: str

    @property
    def code(self) -> int:
        """The CNI error code; 0 for success."""
        return int(self.document["code"]) if self.status else 0

    @property
    def msg(self) -> str:
        return str(self.document["msg"]) if self.status else ""

    def succeeded(self) -> Any:
        """The result; AssertionError with the error when there is one."""
        assert self.status == 0, self.document
        return self.document

    def refused(self, code: int, *words: str) -> None:
        """Assert that it failed with `code`, and that `words` stand where a runtime still shows them."""
        assert self.status == 1, f"succeeded with {self.document}"
        assert self.code == code, self.document
        shown = self.msg[:250]
        assert all(word in shown for word in words), f"{words} in: {shown}"
        assert not [line for line in self.document.get("details", "").splitlines() if line.strip() in self.msg]

    @property
    def addresses(self) -> list[str]:
        """The addresses of a result of any version; AssertionError when there is none."""
        self.succeeded()
        if "ips" in self.document:
            return [a["address"] for a in self.document["ips"]]
        return [self.document[k]["ip"] for k in ("ip4", "ip6") if k in self.document]


class Call:
    """A plugin that has been started and waits for its stdin."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes) -> None:
        self.process = process
        self._stdin = stdin

    def finish(self, timeout: float = 60) -> Reply:
        """Give it its stdin and wait for what it says. AssertionError when stdout is no answer of a CNI plugin."""
        out, err = self.process.communicate(self._stdin, timeout)
        return _reply(self.process.returncode, out, err)


def _reply(status: int, out: bytes, err: bytes) -> Reply:
    """What a plugin has answered. AssertionError when stdout is no answer of a CNI plugin."""
    stderr = err.decode(errors="replace")
    shown = f"exit {status}, stdout {out[:2000]!r}, stderr {stderr[-2000:]}"
    try:
        document = json.loads(out) if out.strip() else None
    except ValueError:
        raise AssertionError(f"stdout is not JSON: {shown}") from None
    assert "Traceback" not in stderr, shown
    assert status in (0, 1), shown
    if status:
        assert isinstance(document, dict) and {"code", "msg"} <= set(document), shown
    return Reply(status, document, stderr)


@dataclass(frozen=True)
class Pod:
    """A network namespace of the node; `path` is what a runtime passes as CNI_NETNS."""

    name: str
    path: str
    view: View


class Node:
    """`with Node() as node`: see the module. `host` is the view of the node's own namespace."""

    def __init__(
        self, executables: Path = BIN, is_warm: bool = IS_WARM, is_forked: bool = False, workers: int = 0
    ) -> None:
        self.executables = executables
        self.is_warm = is_warm
        self._workers = workers  # that the policy allows; 0: as by default
        self.is_forked = is_forked and executables == ROOT / "bin" and not (is_warm or CHROOT or IS_COLD)
        self.caller: Mapping[str, str] = {}  # the variables of what calls plugins, beside those of the specification
        self.pods: dict[str, Pod] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._known: set[str] = set()
        self._masters = 0

    def __enter__(self) -> Node:
        self._there = Namespaces(_settle)
        self._found()
        if self.is_warm:
            try:
                if self._workers:
                    self.allow(warm={"workers": self._workers})
                warm.begin(self)
            except BaseException:
                self.__exit__()
                raise
        else:
            self._have_no_workers()
        return self

    def _have_no_workers(self) -> None:
        """Put a file in place of the workers' directory: none can be made, and all calls are cold."""
        self.path(protocol.PARENT).mkdir(mode=0o700, exist_ok=True)
        self.path(protocol.DIRECTORY).touch()

    def _found(self) -> None:
        """Learn the paths by which this process reaches the node."""
        self.holder = self._there.task  # as nsenter --target takes it
        self.root = f"/proc/{self.holder}/root"
        self.mounts = os.stat(f"/proc/{self.holder}/ns/mnt").st_ino
        self.host = View(f"/proc/{self.holder}/ns/net")

    def __exit__(self, *_: object) -> None:
        if self.is_warm:
            warm.end(self)
        self.end(self._started)
        self._there.end()

    @staticmethod
    def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            if process.poll() is None:
                process.kill()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            process.wait()

    # --- what a node has ---

    def path(self, inside: str) -> Path:
        """The path by which this process reaches the file `inside` of the node."""
        return Path(self.root + inside)

    def write(self, inside: str, content: str | Mapping[str, Any], mode: int = 0o600) -> Path:
        """Write the file `inside` of the node, and make the folders above it; a mapping becomes JSON."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        path.chmod(mode)
        return path

    def allow(self, **policy: Any) -> Path:
        """Make this the policy of the node."""
        return self.write(PATHS[1], policy)

    def script(self, inside: str, text: str) -> Path:
        return self.write(inside, text, 0o755)

    def own_etc(self) -> None:
        """An /etc of its own, for what lies beside /etc/cni."""
        self.run(["sh", "-ec", "cp -a /etc /run/etc; mount --bind /run/etc /etc"]).check_returncode()

    def reboot(self, boot: str = "11111111-2222-3333-4444-555555555555") -> None:
        """Let calls from now on read another boot_id, as after a reboot."""
        self.path("/run/boot").write_text(boot)
        self.run(["mount", "--bind", "/run/boot", "/proc/sys/kernel/random/boot_id"]).check_returncode()

    def master(self, name: str = "ens2f0", mtu: int = 9000) -> View:
        """An RDMA-like master: one end of a veth pair, up; its other end is `peer` in a namespace of its own,
        whose view is returned: it sees what leaves the master on the wire."""
        wire = self.outside(name)
        # Made where it belongs: the kernel takes 30 ms to move a device. Of other indices than the peer's: it takes
        # up to a second until a device is operational whose other end has the same index.
        self._masters += 1
        self._there.call(add_veth, name, 1000 + self._masters, mtu, "peer", wire.path)
        self._there.call(up, name)
        self._there.call_in(wire.path, up, "peer")
        self.remember()
        return wire

    def outside(self, name: str) -> View:
        """A new network namespace for what a NIC of the node leads to: not where runtimes mount sandboxes."""
        self.path("/run/wires").mkdir(exist_ok=True)
        return self.namespace(name, "/run/wires")

    def namespace(self, name: str, directory: str = "/run/netns") -> View:
        """A new network namespace at `directory`/`name`, with `lo` up."""
        path = f"{directory}/{name}"
        self._there.add(path)
        return View(self.root + path)

    def pod(self, name: str = "pod1") -> Pod:
        """A new pod: a network namespace at /run/netns/`name`."""
        pod = self.pods[name] = Pod(name, f"/run/netns/{name}", self.namespace(name))
        return pod

    def delete_pod(self, pod: Pod) -> None:
        """Remove the pod's namespace, as a runtime does: unmount and unlink. The kernel clears it a moment later."""
        del self.pods[pod.name]
        self._there.unmount(pod.path)
        self.path(pod.path).unlink()

    def remember(self) -> None:
        """What is there now belongs there: `leftovers` reports what differs from it."""
        self._known = set(self._present())

    def leftovers(self, *, settle: float = 0.0) -> list[str]:
        """What plugins have left behind: links in the node and its pods, leases, records and other files; and links
        that are gone. [] means that all is as it was. Waits up to `settle` seconds for the kernel's deferred work."""
        deadline = time.monotonic() + settle
        while (found := self._differences()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def _differences(self) -> list[str]:
        present = set(self._present())
        missing = [f"missing: {item}" for item in self._known - present if item.partition(":")[0] in self._places()]
        return sorted(present - self._known) + sorted(missing)

    def _places(self) -> list[str]:
        return ["host", *self.pods]

    def _present(self) -> list[str]:
        links = [f"host: link {name}" for name in self.host.names()]
        for pod in self.pods.values():
            links += [f"{pod.name}: link {name}" for name in pod.view.names()]
        return links + [f"lease {text}" for text in self.leases()] + [f"file {name}" for name in self.files()]

    def files(self) -> list[str]:
        """The files below /var/lib/cni that stand for something: neither locks nor the store's own file."""
        top = self.path("/var/lib/cni")
        found = [str(p.relative_to(top)) for p in top.rglob("*") if not p.is_dir()] if top.exists() else []
        standing = (
            "lock", "remembered", "unended", "leases.db", "leases.db-journal",
        )  # and host-local's: lock, last_reserved_ip.N  # fmt: skip
        return sorted(
            f for f in found if Path(f).name not in standing and "last_reserved_ip" not in f and "held/" not in f
        )

    def leases(self, directory: str = STATE) -> list[str]:
        """The addresses that the file store in `directory` holds, in the order of pools and addresses."""
        with tempfile.TemporaryDirectory() as copy:  # SQLite would resolve the path of the node to one of ours
            for name in ("leases.db", "leases.db-journal"):  # and roll back what a killed plugin left
                if (self.path(directory) / name).exists():
                    shutil.copy(self.path(directory) / name, copy)
            if not Path(copy, "leases.db").exists():
                return []
            connection = sqlite3.connect(Path(copy, "leases.db"))
            try:
                rows = connection.execute("SELECT address FROM lease ORDER BY pool, address").fetchall()
            finally:
                connection.close()
        return [str(ipaddress.ip_address(address)) for (address,) in rows]

    # --- what runs in it ---

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `argv` in the node, with exactly `env`; without it with a PATH alone."""
        process = self.start(argv, env=env)
        out, err = process.communicate(stdin, timeout)
        return subprocess.CompletedProcess([str(a) for a in argv], process.returncode, out, err)

    def railcni(
        self, *argv: str | Path, env: Mapping[str, str] | None = None, stdin: bytes = b"", timeout: float = 60
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the command in the node, as `run` does, but forked where that is possible: tests/command.py."""
        if IS_BUNDLE or CHROOT:
            return self.run([*COMMAND, *argv], env=env, stdin=stdin, timeout=timeout)
        where = self._namespaces()
        return command.run(argv, env=_PATH if env is None else env, stdin=stdin, namespaces=where, timeout=timeout)

    def start(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        pod: Pod | None = None,
        as_plugin: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start `argv` in the node (in `pod`'s network namespace when given); stdin, stdout and stderr are pipes.

        What is ours and what a runtime would start (`as_plugin`) sees the root RAILCNI_CHROOT, if that is set.
        """
        words, net = [str(a) for a in argv], pod.view.path if pod else self.host.path
        ours = words[0].startswith((f"{self.executables}/", f"{BIN}/"))
        if CHROOT and (ours or as_plugin):
            root = f"{self.root}{CHROOT}"
            enter = [
                "nsenter", f"--target={self.holder}", f"--net={net}", "--mount", f"--root={root}", f"--wd={root}{cwd}",
            ]  # fmt: skip
            words, cwd = [*enter, "--", *words], "/"
        environ = dict(_PATH if env is None else env)
        if (
            self.is_warm and Path(argv[0]).name == "strace"
        ):  # it traces the process that it starts: the one to serve the call
            environ |= warm.COLD
        how = {"env": environ, "cwd": cwd}
        process = self._there.call_in(net, subprocess.Popen, words, stdin=_PIPE, stdout=_PIPE, stderr=_PIPE, **how)
        self._started = [p for p in self._started if p.poll() is None] + [process]
        return process

    def start_cni(
        self,
        executable: str | Path,
        verb: str,
        config: Mapping[str, Any] | bytes,
        *,
        cwd: str = "/",
        through: Sequence[str] = (),
        **variables: Any,
    ) -> Call:
        """Start `executable` (a name in bin/ or a path) for `verb`, with `variables` as for `environ`."""
        argv = [*through, self.executables / executable]
        env = self.environ(verb, **variables)
        return Call(self.start(argv, env=env, cwd=cwd, as_plugin=True), _stdin(config))

    def environ(
        self,
        verb: str,
        *,
        container_id: str | None = "c1",
        ifname: str | None = "net1",
        netns: Pod | str | None = None,
        args: str | None = None,
        path: Sequence[str | Path] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """The CNI variables, `caller` and `more`; a None leaves its variable out. GC and STATUS get CNI_PATH alone, as
        from libcni."""
        folders = path if path is not None else [self.executables, GO_PLUGINS]
        env = {"CNI_COMMAND": verb, "CNI_PATH": ":".join(str(p) for p in folders)}
        if verb not in ("GC", "STATUS", "VERSION"):
            named = {
                "CNI_CONTAINERID": container_id,
                "CNI_IFNAME": ifname,
                "CNI_NETNS": netns.path if isinstance(netns, Pod) else netns,
                "CNI_ARGS": args,
            }
            env |= {name: value for name, value in named.items() if value is not None}
        return {**self.caller, **env, **(more or {})}

    def cni(self, executable: str | Path, verb: str, config: Mapping[str, Any] | bytes, **how: Any) -> Reply:
        """Call `executable` and return its answer; `how` as for `start_cni`."""
        warm.counted["calls"] += IS_WARM and verb != "VERSION"
        if self.is_forked and executable in EXECUTABLES and "through" not in how:
            return self._forked(str(executable), verb, config, **how)
        return self.start_cni(executable, verb, config, **how).finish()

    def ended(self, executable: str | Path, config: Mapping[str, Any], *, settle: float = 0.0, **how: Any) -> None:
        """A DEL succeeds, and nothing is left."""
        assert self.cni(executable, "DEL", config, **how).succeeded() is None
        assert self.leftovers(settle=settle) == []

    def _forked(
        self, plugin: str, verb: str, config: Mapping[str, Any] | bytes, cwd: str = "/", **variables: Any
    ) -> Reply:
        """The same, forked from a process that has imported the product."""
        env, namespaces = self.environ(verb, **variables), self._namespaces()
        done = command.run(
            [plugin], env=env, stdin=_stdin(config), namespaces=namespaces, cwd=cwd, program=command.PLUGIN
        )
        return _reply(done.returncode, done.stdout, done.stderr)

    def _namespaces(self) -> list[str]:
        return [f"/proc/{self.holder}/ns/{kind}" for kind in ("net", "mnt")]

    def cni_at_once(self, calls: Sequence[Call]) -> list[Reply]:
        """Give all `calls` their stdin as near to one moment as one process can, and collect the answers in order."""
        for call in calls:
            stdin = call.process.stdin
            assert stdin is not None
            stdin.write(call._stdin)
            stdin.flush()
        for call in calls:
            assert call.process.stdin is not None
            call.process.stdin.close()
            call.process.stdin = None
            call._stdin = b""
        return [Call(call.process, None).finish() for call in calls]  # type: ignore[arg-type]


def _stdin(config: Mapping[str, Any] | bytes) -> bytes:
    return config if isinstance(config, bytes) else json.dumps(config).encode()


def until(condition: Any, seconds: float = 30.0) -> bool:
    """Whether `condition()` became true within `seconds`, which suffice in an emulated machine too. It looks ever less
    often: a look may cost a call."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > seconds:
            return False
        select.select([], [], [], min(0.01 + waited / 8, 0.1))
    return True


def page(url: str) -> tuple[int, str]:
    """The status and the text of a page."""
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as fault:
        with fault:
            return fault.code, fault.read().decode()
