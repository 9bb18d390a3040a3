"""A guest as a node: with the kernel's first network namespace, in which alone there are verbs and PCI devices."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from tests.namespaces import Namespaces, join
from tests.node import BIN, Node

STATE_TOPS = ("/var/lib/cni", "/var/log", "/run/railcni", "/run/netns", "/etc/cni", "/run/k8s.cni.cncf.io")


class Machine(Node):
    """`with Machine() as node`: a Node that is the guest itself, not namespaces made for a test. What a test has made
    is taken away at the end: pods, state, soft verbs devices, virtual links."""

    def __init__(self, executables: Path = BIN) -> None:
        super().__init__(executables)

    def __enter__(self) -> Machine:
        self._there = Namespaces(lambda: join("/proc/1"))
        self._found()
        self._have_no_workers()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(self._started)
        for path in (*Path("/run/netns").iterdir(), *Path("/run/wires").glob("*")):
            subprocess.run(["umount", path], capture_output=True)
            path.unlink()
        self.pods.clear()
        for device in verbs_devices():
            command("rdma", "link", "delete", device, check=False)
        for name, link in self.host.links().items():
            if link.kind:
                command("ip", "link", "delete", name, check=False)
        for top in STATE_TOPS:
            for path in Path(top).glob("*"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        self._there.end()

    def dummy(self, name: str = "ens2f0", mtu: int = 9000) -> None:
        """A master: a link of the kind dummy, up. Its index is the lowest that is free, as that of a pod's first link is:
        before Linux 7.2 soft-RoCE looks for a route by the index that the pod's link has, in the first namespace."""
        taken = {int(path.read_text()) for path in Path("/sys/class/net").glob("*/ifindex")}
        index = next(n for n in range(1, len(taken) + 2) if n not in taken)
        command("ip", "link", "add", "name", name, "index", str(index), "type", "dummy")
        command("ip", "link", "set", name, "mtu", str(mtu), "up")

    def soft_roce(self, device: str = "mlx5_0", link: str = "ens2f0", pod: str = "") -> None:
        """A verbs device of the kind rxe on `link`, of `pod` when given (Linux 7.2); returns when its port is active."""
        inside = ("ip", "netns", "exec", pod) if pod else ()
        command(*inside, "rdma", "link", "add", device, "type", "rxe", "netdev", link)
        state = Path(f"/sys/class/infiniband/{device}/ports/1/state")
        deadline = time.monotonic() + 60
        while not pod and "ACTIVE" not in state.read_text():
            assert time.monotonic() < deadline, f"{device} is {state.read_text()}"
            time.sleep(0.05)


def verbs_devices() -> list[str]:
    """The verbs devices that can be seen from here."""
    top = Path("/sys/class/infiniband")
    return sorted(p.name for p in top.iterdir()) if top.exists() else []


def gids(device: str = "mlx5_0", port: int = 1) -> dict[int, tuple[str, str, str]]:
    """(GID, type, link) by index, of the entries that are in use."""
    top = Path(f"/sys/class/infiniband/{device}/ports/{port}")
    found = {}
    for path in (top / "gids").iterdir():
        value = path.read_text().strip()
        if value.replace("0", "").strip(":"):
            kind, link = (_read(top / "gid_attrs" / what / path.name) for what in ("types", "ndevs"))
            found[int(path.name)] = value, kind, link
    return dict(sorted(found.items()))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # an entry that has just gone
        return ""


def command(*words: str, check: bool = True) -> str:
    """Run a program of the guest; its stdout. AssertionError with what it said, when it fails."""
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 or not check, f"{' '.join(words)}: {done.stderr or done.stdout}"
    return done.stdout
