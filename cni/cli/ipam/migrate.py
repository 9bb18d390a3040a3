"""railcni ipam migrate: copies leases from one store to another, verifies them, and updates this node's records.

If an address has another holder in the target, nothing is written. No node may run an ADD of the networks during the
migration. If a DEL frees a lease in the source meanwhile, the copy in the target is freed too. The source is changed
only with --remove-source.

Between a cluster's two stores, IPPools and AddressLeases, leases are moved instead of copied, since only one of the
stores may have a range (cni.cli.ipam.move). In a move to AddressLeases, ADDs may run until their pool is closed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any

from cni.cli.ipam import options as stores
from cni.cli.ipam.move import Pools
from cni.cli.terminal import common, output, subcommand
from cni.cluster.audit import snapshot
from cni.cluster.audit.free import is_same
from cni.cluster.audit.model import Snapshot
from cni.cluster.audit.store import Choice
from cni.node.inventory.places import require_directory
from cni.node.runtime.cache import DIRECTORY, Cache, worded
from cni.shared.kernel.files import read_whole
from cni.shared.kernel.node import boot_id, host_name
from cni.shared.log import Log
from cni.shared.records import STATE, Records
from cni.shared.spec.errors import InvalidConfig, TryAgainLater
from cni.shared.spec.request import Attachment, ifname_fault, is_identifier
from ipam import stores as kinds
from ipam.leases import PART, Lease, Owner, Want
from ipam.ranges import Range, format_address, parse_address, parse_cidr
from ipam.stores.base import CREATE, READ, Claimed, Pauses, Store, Taken, Unknown

_AT_ONCE = 200  # attachments in one session of the store; this node's plugins wait until the session ends
_PASSES = 10  # the most readings of the source
_SHOWN = 50  # conflicts listed in a message
SECONDS = 30.0  # for one request to a store


def register(commands: subcommand.Commands) -> None:
    """Add the command `migrate`."""
    about = "copy all leases to another store, and verify the copy; no ADD may run meanwhile"
    more = (
        ". A store is file:DIR, etcd:HOST:PORT,…, kubernetes:KUBECONFIG, addresslease:KUBECONFIG, or config:FILE with"
        " the keys of the ipam block; the source may also be host-local:DIR, such as /var/lib/cni/networks/NETWORK."
        " Another run keeps the leases that were copied already. Run it on every node, for its records."
    )
    parser = subcommand.add(commands, "migrate", about, more, run=_run, shows=True)
    for flag, dest, kind, does in (("--from", "source", _source, "has"), ("--to", "target", _target, "gets")):
        about = f"the store that {does} them"
        parser.add_argument(flag, dest=dest, required=True, metavar="STORE", type=kind, help=about)
    common.add(parser, "dry-run")
    common.add(parser, "network", "for leases that name none; default for host-local: the directory's name")
    about = "for host-local: a subnet"
    cidr = subcommand.typed(lambda text: Range(*parse_cidr(text)))
    parser.add_argument("--range", dest="ranges", action="append", default=[], type=cidr, metavar="CIDR", help=about)
    about = "for host-local: ipam.network_name of the new configuration"
    subcommand.option(parser, "--network-name", "", about, "NAME")
    common.add(parser, "node", "a file store gets its leases; default: this node", host_name(), shown=False)
    parser.add_argument("--remove-source", action="store_true", help="free the copied leases in the source")


def _source(text: str) -> tuple[str, Choice]:
    return text, stores.parse(text)


def _target(text: str) -> tuple[str, Choice]:
    choice = stores.parse(text)
    if choice.kind == stores.HOST_LOCAL:
        why = "leases are copied from host-local, never to it: name it with --from"
        raise argparse.ArgumentTypeError(f'"{text}": {why}')
    return text, choice


def _run(options: argparse.Namespace) -> None:
    (source_text, source), (target_text, target) = options.source, options.target
    local = source.kind == stores.HOST_LOCAL
    options.only(local, "for leases of host-local", "--range", "--network-name")
    options.only(local or source.kind == "kubernetes", "for leases of host-local and of IPPools", "--network")
    takes_part = local or (source.is_shared and not target.is_shared)
    options.only(takes_part, "for host-local, and from a store that nodes share to one of a node", "--node")
    where = "where leases would stay in the source, not between IPPools and AddressLeases"
    options.only({source.kind, target.kind} != set(kinds.IN_CLUSTER), where, "--remove-source")
    migration = _Migration(options)
    with output.progress() as say:
        done = migration.run(say)
    if options.dry_run:
        text = f"{output.counted(done['toCopy'], 'lease')} would be copied, {done['there']} are there already"
        text += f"; {done['toRemove']} would be removed from the source" if done["toRemove"] else ""
    else:
        text = f"{output.counted(done['copied'], 'lease')} copied, {done['there']} were there already; all verified"
        text += f"; {done['takenBack']} taken back, whose attachments have gone" if done["takenBack"] else ""
        text += f"; {done['removed']} removed from the source" if options.remove_source else ""
        text += f"\nthe new store is named by {output.counted(done['records'], 'record')} of this node now"
    document = {"from": source_text, "to": target_text, "dryRun": options.dry_run, **done}
    output.show(options.output, document, lambda: output.console().print(text))


# --- the leases ---


def _complete(found: Snapshot, network: str) -> None:
    """Complete the leases in `found`. A lease that names no network gets `network` or, if `network` is "", the only
    network of its pool. A lease without boot ID or namespace loses its node, which would judge the lease to be of an
    earlier boot. Raises InvalidConfig for leases of IPAMClaims, and if the network of a lease is not known."""
    if claimed := ", ".join([lease.text for lease in found.leases if lease.claimed][:10]):
        why = f"addresses of IPAMClaims cannot be kept elsewhere: {claimed}"
        raise InvalidConfig(f"{why}; leave their network where it is")
    pools = [(pool, one) for one in found.networks for pool in one.pools()]
    names = {pool: {one.cni_name for other, one in pools if other == pool} for pool, _ in pools}
    unreserved = {pool for pool, one in pools if not one.overlap}
    for lease in found.leases:
        known = names.get(lease.pool, set())
        lease.network = lease.network or network or (next(iter(known)) if len(known) == 1 else "")
        if not lease.network:
            why = f"{len(known)} NADs name that pool; name it with --network"
            raise InvalidConfig(f"the network of {_shown(lease)} ({lease.user()}) is not known: {why}")
        if not (lease.boot_id and lease.netns):
            lease.node, lease.boot_id, lease.netns, lease.machine = "", "", "", ""
        lease.scope = None if lease.pool in unreserved else lease.scope


def _of_node(leases: Iterable[Lease], node: str) -> list[Lease]:
    """The leases of `node`, for a copy to the node's file store. Raises InvalidConfig if a lease names no node."""
    if unknown := [lease for lease in leases if not lease.node]:
        raise InvalidConfig(
            f"a file store has the leases of one node, and that of {_shown(unknown[0])} ({unknown[0].holder()}) is not"
            f" known, nor that of {len(unknown) - 1} others: release them first, or choose a store that nodes share"
        )
    return [lease for lease in leases if lease.node == node]


