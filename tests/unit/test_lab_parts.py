"""The lab's parts that need no guest: the archive it boots from, the choice of tests, what it makes of results."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lab import initrd, machines, packages
from tests.lab.report import Report


@pytest.mark.skipif(not shutil.which("busybox"), reason="needs busybox, whose cpio reads the archive")
def test_the_archive_holds_what_was_put_into_it(tmp_path: Path) -> None:
    files = [("bin", 0o040755, b""), ("bin/tool", 0o100755, b"12345"), ("init", 0o100755, b"#!/bin/sh\n")]
    archive = b"".join(initrd._archive(files))
    subprocess.run(["busybox", "cpio", "-i"], cwd=tmp_path, input=archive, check=True, capture_output=True)
    assert (tmp_path / "bin" / "tool").read_bytes() == b"12345"
    assert (tmp_path / "init").stat().st_mode & 0o777 == 0o755


def test_a_module_comes_after_those_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text(
        "net/9p/9pnet.ko.xz:\nfs/9p/9p.ko.xz: net/9p/9pnet.ko.xz fs/cache.ko.xz\nfs/cache.ko.xz:\n"
    )
    found = initrd._in_order(tmp_path, ["9p", "built-in"])
    assert [path.name for path in found] == ["cache.ko.xz", "9pnet.ko.xz", "9p.ko.xz"]


def test_each_file_of_tests_names_machines_that_there_are() -> None:
    named = [path for name in machines.MACHINES for path in machines.tests(name)]
    assert {*named} == {*machines.FOLDER.glob("test_*.py")}


def test_directories_that_are_links_on_a_host_are_moved_below_usr(tmp_path: Path) -> None:
    (tmp_path / "sbin").mkdir()
    (tmp_path / "sbin" / "modprobe").symlink_to("../bin/kmod")
    (tmp_path / "usr" / "sbin").mkdir(parents=True)
    packages._merge(tmp_path)
    assert (tmp_path / "usr" / "sbin" / "modprobe").is_symlink() and not (tmp_path / "sbin").exists()


def test_a_failure_and_a_second_death_make_the_exit_code_and_a_first_death_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, done = Report(), set[str]()
    follower = report.follow(tmp_path / "results", done)
    lines = [
        {"begin": "f::test_a"},
        {"say": "seen"},
        {"test": "f::test_a", "outcome": "passed", "text": "", "seconds": 1},
    ]
    (tmp_path / "results").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"begin": "f::te')
    assert follower.look() and not follower.look()
    report.died("hung: nothing", follower.current, last=False)
    assert (done, report.end()) == ({"f::test_a"}, 0)
    report.died("died: Kernel panic", follower.current, last=True)
    assert report.end() == 1
    shown = capsys.readouterr().out
    assert "ok       a (1 s)" in shown and "seen" in shown and "Kernel panic" in shown


def test_a_brief_report_shows_what_a_failed_test_saw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    follower = Report(brief=True).follow(tmp_path / "results", set())
    lines: list[dict[str, object]] = []
    for name, outcome in (("a", "passed"), ("b", "failed")):
        lines += [{"begin": f"f::test_{name}"}, {"say": f"seen by {name}"}]
        lines.append({"test": f"f::test_{name}", "outcome": outcome, "text": "", "seconds": 1})
    (tmp_path / "results").write_text("".join(json.dumps(line) + "\n" for line in lines))
    follower.look()
    shown = capsys.readouterr().out
    assert "ok       a (1 s)" in shown and "seen by a" not in shown
    assert "FAILED   b (1 s)" in shown and "seen by b" in shown


def test_a_machine_that_cannot_be_had_is_told_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.unavailable(machines.MACHINES["roce"], "no mirror")
    assert report.end() == 0
    assert "not run: roce" in capsys.readouterr().out
