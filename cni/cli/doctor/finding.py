"""The types of a check and of its findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

OK, NOTE, ADVICE, UNKNOWN, SKIPPED, FAULT = "ok", "note", "advice", "unknown", "skipped", "fault"
MEANINGS = {
    OK: "as it should be",
    NOTE: "information",
    ADVICE: "it works, but could be faster or safer",
    UNKNOWN: "the driver or the kernel does not provide the value, or this user may not read it",
    SKIPPED: "not checked, with the reason",
    FAULT: "it keeps RDMA of pods from working, or soon will",
}


@dataclass(frozen=True)
class Observation:
    """A finding of a check. `found` is the state of `subject`, `healthy` the wanted state, and `remedy` how to reach
    the wanted state. `healthy` and `remedy` are "" if nothing is wrong."""

    level: str
    subject: str
    found: str
    healthy: str = ""
    remedy: str = ""
    check: str = ""

    def document(self) -> dict[str, Any]:
        """The observation as JSON."""
        known = asdict(self) | {"healthy": self.healthy or None, "remedy": self.remedy or None}
        return {"check": known.pop("check"), **known}


ok = partial(Observation, OK)
note = partial(Observation, NOTE)
advice = partial(Observation, ADVICE)
unknown = partial(Observation, UNKNOWN)
broken = partial(Observation, FAULT)


@dataclass(frozen=True)
class Check:
    """A check in the tables of report.py. It is skipped if a check in `needs` has found a fault or was skipped."""

    name: str
    title: str
    run: Callable[[Any], Iterable[Observation]]
    needs: tuple[str, ...] = ()
    of_pod: bool = False  # whether the check also runs for one pod, with facts about the pod's devices only
