"""railcni ipam pools, leases, show: who has which address. They read, and change nothing. flush: releases made up for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from cni.attachment import STATE, Book
from cni.cli import output
from cni.cli import store as chosen
from cni.log import Log
from ipam import stores, upkeep
from ipam.ranges import format_address, parse_address
from ipam.stores.base import READ, Lease, Pool, Store, Want
from ipam.stores.file import FileStore

_PAGE = 1000
_FLUSH_SECONDS = 30.0


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ipam` and its commands."""
    ipam = commands.add_parser("ipam", help="pools and leases", description="Pools and leases.")
    of_ipam = ipam.add_subparsers(required=True, metavar="COMMAND", title="commands")
    common = argparse.ArgumentParser(add_help=False)
    chosen.add_options(common)
    common.add_argument("-o", "--output", choices=("table", "json"), default="table")

    pools = of_ipam.add_parser("pools", parents=[common], help="the pools that have leases, and how many")
    pools.set_defaults(run=_pools)

    leases = of_ipam.add_parser("leases", parents=[common], help="the leases, by pool and address")
    leases.add_argument("--pool", default="", help="of this pool only")
    leases.add_argument("--network", default="", help="of this network only")
    leases.add_argument("--pod", default="", metavar="[NAMESPACE/]NAME", help="of this pod only")
    leases.set_defaults(run=_leases)

    show = of_ipam.add_parser("show", parents=[common], help="who has an address; exit code 1: nobody")
    show.add_argument("address", metavar="ADDRESS", type=_address)
    show.set_defaults(run=_show)

    flush = of_ipam.add_parser("flush", help="make the releases that a DEL could not make; exit code 1: some are left")
    chosen.add_options(flush)
    flush.set_defaults(run=_flush)


def leases(store: Store | None = None, pool: str = "") -> list[Lease]:
    """All leases, or those of one pool, by pool and address; of this node's own file store when no other is given."""
    store = store or FileStore(STATE, READ)
    with store.turn():  # the pages of one reading belong together
        return [lease for p in store.pools() if pool in ("", p.name) for lease in _pages(store, p.name)]


def _pages(store: Store, pool: str) -> Iterator[Lease]:
    last = None
    while page := store.leases(pool, last, _PAGE):
        yield from page
        last = page[-1]


def _pools(options: argparse.Namespace) -> int:
    found: list[Pool] = chosen.open_chosen(options, READ).pools()
    if options.output == "json":
        output.print_json([{"pool": p.name, "family": p.family, "used": p.used} for p in found])
    else:
        output.print_table(("pool", "family", "leases"), [(p.name, f"IPv{p.family}", p.used) for p in found])
    return 0


def _leases(options: argparse.Namespace) -> int:
    _print(
        [
            lease
            for lease in leases(chosen.open_chosen(options, READ), options.pool)
            if options.network in ("", lease.network) and _is_of_pod(lease, options.pod)
        ],
        options.output,
    )
    return 0


def _show(options: argparse.Namespace) -> int:
    where = chosen.described(options.data_dir, options.config)
    store = stores.open_store(where, READ)
    with store.turn():
        wants = [
            Want(p.name, p.family, options.address[1], None) for p in store.pools() if p.family == options.address[0]
        ]
        found = [lease for want in wants if (lease := store.holder(want))]
    if options.output == "json":
        output.print_json([document(f) for f in found])
    elif not found:
        output.console().print(f"{format_address(*options.address)} is not leased in {chosen.name(where)}")
    for lease in found if options.output == "table" else ():
        for key, value in document(lease).items():
            output.console().print(f"{key + ':':<13}{value}".rstrip())
    return 0 if found else 1


def _flush(options: argparse.Namespace) -> int:
    left = upkeep.flush(Book(), Log(), chosen.described(options.data_dir, options.config), _FLUSH_SECONDS)
    if left:
        output.console().print(f"{left} pending")
    return 1 if left else 0


def _print(found: list[Lease], form: str) -> None:
    if form == "json":
        output.print_json([document(f) for f in found])
        return
    columns = ("address", "pool", "pod", "network", "interface", "container", "since")
    output.print_table(columns, [(d["address"], d["pool"], d["pod"], *_rest(d)) for d in map(document, found)])


def _rest(lease: dict[str, Any]) -> tuple[object, ...]:
    return lease["network"], lease["ifname"], lease["containerID"][:12], lease["created"]


def document(lease: Lease) -> dict[str, Any]:
    """A lease as JSON; `created` in UTC."""
    namespace, name, uid = lease.pod
    return {
        "address": format_address(lease.family, lease.value),
        "pool": lease.pool,
        "network": lease.network,
        "containerID": lease.container_id,
        "ifname": lease.ifname,
        "pod": f"{namespace}/{name}" if name else "",
        "podUID": uid,
        "node": lease.node,
        "netns": lease.netns,
        "created": datetime.fromtimestamp(lease.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _is_of_pod(lease: Lease, wanted: str) -> bool:
    namespace, _, name = wanted.rpartition("/")
    return not wanted or (lease.pod[1] == name and namespace in ("", lease.pod[0]))


def _address(text: str) -> tuple[int, int]:
    try:
        return parse_address(text.partition("/")[0])
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is no IP address') from None
