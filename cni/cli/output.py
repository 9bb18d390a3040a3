"""How the command shows things: tables and JSON on stdout, faults on stderr. How a screen looks: cni/cli/screen.py."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def console(stream: IO[str] | None = None) -> Console:
    """A console on `stream`, stdout unless given; what is printed is never read as markup."""
    from cni.cli import screen  # with rich

    return screen.console(stream)


def styled(text: str, style: str = "") -> Text:
    """`text` for a console or a cell of a table, in a style such as "bold red" where colours are shown."""
    from rich.text import Text

    return Text(text, style=style)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], stream: IO[str] | None = None) -> None:
    """A table with the heads `columns`; None in a row stays empty."""
    from cni.cli import screen  # with rich

    screen.print_table(columns, rows, stream)


def counted(number: int, what: str) -> str:
    """A number with what it is of, which is given as one: "1 lease", "2 leases"."""
    return f"{number} {what}{'s' * (number != 1)}"


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


def print_fault(title: str, details: str = "") -> None:
    """A failure on stderr: the title in red where colours are shown, the details indented below it."""
    out = console(sys.stderr)
    out.print(styled(title, "bold red"))
    for line in details.splitlines():
        out.print("  " + line)
