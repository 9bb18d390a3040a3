"""The output of the command: tables and JSON on stdout, faults and progress on stderr. The library rich takes 0.1 s to
load, so only the functions that use rich import it.

On a terminal, tables are coloured and fit the width. Only the last column is folded, since an address on two lines
cannot be copied. If the table is still too wide, columns are left out; `-o wide` shows all columns. In a file or pipe,
a table has one line of any length for each row, for grep, cut and logs.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from cni.cli.terminal import jsonpath
from cni.shared.kernel import files
from cni.shared.spec.errors import IoFailure

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_ENDLESS = 1 << 16  # the width in columns without a terminal: nothing is wrapped or cut
_LEAST = 24  # the least width of the folded column; other columns are left out to reach it
Rows = Iterable[Sequence[object]]


class Form:
    """The state of the options --no-headers, -o wide and -w (watch). With -w, `seen` maps the name of each listing to
    its last rows; without -w, `seen` is None."""

    headers = True
    is_wide = False
    seen: dict[object, list[Any]] | None = None


def _new(name: object, rows: Sequence[Any]) -> tuple[list[Any], bool]:
    """Return (rows to print, whether the listing `name` was printed before). With -w, only new rows are printed."""
    if Form.seen is None:
        return list(rows), False
    before = Form.seen.get(name)
    Form.seen[name] = list(rows)
    return [row for row in rows if row not in (before or ())], before is not None


def console(stream: IO[str] | None = None) -> Console:
    """Return a rich console on `stream` (default: stdout) that prints text as it is, without markup."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with its own code

    stream = sys.stdout if stream is None else stream
    is_terminal = stream.isatty()
    width = None if is_terminal else _ENDLESS
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=not is_terminal)


def styled(text: str, style: str = "") -> Text:
    """Return `text` in a style such as "bold red", for a console or table cell. Only coloured streams show the
    style."""
    from rich.text import Text

    return Text(text, style=style)


def plain(text: str) -> str:
    """Replace characters that could control the terminal by "?". `text` is from another machine or program."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def print_table(columns: Sequence[str], rows: Rows, empty: str = "none", least: Sequence[str] = ()) -> None:
    """Print a table with the headings `columns`. None is an empty cell, and a row may lack its last cells. If there are
    no rows, print `empty` on stderr and nothing on stdout, so that `wc -l` counts 0. If the terminal is too narrow, the
    columns `least` are left out first. With -w each call after the first prints only new rows, without headings."""
    rows = [(*("" if c is None else c for c in row), *[""] * (len(columns) - len(row))) for row in rows]
    new, is_repeated = _new(tuple(columns), rows)
    if not new:
        sys.stderr.write("" if is_repeated else f"{empty}\n")
        return
    headers = Form.headers and not is_repeated
    from rich import box, table, text

    out = console()
    heads = [styled(column.upper()) for column in columns]
    all_cells = [[c if isinstance(c, text.Text) else styled(plain(str(c))) for c in row] for row in rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(heads, *all_cells, strict=True)]
    cells = [line for line, row in zip(all_cells, rows, strict=True) if row in new]
    if not out.is_terminal or Form.is_wide:
        for line in [heads, *cells] if headers else cells:
            padded = [cell.plain + " " * (width - cell.cell_len) for cell, width in zip(line, widths, strict=True)]
            out.print("  ".join(padded).rstrip(), soft_wrap=True)
        return
    kept, *order = list(range(len(heads))), *(columns.index(name) for name in least)
    order += [place for place in reversed(kept[1:-1]) if place not in order]
    while order and sum(widths[i] for i in kept[:-1]) + 2 * len(kept) + min(widths[kept[-1]], _LEAST) > out.width:
        kept.remove(order.pop(0))
    how: dict[str, Any] = {"show_header": headers, "header_style": "bold", "show_edge": False}
    grid = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), **how)
    for place in kept:
        least_width = widths[place] if place != kept[-1] else None
        grid.add_column(heads[place], no_wrap=place != kept[-1], overflow="fold", min_width=least_width)
    for line in cells:
        grid.add_row(*(line[place] for place in kept))
    out.print(grid)
    filled = [place for place in range(len(columns)) if any(line[place].plain for line in cells)]
    if headers and (left := [columns[place] for place in filled if place not in kept]):
        out.print(styled(f"not shown, for the terminal is narrow: {', '.join(left)} (-o wide)", "dim"))


def print_paragraph(head: str, text: str | Text) -> None:
    """Print `text` after `head`; on a terminal, further lines of `text` are aligned with its first line."""
    from rich.table import Table

    out = console()
    if not out.is_terminal:
        out.print(f"{head}  {text}")
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(head, text)
    out.print(grid)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show the current step of a long command on a terminal's stderr: `with progress() as say: say("reading")`."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.status import Status

    with Status("", console=console(sys.stderr)) as status:
        yield status.update


def counted(number: int, noun: str) -> str:
    """Return `number` with `noun`, which is given in the singular: "1 lease", "2 leases"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def print_data(value: Any, form: str = "json", name: str = "") -> None:
    """Print `value` in the format `form`, a value of -o. For "name", print one member of each element of `value`: the
    member `name`, or the first member if `name` is ""."""
    if isinstance(value, list):
        value, is_repeated = _new("data", value)
        if is_repeated and not value:
            return
    if form == "yaml":
        _print_yaml([value])
    elif form == "name":
        names = [one if isinstance(one, str) else one[name or next(iter(one))] for one in value]
        sys.stdout.writelines(f"{one}\n" for one in dict.fromkeys(names))
    elif form.startswith(jsonpath.FORM):
        value = json.loads(json.dumps(value))
        sys.stdout.write(jsonpath.fill(jsonpath.read(form.removeprefix(jsonpath.FORM)), value, value))
    else:
        sys.stdout.write(json.dumps(value, indent=4) + "\n")  # indented as cnitool does


