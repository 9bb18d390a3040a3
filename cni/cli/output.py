"""How the command shows things: tables and JSON on stdout, faults on stderr.

On a terminal tables are coloured and fit its width; elsewhere they are plain columns, one line a row, whatever its
length, so that grep, cut and a log keep them whole.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_ENDLESS = 1 << 16  # columns of something that is no terminal: nothing is wrapped or cut there


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the command's own exit code, not rich's


def console(stream: IO[str] | None = None) -> Console:
    """A console on `stream`, stdout unless given; what is printed is never read as markup."""
    stream = sys.stdout if stream is None else stream
    width = None if stream.isatty() else _ENDLESS
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], stream: IO[str] | None = None) -> None:
    """A table with the heads `columns`; None in a row stays empty."""
    out = console(stream)
    look = box.SIMPLE_HEAD if out.is_terminal else None
    table = Table(box=look, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(Text(column.upper()), overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in row))
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as capture:  # rich pads each line to the table's width
        out.print(table)
    for line in capture.get().splitlines():
        out.print(line.rstrip())


def print_json(value: Any) -> None:
    """`value` as JSON, indented by four as cnitool does."""
    sys.stdout.write(json.dumps(value, indent=4) + "\n")


def add_option(parser: argparse.ArgumentParser) -> None:
    """-o: a table for people, or the same as JSON or YAML."""
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")


def print_data(value: Any, form: str) -> None:
    """`value` as "json" or "yaml"."""
    if form == "yaml":
        sys.stdout.write(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
    else:
        print_json(value)


def print_fault(title: str, details: str = "") -> None:
    """A failure on stderr: the title in red where colours are shown, the details indented below it."""
    out = console(sys.stderr)
    out.print(Text(title, style="bold red"))
    for line in details.splitlines():
        out.print("  " + line)
