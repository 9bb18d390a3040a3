"""Add commands and options to the command-line parser. The description of a command is its line in the list of
commands, and the beginning of its --help. A wrong argument ends the program with exit code 2 and a message that names
the option."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeAlias, TypeVar

from cni.cli.terminal import jsonpath
from cni.node.inventory.places import read_pod, require_directory
from cni.shared.spec.request import ifname_fault, is_identifier

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
T = TypeVar("T")
Run = Callable[[argparse.Namespace], int | None]

_WATCH = "list again every 2 seconds, and print the rows that are new or changed, until Ctrl-C"
_FORMAT = "the format of what is printed"


class ExistingDirectory(argparse._StoreAction):
    """The argparse action of an option that names directories, separated by colons, which railcni only reads. One of
    the directories that the user names must exist (`Parser.require`); the default may be missing."""


class Forms(tuple[str, ...]):
    """The values that -o accepts: fixed words, and jsonpath=TEMPLATE."""

    def __contains__(self, form: object) -> bool:
        if not str(form).startswith(jsonpath.FORM):
            return super().__contains__(form)
        try:
            return bool(jsonpath.read(str(form).removeprefix(jsonpath.FORM)))
        except ValueError as fault:
            raise argparse.ArgumentError(None, f"argument -o/--output: {form}: {fault}") from None


class Parser(argparse.ArgumentParser):
    """A parser of commands or of subcommands. Its errors suggest a similar word, or name the words that have no use.
    `given` has the names of the options on the command line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.given: set[str] = set()
        self._words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        self._words = args or ()
        found, more = super().parse_known_args(args, namespace)
        if more:
            pod = ", or name a pod by --pod" * ("--pod" in self._option_string_actions and more[0][:1] != "-")
            text = f"there is no use for {' '.join(more)}: leave it out{pod}"
            self.error(f"{text}; `{self.prog} --help` lists the options")
        return found, more

    def error(self, message: str) -> NoReturn:
        known, message = self._option_string_actions, self._early() or message
        for name in (word.partition("=")[0] for word in self._words if word.startswith("--")):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            if near and not any(option.startswith(name) for option in known):  # its value was taken for an argument
                message = f"there is no option {name}: did you mean {near[0]}? `{self.prog} --help` lists the options"
        for action in self._actions:
            if action.choices and not action.option_strings and message.endswith(f" required: {action.metavar}"):
                message += f", one of {', '.join(map(str, action.choices))}"
        super().error(message)

    def _early(self) -> str:
        """The error message for an option that stands before its command; "" if there is no such option."""
        words, commands = list(self._words), self._commands()
        while commands and words and words[0].startswith("-") and words[0] != "--":
            name, has_value, _ = words.pop(0).partition("=")
            if not self._has(name):
                if not any(commands.choices[word].takes(name) for word in words if word in commands.choices):
                    break
                return f"{name} stands before {commands.metavar}: write it after the {str(commands.metavar).lower()}"
            del words[: not has_value]
        return ""

    def takes(self, name: str) -> bool:
        """Whether the command or one of its subcommands has an option whose name begins with `name`."""
        commands = self._commands()
        return self._has(name) or any(one.takes(name) for one in (commands.choices.values() if commands else ()))

    def _has(self, name: str) -> bool:
        return any(option.startswith(name) for option in self._option_string_actions)

    def _commands(self) -> Commands | None:
        """The action of the subcommands, or None."""
        return next((one for one in self._actions if isinstance(one, argparse._SubParsersAction)), None)

    def only(self, applies: object, condition: str, *options: str) -> None:
        """If `applies` is false and the user gave one of `options`, end with an error that says "only `condition`"."""
        for option in options:
            if option in self.given and not applies:
                names = "/".join(self._option_string_actions[option].option_strings)
                self.error(f"{names} has an effect only {condition}: leave it out")

    def require(self, options: argparse.Namespace) -> None:
        """Raise InvalidConfig if a directory that the user named is missing. Of a list DIR:DIR one must exist."""
        for action in self._actions:
            if isinstance(action, ExistingDirectory) and self.given.intersection(action.option_strings):
                text = getattr(options, action.dest)
                several = text.split(":") if action.metavar == "DIR:DIR" else []
                if not any(map(os.path.isdir, several)):
                    require_directory(action.option_strings[-1], text)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        self.given.update(action.option_strings)
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        meant = difflib.get_close_matches(str(value), map(str, action.choices or ()), n=1)
        if meant and value not in (action.choices or ()):
            raise argparse.ArgumentError(action, f'there is no "{value}": did you mean "{meant[0]}"?')
        super()._check_value(action, value)


