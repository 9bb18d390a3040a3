"""What every store of leases promises.

A lease says that an address of a pool belongs to an attachment. An address belongs to at most one lease of its pool,
and to at most one of those leases that share a reservation scope, whatever their pools: so ranges that overlap give
no address twice. `claim` and `release` change several leases at once or none.

A store may be shared by processes and by nodes. `turn` is how callers take turns at it where it can arrange that;
only speed depends on it: without turns, or across nodes, `claim` decides, and it may answer Taken.
"""

from __future__ import annotations

from cni.spec.errors import TryAgainLater
from cni.spec.request import Attachment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import TracebackType
    from typing import Any

    from cni.spec.errors import CniError

READ, CHANGE, CREATE = range(3)  # what a store is opened for; where there is none, CREATE makes it, else it is empty

SHARED_SECONDS = 2.0  # how long a request to a store that nodes share may take, unless it is for an ADD
COOLDOWN = 86_400  # the longest cooldown, in seconds: what ends later was written by a clock that was wrong
FORMER = 10_000  # how many former addresses a store remembers; the oldest are forgotten


class Unreachable(TryAgainLater):
    """A store that is shared by nodes cannot be reached, or does not serve now."""


class Want:
    """An address to claim: `value` as an integer, and the `scope` in which it is reserved across pools; None: in none."""

    __slots__ = ("family", "pool", "scope", "value")

    def __init__(self, pool: str, family: int, value: int, scope: str | None) -> None:
        self.pool = pool
        self.family = family
        self.value = value
        self.scope = scope


def returns(pod: tuple[str, str, str]) -> bool:
    """Whether a pod may come back under its name: those of a StatefulSet do, whose names end in "-" and their number."""
    stem, _, ordinal = pod[1].rpartition("-")
    return bool(stem) and ordinal.isascii() and ordinal.isdigit()


class Owner:
    """Who claims: an attachment, its pod (namespace, name, uid; "" for what is not known), its node, boot and netns.

    `sequence` tells this claim from every other one: the time of the claim in ns since 1970. `machine` tells machines apart
    that go by the same node name (cni.kernel.node.machine_id), in a store that nodes share.
    """

    __slots__ = ("attachment", "boot_id", "machine", "netns", "node", "pod", "sequence")

    def __init__(
        self,
        attachment: Attachment,
        pod: tuple[str, str, str] = ("", "", ""),
        node: str = "",
        boot_id: str = "",
        netns: str = "",
        sequence: int = 0,
        machine: str = "",
    ) -> None:
        self.attachment = attachment
        self.machine = machine
        self.pod = pod
        self.node = node
        self.boot_id = boot_id
        self.netns = netns
        self.sequence = sequence


class Lease:
    """An address and whose it is; the fields are those of Want and Owner."""

    __slots__ = (
        "boot_id",
        "container_id",
        "family",
        "ifname",
        "machine",
        "netns",
        "network",
        "node",
        "pod",
        "pool",
        "scope",
        "sequence",
        "value",
    )

    def __init__(self, want: Want, owner: Owner) -> None:
        self.pool = want.pool
        self.family = want.family
        self.value = want.value
        self.scope = want.scope
        self.network, self.container_id, self.ifname = owner.attachment.key()
        self.pod = owner.pod
        self.node = owner.node
        self.boot_id = owner.boot_id
        self.netns = owner.netns
        self.machine = owner.machine
        self.sequence = owner.sequence

    @property
    def attachment(self) -> Attachment:
        return Attachment(self.network, self.container_id, self.ifname)

    @property
    def created(self) -> float:
        """When it was claimed, in seconds since 1970."""
        return self.sequence / 1e9

    def key(self) -> tuple[Any, ...]:
        """All that makes this lease this one: equal keys are the same lease."""
        return (self.pool, self.family, self.value, self.container_id, self.ifname, self.network, self.sequence)

    def holder(self) -> str:
        """Whose lease it is, for messages."""
        namespace, name, _ = self.pod
        pod = f"pod {namespace}/{name}, " if name else ""
        node = f", node {self.node}" if self.node else ""
        return f"{pod}container {self.container_id}, {self.ifname}, network {self.network}{node}"


def given_up(instead_of: Sequence[Lease], wants: Sequence[Want]) -> list[Lease]:
    """Those leases whose addresses are not claimed again by `wants`, neither in their pools nor in their scopes."""

    def is_claimed(lease: Lease) -> bool:
        same = [w for w in wants if (w.family, w.value) == (lease.family, lease.value)]
        return any(w.pool == lease.pool or (w.scope is not None and w.scope == lease.scope) for w in same)

    return [lease for lease in instead_of if not is_claimed(lease)]


class Pool:
    """A pool that has leases: its name, its family, and how many."""

    __slots__ = ("family", "name", "used")

    def __init__(self, name: str, family: int, used: int) -> None:
        self.name = name
        self.family = family
        self.used = used


class Claimed:
    """Answer of `claim`: these leases are now in the store."""

    __slots__ = ("leases",)

    def __init__(self, leases: list[Lease]) -> None:
        self.leases = leases


class Taken:
    """Answer of `claim`: nothing was changed. `wants` are what another holds, or what a lease given up no longer held.

    None of them: others changed the store at the same time, and the same claim may succeed when it is made again.
    """

    __slots__ = ("wants",)

    def __init__(self, wants: list[Want]) -> None:
        self.wants = wants


class Unknown:
    """Answer of `claim`: the change may or may not have been made; only a new turn's `find` tells. `reason` is why."""

    __slots__ = ("reason",)

    def __init__(self, reason: CniError) -> None:
        self.reason = reason


