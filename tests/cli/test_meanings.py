"""An option means the same in every command that has it: docs/command.md has the table of these options.

`python -m tests.cli.test_meanings` writes it again.
"""

import argparse
import functools
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from cni.cli import main as command
from cni.cli.terminal import common
from tests.blackbox.command import run_any
from tests.node import ROOT

PAGE = ROOT / "docs/command.md"
BEGIN = "<!-- options: tests/cli/test_meanings.py compares the table with the parser -->\n"
DEFAULT = "; default"
FORMS = ": "  # behind it stand the forms of -o, which differ between commands
END = "<!-- end of options -->\n"


@functools.cache
def shared() -> dict[str, list[tuple[str, argparse.Action]]]:
    """The options that several commands have, by their spellings; `cluster X` and `X` are one command."""
    found = defaultdict(list)
    for verb, action in _options(command._parser()):
        found[", ".join(action.option_strings)].append((verb, action))
    return {
        flags: uses
        for flags, uses in sorted(found.items())
        if len({verb.removeprefix("cluster ") for verb, _ in uses}) > 1
    }


def _options(parser: argparse.ArgumentParser, verb: str = "") -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _options(inner, f"{verb} {name}".lstrip())
        elif action.option_strings and not isinstance(action, argparse._HelpAction):
            yield verb, action


def meaning(flags: str) -> str:
    """What an option means in every command."""
    known = common.KNOWN.get(flags.rpartition("--")[2])
    return known.about if known else str(shared()[flags][0][1].help).partition(DEFAULT)[0].partition(FORMS)[0]


def table() -> str:
    lines = ["| option | meaning in every command | commands |\n|---|---|---|\n"]
    for flags, uses in shared().items():
        verbs = sorted({verb if not verb.startswith("cluster") else "kubectl railcni" for verb, _ in uses})
        told = ", ".join(f"`{verb}`" for verb in verbs) if len(verbs) < 15 else "all that print a table or data"
        value = f" {uses[0][1].metavar}" if uses[0][1].metavar else ""
        lines.append(f"| `{flags}{value}` | {meaning(flags)} | {told} |\n")
    return "".join(lines)


@pytest.mark.parametrize("flags", shared())
def test_an_option_has_one_meaning_one_form_and_one_default_of_its_output(flags: str) -> None:
    uses = shared()[flags]
    assert {(tuple(action.option_strings), action.metavar) for _, action in uses} == {
        (tuple(flags.split(", ")), uses[0][1].metavar)
    }
    for verb, action in uses:
        assert str(action.help).startswith(meaning(flags)), verb
        if "--output" in flags:
            assert action.default == ("yaml" if verb.endswith((" render", " classes")) else "table"), verb


def test_a_short_and_a_long_option_belong_together_everywhere() -> None:
    """Neither has another partner, or none, in another command."""
    partners = defaultdict(set)
    for _, action in _options(command._parser()):
        for option in action.option_strings:
            partners[option].add(tuple(action.option_strings))
    assert {option: of for option, of in partners.items() if len(of) > 1} == {}


def test_the_page_has_the_table_of_the_parser() -> None:
    assert table() in PAGE.read_text(), "python -m tests.cli.test_meanings"


@pytest.mark.parametrize(("old", "new"), [
    ("ipam pools --config", "ipam pools --flat-file"), ("nad lint x --config", "nad lint x --flat-file"),
    ("status --to", "status --plugin-dir"),
    ("attachments --container c --state-dir", "attachments --container-id c --state-dir"),
    ("check n --container-id a/b --cache-dir", "check n --pod a/b --cache-dir"),
])  # fmt: skip
def test_a_spelling_that_scripts_have_is_still_known(old: str, new: str) -> None:
    said = [run_any(*argv.split(), "/no/where", code=1) for argv in (old, new)]
    assert said[0] == said[1]
    assert "/no/where" in said[0]


def write() -> None:
    text = PAGE.read_text()
    PAGE.write_text(re.sub(re.escape(BEGIN) + "(?s:.*)" + re.escape(END), lambda _: BEGIN + table() + END, text))


if __name__ == "__main__":
    write()
