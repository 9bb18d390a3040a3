"""Ours and the Go plugins, alternately in one run: how long each call takes, and what it costs.

A round does each operation once on every side, in an order that changes from round to round, so that whatever else
the machine does falls on all of them. Times are of the whole process, from its start to its end. Nothing but the
ratio of the medians carries over to another machine. Writes build/bench.json (all samples) and build/bench.svg.
RAILCNI_BENCH_PEERS names a folder of other plugins to measure too; RAILCNI_BENCH_BIN one of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import breakdown, chart, report
from tests.bench.calls import adopt_orphans
from tests.bench.progress import Progress
from tests.bench.run import Run
from tests.bench.samples import Results
from tests.bench.scenarios import BUILD, GO, OURS, Side
from tests.bench.scene import bench_node, load, machine
from tests.node import BIN, GO_PLUGINS, unusable

COLUMNS = 170  # of the tables, where the output is no terminal


def choose_sides(folder: Path, peers: str) -> list[Side]:
    """Ours, Go's where they are installed, and those of the folder `peers`."""
    sides = [Side(OURS, folder, 1)]
    if all((GO_PLUGINS / name).exists() for name in ("macvlan", "host-local", "host-device")):
        sides.append(Side(GO, GO_PLUGINS, 2))
    if peers:
        sides.append(Side(Path(peers).resolve().name, Path(peers).resolve(), 3))
    return sides


def facts_of(side: Side) -> dict[str, str]:
    """What runs our plugins."""
    script = breakdown.script_of(side.executable("macvlan"))
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
    options = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=COLUMNS)
    why = unusable()
    if why:
        console.print(f"bench {why}")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sides = choose_sides(options.bin.resolve(), os.environ.get("RAILCNI_BENCH_PEERS", ""))
    adopt_orphans()
    with bench_node(BUILD, sides) as node, Progress() as progress:
        facts, before = facts_of(sides[0]) | machine(), load()
        results = Run(sides, list(node.pods.values()), options.rounds, progress).everything()
    facts["load average before and after"] = f"{before:.1f} and {load():.1f}"
    names = [side.name for side in sides]
    (BUILD / "bench.json").write_text(json.dumps(report.document(results, facts, options.rounds), indent=1) + "\n")
    (BUILD / "bench.svg").write_text(chart.svg(results, names, facts, options.rounds))
    _show(console, results, names, facts, options.rounds)
    return 1 if results.failures else 0


def _show(console: Console, results: Results, names: list[str], facts: dict[str, str], rounds: int) -> None:
    tables: list[Table] = [report.times(results, names), report.memory(results, names)]
    if results.breakdown:
        tables.append(report.phases(results))
    for table in tables:
        console.print(table)
    if GO not in names:
        console.print(f"no columns for Go: {GO_PLUGINS} has not its plugins (Debian: containernetworking-plugins)")
    for failure in results.failures:
        console.print(f"[bold red]failed:[/] {failure}", highlight=False)
    console.print("; ".join(f"{key}: {value}" for key, value in facts.items()), highlight=False)
    console.print(
        "The load is of everything on the machine: above the number of processors, these times are of that, too."
    )
    console.print(f"{rounds} rounds; all samples: build/bench.json; chart: build/bench.svg", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
