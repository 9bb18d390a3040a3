"""railcni ipam: `pools`, `leases` and `show` print pools and leases; `flush` retries failed DELs and releases."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from cni.cli import attachments
from cni.cli.ipam import audit, migrate, reclaim
from cni.cli.ipam import options as stores
from cni.cli.terminal import common, output, subcommand
from cni.cluster.audit import occupancy
from cni.cluster.audit.cluster import Cluster
from cni.cluster.audit.model import Snapshot
from cni.cluster.audit.snapshot import given_part, read
from cni.cluster.audit.store import Choice
from cni.link.verbs import gc
from cni.node.inventory import attachments as recorded
from cni.node.inventory.places import is_of_pod, read_pod
from cni.node.runtime import PLUGIN_DIRECTORIES
from cni.shared.log import Log
from cni.shared.records import LINK, STATE, UNENDED, Records
from cni.shared.spec.request import Attachment
from ipam import local, upkeep
from ipam.leases import Lease
from ipam.ranges import Range, format_address, object_name, parse_address, parse_cidr
from ipam.stores.apiserver.faults import Forbidden

_FLUSH_SECONDS = 30.0
_LEASES = {"address": "address", "pool": "pool", "pod": "pod", "network": "network", "interface": "ifname"}
_LEASES |= {"container": "containerID", "since": "created", "node": "node"}  # the key of each column


def register(commands: subcommand.Commands, anywhere: bool = False) -> list[argparse.ArgumentParser]:
    """Add the command `ipam`; return the parsers of its subcommands. If `anywhere`, subcommands that need a node are
    left out."""
    about = "show pools and leases, find and free the leases of pods that are gone"
    of_ipam = subcommand.add_group(commands, "ipam", about, "COMMAND")
    pools = subcommand.add(of_ipam, "pools", "list the pools, with their size and use", run=_pools, lists=True)
    leases = subcommand.add(of_ipam, "leases", "list the leases by pool and address", run=_leases, lists=True)
    about = "show the pod that has an address, or the addresses of a pod; exit code 1: none"
    show = subcommand.add(of_ipam, "show", about, run=_show, shows=True)
    for parser in (pools, leases, show):
        stores.add_options(parser)
    pool = subcommand.typed(_pool, "want the name of a pool, as `railcni ipam pools` shows it, or a CIDR")
    leases.add_argument("--pool", type=pool, metavar="NAME|CIDR", help="only those of this pool")
    attachments.add_filters(leases)
    common.add(leases, "node", "only its leases, as far as the store names it")
    common.add(leases, "ifname", "only the leases of such interfaces")
    about = "an address such as 192.168.111.7, or a pod"
    show.add_argument("what", metavar="ADDRESS|NAMESPACE/POD", type=_address_or_pod, help=about)
    for command in (audit, reclaim) if anywhere else (audit, reclaim, migrate):
        command.register(of_ipam)
    if anywhere:
        return list(of_ipam.choices.values())

    reclaim.register_in_use(of_ipam)
    about = "retry the DELs and releases that failed; exit code 1: some are left"
    flush = subcommand.add(of_ipam, "flush", about, run=_flush, shows=True)
    stores.add_options(flush, files=False)
    common.add(flush, "dry-run", "here: only list what is pending")
    about = "give up the releases that fail again: their addresses are listed, and stay leased in their store"
    flush.add_argument("--drop", action="store_true", help=about)
    flush.add_argument("--yes", action="store_true", help="with --drop: do not ask first")
    return list(of_ipam.choices.values())


def _read(options: argparse.Namespace, pool: str = "") -> tuple[list[Choice], list[Snapshot]]:
    """Read the stores that the options choose, or only `pool` in each store. Return (stores, snapshots)."""
    choices = stores.choose(options)
    with output.progress() as say:
        return choices, [read(choice, say, pool) for choice in choices]


def _pools(options: argparse.Namespace) -> int:
    choices, found = _read(options)
    documents, rows = [], []
    for pool in (pool for snapshot in map(given_part, choices, found) for pool in occupancy.pools(snapshot)):
        document: dict[str, Any] = {"pool": pool.name, "family": pool.family, "used": pool.used}
        row: tuple[object, ...] = (pool.name, f"IPv{pool.family}", None, pool.used)
        if full := pool.occupancy:
            document |= {"size": full.size, "free": full.free, "percent": round(full.percent, 1)}
            if full.outside:
                document["outside"] = full.outside
            document["occupancy"] = {"addresses": full.shown, "shares": [round(share, 3) for share in full.cells]}
            size, free = (str(n) if n < 1 << 40 else f"~2^{(n - 1).bit_length()}" for n in (full.size, full.free))
            share = f"{full.percent:.0f}%" if full.percent >= 1 or not pool.used else "<1%"
            part = f" of the first {full.shown}" if full.shown < full.size else ""
            row = (*row[:2], size, pool.used, free, share, full.drawn(sys.stdout.encoding) + part)
        documents.append(document)
        rows.append(row)
    columns = ("pool", "family", "size", "used", "free", "use", "occupancy")
    empty, least = f"no pool in {stores.told(choices)}", ("occupancy", "family", "free")
    output.show_table(options.output, documents, columns, rows, empty=empty, least=least)
    return _print_unread(found)


def _print_unread(found: Iterable[Snapshot]) -> int:
    """Print why objects in the stores could not be read. Return the exit code: 1 if there is such an object, else 0."""
    unread = [fault for snapshot in found for fault in snapshot.unread]
    for fault in unread:
        output.print_fault(f"railcni: {fault}")
    return int(bool(unread))


def _leases(options: argparse.Namespace) -> int:
    choices, found = _read(options, options.pool or "")
    known = [document(lease) for snapshot in found for lease in snapshot.leases]
    near = [one for one in known if options.node in (None, one["node"]) and options.ifname in (None, one["ifname"])]
    leases = [one for one in near if attachments.is_chosen(options, one)]
    rows = [[one[key][:12] if key == "containerID" else one[key] for key in _LEASES.values()] for one in leases]
    empty = f"no lease{attachments.told(options, 'pool', 'node', 'ifname')} in {stores.told(choices)}"
    if "-n" in options.given:
        empty += ": -n is the namespace of these objects, not of the pods"
    least = ("container", "since", "interface", "network", "node", "pool")
    output.show_table(options.output, leases, (*_LEASES,), rows, empty=empty, least=least)
    for address, until in local.avoided(STATE):
        when = datetime.fromtimestamp(until, UTC).strftime("%H:%M:%SZ")
        output.print_fault(f"{address} was found in use by another host: this node avoids it until {when}")
    return _print_unread(found)


def _show(options: argparse.Namespace) -> int:
    choices, snapshots = _read(options)
    address, pod = options.what
    found: list[Lease] = []
    for choice, snapshot in zip(choices, snapshots, strict=True):
        own = [one for one in snapshot.leases if (one.address == address if address else is_of_pod(one.pod_name, pod))]
        if choice.kind == "kubernetes":
            _place(choice, own)
        found += own
    documents = [document(lease) for lease in found]
    lines = [[f"{key + ':':<13}{value}".rstrip() for key, value in one.items()] for one in documents]
    what = f"{format_address(*address)} is not leased" if address else f"pod {pod} has no lease"
    text = "\n\n".join(map("\n".join, lines)) or f"{what} in {stores.told(choices)}"
    output.show(options.output, documents, lambda: output.console().print(text))
    return 0 if found else 1


def _place(choice: Choice, leases: list[Lease]) -> None:
    """Complete each lease that names no node with the node and UID of its living pod, if this user may read pods."""
    cluster = Cluster(choice.kubeconfig, choice.namespace)
    with suppress(Forbidden):  # without this right the node stays unknown
        for lease in leases:
            pod = cluster.pod(*lease.pod_name) if not lease.node and lease.pod[1] else None
            if pod and lease.address in pod.addresses():
                lease.node, lease.pod = pod.node, (*lease.pod_name, lease.pod[2] or pod.uid)


def document(lease: Lease) -> dict[str, Any]:
    """The JSON object of a lease. `created` is in UTC, or "" if the time is not known."""
    at = datetime.fromtimestamp(lease.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    created = at if lease.sequence else lease.since
    attached = {"network": lease.network, "containerID": lease.container_id, "ifname": lease.ifname}
    pod = {"pod": lease.pod_ref, "podUID": lease.pod[2], "node": lease.node, "netns": lease.netns}
    return {"address": lease.text, "pool": lease.pool, **attached, **pod, "created": created}


def _flush(options: argparse.Namespace) -> int:
    options.only(options.drop, "with --drop", "--yes")
    options.only(not options.drop, "without --drop", "--dry-run")
    if options.drop and not options.yes and not sys.stdin.isatty():
        options.refuse("--drop asks first, and there is no terminal: add --yes")
    before, left = _unended(), 0
    choices = stores.named(options)
    if options.dry_run:
        _print_flushed(options, (), before.values())
        return int(bool(before))
    for choice in choices:  # the flush for a second store retries what the first has left
        left = upkeep.flush(Records(log=Log()), choice.store_ref, _FLUSH_SECONDS)
    if left and options.drop:
        left -= _drop(options)
    left += gc.finish_unended(Records(log=Log()), {"CNI_PATH": ":".join(PLUGIN_DIRECTORIES)}, _FLUSH_SECONDS, settled=0)
    after = _unended()
    _print_flushed(options, [one for key, one in before.items() if key not in after], after.values())
    return int(bool(left))


def _unended() -> dict[tuple[str, str, str], dict[str, Any]]:
    """Attachments with a pending release or an unfinished DEL, by (network, containerID, ifname). A link whose namespace
    is missing counts too; without a record of its link, only `reclaim` frees the addresses of an attachment."""
    waiting = {}
    for one in recorded.found():
        is_gone = LINK in one["records"] and one["netns"] and not one["alive"]
        if one["pending"] or is_gone or any(UNENDED in part for part in one["records"].values()):
            waiting[one["network"], one["containerID"], one["ifname"]] = one
    return waiting


def _print_flushed(options: argparse.Namespace, ended: Collection[Any], left: Collection[Any]) -> None:
    def print_lines() -> None:
        lines = [f"ended: {recorded.named(one)}" for one in ended]
        lines += [f"left:  {recorded.named(one)}: {one['pending'] or 'its DEL has not ended'}" for one in left]
        print(*lines, f"{len(ended)} ended, {len(left)} left" if lines else "nothing is pending", sep="\n")

    keys = ("network", "containerID", "ifname", "pod", "addresses", "pending")
    named = {"ended": ended, "left": left}
    document = {name: [{key: one[key] for key in keys} for one in several] for name, several in named.items()}
    output.show(options.output, document, print_lines)


def _drop(options: argparse.Namespace) -> int:
    """List the pending releases, and give them up if the user agrees. Return the number of releases given up."""
    pending = recorded.pending()
    out = output.console(sys.stdout if options.output == "table" else sys.stderr)
    for attachment in pending:
        out.print(f"{recorded.named(attachment)}: {attachment['pending']}")
    out.print("What is given up stays leased in its store until its agent or `railcni ipam reclaim` frees it.")
    question = f"Give up {output.counted(len(pending), 'release')}? [y/N] "
    if not options.yes and input(question).lower() not in ("y", "yes"):
        return 0
    chosen = {Attachment(a["network"], a["containerID"], a["ifname"]) for a in pending}
    return upkeep.drop(Records(log=Log()), chosen)


def _pool(text: str) -> str:
    """Return the pool that `text` names, by its name or by the CIDR of a range without network_name. Raises ValueError
    for other text."""
    if "/" in text:
        return Range(*parse_cidr(text)).pool_name()
    if not text or text.strip() != text:
        raise ValueError
    return object_name(text)


def _address_or_pod(text: str) -> tuple[tuple[int, int] | None, str]:
    try:
        return (parse_cidr(text)[:2] if "/" in text else parse_address(text)), ""
    except ValueError:
        with suppress(ValueError):
            return None, read_pod(text)
        raise argparse.ArgumentTypeError(f'"{text}" is neither an IP address nor NAMESPACE/POD') from None
