"""What every store promises (ipam/stores/base.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from ipam import upkeep
from ipam.leases import Lease, Owner, Want
from ipam.stores.base import Claimed, Store, Taken
from tests.node import until
from tests.stores.kinds import spaced as owner
from tests.stores.kinds import want

TEN = 10 << 24  # 10.0.0.0
FD = 0xFD << 120  # fd00::
LARGE = 1 << 128
FAMILIES = pytest.mark.parametrize(("family", "base"), [(4, TEN), (6, FD)], ids=["IPv4", "IPv6"])


def claim(store: Store, wants: list[Want], who: Owner, instead_of: list[Lease] | None = None) -> list[Lease]:
    answer = store.claim(wants, who, instead_of or [])
    assert isinstance(answer, Claimed)
    return answer.leases


def taken(store: Store, wants: list[Want], who: Owner, instead_of: list[Lease] | None = None) -> list[int]:
    answer = store.claim(wants, who, instead_of or [])
    assert isinstance(answer, Taken)
    return [w.value for w in answer.wants]


def values(leases: Iterable[Lease]) -> list[int]:
    return [lease.value for lease in leases]


def of_pod(store: Store, pod: tuple[str, str, str]) -> list[int]:
    return values(store.survey(owner("asks", pod=pod), [], False).pods)


def former(store: Store, pod: tuple[str, str, str], ifname: str = "net1") -> list[tuple[int, int]]:
    return store.survey(owner("asks", pod=pod, ifname=ifname), [], False).former


@FAMILIES
def test_what_is_claimed_is_found_with_all_that_was_said_of_it(
    reopen: Callable[[], Store], family: int, base: int
) -> None:
    machine = "" if reopen().kind == "file" else "m"  # a file is of one machine
    pod = ("ns", "pod-a", "uid-1")
    who = owner("c1", 1 << 55, pod=pod, node="n", boot_id="b", netns="/proc/1/ns/net", machine=machine)
    claim(reopen(), [want(base + 7, "p", family=family, scope="blue")], who)
    (found,) = reopen().find(who.attachment)
    assert (found.pool, found.family, found.value, found.scope) == ("p", family, base + 7, "blue")
    assert (found.attachment, found.pod, found.node, found.boot_id) == (who.attachment, pod, "n", "b")
    assert (found.netns, found.sequence, found.machine) == (who.netns, who.sequence, machine)
    assert found.created == pytest.approx(who.sequence / 1e9)


def test_a_claim_takes_all_its_addresses_or_none(store: Store) -> None:
    claim(store, [want(TEN + 2, "b")], owner("holder"))
    late = owner("late")
    assert taken(store, [want(TEN + 1, "a"), want(TEN + 2, "b"), want(TEN + 3, "c")], late) == [TEN + 2]
    assert store.find(late.attachment) == []
    assert store.occupied("a", None, 4, TEN, TEN + 9) == 0
    assert values(claim(store, [want(TEN + 1, "a"), want(TEN + 3, "c")], late)) == [TEN + 1, TEN + 3]


def test_pools_of_one_scope_share_no_address(store: Store) -> None:
    claim(store, [want(TEN + 1, "narrow")], owner("c1"))
    assert taken(store, [want(TEN + 1, "wide")], owner("c2")) == [TEN + 1]
    seen = 0b0000 if store.kind == "kubernetes" else 0b0010  # in IPPools a search reads its own pool alone
    assert store.occupied("wide", "", 4, TEN, TEN + 3) == seen
    holder = store.holder(want(TEN + 1, "wide"))
    assert holder and holder.container_id == "c1"


def test_a_claim_is_refused_each_address_that_is_held_in_its_pool_or_scope_and_no_other(store: Store) -> None:
    claim(store, [want(TEN + 1, "a", scope="blue")], owner("c1"))
    claim(store, [want(TEN + 2, "b", scope=None)], owner("c2"))
    claim(store, [want(7, "p", family=4)], owner("c3"))
    for wants, refused in (
        ([want(TEN + 2, "b", scope=None)], [TEN + 2]),  # in its pool, whatever the scope
        ([want(TEN + 2, "b", scope="blue")], [TEN + 2]),
        ([want(TEN + 3, "c"), want(TEN + 3, "c")], [TEN + 3]),  # one address twice
    ):
        assert taken(store, wants, owner("late")) == refused
    assert store.find(owner("late").attachment) == []
    for scope in (None, "red"):
        assert store.occupied("wide", scope, 4, TEN, TEN + 3) == 0
        assert store.holder(want(TEN + 1, "wide", scope=scope)) is None
        claim(store, [want(TEN + 1, f"wide {scope}", scope=scope)], owner(f"of {scope}"))
    assert store.occupied("p6", "", 6, 0, 15) == 0
    claim(store, [want(7, "p6", family=6)], owner("c6"))


def test_a_claim_takes_the_place_of_leases_that_are_given_up_with_it(store: Store) -> None:
    old = claim(store, [want(TEN + 1), want(TEN + 2)], owner("old", 1))
    claim(store, [want(TEN + 5)], owner("other", 2))
    assert taken(store, [want(TEN + 1), want(TEN + 5)], owner("new", 3), old) == [TEN + 5]
    assert values(store.find(owner("old").attachment)) == [TEN + 1, TEN + 2]
    new = owner("new", 4)
    claim(store, [want(TEN + 1), want(TEN + 9)], new, old)
    assert store.find(owner("old").attachment) == []
    assert values(store.find(new.attachment)) == [TEN + 1, TEN + 9]
    assert store.occupied("pool", "", 4, TEN, TEN + 9) == 1 << 1 | 1 << 5 | 1 << 9
    claim(store, [want(TEN + 2)], owner("third", 5))


def test_a_lease_that_has_changed_since_it_was_read_cannot_be_given_up(store: Store) -> None:
    stale = claim(store, [want(TEN + 1)], owner("old", 1))
    claim(store, [want(TEN + 1)], owner("new", 2), stale)
    assert taken(store, [want(TEN + 2)], owner("late", 3), stale) == [TEN + 1]
    assert values(store.find(owner("new").attachment)) == [TEN + 1]


def test_release_frees_what_is_still_there_and_can_be_repeated(store: Store) -> None:
    leases = claim(store, [want(TEN + 1), want(TEN + 2, "b", scope=None)], owner())
    assert store.release(leases[:1]) == 1
    assert store.release(leases) == 1
    assert store.release(leases) == 0
    assert store.find(owner().attachment) == []
    assert store.pools() == []
    assert store.holder(want(TEN + 1)) is None
    claim(store, [want(TEN + 1, "other pool, same scope")], owner("c2"))


def test_a_late_release_frees_nothing_of_another(store: Store) -> None:
    first = claim(store, [want(TEN + 1)], owner("c1", 1))
    again = claim(store, [want(TEN + 1)], owner("c1", 2), first)  # the same attachment, attached again
    assert store.release(first) == 0
    assert taken(store, [want(TEN + 1, "another pool of its scope")], owner("c3", 3)) == [TEN + 1]
    claim(store, [want(TEN + 1)], owner("c2", 3), again)
    assert store.release(first + again) == 0
    assert values(store.find(owner("c2").attachment)) == [TEN + 1]


def test_to_settle_an_attachment_takes_nothing_of_what_it_holds(store: Store) -> None:
    claim(store, [want(TEN + 1)], owner("c1", 2))
    store.settle(owner("c1").attachment, 1)
    assert values(store.find(owner("c1").attachment)) == [TEN + 1]
    assert taken(store, [want(TEN + 1, "another pool of its scope")], owner("c2", 3)) == [TEN + 1]


def test_a_lease_that_the_store_has_lost_is_put_back_by_a_claim_as_it_was_unless_another_has_the_address(
    store: Store,
) -> None:
    """As the agent does from a node's records, when the store was restored from an older backup."""
    who, pod = owner("c1", 5, pod=("ns", "a", "uid-1")), ("ns", "a", "uid-1")
    lost = claim(store, [want(TEN + 1)], who) + claim(store, [want(TEN + 2)], owner("c2", 6, pod=pod, ifname="net2"))
    store.release(lost)
    claim(store, [want(TEN + 2)], owner("other", 7))
    (again,) = claim(store, [want(TEN + 1)], who)
    assert (again.key(), again.created, again.pod) == (Lease(lost[0], who).key(), who.sequence / 1e9, pod)
    store.claim([want(TEN + 1)], who)  # nothing is lost of it: that changes nothing
    assert sorted(values(store.leases("pool"))) == [TEN + 1, TEN + 2]
    assert taken(store, [want(TEN + 2)], owner("c2", 6)) == [TEN + 2]
    holder = store.holder(want(TEN + 2))
    assert holder and holder.container_id == "other"


