"""The checker against histories made by hand: the good ones pass, and each bad one is told for what it is."""

from dataclasses import replace

import pytest

from tests.faults.churn.checker import History, check, lingering
from tests.faults.churn.events import DONE, KILLED, REFUSED, Dissolved, Event, Operation, Rest, Sight, line, parse

X, Y = "192.168.7.1", "192.168.7.2"
BOTH = ("ipam", "link")


def add(container: str, began: float, *addresses: str, owner: str = "", outcome: str = DONE) -> Operation:
    who = ("ADD", container, owner or f"pod of {container}", "net")
    return Operation(*who, began, began + 1, outcome, addresses or (X,) if outcome == DONE else ())


def delete(container: str, began: float, owner: str = "", outcome: str = DONE) -> Operation:
    return Operation("DEL", container, owner or f"pod of {container}", "net", began, began + 1, outcome)


def collect(began: float, *spared: str) -> Operation:
    return Operation("GC", "", "", "net", began, began + 1, DONE, spared=spared)


def came(container: str, at: float, address: str = X) -> Sight:
    return Sight(container, address, True, at - 0.1, at)


def went(container: str, at: float, address: str = X) -> Sight:
    return Sight(container, address, False, at - 0.1, at)


def rest(at: float, **standing: str) -> Rest:
    """At rest with these attachments, whole: container=address."""
    has: dict[str, tuple[str, ...]] = {container: (address,) for container, address in standing.items()}
    return Rest(at, at + 0.1, has, dict.fromkeys(standing, BOTH), has)


LIFE: tuple[Event, ...] = (add("a", 0), came("a", 0.9), rest(2, a=X), delete("a", 3), went("a", 3.5), rest(5))
NEXT: tuple[Event, ...] = (add("b", 6), came("b", 6.9), rest(8, b=X), delete("b", 9), went("b", 9.5), rest(11))

GOOD: dict[str, tuple[Event, ...]] = {
    "nothing": (),
    "a life, and the next one's with the same address": (*LIFE, *NEXT),
    "an ADD that waits for a DEL": (*LIFE[:4], went("a", 3.5), replace(add("b", 2.5), ended=3.9), came("b", 3.7)),
    "a retried ADD keeps the address": (*LIFE[:2], add("a", 2), went("a", 2.2), came("a", 2.8), rest(4, a=X)),
    "a killed ADD may have been done": (add("a", 0, outcome=KILLED), came("a", 0.9), rest(2, a=X)),
    "a killed ADD may not have been done": (add("a", 0, outcome=KILLED), rest(2)),
    "a killed DEL may have left anything": (*LIFE[:2], delete("a", 3, outcome=KILLED), rest(5, a=X)),
    "a killed DEL may have been done": (*LIFE[:2], delete("a", 3, outcome=KILLED), went("a", 3.2), rest(5), *NEXT),
    "a refused ADD": (add("a", 0, outcome=REFUSED), rest(2)),
    "a DEL while the ADD runs": (
        replace(add("a", 0), ended=2), came("a", 0.9), went("a", 1.2), delete("a", 1), rest(4)),
    "a restarted pod has the address at once, and the late DEL takes nothing": (
        *(add("a", 0, owner="p"), came("a", 0.9), Dissolved("a", 2), add("b", 3, owner="p"), came("b", 3.5)),
        *(went("a", 3.7), delete("a", 5, owner="p"), rest(7, b=X))),
    "after a DEL an address came and went while the watcher was not served": (
        *(*LIFE, add("a", 7), delete("a", 8.5)),
        *(Sight("a", X, True, 6, 9.6), Sight("a", X, False, 6, 9.6), rest(10))),
    "the former sandbox may have been given up before the address came": (
        *(*LIFE[:2], delete("a", 2, outcome=KILLED), Dissolved("a", 3.5), add("b", 3)),
        *(Sight("b", X, True, 3.4, 3.6), went("a", 3.7))),
    "GC of what is not listed": (*LIFE[:2], collect(3), went("a", 3.5), rest(5), *NEXT),
    "GC of another network": (*LIFE[:3], replace(collect(3), network="other"), rest(4.5, a=X)),
    "a sandbox that is given up keeps its lease": (
        *(*LIFE[:2], Dissolved("a", 2), went("a", 2.5)), Rest(3, 3.1, {"a": (X,)}, {"a": BOTH})),
    "two addresses of two owners": (*LIFE[:2], add("b", 2, Y), came("b", 2.9, Y), rest(4, a=X, b=Y)),
}  # fmt: skip

