"""How long an exec of our plugins takes beside Go's macvlan + host-local: both in one run, alternately, on a real disk.

A round does each operation once with ours and once with Go's, the order changing from round to round, so that
whatever else the machine does falls on both. Times are of the whole process, from its start to its end. Nothing but
the medians' ratio carries over to another machine.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402

from tests.node import BIN, GO_PLUGINS, STATE, Node, Pod, unusable  # noqa: E402

AT_ONCE = 50
FULL = 65_000
LIMIT = 1.3  # what an ADD into a full pool may cost, in times of one into an empty pool
SAMPLES = dict[str, list[float]]


class Suite:
    """The plugins of one side: where they are, and the configuration of the same network for them."""

    def __init__(self, name: str, folder: Path, ipam: str, block: dict[str, Any]) -> None:
        self.name = name
        self.folder = folder
        self.ipam = ipam
        self.block = {"type": ipam, **block}

    def config(self, **more: Any) -> bytes:
        network = {"cniVersion": "1.0.0", "name": f"bench-{self.name}", "type": "macvlan", "master": "ens2f0"}
        return json.dumps({**network, "mtu": 9000, "ipam": self.block, **more}).encode()


OURS = Suite("ours", BIN, "whereabouts", {"range": "10.1.0.0/16", "datastore": "file"})
GO = Suite("go", GO_PLUGINS, "host-local", {"ranges": [[{"subnet": "10.2.0.0/16"}]]})


class Failed(Exception):
    """A call that should have succeeded did not: there is nothing to measure."""


def start(executable: Path, verb: str, stdin: bytes, container: str, netns: str) -> tuple[int, int]:
    """Start a plugin as a runtime does; its process id and a descriptor of what it will have written."""
    given, said = os.memfd_create("stdin"), os.memfd_create("stdout")
    os.write(given, stdin)
    os.lseek(given, 0, os.SEEK_SET)
    environ = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": netns,
        "CNI_IFNAME": "net1",
        "CNI_PATH": str(executable.parent),
    }
    actions = [(os.POSIX_SPAWN_DUP2, given, 0), (os.POSIX_SPAWN_DUP2, said, 1)]
    pid = os.posix_spawn(executable, [str(executable)], environ, file_actions=actions)
    os.close(given)
    return pid, said


def finish(pid: int, said: int) -> bytes:
    _, status = os.waitpid(pid, 0)
    out = os.pread(said, os.fstat(said).st_size, 0)
    os.close(said)
    if status:
        raise Failed(out.decode() or f"wait status {status}")
    return out


def timed(executable: Path, verb: str, stdin: bytes, container: str, netns: str) -> tuple[float, bytes]:
    """Milliseconds that a call took, and its stdout."""
    began = time.perf_counter()
    out = finish(*start(executable, verb, stdin, container, netns))
    return (time.perf_counter() - began) * 1e3, out


def attachment(suite: Suite, netns: str, number: int) -> SAMPLES:
    """One of everything with the link plugin."""
    macvlan, container = suite.folder / "macvlan", f"c{number}"
    version, _ = timed(macvlan, "VERSION", b"", container, netns)
    add, result = timed(macvlan, "ADD", suite.config(), container, netns)
    config = suite.config(prevResult=json.loads(result))
    check, _ = timed(macvlan, "CHECK", config, container, netns)
    delete, _ = timed(macvlan, "DEL", config, container, netns)
    return {"VERSION": [version], "ADD": [add], "CHECK": [check], "DEL": [delete]}


def addresses(suite: Suite, number: int) -> SAMPLES:
    """ADD and DEL of the IPAM plugin alone."""
    ipam, container = suite.folder / suite.ipam, f"i{number}"
    add, _ = timed(ipam, "ADD", suite.config(), container, "/dev/null")
    delete, _ = timed(ipam, "DEL", suite.config(), container, "/dev/null")
    return {"IPAM: ADD": [add], "IPAM: DEL": [delete]}


def at_once(suite: Suite, pods: list[Pod]) -> SAMPLES:
    """ADDs of as many pods as there are, all started before one is waited for; milliseconds until the last is done."""
    samples = {}
    for verb in ("ADD", "DEL"):
        began = time.perf_counter()
        running = [start(suite.folder / "macvlan", verb, suite.config(), pod.name, pod.path) for pod in pods]
        for each in running:
            finish(*each)
        samples[f"{len(pods)} at once: {verb}"] = [(time.perf_counter() - began) * 1e3]
    return samples


def alternately(
    suites: list[Suite], rounds: int, what: str, call: Callable[[Suite, int], SAMPLES]
) -> dict[str, SAMPLES]:
    """`call` for each suite in each round; samples by suite and operation. The first two rounds only warm up."""
    found: dict[str, SAMPLES] = {suite.name: {} for suite in suites}
    progress = Console(stderr=True)
    for number in track(range(rounds + 2), what, console=progress, transient=True, disable=not progress.is_terminal):
        for suite in random.sample(suites, len(suites)):
            for operation, times in call(suite, number).items():
                if number >= 2:
                    found[suite.name].setdefault(operation, []).extend(times)
    return found


def full_pools(suites: list[Suite], rounds: int) -> dict[str, SAMPLES]:
    """ADD and DEL of the IPAM plugin in a /16 without leases and in one with FULL, by suite."""
    found: dict[str, SAMPLES] = {}
    for suite in suites:
        empty, full = f"{STATE}/{suite.name}/empty", f"{STATE}/{suite.name}/full"
        (fill_ours if suite is OURS else fill_go)(full)
        pairs = [
            (name, Suite(suite.name, suite.folder, suite.ipam, {**suite.block, "dataDir": folder}))
            for name, folder in (("0", empty), (f"{FULL:,}", full))
        ]

        def both(_: Suite, number: int, pairs: list[tuple[str, Suite]] = pairs) -> SAMPLES:
            samples = {}
            for name, each in random.sample(pairs, 2):
                for operation, times in addresses(each, number).items():
                    samples[f"{operation}, {name} leases"] = times
            return dict(sorted(samples.items()))

        found |= alternately(
            [suite], rounds if suite is OURS else max(5, rounds // 10), f"full pool, {suite.name}", both
        )
    return found


def fill_ours(directory: str) -> None:
    from cni.spec.request import Attachment
    from ipam.ranges import Range
    from ipam.stores.base import Owner, Want
    from ipam.stores.file import FileStore

    pool = Range(4, 10 << 24 | 1 << 16, 16)
    store = FileStore(directory)
    for low in range(1, FULL, 1000):
        wants = [Want(pool.pool_name(), 4, pool.at(i), "") for i in range(low, min(low + 1000, FULL + 1))]
        store.claim(wants, Owner(Attachment(f"bench-{OURS.name}", f"full{low}", "net1"), sequence=low))


def fill_go(directory: str) -> None:
    folder = Path(directory, f"bench-{GO.name}")
    folder.mkdir(parents=True)
    for i in range(2, FULL + 2):
        (folder / f"10.2.{i >> 8}.{i & 255}").write_text(f"full{i}\r\nnet1")
    (folder / "last_reserved_ip.0").write_text(f"10.2.{(FULL + 1) >> 8}.{(FULL + 1) & 255}")


def table(found: dict[str, SAMPLES]) -> Table:
    shown = Table(
        title="milliseconds a call; ours: macvlan + whereabouts, Go: macvlan + host-local", title_justify="left"
    )
    shown.add_column("operation", no_wrap=True)
    for heading in ("ours", "p99", "Go", "p99", "ours / Go"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for operation in found[OURS.name]:
        times = {name: samples.get(operation, []) for name, samples in found.items()}
        ours, go = times[OURS.name], times.get(GO.name, [])
        ratio = f"{statistics.median(ours) / statistics.median(go):.2f}" if go else "-"
        shown.add_row(operation, *figures(ours), *figures(go), ratio)
    return shown


def figures(times: list[float]) -> tuple[str, str]:
    """Median and 99th percentile, which is the maximum of fewer than a hundred."""
    if not times:
        return "-", "-"
    ordered = sorted(times)
    return f"{statistics.median(ordered):.1f}", f"{ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]:.1f}"


@contextmanager
def bench_node() -> Iterator[Node]:
    """A node with its state on the disk of the checkout, which this process has entered."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    state = tempfile.mkdtemp(prefix="bench-", dir=build)
    try:
        with Node() as node:
            node.path("/var/lib/cni").mkdir()
            node.run(["mount", "--bind", state, "/var/lib/cni"]).check_returncode()
            node.master()
            libc = ctypes.CDLL(None, use_errno=True)
            own = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "mnt")]
            there = [os.open(Path(node.root).parent / "ns" / kind, os.O_RDONLY) for kind in ("net", "mnt")]
            for number in range(AT_ONCE):
                node.pod(f"pod{number}")
            try:
                for fd in there:
                    if libc.setns(fd, 0):
                        raise OSError(ctypes.get_errno(), "setns")
                yield node
            finally:
                for fd in own:
                    libc.setns(fd, 0)
    finally:
        shutil.rmtree(state)


