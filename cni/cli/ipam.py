"""railcni ipam pools, leases, show: who has which address. They read, and change nothing. flush: releases made up for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cni import unended
from cni.attachment import STATE, Book
from cni.cli import holdings, ipam_audit, ipam_migrate, ipam_reclaim, output
from cni.cli import store as stores
from cni.cli.holdings import PoolUse
from cni.cli.inventory import Held, of_lease
from cni.cli.podnames import is_of_pod, read_pod
from cni.cli.progress import Progress
from cni.log import Log
from ipam import upkeep
from ipam.ranges import format_address, parse_address
from ipam.stores.base import READ, Want
from ipam.stores.file import FileStore
from ipam.stores.kubernetes_size import LIMIT, REMEDY, WARN_PERCENT, percent

_FLUSH_SECONDS = 30.0


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ipam` and its commands."""
    ipam = commands.add_parser("ipam", help="pools and leases", description="Pools and leases.")
    of_ipam = ipam.add_subparsers(required=True, metavar="COMMAND", title="commands")
    common = argparse.ArgumentParser(add_help=False)
    stores.add_options(common)
    output.add_option(common)

    pools = of_ipam.add_parser("pools", parents=[common], help="the pools, how full they are, and where")
    pools.set_defaults(run=_pools)

    leases = of_ipam.add_parser("leases", parents=[common], help="the leases, by pool and address")
    leases.add_argument("--pool", default="", help="of this pool only")
    leases.add_argument("--network", default="", help="of this network only")
    leases.add_argument("--pod", default="", metavar="[NAMESPACE/]NAME", help="of this pod only")
    leases.add_argument("--node", default="", help="claimed on this node only, as far as the store tells")
    leases.add_argument("--ifname", default="", help="of interfaces of this name only")
    leases.add_argument(
        "--container",
        default="",
        metavar="ID",
        help="of this container, or of the ones whose ID begins so; or of NAMESPACE/POD",
    )
    leases.set_defaults(run=_leases)

    show = of_ipam.add_parser(
        "show", parents=[common], help="who has an address, or what a pod has; exit code 1: nobody"
    )
    show.add_argument("what", metavar="ADDRESS|NAMESPACE/POD", type=_address_or_pod)
    show.set_defaults(run=_show)

    ipam_audit.register(of_ipam)
    ipam_reclaim.register(of_ipam)
    ipam_migrate.register(of_ipam)

    flush = of_ipam.add_parser("flush", help="end what a DEL could not end or release; exit code 1: some is left")
    stores.add_options(flush)
    flush.set_defaults(run=_flush)


def leases() -> list[Held]:
    """All leases of this node's own file store, by pool and address."""
    store = FileStore(STATE, READ)
    with store.turn():
        return [of_lease(lease) for lease in holdings.leases(store)]


# --- pools ---


def _pools(options: argparse.Namespace) -> int:
    with Progress() as progress:
        found = holdings.read(stores.choose(options), progress.say)
    pools = found.pools()
    if options.output != "table":
        output.print_data([_pool_document(p) for p in pools], options.output)
    else:
        objects = any(p.size is not None for p in pools)
        columns = ("pool", "family", "size", "used", "free", "use", *(("object",) if objects else ()), "occupancy")
        output.print_table(columns, [_pool_row(p, objects) for p in pools])
    for fault in found.faults:
        output.print_fault(f"railcni: {fault}")
    for pool in pools:
        if pool.size is not None and percent(pool.size) >= WARN_PERCENT:
            share = percent(pool.size)
            output.print_fault(f"pool {pool.name} is at {share} % of the size that the API server takes. {REMEDY}")
    return 1 if found.faults else 0


def _pool_document(pool: PoolUse) -> dict[str, Any]:
    document: dict[str, Any] = {"pool": pool.name, "family": pool.family, "used": pool.used}
    full = pool.occupancy
    if full:
        document |= {"size": full.size, "free": full.free, "percent": round(full.percent, 1)}
        if full.outside:
            document["outside"] = full.outside
        document["occupancy"] = {"addresses": full.shown, "shares": [round(share, 3) for share in full.cells]}
    if pool.size is not None:
        document["object"] = {"bytes": pool.size, "percent": percent(pool.size), "limit": LIMIT}
    return document


def _pool_row(pool: PoolUse, objects: bool) -> list[object]:
    full = pool.occupancy
    row: list[object] = [pool.name, f"IPv{pool.family}"]
    if full:
        share = f"{full.percent:.0f}%" if full.percent >= 1 or not pool.used else "<1%"
        row += [_count(full.size), pool.used, _count(full.free), share]
    else:
        row += [None, pool.used, None, None]
    if objects:
        used = "" if pool.size is None else f"{-(-pool.size >> 10)}K {percent(pool.size)}%"
        row.append(output.styled(used, "bold red" if pool.size and percent(pool.size) >= WARN_PERCENT else ""))
    row.append(_strip(full.drawn(sys.stdout.encoding), full.shown < full.size, full.shown) if full else None)
    return row