BAD: dict[str, tuple[str, tuple[Event, ...]]] = {
    "the address came while another had it": (
        f"{X} came to b at 3.2000 while a had it",
        (*LIFE[:2], delete("a", 3), add("b", 3), came("b", 3.2), went("a", 3.5))),
    "an ADD was answered with what another has": ("two owners", (*LIFE[:2], add("b", 2), came("b", 2.9))),
    "an ADD was answered with what another has, and no link was ever seen": ("two owners", (add("a", 0), add("b", 2))),
    "a link stayed behind with the address of the next one": (
        "two owners", (*LIFE[:2], delete("a", 3, outcome=KILLED), add("b", 5), came("b", 5.9))),
    "GC took what it was told to spare": ("left the wire", (*LIFE[:2], collect(3, "a"), went("a", 3.5))),
    "GC released what it was told to spare": ("it is leased None", (*LIFE[:2], collect(3, "a"), rest(5))),
    "a stale DEL released": ("two owners",
                             (add("a", 0, owner="p"), add("b", 3, owner="p"), delete("a", 5, owner="p"), add("c", 7))),
    "DEL was answered before the link was gone": ("DEL was answered at 4", (*LIFE[:4], went("a", 4.5))),
    "DEL was answered before the link was gone, which the next call then took": (
        "its DEL was answered at 4", (*LIFE[:4], delete("a", 6), went("a", 6.5))),
    "DEL was answered before the link was gone, which then went with its sandbox": (
        "its DEL was answered at 4", (*LIFE[:4], Dissolved("a", 6), Sight("a", X, False, 5, 6.5))),
    "an address came after the DEL": ("its DEL was answered at 4", (*LIFE[:5], came("a", 5), went("a", 7))),
    "DEL left the link": ("link 192.168.7.1 of a after", (*LIFE[:4], Rest(5, 5.1, {}, {}, {"a": (X,)}))),
    "DEL left a link without a name": ("link of a after", (*LIFE[:5], Rest(5, 5.1, {}, {}, {"a": ("",)}))),
    "DEL left the lease": (f"{X} leased of a after", (*LIFE[:5], Rest(5, 5.1, {"a": (X,)}, {}))),
    "DEL left a record": ("record link of a after", (*LIFE[:5], Rest(5, 5.1, {}, {"a": ("link",)}))),
    "an ADD gave nothing": ("no address", (replace(add("a", 0), addresses=()),)),
    "an ADD was answered before the address was there": ("not on the wire", (add("a", 0), came("a", 1.5))),
    "a link lost its address": ("left the wire", (*LIFE[:2], went("a", 2))),
    "a retried ADD gave another address": (f"it had {X}", (*LIFE[:2], add("a", 2, Y), came("a", 2.5, Y))),
    "a restarted pod got another address": (
        f"it had {X}", (add("a", 0, owner="p"), came("a", 0.9), add("b", 3, Y, owner="p"), came("b", 3.5, Y))),
    "a lease was lost": ("it is leased None", (*LIFE[:2], Rest(2, 2.1, {}, {"a": BOTH}, {"a": (X,)}))),
    "a record was lost": ("it has records ('link',)", (*LIFE[:2], replace(rest(2, a=X), records={"a": ("link",)}))),
    "a link was lost": ("its link has None", (*LIFE[:2], replace(rest(2, a=X), links={}))),
    "one address was leased twice": ("is leased to", (*LIFE[:2], add("b", 0, outcome=KILLED), rest(2, a=X, b=X))),
    "a link without a lease": (
        "on the wire of a, and leased to []", (add("a", 0, outcome=KILLED), replace(rest(2, a=X), leases={}))),
    "a link without a record": (
        "without a record", (add("a", 0, outcome=KILLED), replace(rest(2, a=X), records={"a": ("ipam",)}))),
    "something of nobody": ("nobody added", (rest(0, ghost=X),)),
    "what cannot be right by itself": ("torn", (replace(rest(0), faults=("record x is torn",)),)),
}  # fmt: skip


@pytest.mark.parametrize("what", GOOD)
def test_a_good_history_passes(what: str) -> None:
    assert check(GOOD[what]) == []


@pytest.mark.parametrize("what", BAD)
def test_a_bad_history_is_told_for_what_it_is(what: str) -> None:
    words, events = BAD[what]
    faults = check(events)
    assert any(words in fault for fault in faults), faults


def test_a_time_that_is_not_known_excuses() -> None:
    """The link went somewhere between 3.4 and 5: that was before DEL was answered, for all that is known."""
    assert check((*LIFE[:4], Sight("a", X, False, 3.4, 5))) == []


def test_a_sandbox_that_is_given_up_counts_as_gone_and_is_counted() -> None:
    events = (*LIFE[:2], Dissolved("a", 2), delete("a", 2.1), add("b", 4), came("b", 4.5), went("a", 4.7))
    assert check(events) == []
    assert lingering(History(events)) == 1


def test_a_history_is_kept_and_read_again() -> None:
    events = [*LIFE, *NEXT, Dissolved("a", 12), collect(13, "b")]
    assert parse([line(event) for event in events]) == events