def test_an_attachment_is_network_container_and_ifname(store: Store) -> None:
    claim(store, [want(TEN + 1)], owner("c1", 1))
    claim(store, [want(TEN + 2)], owner("c1", 2, ifname="net2"))
    claim(store, [want(TEN + 3)], owner("c1", 3, network="other"))
    claim(store, [want(TEN + 4)], owner("c2", 4))
    assert values(store.find(owner("c1").attachment)) == [TEN + 1]


def test_a_pod_is_found_by_namespace_name_and_ifname_whatever_its_uid_and_container(store: Store) -> None:
    claim(store, [want(TEN + 1)], owner("c1", 1, pod=("ns", "a", "uid-1")))
    claim(store, [want(TEN + 2)], owner("c2", 2, pod=("ns", "a", "uid-2")))
    claim(store, [want(TEN + 3)], owner("c3", 3, pod=("ns", "a", ""), ifname="net2"))
    claim(store, [want(TEN + 4)], owner("c4", 4, pod=("other", "a", "")))
    claim(store, [want(TEN + 5)], owner("c5", 5, pod=("ns", "", "")))
    assert of_pod(store, ("ns", "a", "uid-9")) == [TEN + 1, TEN + 2]
    assert of_pod(store, ("ns", "", "")) == []  # no name is that of no pod