def _strip(cells: str, cut: bool, shown: int) -> str:
    return f"{cells} of the first {shown}" if cut else cells


def _count(number: int) -> str:
    """A number of addresses; those of wide IPv6 ranges as a power of two."""
    return str(number) if number < 1 << 40 else f"~2^{(number - 1).bit_length()}"


# --- leases ---


def _leases(options: argparse.Namespace) -> int:
    with Progress() as progress:
        found = holdings.read(stores.choose(options), progress.say, options.pool)
    _print([held for held in found.held if _is_chosen(held, options)], options.output)
    for fault in found.faults:
        output.print_fault(f"railcni: {fault}")
    return 1 if found.faults else 0


def _is_chosen(held: Held, options: argparse.Namespace) -> bool:
    if "/" in options.container:
        container = is_of_pod(held.pod, options.container)
    else:
        container = held.container_id.startswith(options.container)
    return (
        container
        and options.network in ("", held.network)
        and options.node in ("", held.node)
        and options.ifname in ("", held.ifname)
        and (not options.pod or is_of_pod(held.pod, options.pod))
    )


def _show(options: argparse.Namespace) -> int:
    choice = stores.choose(options)
    address, pod = options.what
    with Progress() as progress:
        if address and choice.kind != "kubernetes":
            found = list(_holders(choice, address))
        else:
            held = holdings.read(choice, progress.say).held
            found = [h for h in held if (h.address == address if address else is_of_pod(h.pod, pod))]
        if choice.kind == "kubernetes":
            found = [_placed(choice, h) for h in found]
    if options.output != "table":
        output.print_data([document(f) for f in found], options.output)
    elif not found:
        what = f"{format_address(*address)} is not leased" if address else f"pod {pod} has no lease"
        output.console().print(f"{what} in {choice}")
    for index, lease in enumerate(found if options.output == "table" else ()):
        if index:
            output.console().print()
        for key, value in document(lease).items():
            output.console().print(f"{key + ':':<13}{value}".rstrip())
    return 0 if found else 1


def _placed(choice: stores.Choice, held: Held) -> Held:
    """`held` with the node of the pod that lives, where the store does not tell it and the pod may be read."""
    from cni.cli.cluster import Cluster, Forbidden

    if held.node or not held.pod[1]:
        return held
    cluster = Cluster(choice.kubeconfig, choice.namespace)
    try:
        pod = cluster.pod(*held.pod)
    except Forbidden:
        pod = None
    finally:
        cluster.close()
    return replace(held, node=pod.node, uid=held.uid or pod.uid) if pod and pod.shows(held.address) else held


def _holders(choice: stores.Choice, address: tuple[int, int]) -> Iterable[Held]:
    """Who has an address, asked of each pool that may hold it."""
    store = choice.open(READ)
    with store.turn():
        for pool in store.pools():
            if pool.family != address[0]:
                continue
            lease = store.holder(Want(pool.name, *address, None))
            if lease:
                yield of_lease(lease)


def _print(found: list[Held], form: str) -> None:
    if form != "table":
        output.print_data([document(f) for f in found], form)
        return
    columns = ("address", "pool", "pod", "network", "interface", "container", "since", "node")
    output.print_table(columns, [(d["address"], d["pool"], d["pod"], *_rest(d)) for d in map(document, found)])


def _rest(lease: dict[str, Any]) -> tuple[object, ...]:
    return lease["network"], lease["ifname"], lease["containerID"][:12], lease["created"], lease["node"]


def document(held: Held) -> dict[str, Any]:
    """A lease as JSON; `created` in UTC, "" where it is not known."""
    created = (
        datetime.fromtimestamp(held.sequence / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if held.sequence else held.since
    )
    return {
        "address": held.text,
        "pool": held.pool,
        "network": held.network,
        "containerID": held.container_id,
        "ifname": held.ifname,
        "pod": "/".join(held.pod) if held.pod[1] else "",
        "podUID": held.uid,
        "node": held.node,
        "netns": held.netns,
        "created": created,
    }


# --- flush ---


def _flush(options: argparse.Namespace) -> int:
    described = stores.choose(options).described
    left = upkeep.flush(Book(), Log(), described, _FLUSH_SECONDS) + unended.finish(Book(), Log(), {}, _FLUSH_SECONDS)
    if left:
        output.console().print(f"{left} pending")
    return 1 if left else 0


def _address_or_pod(text: str) -> tuple[tuple[int, int] | None, str]:
    try:
        return parse_address(text.partition("/")[0]), ""
    except ValueError:
        pass
    try:
        return None, read_pod(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is neither an IP address nor NAMESPACE/POD') from None
