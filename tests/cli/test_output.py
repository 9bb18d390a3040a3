"""Tables: whole words on every terminal, whole lines elsewhere. Faults: nothing is said twice."""

import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest

from cni.cli import attachments, ipam, rdma
from cni.cli.main import _print, main
from cni.cli.rails import attached
from cni.cli.rails import command as rails
from cni.cli.terminal.output import Form, print_data, print_table, write_file
from cni.node.runtime.executables import PluginFailed
from cni.shared.spec.errors import IoFailure
from ipam import local

ADDRESS, TIME = "192.168.111.100", "2026-01-02T03:04:05Z"
IPV6 = "fd00:1234:5678:9abc::64"
CELLS = {
    "GPU": "GPU0", "rail": "gpu-rails/0", "pod": "team/trainer-worker-0", "interface": "net1",
    "addresses": f"{ADDRESS} {IPV6}",
}  # fmt: skip
SENTENCE = "nothing of RDMA works without it, so it is to be loaded first"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(columns: int, row: tuple[str, ...], patch: pytest.MonkeyPatch, least: Sequence[str] = ()) -> str:
    patch.setenv("COLUMNS", str(columns))
    with redirect_stdout(Terminal()) as out:
        print_table([f"c{i}" for i, _ in enumerate(row)], [row], least=least)
    return re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())


@pytest.mark.parametrize(("columns", "least", "heads", "left"), [
    (80, (), ["C0", "C1", "C2", "C3"], ""), (50, (), ["C0", "C1", "C3"], "c2"), (50, ("c1",), ["C0", "C2", "C3"], "c1"),
    (30, (), ["C0", "C3"], "c1, c2"),
])  # fmt: skip
def test_where_columns_do_not_fit_the_least_important_are_left_out_and_named(
    columns: int, least: Sequence[str], heads: list[str], left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(columns, (ADDRESS, TIME, "rdma-net-ipam", "net1"), monkeypatch, least)
    assert text.split("\n")[0].split() == heads and ADDRESS in text
    wanted = f"not shown, for the terminal is narrow: {left} (-o wide)" if left else ""
    assert " ".join(" ".join(text.split("\n")[3:]).split()) == wanted
    monkeypatch.setattr(Form, "is_wide", True)
    monkeypatch.setattr(Form, "headers", False)
    assert shown(columns, (ADDRESS, TIME, "net1"), monkeypatch) == f"{ADDRESS}  {TIME}  net1\n"


@pytest.mark.parametrize(("columns", "least", "row", "kept"), [
    (attachments.COLUMNS, attachments.LEAST,
     ("default/rail-network-0", "net1", "team/trainer-worker-0", "192.168.100.100/24", "/run/netns/a", "0f" * 6),
     ["POD", "ADDRESSES"]),
    (rdma.GIDS, rdma.LEAST_OF_GIDS,
     ("mlx5_0", 1, 3, "IB/RoCE v1", "192.168.100.100", "ens2f0np0", "team/trainer-worker-0"),
     ["INDEX", "ADDRESS", "POD"]),
    (rails.NICS, rails.LEAST, [CELLS.get(column, "0000:18:00.0") for column in rails.NICS],
     ["GPU", "NIC", "RAIL", "POD"]),
    (attached.COLUMNS, attached.LEAST,
     ("rails", 0, "net1", f"{ADDRESS}/24 {IPV6}/64", 100, 256, IPV6, "0.07 0.09", SENTENCE),
     ["RAIL", "INTERFACE", "INDEX", "FAULTS"]),
])  # fmt: skip
@pytest.mark.parametrize("width", [60, 80])
def test_name_and_address_are_kept_longest(
    width: int,
    columns: Sequence[str],
    least: Sequence[str],
    row: Sequence[object],
    kept: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    with redirect_stdout(Terminal()) as out:
        print_table(columns, [row], least=least)
    lines = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()).split("\n")
    assert set(kept) <= set(lines[0].split()) and max(map(len, lines)) <= width, lines


def test_a_lease_keeps_its_pod_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("network", "ifname", "containerID", "created", "node")
    lease = {
        "address": (ip := "fd00:1234:5678:9abc:def0:1234:0:1"), "pool": f"{ip}--96", "pod": f"team/{'a' * 40}",
        **dict.fromkeys(keys, "x" * 12),
    }  # fmt: skip
    monkeypatch.setattr(ipam, "_read", lambda options, pool: ([], [SimpleNamespace(leases=[lease], unread=[])]))
    monkeypatch.setattr(ipam, "document", lambda lease: lease)
    monkeypatch.setattr(ipam.stores, "told", lambda choices: "")
    monkeypatch.setattr(local, "avoided", lambda state: [])
    monkeypatch.setattr(sys, "stdout", out := Terminal())
    monkeypatch.setattr(sys, "argv", ["railcni", "ipam", "leases"])
    monkeypatch.setenv("COLUMNS", "80")
    assert main() == 0
    assert re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()).split("\n")[0].split() == ["ADDRESS", "POD"]


def test_the_last_column_alone_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(80, ("fault", "default/pod-1 with words", SENTENCE), monkeypatch).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if "default/pod-1 with words" in line]


def test_a_table_without_rows_is_a_sentence_on_stderr_and_no_head(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("address", "pool"), [], empty="no lease")
    assert capsys.readouterr() == ("", "no lease\n")


def test_what_stands_in_two_places_has_no_anchor_in_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    print_data({"of the lease": (both := ["192.168.111.1"]), "of the record": both}, "yaml")
    assert capsys.readouterr().out == "of the lease:\n- 192.168.111.1\nof the record:\n- 192.168.111.1\n"


def test_what_is_no_terminal_gets_one_line_a_row() -> None:
    with redirect_stdout(io.StringIO()) as out:
        print_table(("level", "found"), [("fault", SENTENCE * 9)])
    assert len(out.getvalue().splitlines()) == 2


def test_details_that_only_repeat_an_ipam_plugins_message_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _print(PluginFailed("macvlan", "ADD", "whereabouts: ipam.range is wrong", "ipam.range is wrong", 7))
    assert capsys.readouterr().err == "railcni: macvlan ADD failed with code 7: whereabouts: ipam.range is wrong\n"


@pytest.mark.parametrize("make", [
    pytest.param(os.mkfifo, id="a pipe"), pytest.param(os.mkdir, id="a folder"),
    pytest.param(lambda path: os.symlink("/dev/null", path), id="a link to a device"),
    pytest.param(lambda path: os.symlink("none", path), id="a link to nothing"),
])  # fmt: skip
def test_a_file_never_takes_the_place_of_what_is_no_file(make: Callable[[str], None], tmp_path: Path) -> None:
    make(str(tmp_path / "report"))
    before = os.lstat(tmp_path / "report")
    with pytest.raises(IoFailure, match=r"report cannot be written to /.*/report: it is no regular file"):
        write_file("report", str(tmp_path / "report"), b"x")
    assert os.path.samestat(os.lstat(tmp_path / "report"), before)
    assert os.listdir(tmp_path) == ["report"]


def test_a_file_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(IoFailure, match="No such file or directory: name a path in a folder that you can write to"):
        write_file("report", str(tmp_path / "none/report"), b"x")
