"""A small part of `make faults`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.each import quick
from tests.faults import backing, powerloss, runner, sweep, tree
from tests.faults.cases import OPERATIONS
from tests.faults.history import record
from tests.faults.inject import KILL, STOP, unavailable
from tests.faults.powerloss import Case
from tests.faults.runner import Unit

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


@pytest.fixture(scope="module")
def plugins(executables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executables of a copy of the tree."""
    return tree.copy(tmp_path_factory.mktemp("tree"))


def failures(units: Sequence[Unit], plugins: Path) -> dict[str, list[str]]:
    """What went wrong in `units`, by case."""
    return {case: said for _, tally in runner.run(units, plugins) for case, said in tally.failures.items()}


def thinned(units: Sequence[Unit], count: int) -> list[Unit]:
    """`count` cases, spread over `units`, with all continuations in turn."""
    drawn = [units[i * len(units) // count] for i in range(count)]
    return [replace(u, continuations=(u.continuations[i % len(u.continuations)],)) for i, u in enumerate(drawn)]


@pytest.mark.parametrize(
    "operation",
    quick(
        ["macvlan-first-add", "macvlan-del", "host-device-add", "host-device-del", "routed-del"],
        *("macvlan-first-add", "host-device-del"),
    ),
)
def test_a_killed_plugin_leaves_nothing_that_a_retry_a_del_or_gc_does_not_clear(plugins: Path, operation: str) -> None:
    assert failures(thinned(sweep.plan([operation], [KILL], plugins), 2), plugins) == {}


@pytest.mark.parametrize("operation", quick(["macvlan-add", "host-device-del"], "macvlan-add"))
def test_a_failed_system_call_is_a_cni_error_and_leaves_nothing_for_good(plugins: Path, operation: str) -> None:
    assert failures(thinned(sweep.plan([operation], ["EIO", "ENOSPC", "EBUSY"], plugins), 3), plugins) == {}


def test_a_del_waits_for_an_add_that_still_runs_and_clears_what_it_did(plugins: Path) -> None:
    assert failures(thinned(sweep.plan(["macvlan-add"], [STOP], plugins), 2), plugins) == {}


@pytest.mark.parametrize("operation", quick(["etcd-macvlan-del", "kubernetes-macvlan-add"], "etcd-macvlan-del"))
def test_over_a_store_of_all_nodes_neither_kills_nor_lost_replies_leave_anything(plugins: Path, operation: str) -> None:
    store = OPERATIONS[operation].store
    if backing.unavailable(store):
        pytest.skip(backing.unavailable(store))
    units = sweep.plan([operation], [KILL, "reply-lost", "error-after"], plugins)
    killed = [u for u in units if u.fault == KILL and u.call.name in ("sendto", "recvfrom", "fsync")]
    chosen = thinned(killed, 1) + thinned([u for u in units if u.fault != KILL], 2)
    assert failures(chosen, plugins) == {}


@pytest.mark.long
@pytest.mark.parametrize("longer", [2, -2], ids=["longer", "shorter"])
def test_a_point_behind_the_list_of_mounts_is_found_where_that_list_has_another_length(
    plugins: Path, longer: int
) -> None:
    """A read of the list gives a page of it, and its length differs from run to run."""
    units = [u for u in sweep.plan(["rail-gc"], ["EIO"], plugins) if u.call.name == "read" and u.call.pages > 1]
    call = units[-1].call
    as_planned = replace(call, ordinal=call.ordinal - longer, pages=call.pages - longer)
    assert failures([replace(units[-1], call=as_planned, continuations=("delete",))], plugins) == {}


@pytest.mark.long
def test_a_device_that_is_not_given_back_whole_is_refused_to_others_until_it_is(plugins: Path) -> None:
    units = [u for u in sweep.plan(["host-device-del"], ["EIO"], plugins) if u.call.name == "sendto"]
    assert len(units) > 5
    assert failures([replace(u, continuations=("other",)) for u in units[:: len(units) // 2]], plugins) == {}


def test_after_a_power_loss_the_node_goes_on_and_nothing_is_left_or_given_twice(plugins: Path) -> None:
    recording = record("first", plugins)
    cases = [Case("first", point, disk) for point in range(0, len(recording.journal.entries), 480) for disk in range(3)]
    wrong = {c.name(0): faults for c, faults in powerloss.run(recording, cases, 12, 0, plugins) if faults}
    assert wrong == {}
