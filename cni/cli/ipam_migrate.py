"""railcni ipam migrate: copy leases from one store to another, verify, and let this node's records name the new one.

Nothing is written while any address conflicts. No ADD of the networks may run meanwhile, on any node; what a DEL takes
away while the copying goes on is taken back. The source stays as it was unless --remove-source is given.

From the IPPools of a cluster to its AddressLeases and back nothing stays: a range is in one of them (cni.cli.ipam_move). On
the way there ADDs may go on until their pool is closed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from cni.attachment import STATE, Book
from cni.cli import holdings, host_local, migration, output, subcommand
from cni.cli import store as stores
from cni.cli.cache import DIRECTORY, Cache
from cni.cli.holdings import Holdings
from cni.cli.inventory import Held
from cni.cli.ipam_move import Pools
from cni.cli.migration import Plan
from cni.cli.progress import Progress
from cni.cli.store import Choice
from cni.kernel.node import host_name
from cni.log import Log
from cni.spec.errors import CniError, InvalidConfig, TryAgainLater
from cni.spec.request import Attachment
from ipam import stores as kinds
from ipam.ranges import Range, parse_cidr
from ipam.records import PART
from ipam.stores.base import CHANGE, CREATE, Claimed, Lease, Owner, Store, Taken, Unknown, Want
from ipam.stores.kubernetes_change import FIRST_PAUSE, wait

_AT_ONCE = 200  # attachments in one turn: the node's own plugins wait for it
_PASSES = 5
_SHOWN = 50  # conflicts
SECONDS = 30.0  # for one request


class Conflicts(CniError):
    """Addresses that both stores have given, each to another."""

    code = 7


@dataclass
class Outcome:
    """What was done, in leases; `records` are those of this node that name the new store now."""

    copied: int = 0
    there: int = 0
    taken_back: int = 0
    removed: int = 0
    records: int = 0
    notes: list[str] = field(default_factory=list)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `migrate`."""
    about = "copy all leases to another store, and verify; no ADD may run meanwhile"
    parser = subcommand.add(
        commands,
        "migrate",
        about,
        ". A store is file:DIR, etcd:HOST:PORT,…, kubernetes:KUBECONFIG, addresslease:KUBECONFIG, or config:FILE with"
        " the keys of the ipam block; the source also host-local:DIR, such as /var/lib/cni/networks/NETWORK. It can be run"
        " again: what is there already stays. Run it on every node, for the records there.",
    )
    parser.add_argument("--from", dest="source", required=True, metavar="STORE")
    parser.add_argument("--to", dest="target", required=True, metavar="STORE")
    parser.add_argument("--dry-run", action="store_true", help="say what would be copied, and write nothing")
    parser.add_argument(
        "--network",
        default="",
        help="the CNI network of leases that name none; of host-local: default the directory's name",
    )
    parser.add_argument(
        "--range",
        dest="ranges",
        action="append",
        default=[],
        type=_range,
        metavar="CIDR",
        help="of host-local: a subnet",
    )
    parser.add_argument("--network-name", default="", help="of host-local: ipam.network_name of the new configuration")
    parser.add_argument(
        "--node", default=host_name(), help="whose leases a file store is to get; default: this node's name"
    )
    parser.add_argument("--remove-source", action="store_true", help="free in the source what has arrived")
    output.add_option(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    target = stores.parse(options.target)
    source = _source(options, target)
    with Progress() as progress:
        plan, outcome = _Migration(source, target, progress.say).run(options.dry_run, options.remove_source)
    if options.output != "table":
        output.print_data(_document(plan, outcome, options), options.output)
        return 0
    if options.dry_run:
        output.console().print(
            f"{output.counted(plan.missing, 'lease')} would be copied, {len(plan.there)} are there already"
        )
    else:
        output.console().print(
            f"{output.counted(outcome.copied, 'lease')} copied, {outcome.there} were there already; all verified"
            + (f"; {outcome.taken_back} taken back, whose attachments have gone" if outcome.taken_back else "")
            + (f"; {outcome.removed} removed from the source" if options.remove_source else "")
        )
        switched = output.counted(outcome.records, "record")
        output.console().print(f"the new store is named by {switched} of this node now")
    return 0


def _document(plan: Plan, outcome: Outcome, options: argparse.Namespace) -> dict[str, Any]:
    document: dict[str, Any] = {"from": options.source, "to": options.target, "dryRun": options.dry_run}
    if options.dry_run:
        return document | {"toCopy": plan.missing, "there": len(plan.there)}
    keys = {"copied": "copied", "there": "there", "takenBack": "taken_back", "removed": "removed", "records": "records"}
    return document | {key: getattr(outcome, name) for key, name in keys.items()}


# --- sources ---


class Source:
    """`read` gives all leases; `remove` frees some of them. `described` is what records say of it, None for none of ours."""

    def __init__(
        self,
        described: dict[str, Any] | None,
        read: Callable[[], list[Lease]],
        remove: Callable[[list[Lease]], int],
        pools: Pools | None = None,
    ) -> None:
        self.described = described
        self.read = read
        self.remove = remove
        self.pools = pools  # IPPools whose leases become AddressLeases


def _source(options: argparse.Namespace, target: Choice) -> Source:
    kind, _, place = options.source.partition(":")
    if kind == "host-local" and place:
        directory = os.path.abspath(place)
        if not options.ranges:
            raise InvalidConfig("host-local keeps no subnets with its leases: name each with --range CIDR")
        where = (directory, options.network, options.network_name, options.ranges, options.node, Cache(DIRECTORY))
        return Source(
            None,
            lambda: host_local.read(*where),
            lambda leases: sum(host_local.remove(directory, lease) for lease in leases),
        )
    choice = stores.parse(options.source)
    if kinds.same(choice.described, target.described):
        raise InvalidConfig(f"{options.source} and {options.target} are the same store")
    if choice.kind == "file" and stores.is_missing(choice.described["path"]):
        raise InvalidConfig(f"{options.source}: there is no such directory, so there is nothing to copy")
    if choice.kind == "kubernetes" and target.kind == "addresslease":
        pools = Pools(choice, lambda found: _of_cluster(found, options))
        return Source(choice.described, pools.read, len, pools)
    if choice.kind == "kubernetes":
        return Source(
            choice.described,
            lambda: _chosen(_of_cluster(holdings.read(choice), options), options, target),
            lambda leases: _opened(choice, leases).release(leases),
        )
    return Source(
        choice.described,
        lambda: _chosen(list(holdings.leases(choice.open(CHANGE))), options, target),
        lambda leases: choice.open(CHANGE).release(leases),
    )


def _of_cluster(found: Holdings, options: argparse.Namespace) -> list[Lease]:
    if found.faults:
        raise InvalidConfig(found.faults[0])
    names: dict[str, set[str]] = {}
    for network in found.networks:
        for pool in network.pools():
            names.setdefault(pool, set()).add(network.cni_name)
    claimed = [h.text for h in found.held if h.claimed]
    if claimed:
        raise InvalidConfig(
            f"addresses of IPAMClaims cannot be kept elsewhere: {', '.join(claimed[:10])}; leave their network where it is"
        )
    unreserved = {pool for n in found.networks if not n.overlap for pool in n.pools()}
    return [_lease(h, options.network, names.get(h.pool, set()), h.pool not in unreserved) for h in found.held]


def _lease(held: Held, network: str, known: set[str], reserved: bool) -> Lease:
    network = held.network or network or (next(iter(known)) if len(known) == 1 else "")
    if not network:
        raise InvalidConfig(
            f"the network of {held.text} of {held.pool} ({held.owner}) is not known: {len(known)} NADs name that pool; name it"
            " with --network"
        )
    whole = held.boot_id and held.netns  # without them its own node would take it for one that an earlier boot left
    where = (held.node, held.boot_id, held.netns) if whole else ("", "", "")
    owner = Owner(Attachment(network, held.container_id, held.ifname), (*held.pod, held.uid), *where, held.sequence)
    return Lease(Want(held.pool, *held.address, held.scope if reserved else None), owner)


def _chosen(leases: list[Lease], options: argparse.Namespace, target: Choice) -> list[Lease]:
    """`leases`, or for a file store those of one node."""
    if target.kind != "file" or stores.parse(options.source).kind == "file":
        return leases
    unknown = [lease for lease in leases if not lease.node]
    if unknown:
        raise InvalidConfig(
            f"a file store has the leases of one node, and that of {migration.shown(unknown[0])} ({unknown[0].holder()}) is not"
            f" known, nor that of {len(unknown) - 1} others: release them first, or choose a store that nodes share"
        )
    return [lease for lease in leases if lease.node == options.node]


def _claim(store: Store, group: list[Lease]) -> Claimed | Taken | Unknown:
    """Claim the leases of one attachment; again when others have changed the store at the same time."""
    deadline, pause = monotonic() + SECONDS, FIRST_PAUSE
    while True:
        answer = store.claim([migration.want_of(lease) for lease in group], migration.owner_of(group[0]))
        if not isinstance(answer, Taken) or answer.wants or monotonic() + pause > deadline:
            return answer
        pause = wait(pause)


def _opened(choice: Choice, leases: Iterable[Lease]) -> Store:
    """A Kubernetes store takes turns at the pools that it is told of."""
    described = {**choice.described, "pools": sorted({lease.pool for lease in leases})}
    return kinds.open_store(described if choice.kind == "kubernetes" else choice.described, CREATE, seconds=SECONDS)


# --- the migration ---


class _Migration:
    def __init__(self, source: Source, target: Choice, met: Callable[[str], object]) -> None:
        self._source = source
        self._target = target
        self._met = met
        self._outcome = Outcome()
        self._copied: dict[tuple[Any, ...], Lease] = {}
        moves_back = target.kind == "kubernetes" and (source.described or {}).get("kind") == "addresslease"
        self._opens = Pools(target, lambda found: []) if moves_back else None

    def run(self, dry_run: bool, remove_source: bool) -> tuple[Plan, Outcome]:
        """Copy until nothing is left to copy; Conflicts, with nothing written, when both stores have an address."""
        self._met("reading the source")
        leases = self._source.read()
        closed = self._opens.closed() if self._opens else {}
        waiting = [lease for lease in leases if lease.pool in closed]
        if self._opens and not dry_run:
            self._copied.update((lease.key(), lease) for lease in self._opens.open(leases))
        first = plan = self._planned([lease for lease in leases if lease not in waiting])
        if dry_run:
            for lease in waiting:
                first.copy.setdefault(lease.key(), []).append(lease)
        if dry_run or (not leases and not self._source.described):
            return first, self._outcome
        for _ in range(_PASSES):
            self._copy(plan)
            leases = self._source.read()
            self._take_back(leases)
            plan = self._planned(leases)
            if not plan.copy and (self._source.pools is None or self._source.pools.close(leases)):
                break
        else:
            raise TryAgainLater(
                f"{plan.missing} leases were new in the source each time: let no ADD run meanwhile, and run this again",
                "\n".join(migration.shown(lease) for group in plan.copy.values() for lease in group[:1]),
            )
        self._outcome.there = len(first.there)
        self._switch_records(leases)
        if remove_source or self._opens or self._source.pools:
            self._met("removing from the source")
            self._outcome.removed = self._source.remove(leases)
        return first, self._outcome

    def _planned(self, leases: list[Lease]) -> Plan:
        self._met(f"comparing {len(leases)} leases")
        store = _opened(self._target, leases)
        with store.turn():
            plan = migration.plan(leases, store.holder)
        if plan.conflicts:
            told = [migration.conflict(pair) for pair in plan.conflicts[:_SHOWN]]
            more = f"\nand {len(plan.conflicts) - _SHOWN} more" if len(plan.conflicts) > _SHOWN else ""
            raise Conflicts(
                f"{len(plan.conflicts)} addresses are given to others in {self._target}, so nothing was copied: {told[0]}",
                "\n".join(told) + more,
            )
        return plan

    def _copy(self, plan: Plan) -> None:
        groups = list(plan.copy.values())
        store = _opened(self._target, [lease for group in groups for lease in group])
        for start in range(0, len(groups), _AT_ONCE):
            with store.turn():
                for group in groups[start : start + _AT_ONCE]:
                    answer = _claim(store, group)
                    if isinstance(answer, Taken):
                        raise TryAgainLater(
                            f"{migration.shown(group[0])} was given to another meanwhile: run this again"
                        )
                    if isinstance(answer, Unknown):
                        raise answer.reason
                    self._copied.update((lease.key(), lease) for lease in group)
            self._met(f"{len(self._copied)} leases copied")
        self._outcome.copied = len(self._copied)

    def _take_back(self, leases: list[Lease]) -> None:
        """Release what was copied and has since gone from the source: a DEL came."""
        there = {lease.key() for lease in leases}
        gone = [lease for key, lease in self._copied.items() if key not in there]
        if gone:
            self._outcome.taken_back += _opened(self._target, gone).release(gone)
            for lease in gone:
                del self._copied[lease.key()]

    def _switch_records(self, leases: list[Lease]) -> None:
        """Let the records of this node that name the source name the target, each under its lock."""
        if self._source.described is None:
            return
        moved = {lease.attachment.key() for lease in leases}
        closed = set(self._source.pools.closed() if self._source.pools else ())
        book = Book(STATE, Log("railcni"))
        for attachment, _, listed in book.all(PART):
            here = attachment.key() in moved or bool(closed.intersection(listed.get("pools") or ()))
            if not here or not self._is_of_source(listed):
                continue
            with book.locked(attachment, PART):
                record = book.read(attachment, PART)
                if record and self._is_of_source(record):
                    described = kinds.recorded(self._target.described)
                    if self._target.kind == "kubernetes":
                        described["pools"] = sorted(set(record["pools"]))
                    book.write(attachment, PART, {**record, "store": described})
                    self._outcome.records += 1

    def _is_of_source(self, record: dict[str, Any]) -> bool:
        return kinds.same(record.get("store") or {}, self._source.described or {})


def _range(text: str) -> Range:
    try:
        return Range(*parse_cidr(text))
    except ValueError as fault:
        raise argparse.ArgumentTypeError(f'"{text}": {fault}') from None
