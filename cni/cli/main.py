"""The command `railcni`. Exit codes: 0 done, 1 it failed, 2 it was called wrongly. Faults are printed here alone."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from cni import VERSION
from cni.cli import overview
from cni.cli.terminal import output, subcommand
from cni.library.runtime.failed import PluginFailed, StepsFailed
from cni.shared.spec.errors import CniError

# Which module has which commands. Only that of the command given is loaded: the libraries of all take half a second.
COMMANDS = {
    "cni.cli.attach.command": ("attach", "detach", "check", "gc", "status"),
    "cni.cli.ipam": ("ipam",),
    "cni.cli.attachments": ("attachments",),
    "cni.cli.install.command": ("install", "uninstall"),
    "cni.cli.agent": ("agent",),
    "cni.cli.device_plugin": ("device-plugin",),
    "cni.cli.vfs": ("vfs",),
    "cni.cli.rdma.command": ("rdma",),
    "cni.cli.nad.command": ("nad",),
    "cni.cli.rails.command": ("rails",),
    "cni.cli.doctor.command": ("doctor",),
    "cni.cli.support.command": ("support-bundle",),
    "cni.cli.cluster": ("cluster",),
    "cni.cli.dranet": ("dranet-ipam",),
    "cni.cli.warm": ("warm",),
}

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> int:
    """Run the command that sys.argv names; its exit code."""
    if sys.stdout is None:  # closed by the caller: the next file opened, such as a store, would be written over
        output.print_fault("railcni: stdout is closed: send it to a file, or to /dev/null")
        return 1
    options = _parser(sys.argv[1:2]).parse_args()
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except StepsFailed as several:
        for fault in several.faults:
            _print(fault)
    except CniError as fault:
        _print(fault)
    except BrokenPipeError:  # the reader of our output, such as `head`, has had enough
        _drop_stdout()
        return 0
    except OSError as fault:
        if fault.errno in _FULL and not fault.filename:
            _drop_stdout()
            output.print_fault(f"railcni: the output cannot be written: {fault.strerror}")
        else:
            output.print_fault(f"railcni: {_unforeseen(fault)}")
    except KeyboardInterrupt:
        output.print_fault("railcni: interrupted")
    except Exception as fault:
        output.print_fault(f"railcni: {_unforeseen(fault)}")
    return 1


class _Parser(argparse.ArgumentParser):
    """A parser that names the word that was most likely meant; those of its commands and verbs are of this class too."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        meant = difflib.get_close_matches(str(value), map(str, action.choices or ()), n=1)
        if meant and value not in (action.choices or ()):
            raise argparse.ArgumentError(action, f'there is no "{value}": did you mean "{meant[0]}"?')
        super()._check_value(action, value)


def _parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command `given`; without a known one, of all commands."""
    parser = _Parser(prog="railcni", description="Networks for RDMA pods, by hand.")
    parser.add_argument("--version", action="version", version=f"railcni {VERSION}")
    commands: argparse._SubParsersAction[Any] = parser.add_subparsers(
        required=True, metavar="COMMAND", title="commands"
    )
    needed = [module for module, names in COMMANDS.items() if given and given[0] in names]
    for module in needed or ([] if {"demo", "--version"} & {*given} else COMMANDS):
        importlib.import_module(module).register(commands)
    about = "attach two pods to an RDMA-like master, ping, detach; in namespaces of its own"
    demo = subcommand.add(commands, "demo", about)
    demo.set_defaults(run=_demo)
    parser.formatter_class, parser.epilog = overview.Overview, overview.EXAMPLES
    return parser


def _demo(options: argparse.Namespace) -> int:
    from cni.cli import demo  # with pyroute2, which costs 0.2 s and serves no other command

    return demo.run()


def _drop_stdout() -> None:
    """What Python still holds for stdout goes nowhere, so that the interpreter's end does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(fault: CniError) -> None:
    if isinstance(fault, PluginFailed):
        title = f"railcni: {fault.plugin} {fault.verb} failed with code {fault.code}: {fault.msg}"
    else:
        title = f"railcni: {fault.msg}"
    details = fault.details.strip()
    output.print_fault(title, "" if fault.msg.strip().endswith(details) else details)


def _unforeseen(fault: Exception) -> str:
    """One line about a fault of the command itself: the error and its place."""
    if isinstance(fault, OSError) and fault.filename:
        return f"{fault.filename}: {fault.strerror}"
    trace = fault.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else "?"
    return f"a fault of railcni itself at {place}: {type(fault).__name__}: {fault}"
