"""The command `railcni`. Exit codes: 0 done, 1 it failed, 2 it was called wrongly. Faults are printed here alone."""

from __future__ import annotations

import argparse
import os
import sys

from cni import VERSION
from cni.cli import agent, attach, attachments, install, ipam, output
from cni.cli.executables import PluginFailed
from cni.cli.runtime import StepsFailed
from cni.spec.errors import CniError


def main() -> int:
    """Run the command that sys.argv names; its exit code."""
    parser = _parser()
    options = parser.parse_args()
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        output.print_fault("railcni: interrupted")
    except Exception as fault:
        output.print_fault(f"railcni: {_unforeseen(fault)}")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="railcni", description="Networks for RDMA pods, by hand.")
    parser.add_argument("--version", action="version", version=f"railcni {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for module in (attach, ipam, attachments, install, agent):
        module.register(commands)
    about = "attach two pods to an RDMA-like master, ping, detach; in namespaces of its own"
    demo = commands.add_parser("demo", help=about, description=about[0].upper() + about[1:] + ".")
    demo.set_defaults(run=_demo)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from cni.cli import demo  # with pyroute2, which costs 0.2 s and serves no other command

    return demo.run()


def _print(fault: CniError) -> None:
    if isinstance(fault, PluginFailed):
        title = f"railcni: {fault.plugin} {fault.verb} failed with code {fault.code}: {fault.msg}"
    else:
        title = f"railcni: {fault.msg}"
    details = "" if fault.details.strip() == fault.msg.strip() else fault.details
    output.print_fault(title, details.strip())


def _unforeseen(fault: Exception) -> str:
    """One line about a fault of the command itself: what, and where."""
    if isinstance(fault, OSError) and fault.filename:
        return f"{fault.filename}: {fault.strerror}"
    trace = fault.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else "?"
    return f"a fault of railcni itself at {place}: {type(fault).__name__}: {fault}"
