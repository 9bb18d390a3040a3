"""railcni install, uninstall: put this railcni into the plugin folder of the node's container runtime, and take it out.

What is laid out there, and why a call in the middle of an install finds a whole version: cni/cli/installation. From a
bundle the whole bundle is installed; from a checkout the plugins alone, for a host that has this Python (source.py).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cni.attachment import STATE
from cni.cli import output, subcommand
from cni.cli.installation import change, facts, health, source
from cni.cli.installation.apply import Folder
from cni.cli.installation.below import below
from cni.cli.installation.holds import holds
from cni.cli.installation.layout import BUNDLE, NAMES, PLAIN, Facts, Step, plan_release, plan_removal
from cni.cli.installation.runtimes import plugin_folder
from cni.spec.errors import IoFailure, TryAgainLater


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both commands."""
    about = "put the plugins into the container runtime's plugin folder, or change to this version"
    parser = subcommand.add(commands, "install", about)
    add_options(parser)
    parser.add_argument(
        "--replace",
        action="store_true",
        help=f"also take the names {', '.join(PLAIN)}; what has them is kept, and put back by uninstall",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.set_defaults(run=_install)

    about = "take the plugins out again, and put back what was replaced"
    parser = subcommand.add(commands, "uninstall", about)
    add_options(parser)
    parser.add_argument("--force", action="store_true", help="also when attachments live that only railcni can detach")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.set_defaults(run=_uninstall)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which installation is meant."""
    parser.add_argument(
        "--to", default="", metavar="DIR", help="the plugin folder; default: what containerd or CRI-O is configured for"
    )
    parser.add_argument(
        "--root", default="/", metavar="DIR", help="where the host's file system is mounted, in a container: all paths"
        " are taken below it"
    )  # fmt: skip
    parser.add_argument("--state-dir", default=STATE, metavar="DIR", help=f"where records are kept; default: {STATE}")


def folder_of(options: argparse.Namespace) -> Folder:
    """The plugin folder that the options mean. InvalidConfig says why there is none."""
    shown = plugin_folder(options.root, options.to)
    return Folder(below(options.root, shown), shown)


def state_of(options: argparse.Namespace) -> str:
    """The state directory's real path."""
    return below(options.root, os.path.abspath(options.state_dir))


# --- the commands ---


def _install(options: argparse.Namespace) -> int:
    folder = folder_of(options)
    wanted = source.here()
    source.check_host(wanted, options.root)
    if options.dry_run:
        _show(change.steps_to(folder, wanted, options.replace), folder)
        return 0
    with _progress(wanted) as report:
        steps = change.install(folder, wanted, options.replace, report)
    found = facts.read(folder.path)
    names = ", ".join(name for name in NAMES if name in found.ours)
    console = output.console()
    console.print(f"railcni {found.current} is installed in {folder.shown}: {names}")
    if not steps:
        console.print("nothing had to be changed")
    if wanted.interpreter:
        console.print(f"from a checkout: the plugins alone, for {wanted.interpreter}")
    for fault in health.state_faults(state_of(options)):
        output.print_fault(f"railcni: {fault}")
    return 0


def _uninstall(options: argparse.Namespace) -> int:
    folder = folder_of(options)
    found = facts.read(folder.path)
    if found.ours | found.kept == frozenset() and not os.path.isdir(folder.bundle):
        raise IoFailure(f"railcni is not installed in {folder.shown}: name the plugin folder where it is with --to")
    if options.dry_run:
        _show([*plan_release(found), *plan_removal(found)], folder)
        return 0
    before = change.uninstall(folder, lambda known: None if options.force else _refuse_held(options, known, folder))
    back = ", ".join(name for name in NAMES if name in before.ours & before.kept)
    console = output.console()
    console.print(f"railcni is no longer in {folder.shown}" + (f"; put back: {back}" if back else ""))
    console.print(f"its records and leases stay in {options.state_dir}")
    return 0


def _refuse_held(options: argparse.Namespace, known: Facts, folder: Folder) -> None:
    remaining = [name for name in PLAIN if name in known.kept or name in known.foreign]
    found = list(holds(state_of(options), options.root, remaining))
    if found:
        lines = [f"{a['network']} {a['ifname']} of {_whose(a)}: {why}" for a, why in found]
        count = f"{len(found)} attachments live" if len(found) > 1 else "an attachment lives"
        raise TryAgainLater(
            f"railcni stays in {folder.shown}: {count} that only railcni can detach. Delete those pods (or `railcni detach`)"
            " first, or use --force and lose what is listed",
            "\n".join(lines),
        )


def _whose(attachment: dict[str, Any]) -> str:
    return str(attachment["pod"]) or f"container {attachment['containerID'][:12]}"


# --- what is shown ---


def _show(steps: list[Step], folder: Folder) -> None:
    console = output.console()
    console.print(f"in {folder.shown}/ and {folder.shown}/{BUNDLE}/:" if steps else f"{folder.shown}: nothing to do")
    for step in steps:
        console.print(f"  {step}")


@contextmanager
def _progress(wanted: source.Source) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, for the bytes of a copy; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = TextColumn("copying"), BarColumn(), DownloadColumn()
    with Progress(*columns, console=output.console(sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=wanted.size)
        yield lambda count: bar.advance(task, count)
