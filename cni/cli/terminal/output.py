"""How the command shows things: tables and JSON on stdout, faults on stderr. How a screen looks: cni/cli/terminal/screen.py."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

from cni.shared.spec.errors import IoFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def console(stream: IO[str] | None = None) -> Console:
    """A console on `stream`, stdout unless given; printed text is never read as markup."""
    from cni.cli.terminal import screen  # with rich

    return screen.console(stream)


def styled(text: str, style: str = "") -> Text:
    """`text` for a console or a cell of a table, in a style such as "bold red" where colours are shown."""
    from rich.text import Text

    return Text(text, style=style)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], stream: IO[str] | None = None, empty: str = "none"
) -> None:
    """A table with the heads `columns`; None in a row stays empty. Without rows `empty` goes to stderr, and no head to
    `stream`, so that a program that counts lines counts none."""
    if rows := list(rows):
        from cni.cli.terminal import screen  # with rich

        screen.print_table(columns, rows, stream)
    else:
        sys.stderr.write(f"{empty}\n")


def print_paragraph(head: str, text: str | Text, stream: IO[str] | None = None) -> None:
    """`text` behind `head`; on a terminal its further lines begin below its first."""
    from cni.cli.terminal import screen  # with rich

    screen.print_paragraph(head, text, stream)


def counted(number: int, noun: str) -> str:
    """A number with its noun, which is given in the singular: "1 lease", "2 leases"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def print_json(value: Any) -> None:
    """`value` as JSON, indented by four as cnitool does."""
    sys.stdout.write(json.dumps(value, indent=4) + "\n")


def add_option(parser: argparse.ArgumentParser) -> None:
    """-o: a table for people, or the same as JSON or YAML."""
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")


def print_data(value: Any, form: str) -> None:
    """`value` as "json" or "yaml"."""
    if form == "yaml":
        import yaml

        sys.stdout.write(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
    else:
        print_json(value)


def show(form: str, document: Any, print_it: Callable[[], object]) -> None:
    """`document` as JSON or YAML, or by `print_it` for people, as -o says."""
    if form == "table":
        print_it()
    else:
        print_data(document, form)


def print_fault(title: str, details: str = "") -> None:
    """A failure on stderr: the title in red where colours are shown, the details indented below it."""
    out = console(sys.stderr)
    out.print(styled(title, "bold red"))
    for line in details.splitlines():
        out.print("  " + line)


def write_file(noun: str, path: str, data: bytes, mode: int = 0o600) -> None:
    """Write `data` to `path`, whole or not at all; IoFailure names it by `noun`."""
    new = f"{path}.new-{os.getpid()}"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
        os.replace(new, path)
    except OSError as fault:
        raise IoFailure(f"the {noun} cannot be written to {path}: {fault.strerror}") from None
    finally:
        if os.path.lexists(new):
            os.unlink(new)
