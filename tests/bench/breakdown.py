"""Where the time of a call goes: the phases of calls whose functions are timed, beside the same calls left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench import probe
from tests.bench.calls import Call, Failed, Running, timed
from tests.bench.operations import WARM_UP
from tests.bench.progress import Progress
from tests.bench.samples import Operation, Results
from tests.bench.scenarios import OURS

Measure = Callable[[Call], tuple[Any, bytes]]

PHASES = ("interpreter", "imports", *probe.PHASES, probe.REST, "end of the process")
PROBED = "all of it, timed so"
PLAIN = "all of it, left alone"
_STUB = """
from time import perf_counter
first = perf_counter()
import sys
scope = {}
with open(sys.argv[2]) as source:
    exec(compile(source.read(), sys.argv[2], "exec"), scope)
scope["main"](sys.argv[1], first)
"""


def script_of(executable: Path) -> tuple[list[str], Path] | None:
    """The interpreter of an executable of ours with its options, and the script that it runs; None when it has none.

    bin/NAME of a checkout runs the script libexec/NAME. In a bundle bin/python3 runs libexec/NAME.pyc for it.
    """
    inside = executable.parent.parent / "libexec"
    for script in (inside / executable.name, executable):
        if script.exists() and (line := _first_line(script)).startswith("#!"):
            argv = line.removeprefix("#!").split()
            return (argv, script) if "python" in Path(argv[0]).name else None
    python, script = executable.with_name("python3"), inside / f"{executable.name}.pyc"
    return ([str(python), "-IS"], script) if python.exists() and script.exists() else None


def _first_line(path: Path) -> str:
    with open(path, "rb") as file:
        return file.readline(4096).decode(errors="replace")


def measure(
    results: Results, progress: Progress, what: str, rounds: int, calls: Callable[[int, Measure], dict[Operation, Any]]
) -> None:
    """Note the phases of each call that `calls(round, measure)` makes; the executables have a script (`script_of`)."""
    try:
        for number in progress.track(f"breakdown: {what}", rounds + WARM_UP):
            plain = calls(number, timed)
            probed = calls(number, _probed)
            if number >= WARM_UP:
                for operation, phases in probed.items():
                    results.breakdown.setdefault(operation, []).append({**phases, PLAIN: plain[operation].ms})
    except Failed as fault:
        results.failures.append(f"{OURS}, breakdown: {fault}")


def _probed(call: Call) -> tuple[dict[str, float], bytes]:
    """Milliseconds of each phase, and stdout. What the probe took to begin is left out."""
    found = script_of(Path(call.argv[0]))
    assert found, "only scripts are measured so"
    python, script = found
    argv = [*python, "-c", _STUB, str(script), probe.__file__]
    running = Running(replace(call, argv=argv))
    sample, out, aside = running.finish()
    seen = {phase: float(seconds) for phase, _, seconds in (s.rpartition(" ") for s in aside.decode().splitlines())}
    phases = {phase: seen.get(phase, 0.0) * 1e3 for phase in PHASES}
    phases["interpreter"] = (seen["first"] - running.began) * 1e3
    phases["end of the process"] = sample.ms - (seen["end"] - running.began) * 1e3
    phases[PROBED] = sample.ms - (seen["ready"] - seen["first"] + seen.get(probe.OWN, 0.0)) * 1e3
    return phases, out
