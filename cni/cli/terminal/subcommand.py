"""Adds a command to the command line: one text is its line in the list, and begins its own --help."""

from __future__ import annotations

import argparse

from cni.cli.terminal import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add(
    commands: Commands,
    name: str,
    about: str,
    more: str = ".",
    *,
    run: Callable[[argparse.Namespace], int] | None = None,
    shows: bool = False,
    **options: Any,
) -> argparse.ArgumentParser:
    """The parser of a new command. `about` is a phrase; `more` goes on from it in the command's own help. `run` gives the
    exit code, and finds the parser's `error` as `refuse`; `shows`: it has the option -o."""
    parser = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}{more}", **options)
    parser.set_defaults(run=run, refuse=parser.error)
    if shows:
        output.add_option(parser)
    return parser


def add_group(commands: Commands, name: str, about: str, noun: str = "VERB") -> Commands:
    """The commands below a new command."""
    return add(commands, name, about).add_subparsers(required=True, metavar=noun, title=f"{noun.lower()}s")


def option(
    parser: argparse._ActionsContainer,
    flag: str,
    default: object,
    about: str = "",
    metavar: str | None = "DIR",
    **more: Any,
) -> None:
    """An option with a value, whose help ends with its default; with "" it has none that could be shown."""
    shown = f"{default:g}" if isinstance(default, float) else default
    texts = [about, f"default: {shown}" if shown != "" else ""]
    parser.add_argument(flag, default=default, metavar=metavar, help="; ".join(filter(None, texts)), **more)


def listen(parser: argparse._ActionsContainer, default: str) -> None:
    """--listen, of a program that keeps running."""
    about = f"/healthz, /readyz and /metrics; default: {default}, this node alone"
    parser.add_argument("--listen", type=address, default=default, metavar="ADDRESS:PORT", help=about)


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
