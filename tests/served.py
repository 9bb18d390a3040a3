"""A test of tests/stores that meets a server runs with an unwell one too (tests/stores/unwell.py), or its mark `well` says
why not.

The servers note that a test meets them, and tests/stores/conftest.py asks.
"""

import re
import zlib
from typing import Any

import pytest

MESSAGE = (
    "this test meets the server of a store: let it run with an unwell one too, for instance by the fixture `server`, `place` or "
    "`shared` of tests/stores, or say by the mark `well` why it cannot"
)
_WELL, _UNWELL = "well", "unwell"
_covered = pytest.StashKey[bool]()
_met: set[str] = set()


def note() -> None:
    """The running test meets a server."""
    _met.add(_WELL)


def note_unwell() -> None:
    """The running test makes its server unwell."""
    _met.add(_UNWELL)


def begin() -> None:
    """A test begins."""
    _met.clear()


def is_faulty(item: pytest.Item) -> bool:
    """Whether the test `item`, which ends, has met a server and lacks both an unwell one and the mark."""
    return _met == {_WELL} and not item.stash.get(_covered, True)


def choose(items: list[pytest.Item], are_whole: bool) -> list[pytest.Item]:
    """Remove the cases with an unwell server of tests that have the mark from `items`, and return them.

    `are_whole` says that `items` has each case of a test: else nothing is known of the other cases.
    """
    removed = [item for item in items if _is_unwell(item) and item.get_closest_marker("well")]
    items[:] = [item for item in items if not (_is_unwell(item) and item.get_closest_marker("well"))]
    if are_whole:
        covered = {_test(item) for item in items if _is_unwell(item) or item.get_closest_marker("well")}
        for item in items:
            item.stash[_covered] = _test(item) in covered
    return removed


def share_out(items: list[pytest.Item]) -> None:
    """Let each test that runs over all of the unwell servers run over one of them, and not over the same server when it is
    well, unless the long tests run."""
    cases: dict[str, dict[pytest.Item, str]] = {}
    for item in items:
        if ", unwell" in item.name and (found := re.search(r"\w+, unwell", item.name.partition("[")[2])):
            cases.setdefault(_test(item), {})[item] = found[0]
    for test, servers in cases.items():
        names = sorted(set(servers.values()))
        chosen = names[zlib.crc32(test.encode()) % len(names)]
        for item, server in servers.items():
            if server != chosen and len(names) > 2:
                item.add_marker(pytest.mark.long)
    shown = {
        item.nodeid.replace(", unwell", "") if ", unwell" in item.name else item.nodeid.replace("unwell", "well")
        for item in items
        if _is_unwell(item) and not any(map(item.get_closest_marker, ("long", "well")))
    }
    for item in items:
        if item.nodeid in shown:
            item.add_marker(pytest.mark.long)


def _is_unwell(item: pytest.Item) -> bool:
    return _UNWELL in item.name.partition("[")[2]


def _test(item: pytest.Item) -> Any:
    return item.nodeid.partition("[")[0]
