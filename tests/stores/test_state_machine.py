"""Every store against a model that is a plain dict, by random operations in random order (hypothesis).

The model maps (pool, family, value) to the lease; what it says of reservations follows from the scopes. Besides, it maps
what a store remembers of freed addresses: for each interface of a pod, of which address it was told last in each pool;
and for each address of a pool or scope, who had it when it began to cool. No cooldown ends while a machine runs.

Of a kind with an object for each address (`remembers_beside` is false) the object of a freed address remembers, until the
address is claimed again; and a pool has leases of one scope or of none, as it has in a configuration.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from ipam import upkeep
from ipam.leases import Lease, Owner, Want
from ipam.stores import base
from ipam.stores.base import Claimed, Taken
from tests.stores.kinds import KINDS, Kind
from tests.stores.kinds import spaced as owner
from tests.stores.unwell import Hurry

LEAF = 4096
BASES = {4: (10 << 24) + LEAF - 4, 6: (0xFD << 120) + (1 << 24) - 4}  # at the border of two leaves; of two summaries
SPAN = 8  # addresses from a base on that the rules use
POOLS = ("narrow", "wide", "apart")
SCOPES = (None, "", "blue")

wants = st.builds(
    lambda pool, family, offset, scope: Want(f"{pool}{family}", family, BASES[family] + offset, scope),
    st.sampled_from(POOLS),
    st.sampled_from(sorted(BASES)),
    st.integers(0, SPAN - 1),
    st.sampled_from(SCOPES),
)
containers = st.sampled_from(("c1", "c2", "c3"))
pods = st.sampled_from((("", "", ""), ("ns", "a-0", ""), ("ns", "a-0", "uid-1"), ("ns", "b", "uid-2")))
cooldowns = st.sampled_from((0, 0, 80_000))
boots = st.sampled_from(("boot-1", "boot-2"))


class StoreMachine(RuleBasedStateMachine):
    """Claims, releases and reads in the store, in the model, and compared."""

    kind: Kind
    seen = Bundle("seen")  # leases that were once in the store, some of them no more

    @initialize()
    def start(self) -> None:
        self.open_store, self.remove = self.kind.make()
        self.store = self.open_store()
        self.model: dict[tuple[str, int, int], Lease] = {}
        self.former: dict[tuple[str, str, str], set[tuple[int, int]]] = {}
        self.cooling: dict[tuple[str, str, int, int], str] = {}
        self.memory: dict[
            tuple[object, ...], tuple[Lease, int]
        ] = {}  # of objects: the lease that was freed, its cooldown
        self.clock = 0
        self.has_filled = getattr(self.kind, "unwell", False)  # test_contract.py fills one of such a server

    def teardown(self) -> None:
        if hasattr(self, "remove"):
            self.remove()

    # --- what the model knows ---

    def held_by(self, want: Want) -> Lease | None:
        for (pool, family, value), lease in self.model.items():
            same = (family, value) == (want.family, want.value)
            if same and (pool == want.pool or (want.scope is not None and lease.scope == want.scope)):
                return lease
        return None

    def is_there(self, lease: Lease) -> bool:
        there = self.model.get((lease.pool, lease.family, lease.value))
        return there is not None and there.key() == lease.key()

    def cools_for_another(self, want: Want, pod: tuple[str, str, str]) -> bool:
        """Whether a claim refuses the address since it cools: only where the object of a lease says so, and so is read."""
        if self.kind.remembers_beside or object_of(want) not in self.memory:
            return False
        freed, cooldown = self.memory[object_of(want)]
        return cooldown > 0 and not (pod[1] and freed.pod[:2] == pod[:2])

    def placed(self, want: Want) -> Want:
        """`want`, in a pool that has no leases of another scope."""
        return Want(self.pool_of(want.pool, want.scope), want.family, want.value, want.scope)

    def pool_of(self, pool: str, scope: str | None) -> str:
        return f"{scope}-{pool}" if scope and not self.kind.remembers_beside else pool

    def remember(self, freed: list[Lease], cooldown: int) -> None:
        for lease in freed:
            self.memory.pop(object_of(lease), None)
            if cooldown:
                self.memory[object_of(lease)] = lease, cooldown

    def cool(self, freed: list[Lease]) -> None:
        for lease in freed:
            for space in (("pool", lease.pool), ("scope", lease.scope)):
                if space[1] is not None and (self.kind.cools_scopes or space[0] == "pool"):
                    self.cooling[(*space, lease.family, lease.value)] = "/".join(lease.pod[:2]) if lease.pod[1] else ""

    def owner(self, container: str, pod: tuple[str, str, str], boot: str) -> Owner:
        self.clock += 1
        return owner(container, self.clock, pod=pod, boot_id=boot)

    # --- changes ---

    @rule(
        target=seen,
        wanted=st.lists(wants, min_size=1, max_size=3),
        container=containers,
        pod=pods,
        boot=boots,
        given_up=st.lists(seen, max_size=2),
        cooldown=cooldowns,
    )
    def claim(
        self,
        wanted: list[Want],
        container: str,
        pod: tuple[str, str, str],
        boot: str,
        given_up: list[Lease],
        cooldown: int,
    ) -> object:
        who = self.owner(container, pod, boot)
        wanted = [self.placed(want) for want in wanted]
        before = dict(self.model)
        conflicts = []
        for old in given_up:
            if self.is_there(old):
                del self.model[old.pool, old.family, old.value]
            else:
                conflicts.append(old.value)
        cools = [want.value for want in wanted if cooldown and self.cools_for_another(want, pod)]
        for want in wanted:
            if self.held_by(want):
                conflicts.append(want.value)
            else:
                self.model[want.pool, want.family, want.value] = Lease(want, who)
        conflicts = conflicts or cools[:1]
        self.store.cooldown = cooldown
        answer = self.store.claim(wanted, who, given_up)
        if conflicts:
            self.model = before
            assert isinstance(answer, Taken)
            assert [want.value for want in answer.wants] == conflicts
            if self.kind.unwell:  # what the claim gave up is free, if an attempt was left open before it was refused
                held = {lease.key() for old in given_up for lease in self.store.find(old.attachment)}
                self.model = {at: lease for at, lease in before.items() if lease not in given_up or lease.key() in held}
            return multiple()
        assert isinstance(answer, Claimed)
        assert [lease.value for lease in answer.leases] == [want.value for want in wanted]
        self.model |= {lease.place: lease for lease in answer.leases}
        for want in wanted:
            self.memory.pop(object_of(want), None)
        if cooldown:
            freed = [old for old in given_up if not any(is_again(want, old) for want in wanted)]
            self.cool(freed)
            self.remember(freed, cooldown)
        return multiple(*answer.leases)

    @rule(leases=st.lists(seen, min_size=1, max_size=3), cooldown=cooldowns)
    def release(self, leases: list[Lease], cooldown: int) -> None:
        freed = []
        for lease in leases:
            if self.is_there(lease):
                del self.model[lease.pool, lease.family, lease.value]
                freed.append(lease)
        last: dict[tuple[str, str, str], set[tuple[int, int]]] = {}
        for lease in freed:
            if lease.pod[1] == "a-0":
                last.setdefault((*lease.pod[:2], lease.pool), set()).add((lease.family, lease.value))
        self.former |= last
        if cooldown:
            self.cool(freed)
        self.remember(freed, cooldown)
        self.store.cooldown = cooldown
        assert self.store.release(leases) == len(freed)

    @rule(old=consumes(seen))
    def forget(self, old: Lease) -> None:
        """Keeps `seen` from filling up with leases long gone."""

    @precondition(lambda self: not self.has_filled)
    @rule(pool=st.sampled_from(POOLS), family=st.sampled_from(sorted(BASES)))
    def fill_and_empty_a_leaf(self, pool: str, family: int) -> None:
        """A leaf that becomes full is skipped, and no longer when one of its addresses is free again.

        Once a run: it costs what all other steps cost together.
        """
        self.has_filled = True
        first = BASES[family] + (1 << 30)
        first -= first % LEAF
        size = self.kind.leaf
        leaf = [Want(f"{pool}{family}", family, first + i, None) for i in range(size)]
        answer = self.store.claim(leaf, self.owner("filler", ("", "", ""), "boot-1"))
        assert isinstance(answer, Claimed)
        name = f"{pool}{family}"
        assert self.store.occupied(name, None, family, first, first + size - 1) == (1 << size) - 1
        assert self.store.next_open(name, None, family, first, first + 2 * size) == first + size
        self.store.release(answer.leases[7:8])
        assert first <= self.store.next_open(name, None, family, first, first + 2 * size) <= first + 7
        assert self.store.release(answer.leases) == size - 1

    @rule()
    def another_process(self) -> None:
        self.store = self.open_store()

    # --- reads ---

    @rule(container=containers)
    def find(self, container: str) -> None:
        attachment = owner(container).attachment
        self.same(self.store.find(attachment), [x for x in self.model.values() if x.attachment == attachment])

    @rule(pod=pods)
    def find_pod(self, pod: tuple[str, str, str]) -> None:
        expected = [x for x in self.model.values() if pod[1] and x.pod[:2] == pod[:2]]
        self.same(self.store.survey(owner("asks", pod=(*pod[:2], "")), [], False).pods, expected)

    @rule(pod=pods)
    def former_addresses(self, pod: tuple[str, str, str]) -> None:
        told = set(self.store.survey(owner("asks", pod=pod), [], False).former)
        expected = [values for (*of, _), values in self.former.items() if tuple(of) == pod[:2]]
        assert all(told & values for values in expected)
        # Of an attempt that was left open, and released when the claim was refused, a store may keep the memory.
        assert self.kind.unwell or told <= set().union(*expected)

    @rule(pool=st.sampled_from(POOLS), family=st.sampled_from(sorted(BASES)), scope=st.sampled_from(SCOPES), pod=pods)
    def what_cools(self, pool: str, family: int, scope: str | None, pod: tuple[str, str, str]) -> None:
        own, base = "/".join(pod[:2]) if pod[1] else None, BASES[family]
        pool = self.pool_of(pool, scope)
        spaces = (("pool", f"{pool}{family}"), ("scope", scope))
        expected = {
            value
            for (kind, space, of, value), who in self.cooling.items()
            if (kind, space) in spaces and of == family and who != own and base <= value < base + SPAN
        }
        if not self.kind.remembers_beside:
            expected = {
                lease.value
                for lease, cooldown in self.memory.values()
                if cooldown and lease.family == family and not (own and lease.pod[:2] == pod[:2])
                if lease.pool == f"{pool}{family}" or (scope is not None and lease.scope == scope)
            }
        found = self.store.cooling(f"{pool}{family}", scope, family, base, base + SPAN - 1, owner("x", pod=pod))
        assert expected <= set(found) if self.kind.unwell else set(found) == expected

    @rule(want=wants)
    def holder(self, want: Want) -> None:
        want = self.placed(want)
        found, expected = self.store.holder(want), self.held_by(want)
        assert (found is None) == (expected is None)
        if found:
            assert self.is_there(found)

    @rule(pool=st.sampled_from(POOLS), family=st.sampled_from(sorted(BASES)), scope=st.sampled_from(SCOPES))
    def occupied(self, pool: str, family: int, scope: str | None) -> None:
        base, pool = BASES[family], self.pool_of(pool, scope)
        places = [Want(f"{pool}{family}", family, base + i, scope) for i in range(SPAN)]
        if self.kind.searches_scopes:
            held = [self.held_by(place) is not None for place in places]
        else:
            held = [(place.pool, place.family, place.value) in self.model for place in places]
        bits = self.store.occupied(f"{pool}{family}", scope, family, base, base + SPAN - 1)
        assert [bool(bits >> i & 1) for i in range(SPAN)] == held
        assert bits >> SPAN == 0
        opened = self.store.next_open(f"{pool}{family}", scope, family, base, base + SPAN - 1)
        assert all(held[: opened - base])

    @rule(pool=st.sampled_from(POOLS), boot=boots)
    def earlier_boots(self, pool: str, boot: str) -> None:
        expected = [x for x in self.model.values() if x.pool == f"{pool}4" and x.boot_id != boot]
        self.same(upkeep.of_earlier_boots(self.store, f"{pool}4", owner(boot_id=boot)), expected)

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "store"):
            return
        pools = {p.name: p.used for p in self.store.pools()}
        found = [lease for name in pools for lease in self.store.leases(name)]
        self.same(found, list(self.model.values()))
        assert sum(pools.values()) == len(self.model)

    @staticmethod
    def same(found: list[Lease], expected: list[Lease]) -> None:
        def whole(leases: list[Lease]) -> list[object]:
            return sorted((*x.key(), x.scope is None, x.scope or "", x.pod, x.boot_id, x.node, x.netns) for x in leases)

        assert whole(found) == whole(expected)


def object_of(place: Want | Lease) -> tuple[object, ...]:
    """The object that stands for an address, where each has one."""
    space = ("pool", place.pool) if place.scope is None else ("scope", place.scope)
    return (*space, place.family, place.value)


def is_again(want: Want, lease: Lease) -> bool:
    """Whether `want` claims the address of `lease` in the same pool or scope."""
    same = want.pool == lease.pool or (want.scope is not None and want.scope == lease.scope)
    return same and (want.family, want.value) == (lease.family, lease.value)


@pytest.mark.timeout(1200)  # on a busy machine
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_store_does_what_a_dictionary_would(kind: Kind, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind.unusable():
        pytest.skip(kind.unusable())
    monkeypatch.setattr(base, "time", Hurry)
    machine: Any = type(f"{kind.name}Machine", (StoreMachine,), {"kind": kind})
    case = machine.TestCase()
    case.settings = settings(
        max_examples=kind.examples * times,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    case.runTest()