def file_system(path: str) -> str:
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100, help="how often each operation is measured (default 100)")
    parser.add_argument("--json", action="store_true", help="all samples as JSON in place of the table")
    options = parser.parse_args()
    console = Console()
    why = unusable()
    if why:
        console.print(f"bench {why}")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    suites = [OURS]
    if (GO_PLUGINS / "macvlan").exists() and (GO_PLUGINS / "host-local").exists():
        suites.append(GO)
    with bench_node() as node:
        pods = list(node.pods.values())
        found = alternately(suites, options.rounds, "one by one", lambda s, n: attachment(s, pods[0].path, n))
        parts = [
            alternately(suites, options.rounds, "IPAM alone", addresses),
            alternately(suites, max(5, options.rounds // 10), "at once", lambda s, _: at_once(s, pods)),
            full_pools(suites, options.rounds),
        ]
        disk = file_system("/var/lib/cni")
    for part in parts:
        for name, samples in part.items():
            found[name] |= samples
    if options.json:
        print(json.dumps(found))
        return 0
    console.print(table(found))
    if GO not in suites:
        console.print(
            f"no columns for Go: {GO_PLUGINS} has no macvlan and host-local (Debian: containernetworking-plugins)"
        )
    empty, full = (statistics.median(found[OURS.name][f"IPAM: ADD, {n} leases"]) for n in ("0", f"{FULL:,}"))
    verdict = "within" if full / empty <= LIMIT else "[bold red]above[/]"
    console.print(f"ADD with {FULL:,} leases / with none: {full / empty:.2f}, {verdict} the limit of {LIMIT}")
    python = (BIN / "macvlan").read_text().partition(" ")[0].removeprefix("#!")
    console.print(f"{python}, Linux {platform.release()}, {os.cpu_count()} CPUs, state on {disk}", highlight=False)
    return int(full / empty > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