def _claim(store: Store, group: list[Lease]) -> Claimed | Taken | Unknown:
    """Claim `group`, the leases of one attachment; return the store's answer. Retry after a temporary failure."""
    attempts = Pauses(monotonic() + SECONDS)
    places = {lease.place for lease in group}
    made: list[Lease] = []  # leases of an earlier claim whose outcome was unknown
    while True:
        answer = store.claim(group, group[0].owner, made)
        if isinstance(answer, Claimed) or (isinstance(answer, Taken) and answer.wants) or not attempts.wait():
            return answer
        made = [lease for lease in store.find(group[0].attachment) if lease.place in places]


# --- the leases of host-local: a file DATADIR/NETWORK/ADDRESS for each address ---
#
# The first line of such a file is the containerID, the second the ifname (containernetworking/plugins,
# plugins/ipam/host-local/backend/disk). Pod and namespace come from libcni's cached result of the attachment.


def read_host_local(
    directory: str, network: str, network_name: str, ranges: list[Range], host: str, cache: Cache
) -> list[Lease]:
    """Read host-local's leases in `directory`. `ranges` and `network_name` determine the pool of each lease.

    `network` names the CNI network; "" means the name of `directory`. Raises InvalidConfig for an address in no range.
    """
    network = network or os.path.basename(os.path.normpath(directory))
    known = {(e.parameters.container_id, e.parameters.ifname): e.parameters for e in cache.all(network)}
    found, strays = [], []
    with worded(f"{directory} cannot be listed"):
        names = sorted(os.listdir(directory))
    for name in names:
        try:
            address = parse_address(name)
        except ValueError:
            continue  # "lock" and last_reserved_ip.N are no leases
        rng = next((r for r in ranges if r.family == address[0] and r.contains(address[1])), None)
        if rng is None:
            strays.append(format_address(*address))
        elif entry := _host_local_entry(os.path.join(directory, name)):  # None: a DEL has just removed the file
            container, ifname, sequence = entry
            want = Want(rng.pool_name(network_name), *address, network_name)
            cached = known.get((container, ifname))
            args = dict(cached.args) if cached else {}
            pod = (args.get("K8S_POD_NAMESPACE", ""), args.get("K8S_POD_NAME", ""), args.get("K8S_POD_UID", ""))
            netns = cached.netns if cached else ""  # a lease with a node but no netns would seem dead
            where = (host, boot_id(), netns) if netns else ("", "", "")
            found.append(Lease(want, Owner(Attachment(network, container, ifname), pod, *where, sequence)))
    if strays:
        remedy = "add --range CIDR for each subnet of that network"
        raise InvalidConfig(f"{directory} has leases of no range that is named: {', '.join(strays[:10])}; {remedy}")
    return sorted(found, key=lambda lease: (lease.pool, lease.value))


