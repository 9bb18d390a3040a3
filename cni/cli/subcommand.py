"""How a command is entered in the command line: one text is its line in the list, and begins its own --help."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add(commands: Commands, name: str, about: str, more: str = ".", **options: Any) -> argparse.ArgumentParser:
    """The parser of a new command. `about` is a phrase; `more` goes on from it in the command's own help."""
    return commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}{more}", **options)
