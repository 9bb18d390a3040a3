"""`make lab`: boot the machines of the lab one after another, run their tests in them, and print what they saw.

python -m tests.lab                          all machines
python -m tests.lab roce sriov               some of them
python -m tests.lab roce -k walk             tests by their names, as pytest's -k
python -m tests.lab roce --run 'CMD'         boot, run CMD in sh, print what it says
python -m tests.lab --list                   the machines and their tests
RAILCNI_LAB_FOLDER is where QEMU and the kernels are put, for several checkouts: by default build/lab, where the consoles
and results of the guests go in any case.
"""

import argparse
import fcntl
import os
import sys
import time
from pathlib import Path

from tests.lab import guest, helpers, machines, packages
from tests.lab.machines import MACHINES, Machine
from tests.lab.report import Report
from tests.node import ROOT

FOLDER = Path(os.environ.get("RAILCNI_LAB_FOLDER", ROOT / "build" / "lab")).resolve()
_RESULTS = ROOT / "build" / "lab"
_PYTEST = (".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout")
_QUIET_SECONDS, _LONG_SECONDS = 900, 4 * 3600  # without a result the guest hangs: a test takes less
_BOOTS = 2  # a guest that dies is booted once more


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("machines", nargs="*", metavar="MACHINE")
    parser.add_argument("-k", metavar="EXPRESSION", default="")
    parser.add_argument("--run", metavar="CMD")
    parser.add_argument("--long", action="store_true", help="also the tests with the marker `long`: hours")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no machine is begun after so many")
    parser.add_argument("--brief", action="store_true", help="of what a test that passed saw, nothing")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(arguments)
    if unknown := set(options.machines) - set(MACHINES):
        parser.error(f"no machine {', '.join(unknown)}: there are {', '.join(MACHINES)}")
    chosen = [MACHINES[name] for name in options.machines or MACHINES]
    if options.list:
        for machine in chosen:
            print(f"{machine.name:10} {machine.about}: {', '.join(p.name for p in machines.tests(machine.name))}")
        return 0
    report = Report(brief=options.brief)
    ends = time.monotonic() + 60 * options.minutes
    for machine in chosen:
        if time.monotonic() > ends:
            report.unavailable(machine, f"the {options.minutes:g} minutes are over")
        elif options.run:
            _run(machine, options.run, report)
        elif files := machines.tests(machine.name):
            _test(machine, files, options.k, options.long, report)
    return report.end()


def _prepared(machine: Machine) -> tuple[Path, Path, str]:
    """Tools, kernel and what is run first. Unavailable: what hinders."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tools = packages.tools(FOLDER)
        kernel = packages.kernel(FOLDER, machine.kernel)
        before = machine.before
        if machine.module:
            before += f"\ninsmod {helpers.build(FOLDER, kernel, machine.kernel, machine.module)}"
        guest.accelerator(tools, kernel)
    return tools, kernel, before


def _run(machine: Machine, command: str, report: Report) -> None:
    out = _RESULTS / f"run-{machine.name}"
    try:
        tools, kernel, before = _prepared(machine)
    except packages.Unavailable as fault:
        report.unavailable(machine, str(fault))
        return
    ended = guest.run(
        *(tools, kernel, ["sh", "-c", command], out), qemu=machine.qemu, append=machine.append, before=before,
        quiet_seconds=float("inf"),
    )  # fmt: skip
    print((out / "console").read_text(errors="replace"))
    if ended.status != 0:
        report.died(ended.why or f"exit {ended.status}", "the command", last=True)


def _test(machine: Machine, files: list[Path], expression: str, long: bool, report: Report) -> None:
    try:
        tools, kernel, before = _prepared(machine)
    except packages.Unavailable as fault:
        report.unavailable(machine, str(fault))
        return
    report.machine(machine, kernel, guest.accelerator(tools, kernel))
    done: set[str] = set()
    for boot in range(1, _BOOTS + 1):
        out = _RESULTS / f"results-{machine.name}-{boot}"
        command = [*_PYTEST, "-o", "timeout=1800", f"--confcutdir={machines.FOLDER.relative_to(ROOT)}"]
        command += [f"-m={'lab' if long else 'lab and not long'}", f"-k={expression}"]
        command += [f"--deselect={nodeid}" for nodeid in sorted(done)]
        command += [str(path.relative_to(ROOT)) for path in files]
        environ = {"RAILCNI_LAB": machine.name, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environ |= {name: value for name, value in os.environ.items() if name == "RAILCNI_TEST_MULTUS"}
        follower = report.follow(out / "results", done)
        began = time.time()
        ended = guest.run(
            *(tools, kernel, command, out), environ=environ, qemu=machine.qemu, append=machine.append, before=before,
            quiet_seconds=_LONG_SECONDS if long else _QUIET_SECONDS, look=follower.look,
        )  # fmt: skip
        report.booted(out, began, ended)
        if ended.status is not None:
            if ended.status not in (0, 1, 5) or (ended.status == 1 and not follower.failed):
                report.broken((out / "console").read_text(errors="replace"), ended.status)
            return
        report.died(ended.why, follower.current, last=boot == _BOOTS)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
