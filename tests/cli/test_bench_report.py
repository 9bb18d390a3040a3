"""The statistics, limits and tables of `make bench`, from samples that are made up."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.bench import report
from tests.bench.limits import LIMITS, crowd_ratios, crowd_verdict, memory_verdict
from tests.bench.samples import Crowd, Operation, Results, Sample, percentile, ratio
from tests.bench.scenarios import (
    AS_CONTAINERD,
    ETCD_CLAIMS,
    FULL,
    GO,
    HOST_DEVICE,
    KUBE_NODE,
    MOVE,
    OURS,
    POOL,
    SCENARIOS,
    ipam_group,
)

ADD = Operation(POOL, "ADD")


def results(times: dict[tuple[Operation, str], list[float]]) -> Results:
    found = Results()
    for (operation, side), values in times.items():
        for value in values:
            found.add(operation, side, Sample(value, value / 2))
    return found


def test_percentiles_ratios_and_the_verdict_on_memory_are_right() -> None:
    assert percentile(list(range(99, 0, -1)), 0.99) == 99, "of fewer than a hundred the greatest"
    assert [percentile(range(1, n), 0.99) for n in (101, 201, 1)] == [99, 198, None]
    assert [ratio([1, 4, 100], [2, 2, 50]), ratio([], [1]), ratio([1], [])] == [2, None, None]
    found = Results(memory_kib={POOL: {OURS: [29_296], GO: [1]}, HOST_DEVICE: {OURS: [29_297]}})
    assert [memory_verdict(found, group).split()[-1] for group in (POOL, HOST_DEVICE)] == ["met", "missed"]
    verbs = {one.group: one.verbs for one in SCENARIOS}
    assert verbs[AS_CONTAINERD] == verbs[POOL]


CHECK, MOVED = Operation(POOL, "CHECK"), Operation(HOST_DEVICE, "ADD")
FILLED, EMPTY = (Operation(ipam_group(leases), "ADD") for leases in (FULL, 0))


@pytest.mark.parametrize(("operation", "ours", "other", "theirs", "verdict"), [
    (CHECK, 5.0, (CHECK, GO), 10.0, "at most 0.5: met"), (CHECK, 5.1, (CHECK, GO), 10.0, "at most 0.5: missed"),
    (ADD, 6.0, (ADD, GO), 10.0, "at most 0.65: met; CPU 0.60, at most 0.6: met"),
    (ADD, 6.2, (ADD, GO), 10.0, "at most 0.65: met; CPU 0.62, at most 0.6: missed"),
    (ADD, 7.0, (ADD, GO), 10.0, "at most 0.65: missed; CPU 0.70, at most 0.6: missed"),
    (MOVED, 30.0, (MOVE, OURS), 14.0, "above the bare move 16.00 ms, at most 8 ms: missed"),
    (FILLED, 11.0, (EMPTY, OURS), 10.0, "to 0 leases 1.10, at most 1.2: met"),
    (ADD, 20.0, (CHECK, GO), 10.0, ""),  # nothing to compare it with
])  # fmt: skip
def test_a_limit_is_met_up_to_its_value_and_says_what_it_compares(
    operation: Operation, ours: float, other: tuple[Operation, str], theirs: float, verdict: str
) -> None:
    assert LIMITS[operation].verdict(results({(operation, OURS): [ours], other: [theirs]})) == verdict


@pytest.mark.parametrize(
    ("rounds", "slower", "said"),
    [(99, 1.2, ""), (100, 1.2, "1.20, at most 1.05: missed"), (100, 1.04, "1.04, at most 1.05: met")],
)
def test_a_callers_variables_are_judged_within_a_hundred_rounds_at_least(rounds: int, slower: float, said: str) -> None:
    """A machine that slows down in the course of a run slows all rows of a round."""
    add = Operation(AS_CONTAINERD, "ADD")
    speed = [1.0 + number / 10 for number in range(rounds)]
    times = {
        (add, OURS): [2 * slower * s for s in speed], (add, GO): [4 * s for s in speed],
        (ADD, OURS): [2 * s for s in speed], (ADD, GO): [4 * s for s in speed],
    }  # fmt: skip
    assert LIMITS[add].verdict(results(times)).endswith(said)
    assert bool(said) == bool(LIMITS[add].verdict(results(times)))


def test_a_rate_is_to_be_at_least_its_limit_and_failures_are_summed_up() -> None:
    failures = Operation(KUBE_NODE, "failures of ADD")
    found = Results()
    for rate, failed in ((900, 0), (2_500, 0), (5_000, 1)):
        found.note(ETCD_CLAIMS, OURS, rate)
        found.note(failures, OURS, failed)
    assert LIMITS[ETCD_CLAIMS].verdict(found) == "at least 2500: met"
    assert LIMITS[failures].verdict(found) == "at most 0: missed"
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.figures(found, [OURS, GO]))
    assert "at least 2500: met" in console.export_text()


def test_one_call_of_many_that_fails_or_leaves_something_misses_the_limit() -> None:
    good = Crowd("etcd", "one /16", 2_048, 1.0, 1.0, [5.0], [5.0], 0, 0, 0, [], "clean")
    assert crowd_verdict(good).endswith("met")
    for bad in ({"failed": 1}, {"wrong": 1}, {"left": 1}, {"audit": "1 orphan"}):
        assert crowd_verdict(replace(good, **bad)).endswith("missed")  # type: ignore[arg-type]
    document = report.document(Results(crowds=[good]), {}, 1)
    assert document["limits"] == {"users: etcd, one /16": "at most 0: met"}
    assert document["users"][0]["add_s"] == 1.0


def test_what_one_range_takes_is_compared_with_many_ranges_and_with_an_earlier_version() -> None:
    one = Crowd("AddressLeases", "one /16", 2_048, 26.0, 1.0, [5.0], [5.0], 0, 0, 0, [], "clean")
    many = replace(one, what="16 ranges", add_s=20.0)
    former = replace(one, store="IPPools, 1.0", add_s=52.0)
    beside = replace(one, store="IPPools", add_s=1.0)
    assert crowd_ratios([one, many, former, beside]) == [
        "2,048 ADDs over AddressLeases, one /16: it took 26.00 s, at most 25 s: missed",
        "2,048 ADDs over AddressLeases, one /16: to AddressLeases, 16 ranges 1.30, at most 1.3: met",
        "2,048 ADDs over AddressLeases, one /16: to IPPools, 1.0, one /16 0.50, at most 0.45: missed",
    ]
    assert crowd_ratios([former]) == []


def test_the_table_shows_ratios_verdicts_and_a_peer_and_the_document_keeps_every_sample() -> None:
    found = results({(ADD, OURS): [20.0], (ADD, GO): [8.0], (ADD, "peer"): [10.0]})
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.times(found, [OURS, GO, "peer"]))
    text = console.export_text()
    assert all(word in text for word in ("ours / peer", "2.50", "2.00", "at most 0.65: missed")), text
    times = {"ms": {OURS: [20.0], GO: [8.0], "peer": [10.0]}, "cpu_ms": {OURS: [10.0], GO: [4.0], "peer": [5.0]}}
    assert report.document(found, {"kernel": "6"}, 2)["operations"] == [{"group": POOL, "verb": "ADD", **times}]
