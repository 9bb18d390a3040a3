"""Ten seconds of churn keep every promise; and faults that are planted in a copy of the plugins are found by it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults import tree
from tests.faults.churn.__main__ import record, strange
from tests.faults.churn.checker import History, check
from tests.faults.churn.events import DONE, KILLED
from tests.faults.churn.run import Churn
from tests.faults.tree import Edit
from tests.node import unusable

pytestmark = pytest.mark.skipif(bool(unusable()), reason=unusable())

SECONDS = 10.0
PLANTED: dict[str, Sequence[Edit]] = {
    "DEL releases before the link is gone": [  # the pause makes it likely that a kill falls in between
        Edit(
            "cni/detach.py",
            r"( {8}faults: .* = \[\]\n {8}gone = True\n)",
            r"\1        release(record, request, log)\n        __import__('time').sleep(0.05)\n",
        )
    ],
    "a claim takes what another has": [
        Edit("ipam/stores/file.py", r"return bits\n\n\ndef _lease", "return 0\n\n\ndef _lease"),
        Edit("ipam/stores/schema.py", "INSERT INTO lease", "INSERT OR REPLACE INTO lease"),
    ],
    "ADD does not lock its attachment": [Edit("cni/attach.py", r", book\.locked\(request\.attachment, PART\):", ":")],
    "GC does not heed locks": [
        Edit(
            "cni/upkeep.py",
            r"book\.try_locked\(attachment, PART\)",
            'book.try_locked(Attachment("", attachment.container_id, ""), PART)',
        )
    ],
}


def test_ten_seconds_of_churn_with_random_kills_keep_every_promise(executables: Path, tmp_path: Path) -> None:
    events = record(tree.copy(tmp_path), SECONDS, seed=1)
    assert check(events) + strange(events) == []
    done = [(o.verb, o.outcome) for o in History(events).operations]
    for verb in ("ADD", "DEL"):
        assert done.count((verb, DONE)) > 20, "hardly anything was done, so that nothing is shown"
        assert done.count((verb, KILLED)) > 5


@pytest.mark.long
@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_fault_is_found(executables: Path, tmp_path: Path, what: str) -> None:
    with Churn(tree.copy(tmp_path, PLANTED[what]), seed=2) as churn:
        for _ in range(10):
            churn.go(2.0)
            if check(churn.events()):
                return
    pytest.fail("20 s of churn have not shown it")
