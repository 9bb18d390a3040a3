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


FIVE, SIX = BASE + 5, BASE + 256 + 6  # the addresses that are held
BOTH = [need(), need(OTHER)]
OWN, OLD = ([lease(5, owner(who)), lease(6, owner(who), OTHER)] for who in ("c1", "old"))
UNRESERVED = [lease(5, owner(), scope=None)]
NARROWED = need(Range(4, BASE, 24, start=BASE + 100))
Leases = list[Lease]
# what is needed, the own leases, those of the pod's former sandbox; the addresses that are chosen, None for a new one, what
# is given up for them, and whether nothing needs to be claimed
PLANS: dict[str, tuple[list[Need], Leases, Leases, list[int | None], Leases, bool]] = {
    "an attachment without leases gets new addresses": (BOTH, [], [], [None, None], [], False),
    "an attachment with all leases keeps them": (BOTH, OWN, [], [FIVE, SIX], OWN, True),
    "the range no longer gives the address": ([NARROWED], OWN[:1], [], [None], OWN[:1], False),
    "a range was taken out": ([need()], OWN, [], [FIVE], OWN, False),
    "a range was added": ([need(OTHER), need()], OWN[:1], [], [None, FIVE], OWN[:1], False),
    "a changed reservation scope keeps the address and claims it anew": ([need()], UNRESERVED, [], [FIVE], UNRESERVED, False),
    "two ranges of one pool share no lease": ([need(), need()], OWN[:1], [], [FIVE, None], OWN[:1], False),
    "a requested address replaces the lease": ([need(requested=9)], OWN[:1], [], [BASE + 9], OWN[:1], False),
    "the requested address is held": ([need(requested=5)], OWN[:1], [], [FIVE], OWN[:1], True),
    "a request is served before a range": ([need(), need(requested=5)], OWN[:1], [], [None, FIVE], OWN[:1], False),
    "a restarted sandbox takes over what its pod has": (BOTH, [], OLD, [FIVE, SIX], OLD, False),
    "of the former sandbox only what is used moves": ([need()], [], OLD, [FIVE], OLD[:1], False),
    "own leases come before those of a former sandbox": ([need()], OWN[:1], [lease(7, owner("old"))], [FIVE], OWN[:1], True),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANS)
def test_an_attachment_keeps_what_it_has_before_it_takes_over_or_gets_an_address(case: str) -> None:
    needs, own, former, chosen, given_up, settled = PLANS[case]
    decided = plan(needs, own, own + former, owner())
    assert (decided.chosen, decided.given_up, decided.settled) == (chosen, given_up, settled)


@pytest.mark.parametrize("field", ["pod", "node", "boot_id", "netns"])
def test_what_the_store_says_of_the_owner_is_brought_up_to_date(field: str) -> None:
    own = [lease(5, owner())]
    setattr(own[0], field, ("ns", "a", "uid-1") if field == "pod" else "former")
    decided = plan([need()], own, [], owner())
    assert (decided.chosen, decided.given_up, decided.settled) == ([FIVE], own, False)


@pytest.mark.parametrize(("old", "new", "same"), [
    (("ns", "a", ""), ("ns", "a", ""), True), (("ns", "a", "u1"), ("ns", "a", ""), True),
    (("ns", "a", ""), ("ns", "a", "u1"), True), (("ns", "a", "u1"), ("ns", "a", "u1"), True),
    (("ns", "a", "u1"), ("ns", "a", "u2"), False), (("ns", "a", ""), ("ns", "b", ""), False),
    (("other", "a", ""), ("ns", "a", ""), False), (("", "", ""), ("", "", ""), False),
    (("ns", "", "u1"), ("ns", "", "u1"), False),
])  # fmt: skip
def test_a_pod_is_one_name_and_not_two_known_uids(
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