@FAMILIES
@pytest.mark.parametrize("start", [0, 4090, 4096, (1 << 24) - 3])
def test_occupied_is_a_bitset_from_low_to_high(store: Store, family: int, base: int, start: int) -> None:
    held = [0, 3, 7]
    claim(store, [want(base + start + i, family=family) for i in held], owner())
    for low in range(8):
        expected = sum(1 << i - low for i in held if low <= i <= 7)
        assert store.occupied("pool", "", family, base + start + low, base + start + 7) == expected
    assert store.occupied("pool", "", family, base + start, base + start + 2) == 1


def test_the_highest_addresses_can_be_leased(store: Store) -> None:
    for family, top in ((4, (1 << 32) - 1), (6, LARGE - 1)):
        (lease,) = claim(store, [want(top, f"p{family}", family=family)], owner(f"c{family}"))
        assert store.occupied(f"p{family}", "", family, top - 1, top) == 0b10
        assert store.next_open(f"p{family}", "", family, top - 1, top) in (top - 1, top)
        assert store.release([lease]) == 1


def test_next_open_never_passes_a_free_address(store: Store, request: pytest.FixtureRequest) -> None:
    if request.node.name.endswith(("[kubernetes, unwell]", "[addresslease, unwell]")):
        pytest.skip("a claim of hundreds of addresses begins again with each request that falls ill")
    leaf = 4096 if store.kind == "file" else 256
    base = TEN + 4096
    leases: list[Lease] = []
    for start in range(0, 2 * leaf, 1024):  # what one request of etcd holds must not take it seconds
        span = range(start, min(start + 1024, 2 * leaf))
        leases += claim(store, [want(base + i) for i in span], owner(f"c{start}"))
    for at in (TEN, TEN + 4095, base, base + leaf - 1, base + leaf, base + 2 * leaf - 1):
        assert at <= store.next_open("pool", "", 4, at, TEN + 65535) <= max(at, base + 2 * leaf)
    assert store.next_open("pool", "", 4, base + 5, base + leaf - 96) in range(base + 5, base + leaf - 94)
    free = leaf + leaf // 4
    store.release(leases[free : free + 1])
    assert store.next_open("pool", "", 4, base, TEN + 65535) <= base + free
    assert store.next_open("other", "", 4, base, TEN + 65535) <= base + free
    assert store.next_open("other", None, 4, base, TEN + 65535) == base


