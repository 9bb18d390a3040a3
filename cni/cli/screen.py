"""What is shown to people, by rich: only what prints a line or a table for them loads it, for it takes 0.1 s.

On a terminal tables are coloured and fit its width, as long as no word has to be cut for that: an address in two pieces
cannot be copied. Elsewhere they are plain columns, one line a row, whatever its length, so that grep, cut and a log keep
them whole.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import IO

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ENDLESS = 1 << 16  # columns of something that is no terminal: nothing is wrapped or cut there


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the command's own exit code, not rich's


def console(stream: IO[str] | None) -> Console:
    """See output.console."""
    stream = sys.stdout if stream is None else stream
    width = None if stream.isatty() else _ENDLESS
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], stream: IO[str] | None) -> None:
    """See output.print_table."""
    out = console(stream)
    look = box.SIMPLE_HEAD if out.is_terminal else None
    table = Table(box=look, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(Text(column.upper()), overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in row))
    if out.is_terminal:
        if Measurement.get(out, out.options.update(width=_ENDLESS), table).minimum > out.width:
            out.width = _ENDLESS
        out.print(table)
        return
    with out.capture() as capture:  # rich pads each line to the table's width
        out.print(table)
    for line in capture.get().splitlines():
        out.print(line.rstrip())