def add(
    commands: Commands,
    name: str,
    about: str,
    more: str = ".",
    *,
    run: Run | None = None,
    shows: bool = False,
    lists: bool = False,
    forms: Sequence[str] = (),
    **options: Any,
) -> Parser:
    """Add a command; return its parser. `about` and `more` are the description in --help. `run` runs the command, and
    returns the exit code or None for 0; without `run` the command prints its help. `run` gets the parsed options with
    four members of the parser: `error` (as `refuse`), `only`, `given` and `require`. `shows` adds -o. `lists` adds -w,
    -A, and -o with the value "name". Without both, `forms` has the values of -o, the default first."""
    parser = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}{more}", **options)
    run = run or (lambda _: parser.print_help())
    parser.set_defaults(run=run, refuse=parser.error, only=parser.only, given=parser.given, require=parser.require)
    if shows or lists:
        forms = ("table", "wide", *(["name"] if lists else []), "json", "yaml")
    if forms:
        choices = Forms((*forms, jsonpath.FORM))
        about = f"{_FORMAT}: {', '.join(forms)} or jsonpath=TEMPLATE; default: {forms[0]}"
        parser.add_argument("-o", "--output", choices=choices, default=forms[0], metavar="FORMAT", help=about)
    if shows or lists:
        parser.add_argument("--no-headers", action="store_true", help="print tables without their heads")
    if lists:
        parser.add_argument("-w", dest="watches", action="store_true", help=_WATCH)
        about = "list all namespaces, which is the default"
        parser.add_argument("-A", "--all-namespaces", action="store_true", help=about)
    return parser


def add_group(commands: Commands, name: str, about: str, noun: str = "VERB") -> Commands:
    """Add a command with subcommands; return the action to which subcommands are added."""
    return add(commands, name, about).add_subparsers(metavar=noun, title=f"{noun.lower()}s")


def option(
    parser: argparse._ActionsContainer,
    flag: str,
    default: object,
    about: str = "",
    metavar: str | None = "DIR",
    made: bool = False,
    shown: bool = True,
    old: str = "",
    **more: Any,
) -> None:
    """Add an option with a value. If `shown`, --help shows the default. A directory (`metavar` DIR or DIR:DIR) that the
    user names must exist, unless `made` says that a program makes it. `old` is an alias that --help does not show."""
    if default not in ("", None) and shown:
        about += f"{'; ' * bool(about)}default: {f'{default:g}' if isinstance(default, float) else default}"
    if metavar in ("DIR", "DIR:DIR") and not made:
        more["action"] = ExistingDirectory
    action = parser.add_argument(*flag.split("/"), default=default, metavar=metavar, help=about, **more)
    if old:
        parser._option_string_actions[old] = action


def typed(read: Callable[[str], T], wanted: str = "") -> Callable[[str], T]:
    """Return an argparse type that parses text by `read`. A ValueError becomes a usage error with the text `wanted`."""

    def value_of(text: str) -> T:
        try:
            return read(text)
        except ValueError as fault:
            raise argparse.ArgumentTypeError(f'"{text}": {wanted or fault}') from None

    return value_of


def name(text: str) -> str:
    """Parse the name of a network, node, namespace or the like, as an argparse type."""
    if not is_identifier(text):
        raise argparse.ArgumentTypeError(f'"{text}": start with a letter or digit, then letters, digits, _ . -')
    return text


def pod(text: str) -> str:
    """Parse [NAMESPACE/]NAME, as an argparse type. Podman allows more characters in a name than Kubernetes."""
    if not all(map(is_identifier, text.split("/"))) or text.count("/") > 1:
        raise argparse.ArgumentTypeError(f'"{text}": want NAMESPACE/NAME or NAME')
    return text


container_or_pod = typed(lambda text: (read_pod if "/" in text else name)(text), "want a containerID or NAMESPACE/POD")


def ifname(text: str) -> str:
    """Parse the name of an interface, as an argparse type."""
    if fault := ifname_fault(text):
        raise argparse.ArgumentTypeError(f'"{text}" {fault}')
    return text


def address(text: str) -> tuple[str, int]:
    """Parse ADDRESS:PORT to (address, port), as an argparse type."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}": want ADDRESS:PORT, such as 127.0.0.1:9108 or [::1]:9108')
    return host, int(port)


def seconds(text: str, least: float = 0.001) -> float:
    """Parse a number of seconds, from `least` up to a day, as an argparse type."""
    with suppress(ValueError):
        if least <= (value := float(text)) <= 86400:
            return value
    raise argparse.ArgumentTypeError(f'"{text}": want seconds, such as 60')