def test_leases_are_read_page_by_page_of_a_pool_or_of_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "page", 2)
    for i in (9, 2, 300, 70000, 5):
        claim(store, [want(TEN + i)], owner(f"c{i}", i, node=f"node-{i % 2}"))
    claim(store, [want(TEN + 3, "other")], owner("x", node="node-1"))
    assert sorted(values(store.leases("pool"))) == [TEN + i for i in (2, 5, 9, 300, 70000)]
    assert sorted(values(store.leases())) == [TEN + i for i in (2, 3, 5, 9, 300, 70000)]
    assert sorted(values(store.leases("pool", "node-1"))) == [TEN + 5, TEN + 9]


def test_pools_say_how_many_leases_they_have(store: Store) -> None:
    claim(store, [want(TEN + i, "a") for i in range(5)] + [want(FD + 1, "b", family=6)], owner())
    assert [(p.name, p.family, p.used) for p in store.pools()] == [("a", 4, 5), ("b", 6, 1)]


def test_leases_of_earlier_boots_are_those_of_this_node_only(store: Store) -> None:
    claim(store, [want(TEN + 1)], owner("c1", boot_id="old"))
    claim(store, [want(TEN + 2)], owner("c2", boot_id="now"))
    claim(store, [want(TEN + 3)], owner("c3", boot_id="old", node="node-2"))
    claim(store, [want(TEN + 4, "other")], owner("c4", boot_id="old"))
    found = values(upkeep.of_earlier_boots(store, "pool", owner(boot_id="now")))
    assert found == ([TEN + 1, TEN + 3] if store.kind == "file" else [TEN + 1])  # the host had another name


WEB = ("ns", "web-0", "uid-1")


@FAMILIES
def test_a_pod_that_returns_is_told_which_addresses_it_had(reopen: Callable[[], Store], family: int, base: int) -> None:
    wants = [want(base + 7, "p", family=family), want(base + 9, "q", family=family, scope=None)]
    claim(reopen(), wants, owner("c1", 1, pod=WEB))
    assert former(reopen(), WEB) == []  # it has them
    store = reopen()
    store.release(store.find(owner("c1").attachment))
    again = ("ns", "web-0", "uid-2")
    assert sorted(former(reopen(), again)) == [(family, base + 7), (family, base + 9)]
    for other, ifname in ((WEB, "net2"), (("other", "web-0", ""), "net1"), (("ns", "web-1", ""), "net1")):
        assert former(reopen(), other, ifname) == []


def test_the_last_address_in_a_pool_is_the_one_that_is_remembered(store: Store) -> None:
    for i in (5, 3, 8):
        store.release(claim(store, [want(TEN + i)], owner(f"c{i}", i, pod=WEB)))
    assert former(store, WEB) == [(4, TEN + 8)]
    store.release(claim(store, [want(TEN + 1), want(TEN + 2)], owner("c1", pod=WEB)))
    assert former(store, WEB) in ([(4, TEN + 1)], [(4, TEN + 2)])


