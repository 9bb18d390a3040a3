"""railcni install, uninstall: put this railcni into the plugin folder of the node's container runtime, or remove it.

The package cni/library/installation describes what is laid out there, and why a call during an install finds a whole version.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from cni.cli import warm
from cni.cli.terminal import output, subcommand
from cni.cli.terminal.progress import Progress
from cni.library.installation import change, content, health, layout
from cni.library.installation.change import Folder, Step
from cni.library.installation.holds import holds
from cni.library.installation.layout import BUNDLE, COMMANDS, NAMES, PLAIN, Installation
from cni.library.installation.link import CommandLink
from cni.library.installation.options import add_options, folder_of, state_of
from cni.shared.spec.errors import IoFailure, TryAgainLater


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both commands."""
    about = "put the plugins into the container runtime's plugin folder, or change to this version"
    parser = subcommand.add(commands, "install", about)
    add_options(parser)
    parser.add_argument(
        "--replace",
        action="store_true",
        help="also take the plain names of --plugins; the files that have them are kept, and put back by uninstall",
    )
    parser.add_argument(
        "--plugins",
        type=_plugins,
        default=PLAIN,
        metavar="NAME,NAME",
        help=f"with --replace: which plain names; default: {','.join(PLAIN)}",
    )
    _add_link_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print the steps")
    parser.set_defaults(run=_install)

    about = "remove the plugins again, and put back the replaced ones"
    parser = subcommand.add(commands, "uninstall", about)
    add_options(parser)
    parser.add_argument("--force", action="store_true", help="also when attachments live that only railcni can detach")
    _add_link_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print the steps")
    parser.set_defaults(run=_uninstall)


def _add_link_option(parser: argparse.ArgumentParser) -> None:
    about = "where the command railcni is linked, if the folder is there and no other file has the name"
    subcommand.option(parser, "--link-dir", COMMANDS, about)


def _plugins(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in PLAIN]:
        raise argparse.ArgumentTypeError(f'"{",".join(unknown)}": want some of {",".join(PLAIN)}')
    return names


# --- the commands ---


def _install(options: argparse.Namespace) -> int:
    folder = folder_of(options)
    wanted = content.here()
    content.check_host(wanted, options.root)
    replace = options.plugins if options.replace else ()
    link = CommandLink(folder, options.root, options.link_dir, wanted)
    if options.dry_run:
        return _print_steps([*change.steps_to(folder, wanted, replace), *link.made()], folder)
    with Progress() as progress:
        steps = change.install(folder, wanted, replace, progress.say)
        for step in link.made():
            folder.carry_out([step], progress.say)
    if steps:
        warm.stop(options.root)  # those of the version before
    found = layout.read(folder.path)
    names = ", ".join(name for name in NAMES if name in found.ours)
    console = output.console()
    console.print(f"railcni {found.current} is installed in {folder.shown}: {names}")
    if kept := ", ".join(sorted(found.kept)):
        console.print(f"kept, to be put back by uninstall: {kept}")
    console.print(f"the command: {link}")
    if not steps:
        console.print("nothing had to be changed")
    if wanted.interpreter:
        console.print(f"from a checkout: the plugins alone, for {wanted.interpreter}")
    for fault in health.state_faults(state_of(options)):
        output.print_fault(f"railcni: {fault}")
    return 0


def _uninstall(options: argparse.Namespace) -> int:
    folder = folder_of(options)

    def refuse(found: Installation) -> None:
        if not (found.ours or found.kept or os.path.isdir(folder.bundle)):
            raise IoFailure(f"railcni is not installed in {folder.shown}: name the plugin folder where it is with --to")
        if not options.force:
            _refuse_held(options, found, folder)

    refuse(layout.read(folder.path))  # the lock makes the bundle folder
    link = CommandLink(folder, options.root, options.link_dir)
    if options.dry_run:
        return _print_steps([*change.steps_away(folder, refuse), *link.removed()], folder)
    before = change.uninstall(folder, refuse, lambda: warm.stop(options.root))
    folder.carry_out(link.removed())
    back = ", ".join(name for name in NAMES if name in before.ours & before.kept)
    # Not by `output`: a bundle that has removed itself has no module left to load.
    print(f"railcni is no longer in {folder.shown}" + (f"; put back: {back}" if back else ""))
    print(f"its records and leases stay in {options.state_dir}")
    return 0


def _refuse_held(options: argparse.Namespace, found: Installation, folder: Folder) -> None:
    remaining = found.kept | found.foreign
    lines = [
        f"{a['network']} {a['ifname']} of {_pod_of(a)}: {why}"
        for a, why in holds(state_of(options), options.root, remaining)
    ]
    if lines:
        count = f"{len(lines)} attachments live" if len(lines) > 1 else "an attachment lives"
        raise TryAgainLater(
            f"railcni stays in {folder.shown}: {count} that only railcni can detach. Delete those pods (or `railcni detach`)"
            " first, or use --force and lose what is listed",
            "\n".join(lines),
        )


def _pod_of(attachment: dict[str, Any]) -> str:
    return str(attachment["pod"]) or f"container {attachment['containerID'][:12]}"


def _print_steps(steps: list[Step], folder: Folder) -> int:
    console = output.console()
    console.print(f"in {folder.shown}/ and {folder.shown}/{BUNDLE}/:" if steps else f"{folder.shown}: nothing to do")
    for step in steps:
        console.print(f"  {step.text}")
    return 0