def print_objects(objects: Sequence[Any], form: str) -> None:
    """Print Kubernetes objects in the format `form` of -o: several objects as YAML documents, or else as a List."""
    objects, is_repeated = _new("objects", objects)
    if is_repeated and not objects:
        return
    if form == "yaml":
        _print_yaml(objects)
    else:
        several = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        print_data(objects[0] if len(objects) == 1 else several, form)


def _print_yaml(documents: Sequence[Any]) -> None:
    import yaml

    class _Dumper(yaml.SafeDumper):
        """A dumper that writes strings of several lines as blocks."""

    def text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    _Dumper.add_representer(str, text)
    documents = json.loads(json.dumps(documents))  # a copy shares no object: yaml would write anchors
    yaml.dump_all(documents, sys.stdout, _Dumper, sort_keys=False, allow_unicode=True, width=_ENDLESS)


def show(form: str, document: Any, print_it: Callable[[], object], name: str = "") -> None:
    """Print `document` in the format `form`, a value of -o; for "table" call `print_it` instead."""
    if form == "table":
        print_it()
    else:
        print_data(document, form, name)


def show_table(form: str, document: Any, columns: Sequence[str], rows: Rows, name: str = "", **how: Any) -> None:
    """Print `document` in the format `form`, a value of -o; for "table" call print_table with `how`."""
    show(form, document, lambda: print_table(columns, rows, **how), name)


def print_fault(title: str, details: str = "") -> None:
    """Print a failure on stderr: the title in red if colours are shown, the details indented below it."""
    if not _new(title, [details])[0]:
        return
    out = console(sys.stderr)
    out.print(styled(plain(title), "bold red"))
    for line in plain(details).splitlines():
        out.print("  " + line)


def write_file(noun: str, path: str, data: bytes, mode: int = 0o600) -> None:
    """Write `data` to `path`, whole or not at all. Raises IoFailure if this fails or `path` is no regular file: a
    rename onto /dev/null would replace the device for all programs. Error messages call the file `noun`."""
    folder, _, name = os.path.abspath(path).rpartition("/")
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        why = "it is no regular file but a link, device, pipe or folder: name a path that is free, or a regular file"
        raise IoFailure(f"the {noun} cannot be written to {path}: {why}")
    try:
        files.write_whole(folder, name, data, mode=mode)
    except OSError as fault:
        why = f"{fault.strerror}: name a path in a folder that you can write to"
        raise IoFailure(f"the {noun} cannot be written to {path}: {why}") from None