class Turn:
    """The time from `enter` to `leave` of a store."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> Store:
        self._store.enter()
        return self._store

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.leave()


class Store:
    """A store of leases. Every method may raise a CniError that names the store; then nothing was changed.

    Each method takes a turn of its own unless the caller is in one.

    An address that is freed may be remembered in two ways, for as long and as many as the store has room for. Of a pod
    that `returns` under its name it is known which address it had in a pool last (`former`): a preference. And with a
    `cooldown`, in seconds, it is known for so long who had it (`cooling`): it is given to no other.
    """

    __slots__ = ("cooldown",)

    kind = ""
    cooldown: int
    window = 4096  # how many addresses a search looks at in one step: a power of two, at most the allocator's WINDOW
    spreads = (
        True  # whether claims of different addresses of a pool can succeed at once: then a lost one looks elsewhere
    )

    def record(self) -> dict[str, Any]:
        """What a record must keep to find this store again: JSON with the member `kind`."""
        raise NotImplementedError

    def turn(self) -> Turn:
        """`with store.turn():` what is read in it holds until its end, as far as the store can arrange that."""
        return Turn(self)

    def enter(self) -> None:
        """Begin a turn, or a turn within one; TryAgainLater when it is not got in time."""
        raise NotImplementedError

    def leave(self) -> None:
        """End the turn that `enter` began."""
        raise NotImplementedError

    def sync(self) -> None:
        """Make durable what is read in this turn: a process that was killed may have left it half-way to the disk.

        For who answers by what it finds and changes nothing. A store that shows only what is durable does nothing.
        """

    def settle(self, attachment: Attachment, sequence: int) -> None:
        """Let no claim of `attachment` with this sequence or a lower one succeed from now on, should it still be under way.

        For who found no lease and says so. As `sync`, unless a store is reached by messages.
        """
        self.sync()

    def ready(self) -> None:
        """Nothing; a CniError when no new lease could be written although reads are answered. It writes nothing."""

    def find(self, attachment: Attachment) -> list[Lease]:
        """The leases of an attachment, by pool and address."""
        raise NotImplementedError

    def find_pod(self, pod: tuple[str, str, str], ifname: str) -> list[Lease]:
        """The leases of every attachment of the pod's (namespace, name) as `ifname`; none for a pod without a name.

        The uid is not compared.
        """
        raise NotImplementedError

    def former(self, pod: tuple[str, str, str], ifname: str) -> list[tuple[int, int]]:
        """The addresses, (family, value), that a pod which `returns` had as `ifname` in its pools until they were freed."""
        raise NotImplementedError

    def cooling(self, pool: str, scope: str | None, family: int, low: int, high: int, owner: Owner) -> Collection[int]:
        """The addresses of low..high that were freed less than their cooldown ago, and not by the pod of `owner`."""
        raise NotImplementedError

    def expect_nothing(self) -> None:
        """Nothing was ever claimed for the attachment that `survey` is asked about: its record would tell."""

    def survey(
        self,
        attachment: Attachment,
        pod: tuple[str, str, str],
        windows: Sequence[tuple[str, str | None, int, int, int]],
    ) -> tuple[list[Lease], list[Lease], list[tuple[int, int]]]:
        """What `find`, `find_pod` and `former` answer. `windows` are what `occupied` will probably be asked next.

        A store that is reached by messages reads all of it with one.
        """
        return self.find(attachment), self.find_pod(pod, attachment.ifname), self.former(pod, attachment.ifname)

    def are_full(self, windows: Sequence[tuple[str, str | None, int, int, int]]) -> bool:
        """Whether all of one of `windows` is taken, and to go on from there would cost much reading."""
        return False

    def looks_again(self) -> bool:
        """Whether what was read may be a moment old, and will not be when it is read again."""
        return False

    def finish_by(self, deadline: float) -> None:
        """Let no request take longer than until `deadline`, by time.monotonic; for stores that are reached by messages."""

    def holder(self, want: Want) -> Lease | None:
        """The lease that keeps `want` from being claimed."""
        raise NotImplementedError

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        """The bitset of what cannot be claimed of the addresses low..high, both included: bit i stands for low + i.

        Both lie in one window of the allocator.
        """
        raise NotImplementedError

    def next_open(self, pool: str, scope: str | None, family: int, value: int, high: int) -> int:
        """An address from `value` on below which nothing of value..high can be claimed; high + 1 when nothing of it can.

        It may be `value` itself: an answer that is farther on only saves reading what is full.
        """
        raise NotImplementedError

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        """Give up `instead_of` and lease all `wants` to `owner`, in one step; or change nothing.

        What is given up and not leased again has its cooldown before it.
        """
        raise NotImplementedError

    def release(self, leases: Sequence[Lease]) -> int:
        """Free those of `leases` that are still in the store as they are here, in one step; how many."""
        raise NotImplementedError

    def leases(self, pool: str, after: Lease | None = None, limit: int = 1000, node: str = "") -> list[Lease]:
        """Up to `limit` leases of a pool in the order of their addresses, those behind the lease `after`.

        With `node` those alone that were claimed on it.
        """
        raise NotImplementedError

    def pools(self) -> list[Pool]:
        """The pools that have leases, by name."""
        raise NotImplementedError

    def of_earlier_boots(self, pool: str, node: str, boot_id: str, limit: int = 1000) -> list[Lease]:
        """Up to `limit` leases of `pool` that were claimed on `node` when its boot was not `boot_id`."""
        raise NotImplementedError
