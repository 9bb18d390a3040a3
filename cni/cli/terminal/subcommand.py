"""Adds a command to the command line: one text is its line in the list, and begins its own --help."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add(commands: Commands, name: str, about: str, more: str = ".", **options: Any) -> argparse.ArgumentParser:
    """The parser of a new command. `about` is a phrase; `more` goes on from it in the command's own help."""
    return commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}{more}", **options)


def option(
    parser: argparse._ActionsContainer, flag: str, default: object, about: str = "", metavar: str = "DIR", **more: Any
) -> None:
    """An option with a value, whose help ends with its default."""
    shown = f"default: {default:g}" if isinstance(default, float) else f"default: {default}"
    parser.add_argument(flag, default=default, metavar=metavar, help=f"{about}; {shown}" if about else shown, **more)


def address(text: str) -> tuple[str, int]:
    """ADDRESS:PORT, as the type of an option."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}": want ADDRESS:PORT, such as 127.0.0.1:9108 or [::1]:9108')
    return host, int(port)


def seconds(text: str, least: float = 0.001) -> float:
    """SECONDS, up to a day, as the type of an option."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= 86400:
        raise argparse.ArgumentTypeError(f'"{text}": want seconds, such as 60')
    return value
