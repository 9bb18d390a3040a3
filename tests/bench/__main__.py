"""Ours and the Go plugins, alternately in one run: how long each call takes, and what it costs.

The parts: "plugins", the link plugins with node-local addresses, beside Go's; "kubernetes", the IPAM plugin at the API
server of RAILCNI_TEST_KUBECONFIG, beside the Go whereabouts that RAILCNI_BENCH_WHEREABOUTS names; "etcd"; and "users",
2,048 ADDs by 32 workers over Kubernetes, etcd and file. Warm workers serve ours in each of them.

A round does each operation once on every side, in an order that changes from round to round, so that whatever else
the machine does falls on all of them. Times are of the whole process, from its start to its end. Nothing but the
ratio of the medians carries over to another machine. Writes build/bench.json (all samples).
RAILCNI_BENCH_PEERS names a folder of other plugins to measure too, such as those of an earlier version, which the parts
"kubernetes" and "users" then measure over IPPools; RAILCNI_BENCH_BIN one of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests import etcd
from tests.bench import functions, limits, report, users
from tests.bench.apiserver import Server
from tests.bench.calls import adopt_orphans, script_of
from tests.bench.etcd import Etcd
from tests.bench.hosts import hosts
from tests.bench.kubernetes import PEER, SCENES, Kubernetes
from tests.bench.progress import Progress
from tests.bench.run import Run
from tests.bench.samples import Results
from tests.bench.scenarios import BUILD, GO, NODES, OURS, Side
from tests.bench.scene import bench_node, directory, load, machine
from tests.node import BIN, GO_PLUGINS, unusable

PARTS = ("plugins", "kubernetes", "etcd", "users")
STORES = ("kubernetes", "former", "addresslease", "etcd", "file")  # former: an earlier version's over IPPools
COLUMNS = 170  # of the tables, where the output is no terminal


def choose_sides(folder: Path, peers: str) -> list[Side]:
    """Ours, Go's where they are installed, and those of the folder `peers`."""
    sides = [Side(OURS, folder, 1)]
    if all((GO_PLUGINS / name).exists() for name in ("macvlan", "host-local", "host-device")):
        sides.append(Side(GO, GO_PLUGINS, 2))
    if peers:
        folder = Path(peers).resolve()
        sides.append(Side(folder.parent.name if folder.name == "bin" else folder.name, folder, 3))
    return sides


def facts_of(side: Side) -> dict[str, str]:
    """What runs our plugins."""
    script = script_of(side.executable("macvlan"))
    if not script:
        return {}
    version = subprocess.run([script[0][0], "-V"], capture_output=True, text=True).stdout.strip()
    return {"plugins of ours run by": version}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200, help="how often each operation is measured (default 200)")
    default = os.environ.get("RAILCNI_BENCH_BIN") or BIN
    parser.add_argument("--bin", type=Path, default=default, metavar="DIR", help="our executables are in DIR")
    parser.add_argument("--only", choices=PARTS, action="append", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--store", choices=STORES, action="append", help="of the part users: not all")
    parser.add_argument(
        "--layout",
        choices=users.LAYOUTS,
        action="append",
        help="of the part users: a range for each network, one for all, or rails",
    )
    parser.add_argument("--scene", choices=SCENES, action="append", help="of the part kubernetes: not all")
    parser.add_argument("--pods", type=int, default=128, help="pods of the part users (default 128)")
    options = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=COLUMNS)
    why = unusable()
    if why:
        console.print(f"bench {why}")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sides = choose_sides(options.bin.resolve(), os.environ.get("RAILCNI_BENCH_PEERS", ""))
    adopt_orphans()
    before, facts, results = load(), facts_of(sides[0]), Results()
    run = Parts(options, sides, results, Progress())
    for part in options.only or PARTS:
        try:
            facts |= getattr(run, part)()
        except (KeyboardInterrupt, SystemExit):  # what was measured so far is shown
            facts["ended early"] = f"in the part {part}"
            break
    facts["load average before and after"] = f"{before:.1f} and {load():.1f}"
    names = list(dict.fromkeys([*(side.name for side in sides), *results.sides()]))
    (BUILD / "bench.json").write_text(json.dumps(report.document(results, facts, options.rounds), indent=1) + "\n")
    _show(console, results, names, facts, options.rounds)
    return 1 if results.failures else 0


