"""Some seconds of churn keep every promise; and faults that are planted in a copy of the plugins are found by it."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults import tree
from tests.faults.churn.__main__ import record, strange
from tests.faults.churn.checker import History, check
from tests.faults.churn.events import DONE, KILLED
from tests.faults.churn.run import MASTER, Churn, network
from tests.faults.churn.watcher import Watcher
from tests.faults.tree import Edit
from tests.node import Node, unusable

pytestmark = pytest.mark.skipif(bool(unusable()), reason=unusable())

SECONDS = 6.0
SELDOM = 0.25  # seconds
ANSWERED_BEFORE_GONE: Sequence[Edit] = [  # a process that stays behind removes the link while DEL is answered
    Edit(
        "cni/link/verbs/detach.py",
        r"( {16})_remove\(made, planned, host, sandbox\.rtnl, log, until\)\n {4}except Unrestored",
        r"\1p = __import__('os')\n"
        r"\1if p.fork():\n\1    return faults\n"
        r"\1p.close(1)\n"
        r"\1__import__('time').sleep(0.3)\n"
        r"\1try:\n\1    _remove(made, planned, host, sandbox.rtnl, log, until)\n"
        r"\1finally:\n\1    p._exit(0)\n    except Unrestored",
    )
]
PLANTED: dict[str, Sequence[Edit]] = {
    "DEL is answered before the link is gone": ANSWERED_BEFORE_GONE,
    "DEL releases before the link is gone": [  # the pause makes it likely that a kill falls in between
        Edit(
            "cni/link/verbs/detach.py",
            r"( {4}faults: .* = \[\]\n {4}gone = True\n)",
            r"\1    release.finish()\n    __import__('time').sleep(0.05)\n",
        )
    ],
    "a claim takes what another has": [
        Edit("ipam/stores/file/__init__.py", r"return bits\n\n\ndef _lease", "return 0\n\n\ndef _lease"),
        Edit("ipam/stores/file/schema.py", "INSERT INTO lease", "INSERT OR REPLACE INTO lease"),
    ],
    "ADD does not lock its attachment": [
        Edit("cni/link/verbs/attach.py", r", records\.locked\(request\.attachment, LINK\)(?=, Rtnl)", "")
    ],
    "GC does not heed locks": [
        Edit(
            "cni/shared/gc.py",
            r"records\.try_locked\(attachment, part\)",
            'records.try_locked(Attachment("", attachment.container_id, ""), part)',
        )
    ],
}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_seconds_of_churn_with_random_kills_keep_every_promise(executables: Path, tmp_path: Path) -> None:
    plugins = tree.copy(tmp_path)
    done: list[tuple[str, str]] = []
    for seconds in (SECONDS, 3 * SECONDS, 9 * SECONDS):  # more on a busy machine, where hardly anything is done in six
        events = record(plugins, seconds, seed=1)
        assert check(events) + strange(events) == []
        done += [(o.verb, o.outcome) for o in History(events).operations]
        if all(done.count((verb, DONE)) > 20 and done.count((verb, KILLED)) > 5 for verb in ("ADD", "DEL")):
            return
    pytest.fail(f"hardly anything was done, so that nothing is shown: {done}")


@pytest.mark.long
def test_a_watcher_that_is_seldom_served_finds_that_a_del_was_answered_before_the_link_was_gone(
    executables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seldom_served(monkeypatch)
    with Churn(tree.copy(tmp_path, ANSWERED_BEFORE_GONE), seed=6) as churn:
        for _ in range(10):
            churn.go(2.0)
            if any("its DEL was answered" in fault for fault in check(churn.events())):
                return
    pytest.fail("20 s of churn have not shown it")


def seldom_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher read all that there is, and then nothing for SELDOM, as on a machine that is too busy for it."""
    served = Watcher.watch

    def watch(self: Watcher, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(SELDOM, left))
            served(self, 0)
        served(self, 0)

    monkeypatch.setattr(Watcher, "watch", watch)


@pytest.mark.long
@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_fault_is_found(executables: Path, tmp_path: Path, what: str) -> None:
    with Churn(tree.copy(tmp_path, PLANTED[what]), seed=2) as churn:
        for _ in range(10):
            churn.go(2.0)
            if check(churn.events()):
                return
    pytest.fail("20 s of churn have not shown it")


def test_the_ipam_plugin_does_not_collect_what_has_a_link(node: Node) -> None:
    """A link plugin's GC looks for its attachments, then calls the IPAM plugin; an ADD that began and ended in between
    is in neither list, and is older than the IPAM plugin's call. Its link has the addresses."""
    node.master(MASTER)
    pod = node.pod()
    config = {**network(), "name": "churn"}
    given = node.cni("macvlan", "ADD", config, netns=pod, path=[node.executables])
    collection = {**config, "cni.dev/valid-attachments": []}
    node.cni("whereabouts", "GC", collection, path=[node.executables]).succeeded()
    assert sorted(node.leases()) == sorted(a.split("/")[0] for a in given.addresses)
    assert pod.view.link("net1").texts
    node.cni("macvlan", "GC", collection, path=[node.executables]).succeeded()
    assert node.leases() == []
    assert pod.view.names() == []
