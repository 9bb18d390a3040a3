"""The command's manual pages, and its completion for bash, zsh and fish, made of its parser. Usage: python .ci/manual.py FOLDER"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cni import VERSION
from cni.cli import attach, main

# Where each shell looks below /usr/share, and what it calls the file.
SHELLS = {
    "bash": "bash-completion/completions/railcni",
    "zsh": "zsh/site-functions/_railcni",
    "fish": "fish/vendor_completions.d/railcni.fish",
}


def write(share: Path) -> None:
    """Write them below `share`."""
    os.environ["COLUMNS"] = "100"  # of the lines of a synopsis
    attach.PLUGIN_DIRECTORIES = ("BUNDLE/bin", *attach.PLUGIN_DIRECTORIES[1:])  # and not where this is built
    parser = main._parser()
    files = {path: shtab.complete(parser, shell) for shell, path in SHELLS.items()}
    files |= {f"man/man1/{name}.1": text for name, text in pages(parser, "networks for RDMA pods")}
    for path, text in files.items():
        (share / path).parent.mkdir(parents=True, exist_ok=True)
        (share / path).write_text(text)


def pages(parser: argparse.ArgumentParser, about: str) -> Iterator[tuple[str, str]]:
    """Name and text of the page of the parser, and of each of its commands."""
    name = parser.prog.replace(" ", "-")
    known = {"project_name": "railcni", "version": VERSION, "manual_title": "railcni", "description": about}
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0"))))
    page = Manpage(parser, known | {"date": date}, "single-commands-section")
    page.prog = name
    yield name, str(page).replace(f".B {name}\n", ".B railcni\n", 1)  # the synopsis has the command as it is called
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help or "" for one in action._get_subactions()}
            for verb, inner in action.choices.items():
                yield from pages(inner, helps[verb])


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    print(sys.argv[1])
