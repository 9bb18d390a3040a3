"""Tables: whole words on every terminal, whole lines elsewhere. Faults: nothing is said twice."""

from __future__ import annotations

import io

import pytest

from cni.cli.executables import PluginFailed
from cni.cli.main import _print
from cni.cli.output import print_table

ADDRESS, TIME = "192.168.111.100", "2026-01-02T03:04:05Z"
SENTENCE = "nothing of RDMA works without it, so it is to be loaded first"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(columns: int, row: tuple[str, ...], patch: pytest.MonkeyPatch) -> str:
    patch.setenv("COLUMNS", str(columns))
    out = Terminal()
    print_table([f"c{i}" for i, _ in enumerate(row)], [row], out)
    return out.getvalue()


def test_a_terminal_too_narrow_for_the_words_of_a_row_cuts_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(30, (ADDRESS, TIME, "net1"), monkeypatch)
    assert ADDRESS in text and TIME in text


def test_sentences_are_wrapped_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(40, ("fault", SENTENCE), monkeypatch).splitlines()[1:]
    assert len(lines) > 2 and max(map(len, lines)) <= 40


def test_what_is_no_terminal_gets_one_line_a_row() -> None:
    out = io.StringIO()
    print_table(("level", "found"), [("fault", SENTENCE * 9)], out)
    assert len(out.getvalue().splitlines()) == 2


def test_details_that_only_repeat_the_message_of_an_ipam_plugin_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _print(PluginFailed("macvlan", "ADD", "whereabouts: ipam.range is wrong", "ipam.range is wrong", 7))
    assert capsys.readouterr().err == "railcni: macvlan ADD failed with code 7: whereabouts: ipam.range is wrong\n"
