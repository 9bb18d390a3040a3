"""The pure parts of warm workers: their messages, and the state that they note."""

import os
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni import link
from cni.warm import protocol, worker
from cni.warm.worker import BUSY, FREE, IDLE, Board
from tests.node import ROOT

LAUNCHER = (ROOT / "cni/warm/launcher.c").read_text()


def test_the_launcher_and_python_agree_on_what_both_have() -> None:
    said = "".join(
        re.findall(r'^\t"(.*?)" *\\?$', LAUNCHER.partition("#define VERSION_REPLY")[2].partition("enum")[0], re.M)
    )
    assert said.replace('\\"', '"').replace("\\n", "\n").encode() == link._VERSION_REPLY
    assert f'"{protocol.DIRECTORY}/%s{protocol.SOCKET}"' in LAUNCHER
    assert f"PIECE = 1 << {protocol._PIECE.bit_length() - 1}" in LAUNCHER


def test_a_request_is_what_the_process_would_have_had() -> None:
    call = protocol.parse(b"id-1\0macvlan\x0018\x004:99\0A=1\0EMPTY=\0no sign\0A=2\0B=x=y")
    assert (call.identity, call.plugin, call.umask, call.netns) == ("id-1", "macvlan", 18, "4:99")
    assert call.environ == {b"A": b"1", b"EMPTY": b"", b"B": b"x=y"}  # the first counts, as in os.environb


@pytest.mark.parametrize("packet", [b"", b"x", b"a\0b\0c\0d\0", b"\xff\0b\x001\0d", b"a\0b"])
def test_what_is_no_request_is_refused(packet: bytes) -> None:
    with pytest.raises(ValueError):
        protocol.parse(packet)


def test_the_question_of_the_command_is_a_request_without_an_identity() -> None:
    call = protocol.parse(protocol.asked(protocol.STATUS))
    assert (call.identity, call.plugin) == ("", protocol.STATUS)


@given(st.binary(max_size=300_000), st.sampled_from([0, 1]))
def test_packets_add_up_to_the_answer(stdout: bytes, status: int) -> None:
    *parts, last = protocol.packets(stdout, status)
    assert all(part[:1] == b"+" for part in parts) and last[:1] == b"%d" % status
    assert b"".join(part[1:] for part in (*parts, last)) == stdout
    assert all(len(part) <= (1 << 16) + 1 for part in (*parts, last))


def test_the_board_adds_up_what_each_slot_has_served() -> None:
    board = Board(3)
    assert board.states() == [FREE] * 3
    board.note(began=7)
    board.set(1, BUSY, 0, b"macvlan ADD c1")
    assert (board.states(), board.call(1)) == ([FREE, BUSY, FREE], "macvlan ADD c1")
    board.set(1, BUSY, 1)
    board.set(1, IDLE)
    board.set(2, BUSY, 2)
    board.note(fault="x" * 1000)
    board.note()
    assert (board.calls, board.call(1)) == (3, "")
    assert board.head == (7, "x" * 360)


def test_nothing_is_decided_by_the_clock_that_an_administrator_can_set() -> None:
    """The time since 1970 may jump: it is only shown (`since` of `railcni warm status`)."""
    for module in (ROOT / "cni/warm").glob("*.py"):
        lines = [
            line.strip()
            for line in module.read_text().splitlines()
            if re.search(r"\btime\.time|gmtime|localtime", line)
        ]
        assert lines in ([], ["self._board.note(began=int(time.time()))"]), module
    assert "clock_gettime" not in LAUNCHER


LEFT = {  # by a call in its worker: what the test changes of how the worker finds itself
    "nothing": ({}, 0, True),
    "a descriptor": ({}, 1, False),
    "another network namespace": ({"_own": 0}, 0, False),
    "a use of memory": ({"_MOST_KIB": 1}, 0, False),
}


@pytest.mark.parametrize(("changed", "files", "goes_on"), LEFT.values(), ids=LEFT)
def test_a_worker_goes_on_when_a_call_has_left_nothing(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, int], files: int, goes_on: bool
) -> None:
    monkeypatch.setattr(worker, "_MOST_KIB", changed.get("_MOST_KIB", 1 << 40))
    kept = worker.Worker(None, Board(1), 0, "", -1)  # type: ignore[arg-type]  # it does not listen
    kept._kept = SimpleNamespace(files=lambda: 0)  # type: ignore[assignment]  # no store is open
    kept._own = changed.get("_own", kept._own)
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1 + files)]  # one is for the connection
    try:
        assert kept._is_as_before() == goes_on
    finally:
        for fd in (*opened, kept._null):
            os.close(fd)