def remove_host_local(directory: str, lease: Lease) -> bool:
    """Remove the file of `lease` if the file still has this lease; return whether it was removed."""
    path = os.path.join(directory, format_address(lease.family, lease.value))
    with worded(f"{path} cannot be removed"), suppress(FileNotFoundError):
        entry = _host_local_entry(path)
        if entry and entry[:2] == (lease.container_id, lease.ifname):
            os.unlink(path)
            return True
    return False


def _host_local_entry(path: str) -> tuple[str, str, int] | None:
    """Return (containerID, ifname, time of writing in ns since 1970) of a lease file; None if the file is gone. Older
    versions of host-local wrote no ifname; then the ifname is eth0."""
    with worded(f"{path} cannot be read"), suppress(FileNotFoundError):
        lines = read_whole(path).decode("utf-8", "replace").split()
        container, ifname = lines[0] if lines else "", lines[1] if len(lines) > 1 else "eth0"
        if not is_identifier(container) or ifname_fault(ifname):  # no DEL could free such a lease
            said = f'says "{" ".join(lines)[:60]}", which names no container and interface' if lines else "is empty"
            raise InvalidConfig(f"{path} {said}: find out whose address it is, or remove it")
        return container, ifname, os.stat(path).st_mtime_ns
    return None


# --- the migration ---


def _shown(lease: Lease) -> str:
    return f"{lease.text} of {lease.pool}"


