"""The table of a sweep: store x operation x fault x continuation."""

from collections.abc import Iterable, Mapping

from tests.faults.cases import OPERATIONS
from tests.faults.runner import Tally

ABOUT = """points: where the fault was put; states: how many different ones it left, some of them those of other rows too;
then the continuations that were run, one for each state; again: those that were not run again in the same state"""


def table(tallies: Mapping[tuple[str, str], Tally]) -> str:
    """The rows, by (operation, fault), and their sum."""
    ways = list(dict.fromkeys(way for tally in tallies.values() for way in tally.cases))
    rows = [["store", "operation", "fault", "points", "states", *ways, "again", "failures"]]
    rows += [[*_named(name), fault, *_cells(tally, ways)] for (name, fault), tally in tallies.items()]
    rows.append(["all", "", "", *_cells(total(tallies.values()), ways)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if i < 3 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([*lines, ABOUT])


def _named(name: str) -> tuple[str, str]:
    """The store of the operation `name`, and what is done there."""
    store = OPERATIONS[name].store
    return store, name.removeprefix(f"{store}-")


def total(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for tally in tallies:
        whole.add(tally)
    return whole


def _cells(tally: Tally, ways: Iterable[str]) -> list[str]:
    ran = [str(tally.cases[way] or "") for way in ways]
    return [
        str(len(tally.points)), str(len(tally.states) or ""), *ran, str(tally.again or ""), str(len(tally.failures)),
    ]  # fmt: skip