def test_of_a_pod_that_never_comes_back_under_its_name_nothing_is_remembered(store: Store) -> None:
    for name in ("web", "web-7d9f8b6c5-x2x4z", "0", "-0", "web-", "web-\u0663"):
        store.release(claim(store, [want(TEN + 1)], owner("c1", pod=("ns", name, ""))))
        assert former(store, ("ns", name, "")) == [], name


def test_a_late_release_is_not_remembered(store: Store) -> None:
    late = claim(store, [want(TEN + 1)], owner("c1", 1, pod=WEB))
    claim(store, [want(TEN + 1)], owner("c2", 2, pod=WEB), late)
    store.cooldown = 600
    assert store.release(late) == 0
    assert former(store, WEB) == []
    assert not cooling(store)


def cooling(store: Store, pool: str = "pool", scope: str | None = "", who: Owner | None = None) -> list[int]:
    return sorted(v - TEN for v in store.cooling(pool, scope, 4, TEN, TEN + 1000, who or owner("x")))


def test_an_address_that_was_freed_with_a_cooldown_cools_for_all_but_its_pod(reopen: Callable[[], Store]) -> None:
    store = reopen()
    leases = claim(store, [want(TEN + 1)], owner("c1", 1, pod=("ns", "a", "")))
    nameless = claim(store, [want(TEN + 2)], owner("c2", 2))
    store.release(claim(store, [want(TEN + 3)], owner("c3", 3)))
    store.cooldown = 600
    assert store.release(leases + nameless) == 2
    store = reopen()
    assert cooling(store) == [1, 2]
    assert cooling(store, who=owner("c9", pod=("ns", "a", "uid-9"))) == [2]
    assert cooling(store, who=owner("c9", pod=("ns", "a", ""), ifname="net2")) == [1, 2]
    assert cooling(store, who=owner("c2")) == [1, 2]
    assert not store.cooling("pool", "", 4, TEN + 3, TEN + 1000, owner("x"))
    assert cooling(store, "other", None) == []
    assert store.occupied("pool", "", 4, TEN, TEN + 9) == 0  # who has no cooldown is not held up
    claim(store, [want(TEN + 1)], owner("c5", 5))


def test_an_address_cools_in_the_other_pools_of_its_scope_too(store: Store) -> None:
    if store.kind == "kubernetes":
        pytest.skip("what cools stands in the pool's own object there, and others are not read")
    leases = claim(store, [want(TEN + 1, "narrow", scope="blue")], owner("c1", 1))
    store.cooldown = 600
    store.release(leases)
    assert cooling(store, "wide", "blue") == cooling(store, "narrow", None) == [1]
    assert cooling(store, "wide", "red") == cooling(store, "wide", None) == []


def test_a_cooldown_ends(store: Store) -> None:
    leases = claim(store, [want(TEN + 1)], owner("c1", 1))
    store.cooldown = 1
    store.release(leases)
    assert cooling(store) == [1]
    assert until(lambda: not cooling(store), 30)


def test_what_a_claim_gives_up_cools_and_what_it_keeps_does_not(store: Store) -> None:
    old = claim(store, [want(TEN + 1), want(TEN + 2)], owner("c1", 1))
    store.cooldown = 600
    assert taken(store, [want(TEN + 1), want(TEN + 1)], owner("c1", 2), old) == [TEN + 1]
    assert cooling(store) == []
    claim(store, [want(TEN + 1), want(TEN + 9)], owner("c1", 3), old)
    assert cooling(store) == [2]


def test_what_is_read_in_a_turn_sees_what_was_claimed_in_it_also_when_turns_are_nested(store: Store) -> None:
    with store.session():
        claim(store, [want(TEN + 1)], owner("c1"))
        with store.session():
            assert taken(store, [want(TEN + 1)], owner("c2")) == [TEN + 1]
            assert store.occupied("pool", "", 4, TEN, TEN + 1) == 0b10
    assert values(store.find(owner("c1").attachment)) == [TEN + 1]