class _Migration:
    """A migration of leases from one store to another. The constructor raises InvalidConfig if the source is missing,
    and ends the command if both stores are the same. `_pools` is set only in a move between a cluster's two stores."""

    def __init__(self, options: argparse.Namespace) -> None:
        source: Choice
        target: Choice
        (text, source), (target_text, target) = options.source, options.target
        self._options, self._source, self._target = options, source, target
        self._directory = source.store_ref.get("path", "")
        if kinds.same(source.store_ref, target.store_ref):
            options.refuse(f"{text} and {target_text} are the same store")
        if self._directory:
            require_directory("--from", text, self._directory)
        if source.kind == stores.HOST_LOCAL and not options.ranges:
            options.refuse("host-local keeps no subnets with its leases: name each with --range CIDR")
        way = (source.kind, target.kind)
        self._pools = Pools(source, target.kind == "addresslease") if sorted(way) == sorted(kinds.IN_CLUSTER) else None
        self._copied: dict[tuple[Any, ...], Lease] = {}
        self._taken_back = 0
        self._progress: Callable[[str], object] = str

    def run(self, progress: Callable[[str], object]) -> dict[str, int]:
        """Copy until the target has all leases. Return the number of changes of each kind, to leases and to this node's
        records; a dry run only predicts these numbers. Raises InvalidConfig if an address has another holder in the
        target, and TryAgainLater if the source gets new leases during each pass."""
        options, self._progress = self._options, progress
        self._progress("reading the source")
        if options.dry_run:
            copy, there = self._planned(self._read_source())
            to_copy = sum(map(len, copy))
            to_remove = to_copy + len(there) if options.remove_source else 0
            return {"toCopy": to_copy, "there": len(there), "toRemove": to_remove}
        found: int | None = None  # the number of leases that the target had before
        for _ in range(_PASSES):
            leases = self._read()
            self._take_back(leases)
            copy, there = self._planned(leases)
            found = len(there) if found is None else found
            if not copy and (self._pools is None or self._pools.switch(leases)):
                break
            self._copy(copy)
        else:
            count, remedy = sum(map(len, copy)), "let no ADD run meanwhile, and run this again"
            new = "\n".join(_shown(group[0]) for group in copy)
            raise TryAgainLater(f"{count} leases were new in the source each time: {remedy}", new)
        records, removed = self._switch_records(leases), 0
        if options.remove_source or self._pools:
            self._progress("removing from the source")
            removed = self._remove(leases)
        if self._pools:
            self._pools.finish(self._target.kind)
        copied = {"copied": len(self._copied), "there": found or 0, "takenBack": self._taken_back}
        return {**copied, "removed": removed, "records": records}

    def _read(self) -> list[Lease]:
        """Read the source's leases. Before a move to IPPools, make AddressLeases refuse claims in the leases' pools."""
        leases = self._read_source()
        while self._pools and not self._pools.refuse(leases):
            leases = self._read_source()
        return leases

    def _read_source(self) -> list[Lease]:
        options, source = self._options, self._source
        if source.kind == stores.HOST_LOCAL:
            named = (options.network or "", options.network_name, options.ranges, options.node)
            return read_host_local(self._directory, *named, Cache(DIRECTORY))
        found = snapshot.read(source)
        if found.unread:
            raise InvalidConfig(found.unread[0])
        moved = self._pools.moved_from(found) if self._pools else []
        if source.kind == "kubernetes":
            _complete(found, options.network or "")
        of_node = source.is_shared and not self._target.is_shared
        return [*moved, *(_of_node(found.leases, options.node) if of_node else found.leases)]

    def _remove(self, leases: list[Lease]) -> int:
        """Free `leases` in the source; return the number of freed leases."""
        if self._source.kind == stores.HOST_LOCAL:
            return sum(remove_host_local(self._directory, lease) for lease in leases)
        is_done = self._pools and self._pools.closes
        return len(leases) if is_done else self._opened(self._source, leases).release(leases)

    def _opened(self, choice: Choice, leases: Iterable[Lease], use: int = CREATE) -> Store:
        """Open the store `choice`. `use` is READ, or CREATE to make a missing store. An IPPool store locks the pools of
        `leases`. In a move between a cluster's two stores, the store accepts claims in the other's ranges."""
        store_ref: dict[str, Any] = {**choice.store_ref, "moves": self._pools is not None}
        if choice.kind == "kubernetes":
            store_ref["pools"] = sorted({lease.pool for lease in leases})
        return kinds.open_store(store_ref, use, seconds=SECONDS)

    def _planned(self, leases: list[Lease]) -> tuple[list[list[Lease]], list[Lease]]:
        """Return (the leases to copy, in a list for each attachment; the leases that the target already has). Raises
        InvalidConfig if an address has another holder in the target."""
        self._progress(f"comparing {len(leases)} leases")
        copy: dict[tuple[object, ...], list[Lease]] = {}
        there, conflicts = [], []
        store = self._opened(self._target, leases, READ)  # so that a dry run makes no store
        with store.session():
            for lease in leases:
                other = store.holder(lease)
                if other is None:
                    copy.setdefault((*lease.attachment.key(), lease.sequence), []).append(lease)
                elif is_same(other, lease):
                    there.append(lease)
                else:
                    conflicts.append(f"{_shown(lease)}: here {lease.holder()}; there {other.holder()}")
        if conflicts:
            more = [f"and {len(conflicts) - _SHOWN} more"] if len(conflicts) > _SHOWN else []
            what = f"{len(conflicts)} addresses are given to others in {self._target}, so nothing was copied"
            raise InvalidConfig(f"{what}: {conflicts[0]}", "\n".join([*conflicts[:_SHOWN], *more]))
        return list(copy.values()), there

    def _copy(self, groups: list[list[Lease]]) -> None:
        store = self._opened(self._target, [lease for group in groups for lease in group])
        for start in range(0, len(groups), _AT_ONCE):
            with store.session():
                for group in groups[start : start + _AT_ONCE]:
                    answer = _claim(store, group)
                    if isinstance(answer, Taken):
                        raise TryAgainLater(f"{_shown(group[0])} was given to another meanwhile: run this again")
                    if isinstance(answer, Unknown):
                        raise answer.reason
                    self._copied.update((lease.key(), lease) for lease in group)
            self._progress(f"{len(self._copied)} leases copied")

    def _take_back(self, leases: list[Lease]) -> None:
        """Release copied leases that are no longer in the source. `leases` are the source's present leases."""
        there = {lease.key() for lease in leases}
        if gone := [lease for key, lease in self._copied.items() if key not in there]:
            self._taken_back += self._opened(self._target, gone).release(gone)
            self._copied = {key: lease for key, lease in self._copied.items() if key in there}

    def _switch_records(self, leases: list[Lease]) -> int:
        """Replace the source by the target in this node's records of attachments that have one of `leases`, or whose
        pool is closed to claims. Return the number of changed records."""
        source_ref = self._source.store_ref
        moved = {lease.attachment.key() for lease in leases}
        closed = self._pools.closed() if self._pools else set()
        records, changed = Records(STATE, Log("railcni")), 0
        for attachment, _, listed in records.all(PART):
            here = attachment.key() in moved or bool(closed.intersection(listed.get("pools") or ()))
            if not here or not kinds.same(listed.get("store") or {}, source_ref):
                continue
            with records.locked(attachment, PART):
                record = records.read(attachment, PART)
                if record and kinds.same(record.get("store") or {}, source_ref):
                    store_ref = kinds.recorded(self._target.store_ref)
                    if self._target.kind == "kubernetes":
                        store_ref["pools"] = sorted(set(record["pools"]))
                    records.write(attachment, PART, {**record, "store": store_ref})
                    changed += 1
        return changed
