"""Faults of each kind that the design forbids, planted in a copy of the plugins: the harness must find every one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import powerloss, runner, sweep, tree
from tests.faults.history import record
from tests.faults.inject import KILL, STOP, unavailable
from tests.faults.journal import Ended
from tests.faults.known_good import KnownGood
from tests.faults.tree import Edit

pytestmark = [pytest.mark.skipif(bool(unavailable()), reason=unavailable()), pytest.mark.long]

# what a power loss must show; of syncs, see test_durable_records.py
UNREPAIRED = {
    "a torn lease file": Edit("ipam/stores/file/database.py", r"database\._examine\(\)", "database._mark_boot()"),
    "bitmaps without their leases": Edit("ipam/stores/file/schema.py", r', "DELETE FROM bitmap"\)', ",)"),
    "a part of a record": Edit("cni/shared/records.py", r"if _is_part\(data\)", "if False"),
}
_WRITTEN_LATE = Edit(
    "cni/link/verbs/attach.py",
    r" {8}self\._write\(\)\n(\n {4}def _write(?:.*\n)*? {8}if )self\._record\[\"link\"\] != .*:",
    r"        pass\n\1True:",
)
# what a kill must show, in which operation, and what is said of it
MISORDERED = {
    "addresses released before the link is gone": (
        Edit("cni/link/verbs/detach.py", r"( {4}faults: .* = \[\]\n {4}gone = True\n)", r"\1    release.finish()\n"),
        "macvlan-del", "on the wire and not leased"),
    "the link's record written after the link": (_WRITTEN_LATE, "macvlan-add", "without a link record"),
    "the device's record written after the move": (_WRITTEN_LATE, "host-device-add", "without a link record"),
    "the lease's record written after the claim": (Edit("ipam/acquire.py",
        r"( +terms\.remember\(\[.*\], owner\.sequence\)\n)( +answer = store\.claim\(.*\n)", r"\2\1"), "macvlan-add",
        "has no record"),
}  # fmt: skip
UNLOCKED = Edit("cni/link/verbs/attach.py", r", records\.locked\(request\.attachment, LINK\)(?=, Rtnl)", "")
_RELEASED_EARLY, _, _ON_WIRE = MISORDERED["addresses released before the link is gone"]
_CLAIMED_EARLY, _, _UNRECORDED = MISORDERED["the lease's record written after the claim"]
MISORDERED |= {
    "the same over etcd": (_RELEASED_EARLY, "etcd-macvlan-del", _ON_WIRE),
    "the same over Kubernetes": (_RELEASED_EARLY, "kubernetes-macvlan-del", _ON_WIRE),
    "the record after the claim over etcd": (_CLAIMED_EARLY, "etcd-macvlan-add", _UNRECORDED),
    "the record after the claim over Kubernetes": (_CLAIMED_EARLY, "kubernetes-macvlan-add", _UNRECORDED),
}
# what a server's trouble must show: in which operation, by which trouble and continuation, and what is said of it
MISTAKEN = {
    "a claim of which nothing is known reported as made, over etcd": (Edit("ipam/stores/etcd/__init__.py",
        r"( {8}is_made = \[txn\.exists.*\n)", r"        return Claimed(leases)\n\1"),
        ("etcd-macvlan-add", "reset-before", "retry"), "and leased are []"),
    "a claim of which nothing is known reported as made, over Kubernetes": (
        Edit("ipam/stores/apiserver/store.py", r"return Unknown\(fault\)  # the next.*", "return Claimed(leases)"),
        ("kubernetes-macvlan-add", "reset-before", "retry"), "and leased are"),
    "a reservation left because it has changed": (Edit("ipam/stores/ippool/readings.py",
        r"except NotFound:\n {20}break", "except (NotFound, Conflict):\n                    break"),
        ("kubernetes-macvlan-del", "conflicts", "delete"), "allocated to nobody"),
    "a reservation deleted that has moved": (
        Edit("ipam/stores/ippool/readings.py", r"found\.uid, found\.version", "found.uid"),
        ("kubernetes-macvlan-del", "late", "restart"), "is not reserved"),
    "nobody's reservation taken for another's": (
        Edit("ipam/stores/ippool/__init__.py", r"if found\.lease\.pool != place\.pool:", "if True:"),
        ("kubernetes-macvlan-add", "late", "delete"), "allocated to nobody"),
    "addresses kept that a late release frees": (
        Edit("ipam/acquire.py", r"self\._lost = list\(terms\.doubtful\)", "self._lost: list[Want] = []"),
        ("etcd-macvlan-del", "late", "retry"), "and leased are []"),
    "a claim that is not forbidden": (Edit("ipam/upkeep.py", r"store\.settle\(attachment, record\[.*", "pass"),
        ("etcd-macvlan-add", "killed-late", "collect_gone"), "left: lease"),
}  # fmt: skip
MISTAKEN |= {
    f"a claim that came just before it was forbidden: {store}": (
        Edit("ipam/upkeep.py", r"late = store\.find\(attachment\)  # the store may.*", "late = []"),
        (f"{store}-macvlan-add", "killed-overtaken", "delete"),
        "the first DEL has left lease",
    )
    for store in ("etcd", "kubernetes", "addresslease")
}
# what only a continuation shows, in which operation, and words of the calls that leave it
UNCLEARED = {
    "a record's temporary file that DEL leaves": (
        Edit("cni/shared/kernel/files.py", r"\n {4}_unlink\(f\"\{directory\}/\{temporary_of\(name\)\}\"\)\n", "\n"),
        "macvlan-add", "/attachments"),
    "a device that a retried ADD does not give back": (Edit("cni/link/verbs/attach.py",
        r"\n {12}errors\.report\(detach\.detach\(former, self\._request, .*\)\)\n", "\n            pass\n"),
        "host-device-add", "sendto("),
}  # fmt: skip


@pytest.mark.parametrize("what", UNREPAIRED)
def test_what_is_not_mended_after_a_power_loss_is_found(executables: Path, tmp_path: Path, what: str) -> None:
    plugins = tree.copy(tmp_path / "tree", [UNREPAIRED[what]])
    known_good = tmp_path / "known_good"
    known_good.mkdir()
    recording = record("first", plugins)
    points = [i for i, entry in enumerate(recording.journal.entries) if isinstance(entry, Ended)]
    cases = [powerloss.Case("first", point, disk) for point in points for disk in range(12)]
    assert any(faults for _, faults in powerloss.run(recording, cases, 12, 0, plugins, KnownGood(known_good)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", MISORDERED)
def test_a_wrong_order_is_found(executables: Path, tmp_path: Path, what: str) -> None:
    edit, operation, words = MISORDERED[what]
    plugins = tree.copy(tmp_path, [edit])
    units = [u for u in sweep.plan([operation], [KILL], plugins) if u.call.name in ("sendto", "unlink", "write")]
    assert words in first_failure(units, plugins)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", MISTAKEN)
def test_a_wrong_answer_to_what_befalls_a_request_is_found(executables: Path, tmp_path: Path, what: str) -> None:
    edit, (operation, fault, way), words = MISTAKEN[what]
    plugins = tree.copy(tmp_path, [edit])
    units = [replace(u, continuations=(way,)) for u in sweep.plan([operation], [fault], plugins)]
    assert words in first_failure(units, plugins)


def test_a_missing_lock_is_found(executables: Path, tmp_path: Path) -> None:
    plugins = tree.copy(tmp_path, [UNLOCKED])
    units = [u for u in sweep.plan(["macvlan-add"], [STOP], plugins) if u.call.name in ("sendto", "rename")]
    assert "without a lock" in first_failure(units, plugins)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", UNCLEARED)
def test_the_same_is_found_when_no_state_is_gone_through_twice(executables: Path, tmp_path: Path, what: str) -> None:
    edit, operation, words = UNCLEARED[what]
    plugins = tree.copy(tmp_path, [edit])
    units = [u for u in sweep.plan([operation], [KILL], plugins) if words in u.call.what][:8]
    assert len(units) > 4
    every, once = (
        {case for _, tally in runner.run(units, plugins, every=every) for case in tally.failures}
        for every in (True, False)
    )
    assert every
    assert once == every


def first_failure(units: Sequence[runner.Unit], plugins: Path) -> str:
    """All that was said of the first unit that went wrong; "" when none did."""
    quick = [replace(u, continuations=u.continuations[:1]) for u in units]
    found = (tally.failures for _, tally in runner.run(quick, plugins) if tally.failures)
    return "\n".join(said for failures in found for lines in failures.values() for said in lines)
