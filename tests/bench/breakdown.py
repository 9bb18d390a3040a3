"""Where the time of a call goes: the phases of calls whose functions are timed, beside the same calls left alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bench import probe
from tests.bench.calls import Call, Failed, Running
from tests.bench.operations import WARM_UP, attachment
from tests.bench.progress import Progress
from tests.bench.samples import Results
from tests.bench.scenarios import Scenario, Side
from tests.node import Pod

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

    A launcher in a checkout is that script. In a bundle bin/python3 runs libexec/NAME.pyc for bin/NAME.
    """
    with open(executable, "rb") as file:
        line = file.readline(4096)
    if line.startswith(b"#!"):
        argv = line.removeprefix(b"#!").decode(errors="replace").split()
        return (argv, executable) if "python" in Path(argv[0]).name else None
    python, script = executable.with_name("python3"), executable.parent.parent / "libexec" / f"{executable.name}.pyc"
    return ([str(python), "-IS"], script) if python.exists() and script.exists() else None


def measure(
    results: Results, progress: Progress, side: Side, scenarios: Sequence[Scenario], pod: Pod, rounds: int
) -> None:
    """Note the phases of each verb of each scenario. The executables have a script (`script_of`)."""
    for scenario in scenarios:
        try:
            for number in progress.track(f"breakdown: {scenario.group}", rounds + WARM_UP):
                plain = attachment(scenario, pod, side, number)
                probed = attachment(scenario, pod, side, number, _probed)
                if number >= WARM_UP:
                    for operation, phases in probed.items():
                        results.breakdown.setdefault(operation, []).append({**phases, PLAIN: plain[operation].ms})
        except Failed as fault:
            results.failures.append(f"{side.name}, breakdown: {fault}")


def _probed(call: Call) -> tuple[dict[str, float], bytes]:
    """Milliseconds of each phase, and stdout. What the probe took to begin is left out."""
    found = script_of(Path(call.argv[0]))
    assert found, "only scripts are measured so"
    python, script = found
    argv = [*python, "-c", _STUB, str(script), probe.__file__]
    running = Running(Call(argv, call.verb, call.stdin, call.container, call.netns, call.path))
    sample, out, aside = running.finish()
    seen = {phase: float(seconds) for phase, _, seconds in (s.rpartition(" ") for s in aside.decode().splitlines())}
    phases = {phase: seen.get(phase, 0.0) * 1e3 for phase in PHASES}
    phases["interpreter"] = (seen["first"] - running.began) * 1e3
    phases["end of the process"] = sample.ms - (seen["end"] - running.began) * 1e3
    phases[PROBED] = sample.ms - (seen["ready"] - seen["first"] + seen.get(probe.OWN, 0.0)) * 1e3
    return phases, out
