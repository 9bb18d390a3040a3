"""Lines and tables for people, by rich: only a command that prints them loads it, for it takes 0.1 s.

On a terminal tables are coloured and fit its width: the last column alone is folded, between words, since an address in
two pieces cannot be copied; where that is not enough each row becomes lines of its own, a value a line. Elsewhere they are
plain columns, one line a row, whatever its length, so that grep, cut and a log keep them whole.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import IO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_ENDLESS = 1 << 16  # columns of something that is no terminal: nothing is wrapped or cut there
_LEAST = 24  # columns that a folded column has, or the rows become lines


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the command's own exit code, not rich's


def console(stream: IO[str] | None) -> Console:
    """See output.console."""
    stream = sys.stdout if stream is None else stream
    is_terminal = stream.isatty()
    width = None if is_terminal else _ENDLESS
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=not is_terminal)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], stream: IO[str] | None) -> None:
    """See output.print_table."""
    out = console(stream)
    cells = [[c if isinstance(c, Text) else Text("" if c is None else str(c)) for c in row] for row in rows]
    heads = [column.upper() for column in columns]
    widths = [max([cell_len(head), *(row[i].cell_len for row in cells)]) for i, head in enumerate(heads)]
    if not out.is_terminal:
        for row in [[Text(head) for head in heads], *cells]:
            padded = [cell.plain + " " * (width - cell.cell_len) for cell, width in zip(row, widths, strict=True)]
            out.print("  ".join(padded).rstrip())
    elif sum(widths[:-1]) + 2 * len(widths) + min(widths[-1], _LEAST) <= out.width:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
        for head in heads:
            table.add_column(head, no_wrap=head is not heads[-1], overflow="fold")
        for row in cells:
            table.add_row(*row)
        out.print(table)
    else:
        for row in cells:
            for head, cell in zip(heads, row, strict=True):
                if cell.plain:
                    print_paragraph(f"{head:{max(map(len, heads))}}", cell, stream)
            out.print()


def print_paragraph(head: str, text: str | Text, stream: IO[str] | None) -> None:
    """See output.print_paragraph."""
    out = console(stream)
    text = text if isinstance(text, Text) else Text(text)
    if not out.is_terminal:
        out.print(f"{head}  {text.plain}")
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(head, text)
    out.print(grid)
