"""The command's overview, manual pages and completion: they have every command, and shells and man take them."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cni.cli import completion, main
from tests.each import quick
from tests.node import ROOT
from tests.tools import script

manual = script("manual")

_LISTS = [action for action in main._parser()._actions if isinstance(action, argparse._SubParsersAction)]
COMMANDS = {name for action in _LISTS for name in action.choices}


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """share/ of a bundle."""
    top = tmp_path_factory.mktemp("bundle")
    manual.write(top / "share")
    return top / "share"


def test_the_overview_has_each_command_in_one_group() -> None:
    grouped = [name for names in main.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    text = main._parser().format_help()
    for title, names in main.GROUPS.items():
        part = text.split(f"  {title}:\n")[1].split(":\n")[0]
        assert all(re.search(rf"^ +{name}(?: |$)", part, re.M) for name in names)


def test_the_examples_are_commands_that_are_understood() -> None:
    lines = [line.strip().split("  ")[0].split() for line in main.EXAMPLES.splitlines()[1:]]
    for program, *argv in lines:
        argv = ["cluster", *argv[1:]] if program == "kubectl" else argv
        assert callable(main._parser(argv[:1]).parse_args(argv).run)


def test_every_command_has_a_page_and_man_finds_no_fault_in_one_of_eight(share: Path) -> None:
    pages = {path.stem: path for path in (share / "man/man1").iterdir()}
    assert {f"railcni-{name}" for name in COMMANDS} <= set(pages)
    assert {"railcni", "railcni-ipam-leases", "railcni-cluster-doctor", "railcni-rails-check"} <= set(pages)
    for name, path in pages.items():
        text = path.read_text().replace("\\", "")
        assert str(ROOT) not in text
        assert re.search(rf"^\.SH NAME\n{name} ", text, re.M), text[:300]
        assert "1970" in text.splitlines()[0]  # SOURCE_DATE_EPOCH's default
    if shutil.which("man") is None:
        pytest.skip("the pages are whole; needs man to read them: apt-get install man-db")
    for path in list(pages.values())[::8]:  # one program writes all of them
        argv, env = (
            ["man", "--warnings", "--encoding=UTF-8", "--local-file", path],
            {"MANWIDTH": "100", "MANPAGER": "cat"},
        )
        done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), path
        assert path.stem.replace("railcni-", "railcni ", 1).split()[0] in done.stdout


@pytest.mark.parametrize("shell", quick(manual.SHELLS, "bash"))
def test_the_command_prints_the_completion_also_of_a_checkout_without_make_manual(share: Path, shell: str) -> None:
    done = subprocess.run([ROOT / "bin/railcni", "completion", shell], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (share / manual.SHELLS[shell]).read_text()


FISH = "fish/vendor_completions.d/railcni.fish: No such file"
UNMADE = {  # the checkout's .ci/manual.py, if there is one, and the words
    "a checkout without shtab": ("import shtab_", "No module named 'shtab_': run `make` in {root}"),
    "nothing made": ("", FISH),
    "a bundle": (None, "{root}/share/" + FISH),
}


@pytest.mark.parametrize("case", UNMADE)
def test_a_completion_that_cannot_be_made_says_why(case: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    maker, said = UNMADE[case]
    if maker is not None:
        (tmp_path / ".ci").mkdir()
        (tmp_path / ".ci/manual.py").write_text(maker)
    monkeypatch.setattr(completion, "ROOT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["railcni", "completion", "fish"])
    assert main.main() == 1
    out, error = capsys.readouterr()
    assert (out, said.format(root=tmp_path) in error, "Traceback" in error) == ("", True, False), error


CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.mark.parametrize("shell", CHECKS)
def test_a_shell_takes_its_completion(share: Path, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}: apt-get install {shell}")
    done = subprocess.run([*CHECKS[shell], share / manual.SHELLS[shell]], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# What stands on the line, and one of the words that bash offers for its end.
LINES = {
    "railcni do": "doctor", "railcni ipam l": "leases", "railcni ipam leases --no": "--node", "railcni status -o j": "json",
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_bash_completes_commands_verbs_options_and_choices(share: Path, line: str) -> None:
    words = line.split()
    program = (
        f"source {share / manual.SHELLS['bash']}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1};"
        f' _shtab_railcni railcni "{words[-1]}" "{words[-2]}"; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert LINES[line] in done.stdout.split(), done.stderr
