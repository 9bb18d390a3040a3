"""Real etcd members for tests: on loopback, at ports that are free now, with their data on a tmpfs of their own.

A member ends when its test ends, and also when that is killed; its data goes with it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from tests import served

_START = 'mount -t tmpfs tmpfs /mnt && exec "$@"'
_CALM = ("--heartbeat-interval=100", "--election-timeout=1000")  # a member that is alone takes a quarter of the time
LARGE = ("--max-txn-ops=100000", "--max-request-bytes=67108864")  # for tests that claim thousands of addresses at once


def unusable() -> str:
    """Why no member can be started here, and what would make it possible; "" when it can."""
    missing = [tool for tool in ("etcd", "etcdctl", "unshare", "setpriv") if not shutil.which(tool)]
    return f"needs {', '.join(missing)}: install etcd-server, etcd-client and util-linux" if missing else ""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nobody listens now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Member:
    """One etcd process. `url` is where its clients connect."""

    def __init__(self, name: str, scheme: str, client: int, peer: int, flags: Sequence[str]) -> None:
        self.name = name
        self.url = f"{scheme}://127.0.0.1:{client}"
        self.port = client
        self.peer = f"http://127.0.0.1:{peer}"
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: str) -> None:
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        argv = ["unshare", "--mount", *user, "setpriv", "--pdeathsig", "KILL", "sh", "-c", _START, "sh"]
        argv += ["etcd", "--name", self.name, "--data-dir", "/mnt/etcd", "--logger=zap", "--log-level=error"]
        argv += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        argv += ["--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer]
        argv += ["--initial-cluster", cluster, "--unsafe-no-fsync"]
        argv += ["--heartbeat-interval=20", "--election-timeout=200", *self._flags]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def signal(self, number: int) -> None:
        assert self._process
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None


class Cluster:
    """`with Cluster(3) as cluster`: that many members, serving. `tls` and `ca` as in tests.stores.certificates."""

    def __init__(self, size: int = 1, flags: Sequence[str] = (), scheme: str = "http") -> None:
        served.note()
        ports = free_ports(2 * size)
        self.members = [Member(f"m{i}", scheme, ports[2 * i], ports[2 * i + 1], flags) for i in range(size)]

    def __enter__(self) -> Cluster:
        initial = ",".join(f"{m.name}={m.peer}" for m in self.members)
        for member in self.members:
            member.start(initial)
        if self.members[0].url.startswith("http:"):
            self.serving()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()

    @property
    def endpoints(self) -> list[str]:
        return [member.url for member in self.members]

    def serving(self, seconds: float = 20) -> None:
        """Wait until every running member answers a linearizable read."""
        deadline = time.monotonic() + seconds
        for member in self.members:
            while not member.ended or time.monotonic() < deadline:
                try:
                    post(member.url, "kv/range", {"key": "YQ=="})
                    break
                except OSError:
                    if member.ended or time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)

    def leader(self) -> Member:
        for member in self.members:
            if not member.ended:
                status = post(member.url, "maintenance/status", {})
                for other in self.members:
                    if not other.ended:
                        own = post(other.url, "maintenance/status", {})
                        if own["header"]["member_id"] == status["leader"]:
                            return other
        raise AssertionError("no leader")

    def ctl(self, *arguments: str, flags: Sequence[str] = ()) -> str:
        """What etcdctl says: the oracle that shares no code with ours."""
        argv = ["etcdctl", f"--endpoints={','.join(self.endpoints)}", *flags, *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "ETCDCTL_API": "3"}, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout


def post(url: str, method: str, document: dict[str, Any]) -> Any:
    """A request to the JSON gateway, by the standard library's client; OSError."""
    request = urllib.request.Request(f"{url}/v3/{method}", json.dumps(document).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def is_claim(data: bytes) -> bool:
    """Whether a client of ours asks for a claim with `data`: no other request has these keys, which are in base64."""
    encoded = re.findall(rb'": "((?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)"', data)
    texts = b" ".join(map(base64.b64decode, encoded))
    return b"/void/" in texts and b"/node/" in texts


_shared: dict[tuple[str, ...], Cluster] = {}


def shared(flags: Sequence[str] = ()) -> Cluster:
    """A cluster of one member for all tests of this run that want these flags."""
    served.note()
    key = tuple(flags)
    if key not in _shared:
        _shared[key] = Cluster(flags=(*flags, *_CALM)).__enter__()
    return _shared[key]


def end_shared() -> None:
    while _shared:
        _shared.popitem()[1].__exit__()
