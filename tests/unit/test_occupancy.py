"""cni/cluster/audit/occupancy.py: how full a pool is, and where."""

from cni.cluster.audit import occupancy
from cni.cluster.audit.model import Snapshot
from cni.cluster.audit.occupancy import spans_of
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want
from ipam.ranges import Range, parse_address
from ipam.stores.ippool.objects import IPPool

NET = parse_address("10.0.0.0")[1]


def test_the_size_is_what_may_be_given_and_leases_outside_of_it_are_told() -> None:
    ranges = [Range(4, NET, 24, NET + 10, NET + 19), Range(4, NET, 24, NET + 30, NET + 39)]
    full = occupancy.of([NET + 5, NET + 10, NET + 30], spans_of("10.0.0.0/24", ranges))
    assert (full.size, full.used, full.outside, full.free, full.percent) == (20, 3, 1, 18, 10.0)


def test_the_strip_shows_where_the_leases_are() -> None:
    lower_half = [NET + i for i in range(1, 129)]
    full = occupancy.of(lower_half, spans_of("10.0.0.0/24"))
    assert full.drawn("utf-8") == 16 * "█" + "▁" + 15 * "·"
    assert full.drawn("ascii") == 16 * "8" + "1" + 15 * "."


def test_a_small_pool_has_a_cell_for_each_address() -> None:
    full = occupancy.of([NET + 2], spans_of("10.0.0.0/29"))
    assert full.drawn("utf-8") == "·█····"


def test_of_a_vast_range_the_beginning_is_shown_as_far_as_leases_reach() -> None:
    full = occupancy.of([1, 300], spans_of("::/64"))
    assert (full.shown, full.size) == (512, (1 << 64) - 2)
    assert occupancy.of([], spans_of("::/64")).shown == 256
    assert occupancy.of([1, 1 << 40], spans_of("::/64")).shown == 1 << 40


def test_a_pool_whose_name_tells_no_range_is_told_while_it_has_leases() -> None:
    odd = IPPool({"metadata": {"name": "odd"}, "spec": {"range": "10.0.0.0/24"}}, 0)
    lease = Lease(Want("odd", 4, NET + 1, ""), Owner(Attachment("net", "c1", "net1")))
    assert occupancy.pools(Snapshot("kubernetes", [], [odd])) == []
    (pool,) = occupancy.pools(Snapshot("kubernetes", [lease], [odd]))
    assert (pool.name, pool.used, pool.occupancy) == ("odd", 1, None)
