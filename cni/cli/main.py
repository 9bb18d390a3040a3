"""The command `railcni`. Exit codes: 0 success, 1 failure, 2 wrong call. No other module prints exceptions."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any, TextIO, cast

from cni import VERSION
from cni.cli.terminal import output, subcommand
from cni.node.runtime.executables import PluginFailed, StepsFailed
from cni.shared.spec.errors import CniError

# The groups of --help, with the module of each command below cni.cli. Only the module of the given command is loaded,
# since all modules with their libraries take half a second.
GROUPS = {
    "look at a node": {
        "status": "attach",
        "doctor": "doctor.command",
        "rdma": "rdma",
        "attachments": "attachments",
        "support-bundle": "support",
    },
    "networks": {"nad": "nad", "rails": "rails.command", "test": "pair"},
    "addresses": {"ipam": "ipam"},
    "a cluster": {"cluster": "cluster"},
    "set up a node": {
        "install": "install",
        "uninstall": "install",
        "agent": "agent",
        "device-plugin": "devices",
        "dra": "devices",
        "dranet-ipam": "agent",
        "vfs": "devices",
        "warm": "warm",
    },
    "call plugins by hand": dict.fromkeys(("attach", "detach", "check", "gc"), "attach"),
    "this command": {"completion": "completion", "version": "completion"},
}
MODULES = {name: module for group in GROUPS.values() for name, module in group.items()}
EXAMPLES = """\
examples:
  railcni test                        ping between two pods on this machine
  railcni doctor                      find the faults in the RDMA of this node
  railcni doctor --pod team/train-0   find the faults in the RDMA of a pod
  railcni nad lint rdma-net.yaml      find the faults of a network's file
  railcni ipam show 192.168.111.7     show which pod has an address
  kubectl railcni status              show all nodes of a cluster
  kubectl railcni test team/rdma-net  test a network between two nodes
"""

ALIASES = {"add": "attach", "del": "detach", "ls": "attachments", "demo": "test"}
_SAME_SIGNAL_SECONDS = 1.0  # a second signal, from the parent process, must not stop the clean-up
_WATCH_SECONDS = 2.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> int:
    """Run the command that sys.argv names; return its exit code."""
    _open_streams()
    if sys.stdout is None:  # the caller closed it: the output would go into the next opened file, such as a store
        output.print_fault("railcni: stdout is closed: send it to a file, or to /dev/null")
        return 1
    _end_in_order()
    try:
        code = _run()
        sys.stdout.flush()
        return code
    except CniError as fault:
        for one in fault.faults if isinstance(fault, StepsFailed) else [fault]:
            _print(one)
    except BrokenPipeError:  # stderr has no reader any more
        pass
    except KeyboardInterrupt:
        output.print_fault("railcni: interrupted")
    except Exception as fault:
        output.print_fault(f"railcni: {_unforeseen(fault)}")
    return 1


def _open_streams() -> None:
    """Open /dev/null for a closed stdin or stderr, so that no later file gets descriptor 0 or 2. If stdout is a pipe,
    wrap it in _Pipe."""
    if sys.stdin is None:
        sys.stdin = _null(0, "r")
    if sys.stderr is None:
        sys.stderr = _null(2, "w")
    for stream in (sys.stdout, sys.stderr):  # a file's name may have bytes, and a fault "…", that the locale has not
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is sys.__stdout__ and sys.stdout and stat.S_ISFIFO(os.fstat(1).st_mode):
        pipe = io.BufferedWriter(_Pipe(1, "w", closefd=False))
        sys.stdout = io.TextIOWrapper(pipe, sys.stdout.encoding, sys.stdout.errors)


class _Pipe(io.FileIO):
    """A pipe whose reader, such as `head`, may end early. Later output is dropped; the exit code does not change."""

    is_broken = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _Pipe.is_broken = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def _null(number: int, mode: str) -> TextIO:
    os.dup2(os.open(os.devnull, os.O_RDWR), number)
    os.set_inheritable(number, True)  # dup2 changes nothing if the descriptor has the number already
    return cast(TextIO, open(number, mode, closefd=False))


def _end_in_order() -> None:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that the command cleans up."""
    if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
        last = float("-inf")

        def interrupt(number: int, frame: object) -> None:
            nonlocal last
            before, last = last, time.monotonic()
            if last - before > _SAME_SIGNAL_SECONDS:
                raise KeyboardInterrupt

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # nohup ignores SIGHUP
                signal.signal(number, interrupt)


