"""What the lab prints: a line a test with what it saw, and the sum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.lab.guest import Ended
from tests.lab.machines import Machine


class Report:
    """Counts, and the exit code that they make. `brief`: of what a test that passed saw, nothing is told."""

    def __init__(self, brief: bool = False) -> None:
        self.brief = brief
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self._missing: list[str] = []

    def machine(self, machine: Machine, kernel: Path, accelerator: str) -> None:
        package = (kernel / "ready").read_text().split()[-1]
        print(f"\n{machine.name}: {machine.about}; {package}, {_ACCELERATORS[accelerator]}", flush=True)

    def unavailable(self, machine: Machine, why: str) -> None:
        self._missing.append(machine.name)
        print(f"\n{machine.name}: {machine.about}\n  not run  {why}", flush=True)

    def follow(self, results: Path, done: set[str]) -> Follower:
        return Follower(self, results, done)

    def booted(self, out: Path, began: float, ended: Ended) -> None:
        mark = out / "began"
        first = f"{mark.stat().st_mtime - began:.0f} s of them to boot" if mark.exists() else "it did not come up"
        print(f"  {ended.seconds:.0f} s, {first}; a processor was busy for {ended.busy:.0f} s", flush=True)

    def died(self, why: str, test: str, last: bool) -> None:
        """The guest ended without an answer. The first time that is told, the second time it is a failure."""
        self.counts["failed"] += last
        mark = "FAILED " if last else "again  "
        print(f"  {mark}  the guest {why}; at {test or 'its start'}", flush=True)

    def broken(self, console: str, status: int) -> None:
        self.counts["failed"] += 1
        said = "\n    ".join(console.splitlines()[-30:])
        print(f"  FAILED   the tests ended with {status}\n    {said}", flush=True)

    def end(self) -> int:
        counts = ", ".join(f"{number} {what}" for what, number in self.counts.items())
        missing = f"; not run: {', '.join(self._missing)}" if self._missing else ""
        print(f"\n{counts}{missing}", flush=True)
        return 1 if self.counts["failed"] else 0


_ACCELERATORS = {"kvm": "by KVM", "tcg": "emulated, some 15 times slower than this machine"}
_MARKS = {"passed": "ok     ", "failed": "FAILED ", "skipped": "skipped"}


class Follower:
    """Reads the results of a boot as they come (tests/lab/conftest.py writes them), and prints them."""

    def __init__(self, report: Report, results: Path, done: set[str]) -> None:
        self._report, self._results, self._done = report, results, done
        self._read = 0
        self._said: list[str] = []
        self.current = ""
        self.failed = 0

    def look(self) -> bool:
        """Whether there was something new."""
        if not self._results.exists():
            return False
        with self._results.open() as file:
            file.seek(self._read)
            lines = file.readlines()
        whole = [line for line in lines if line.endswith("\n")]
        for line in whole:
            self._read += len(line.encode())
            self._show(json.loads(line))
        return bool(whole)

    def _show(self, what: dict[str, Any]) -> None:
        if "begin" in what:
            self.current, self._said = what["begin"], []
        elif "say" in what:
            self._said += what["say"].splitlines()
        else:
            self._done.add(what["test"])
            outcome = what["outcome"]
            self._report.counts[outcome] += 1
            self.failed += outcome == "failed"
            why = f": {what['text']}" if outcome == "skipped" else ""
            print(f"  {_MARKS[outcome]}  {_sentence(what['test'])} ({what['seconds']:.0f} s){why}")
            failed = outcome == "failed"
            said = self._said if failed or not self._report.brief else []
            said = said + (what["text"].splitlines() if failed else [])
            print("".join(f"             {line}\n" for line in said), end="", flush=True)


def _sentence(nodeid: str) -> str:
    return nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