class Parts:
    """The parts of a run. Each answers the facts that its figures depend on."""

    def __init__(self, options: argparse.Namespace, sides: list[Side], results: Results, progress: Progress) -> None:
        self._rounds: int = options.rounds
        self._pods: int = options.pods
        self._stores: Sequence[str] = options.store or STORES
        self._layouts: Sequence[str] = options.layout or tuple(users.LAYOUTS)
        self._scenes: Sequence[str] = options.scene or SCENES
        self._ours = sides[0].folder
        self._sides = sides
        self._results = results
        self._progress = progress

    def plugins(self) -> dict[str, str]:
        with bench_node(BUILD, self._sides) as node:
            facts = machine()
            Run(self._results, self._sides, list(node.pods.values()), self._rounds, self._progress).everything()
        facts |= functions.of_add()[0]
        if len(self._sides) == 1 or self._sides[1].name != GO:
            facts["no columns for Go"] = f"{GO_PLUGINS} has not its plugins (Debian: containernetworking-plugins)"
        return facts

    def kubernetes(self) -> dict[str, str]:
        with Server() as server, hosts(NODES, BUILD, server.configuration) as nodes:
            part = Kubernetes(self._results, self._progress, self._rounds, self._sides, server)
            part.everything(nodes, self._scenes)
            return self._server_facts(server)

    def etcd(self) -> dict[str, str]:
        if etcd.unusable():
            return {"etcd is not measured": etcd.unusable()}
        with etcd.Cluster(flags=etcd.LARGE) as cluster, directory(BUILD) as empty, hosts(1, BUILD, empty) as nodes:
            Etcd(self._results, self._progress, self._rounds, self._ours, cluster).everything(nodes[0])
        return {}

    def users(self) -> dict[str, str]:
        with ExitStack() as stack:
            server = stack.enter_context(Server())
            stores: list[tuple[users.Store, Path]] = []
            if "addresslease" in self._stores:
                stores.append((users.AddressLeaseStore(server), self._ours))
            if "kubernetes" in self._stores:
                stores.append((users.KubernetesStore(server), self._ours))
            for side in self._sides[1:] if "former" in self._stores else ():
                if side.name != GO and side.executable("whereabouts").exists():
                    stores.append((users.KubernetesStore(server, side.name), side.folder))
            if "etcd" in self._stores and not etcd.unusable():
                stores.append((users.EtcdStore(stack.enter_context(etcd.Cluster(flags=etcd.LARGE))), self._ours))
            if "file" in self._stores:
                stores.append((users.FileStore(), self._ours))
            users.run(self._results, self._progress, stores, self._pods, server.configuration, self._layouts)
            return self._server_facts(server)

    def _server_facts(self, server: Server) -> dict[str, str]:
        if not server.real:
            return {
                "Kubernetes": "the tests' own server in Python: those are not the figures of a cluster; "
                "RAILCNI_TEST_KUBECONFIG names a real one"
            }
        beside = {} if os.environ.get(PEER) else {"no whereabouts beside": f"{PEER} names Go's executable"}
        return {"Kubernetes": str(server), **beside}


def _show(console: Console, results: Results, names: list[str], facts: dict[str, str], rounds: int) -> None:
    tables: list[Table] = []
    if results.samples:
        tables.append(report.times(results, names))
    if results.memory_kib:
        tables.append(report.memory(results, names))
    if results.figures:
        tables.append(report.figures(results, names))
    if results.crowds:
        tables.append(report.crowds(results))
    for table in tables:
        console.print(table)
    for failure in results.failures:
        console.print(f"[bold red]failed:[/] {failure}", highlight=False)
    for sentence in limits.crowd_ratios(results.crowds):
        console.print(sentence, highlight=False, markup=False)
    told = [(c, text) for c in results.crowds for text in (*c.faults, *([] if c.audit == "clean" else [c.audit]))]
    for remark in (*results.remarks, *(f"{crowd.store}, {crowd.what}: {text}" for crowd, text in told)):
        console.print(remark, highlight=False, markup=False)
    for key, value in facts.items():
        console.print(f"{key}: {value}", highlight=False, markup=False)
    console.print(
        "The load is of everything on the machine: above the number of processors, these times are of that, too."
    )
    console.print(f"{rounds} rounds; all samples: build/bench.json", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