def _run() -> int:
    argv = sys.argv[1:]
    for before in ([], ["cluster"]):
        if argv[: len(before) + 1] == [*before, "help"]:
            argv = [*before, *argv[len(before) + 1 :], "--help"]
    argv = [ALIASES.get(word, word) for word in argv[:1]] + argv[1:] or ["--help"]
    try:
        options = _parser(argv[:1]).parse_args(argv)
    except SystemExit:  # after --help or --version, whose output the reader may cut short
        sys.stdout.flush()
        raise
    options.require(options)
    output.Form.headers = not getattr(options, "no_headers", False)
    output.Form.is_wide, output.Form.seen = getattr(options, "output", "") == "wide", None
    if output.Form.is_wide:
        options.output = "table"
    return _watch(options) if getattr(options, "watches", False) else int(options.run(options) or 0)


def _watch(options: argparse.Namespace) -> int:
    """Run a listing with -w repeatedly until Ctrl-C, or until nothing reads the output; return the last exit code."""
    output.Form.seen, code = {}, 0
    try:
        while True:
            code = int(options.run(argparse.Namespace(**vars(options))) or 0)
            sys.stdout.flush()
            if _Pipe.is_broken:
                break
            time.sleep(_WATCH_SECONDS)
    except KeyboardInterrupt:
        pass
    finally:
        output.Form.seen = None
    return code


class _Overview(argparse.RawDescriptionHelpFormatter):
    """A help formatter that lists the commands in GROUPS."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        listed = {one.dest: one for one in action._get_subactions()}
        parts = []
        for title, names in GROUPS.items():
            parts.append(f"{' ' * self._current_indent}{title}:\n")
            self._indent()
            parts += [super(_Overview, self)._format_action(listed[name]) for name in names if name in listed]
            self._dedent()
        return "".join(parts)


def _parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser for the command `given[0]`, or for all commands if no command has this name."""
    parser = subcommand.Parser(prog="railcni", description="Manage networks for RDMA pods.")
    parser.add_argument("--version", action="version", version=f"railcni {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    name = given[0] if given else ""
    needed = [MODULES[name]] if name in MODULES else [] if name == "--version" else MODULES.values()
    for module in dict.fromkeys(needed):
        importlib.import_module(f"cni.cli.{module}").register(commands)
    parser.formatter_class, parser.epilog = _Overview, EXAMPLES
    return parser


def _print(fault: CniError) -> None:
    failed = f"{fault.plugin} {fault.verb} failed with code {fault.code}: " if isinstance(fault, PluginFailed) else ""
    output.print_fault(f"railcni: {failed}{fault.msg}", fault.further())


def _unforeseen(fault: Exception) -> str:
    """A line of text about an unexpected error: the error, and the place in the code that raised it."""
    if isinstance(fault, OSError) and fault.filename:
        return f"{fault.filename}: {fault.strerror}"
    if isinstance(fault, OSError) and fault.errno in _FULL:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit raises no error
        return f"the output cannot be written: {fault.strerror}"
    if isinstance(fault, FileNotFoundError):  # from getcwd(2), without a file name
        return "the working directory has been removed: change to another one, such as by `cd /`"
    frame = traceback.extract_tb(fault.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"a fault of railcni itself at {place}: {type(fault).__name__}: {fault}"
