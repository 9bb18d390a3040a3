"""The command's manual pages, and its completion for bash, zsh and fish, made of its parser.

Usage: python .ci/manual.py FOLDER
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import shtab

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cni import VERSION
from cni.cli import main
from cni.cli.completion import SHELLS
from cni.node import runtime


def write(share: Path) -> None:
    """Write them below `share`."""
    os.environ["COLUMNS"] = "100"  # of the lines of a synopsis
    folders = runtime.PLUGIN_DIRECTORIES
    runtime.PLUGIN_DIRECTORIES = ("BUNDLE/bin", *folders[1:])  # and not where this is built
    try:
        parser = main._parser()
    finally:
        runtime.PLUGIN_DIRECTORIES = folders
    files = {path: shtab.complete(parser, shell) for shell, path in SHELLS.items()}
    files |= {f"man/man1/{name}.1": text for name, text in pages(parser, "networks for RDMA pods")}
    for path, text in files.items():
        (share / path).parent.mkdir(parents=True, exist_ok=True)
        (share / path).write_text(text)


def pages(parser: argparse.ArgumentParser, about: str) -> Iterator[tuple[str, str]]:
    """Name and text of the page of the parser, and of each of its commands."""
    name = parser.prog.replace(" ", "-")
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0"))))
    program, _, rest = " ".join(parser.format_usage().split()[1:]).partition(" ")
    lines = [
        f'.TH "{name}" "1" "{date}" "railcni {VERSION}" "railcni"',
        ".SH NAME",
        f"{name} - {about}",
        ".SH SYNOPSIS",
    ]
    lines += [f".B {program}", rest, ".SH DESCRIPTION", *(parser.description or about).splitlines()]
    inner: list[tuple[argparse.ArgumentParser, str]] = []
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        lines += [f".SH {group.title or ''}".upper()] if actions else []
        for action in actions:
            lines += _described(parser, action)
            if isinstance(action, argparse._SubParsersAction):
                for verb in action._get_subactions():
                    lines += [".TP", f".B {verb.dest}", verb.help or ""]
                    inner.append((action.choices[verb.dest], verb.help or ""))
    if parser.epilog:
        lines += [".SH EXAMPLES", ".nf", *parser.epilog.splitlines()[1:], ".fi"]
    yield name, "".join(f"{_escaped(line)}\n" for line in lines)
    for other, help_of_it in inner:
        yield from pages(other, help_of_it)


def _described(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    """An option or a positional argument, as --help describes it."""
    if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
        return []
    formatter = parser._get_formatter()
    return [
        ".TP",
        f".B {formatter._format_action_invocation(action)}",
        formatter._expand_help(action) if action.help else "",
    ]


def _escaped(line: str) -> str:
    """For roff, whose requests begin with a dot and a capital letter here."""
    text = line.replace("\\", "\\e").replace("-", "\\-")
    return text if re.match(r"\.[A-Zfn]", text) else re.sub(r"^([.'])", r"\\&\1", text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    print(sys.argv[1])
