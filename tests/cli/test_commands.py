"""The table of commands: what `railcni` loads for the command given."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from cni.cli.main import COMMANDS
from tests.node import ROOT


@pytest.mark.parametrize("module", COMMANDS)
def test_a_module_is_listed_with_the_commands_that_it_has(module: str) -> None:
    commands = argparse.ArgumentParser().add_subparsers()
    importlib.import_module(module).register(commands)
    assert tuple(commands.choices) == COMMANDS[module]


@pytest.mark.parametrize(
    ("argv", "needed"),
    [
        ("--version", set()),
        ("ipam leases -o json --data-dir EMPTY", set()),
        ("attachments --state-dir /nonexistent", set()),
        ("install --help", set()),
        ("doctor --help", set()),
        ("nad lint -o json -", {"pydantic", "yaml"}),
    ],
)
def test_a_command_loads_no_library_but_what_it_needs(tmp_path: Path, argv: str, needed: set[str]) -> None:
    libraries = {"filelock", "netaddr", "pydantic", "pyroute2", "rich", "yaml"}
    code = (
        f"import sys; sys.argv = ['railcni', *{argv.replace('EMPTY', str(tmp_path)).split()}]\n"
        "from cni.cli.main import main\n"
        "try: main()\n"
        f"finally: print(*{libraries} & set(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert set(done.stderr.splitlines()[-1].split()) == needed
