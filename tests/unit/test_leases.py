"""ipam/rules.py: the lease rules, without a store."""

import pytest

from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want
from ipam.ranges import Range, parse_address
from ipam.rules import Need, may_take_over, plan

BASE = parse_address("10.0.0.0")[1]
RANGE = Range(4, BASE, 24)
OTHER = Range(4, BASE + 256, 24)


def need(rng: Range = RANGE, requested: int | None = None, scope: str | None = "") -> Need:
    return Need(rng, rng.pool_name(), scope, None if requested is None else rng.network + requested)


def owner(container: str = "c1", pod: tuple[str, str, str] = ("ns", "a", ""), **fields: str) -> Owner:
    return Owner(Attachment("net", container, fields.pop("ifname", "net1")), pod, "node", "boot", "/run/netns/x", 1)


def lease(offset: int, who: Owner, rng: Range = RANGE, scope: str | None = "") -> Lease:
    return Lease(Want(rng.pool_name(), 4, rng.network + offset, scope), who)


def test_who_has_nothing_gets_new_addresses() -> None:
    decided = plan([need(), need(OTHER)], [], [], owner())
    assert (decided.chosen, decided.given_up, decided.settled) == ([None, None], [], False)


def test_who_has_all_of_it_keeps_it_and_nothing_is_claimed() -> None:
    own = [lease(5, owner()), lease(6, owner(), OTHER)]
    decided = plan([need(), need(OTHER)], own, own, owner())
    assert decided.chosen == [BASE + 5, BASE + 256 + 6]
    assert decided.settled


@pytest.mark.parametrize("field", ["pod", "node", "boot_id", "netns"])
def test_what_the_store_says_of_the_owner_is_brought_up_to_date(field: str) -> None:
    own = [lease(5, owner())]
    setattr(own[0], field, ("ns", "a", "uid-1") if field == "pod" else "former")
    decided = plan([need()], own, [], owner())
    assert (decided.chosen, decided.given_up, decided.settled) == ([BASE + 5], own, False)


def test_an_address_that_the_range_no_longer_gives_is_given_up_for_a_new_one() -> None:
    own = [lease(5, owner())]
    decided = plan([need(Range(4, BASE, 24, start=BASE + 100))], own, [], owner())
    assert (decided.chosen, decided.given_up, decided.settled) == ([None], own, False)


def test_an_address_of_a_range_that_was_taken_out_is_given_up() -> None:
    own = [lease(5, owner()), lease(6, owner(), OTHER)]
    decided = plan([need()], own, [], owner())
    assert (decided.chosen, decided.given_up, decided.settled) == ([BASE + 5], own, False)


def test_a_range_that_was_added_gets_an_address_and_the_others_stay() -> None:
    own = [lease(5, owner())]
    assert plan([need(OTHER), need()], own, [], owner()).chosen == [None, BASE + 5]


def test_a_changed_reservation_scope_keeps_the_address_and_claims_it_anew() -> None:
    own = [lease(5, owner(), scope=None)]
    decided = plan([need()], own, [], owner())
    assert (decided.chosen, decided.settled) == ([BASE + 5], False)


def test_two_ranges_of_one_pool_share_no_lease() -> None:
    own = [lease(5, owner())]
    assert plan([need(), need()], own, [], owner()).chosen == [BASE + 5, None]


def test_a_requested_address_replaces_the_lease_that_was_there() -> None:
    own = [lease(5, owner())]
    decided = plan([need(requested=9)], own, [], owner())
    assert (decided.chosen, decided.given_up, decided.settled) == ([BASE + 9], own, False)
    assert plan([need(requested=5)], own, [], owner()).settled


def test_a_request_is_served_before_a_range_takes_the_lease() -> None:
    own = [lease(5, owner())]
    assert plan([need(), need(requested=5)], own, [], owner()).chosen == [None, BASE + 5]


def test_a_restarted_sandbox_takes_over_what_its_pod_has() -> None:
    old = [lease(5, owner("old")), lease(6, owner("old"), OTHER)]
    decided = plan([need(), need(OTHER)], [], old, owner("new"))
    assert (decided.chosen, decided.given_up, decided.settled) == ([BASE + 5, BASE + 256 + 6], old, False)


def test_of_the_former_sandbox_only_what_is_used_moves() -> None:
    old = [lease(5, owner("old")), lease(6, owner("old"), OTHER)]
    assert plan([need()], [], old, owner("new")).given_up == old[:1]


def test_own_leases_come_before_those_of_a_former_sandbox() -> None:
    own, old = [lease(7, owner("new"))], [lease(5, owner("old"))]
    decided = plan([need()], own, own + old, owner("new"))
    assert (decided.chosen, decided.settled) == ([BASE + 7], True)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (("ns", "a", ""), ("ns", "a", ""), True),
        (("ns", "a", "u1"), ("ns", "a", ""), True),
        (("ns", "a", ""), ("ns", "a", "u1"), True),
        (("ns", "a", "u1"), ("ns", "a", "u1"), True),
        (("ns", "a", "u1"), ("ns", "a", "u2"), False),
        (("ns", "a", ""), ("ns", "b", ""), False),
        (("other", "a", ""), ("ns", "a", ""), False),
        (("", "", ""), ("", "", ""), False),
        (("ns", "", "u1"), ("ns", "", "u1"), False),
    ],
)
def test_one_pod_is_one_namespace_and_name_and_not_two_known_uids(
    old: tuple[str, str, str], new: tuple[str, str, str], same: bool
) -> None:
    held = lease(5, owner("old", old))
    assert may_take_over(held, owner("new", new)) is same
    assert plan([need()], [], [held], owner("new", new)).chosen == [BASE + 5 if same else None]


def test_another_interface_of_the_pod_takes_nothing_over() -> None:
    assert not may_take_over(lease(5, owner("old")), owner("new", ifname="net2"))


def test_a_lease_whose_reservation_another_holds_is_not_kept() -> None:
    own = [lease(5, owner(), scope=None)]
    decided = plan([need()], own, [], owner(), [need().want(BASE + 5)])
    assert (decided.chosen, decided.given_up) == ([None], own)
