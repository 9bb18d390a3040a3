"""Pools that are full before the measuring begins, as each side would have filled them itself."""

from __future__ import annotations

import ipaddress
import os
import time
from pathlib import Path

from tests.bench.scenarios import Side

_BATCH = 1000


def fill(side: Side, leases: int) -> None:
    """Give the side's pool of `Side.full_pool` so many leases, without a call of its plugin for each."""
    if side.pool_plugin == "whereabouts":
        _fill_store(side, leases)
    else:
        _fill_host_local(side, leases)


def _fill_store(side: Side, leases: int) -> None:
    """Through the file store, which is fast when many leases are claimed at once."""
    from cni.shared.kernel import node
    from cni.shared.spec.request import Attachment
    from ipam.leases import Owner, Want
    from ipam.ranges import Range
    from ipam.stores.file import FileStore

    subnet = ipaddress.ip_network(side.subnet())
    pool = Range(4, int(subnet.network_address), subnet.prefixlen)
    name, network = pool.pool_name(), side.network(str(leases))
    store = FileStore(f"{side.state}/{leases}")
    for low in range(1, leases + 1, _BATCH):
        wants = [Want(name, 4, pool.at(i), "") for i in range(low, min(low + _BATCH, leases + 1))]
        attachment = Attachment(network, f"full{low}", "net1")
        store.claim(wants, Owner(attachment, ("", "", ""), node.host_name(), node.boot_id(), "", time.time_ns()))


def _fill_host_local(side: Side, leases: int) -> None:
    """As host-local writes them: a file for each address, and the last one given (plugins/ipam/host-local/backend/disk).

    What an earlier run left is used again: only what differs is made or removed.
    """
    folder = Path(side.state, str(leases), side.network(str(leases)))
    folder.mkdir(parents=True, exist_ok=True)
    base = ipaddress.ip_network(side.subnet()).network_address
    wanted = {str(base + i) for i in range(2, leases + 2)}  # the first address is the gateway
    present = set(os.listdir(folder))
    for name in present - wanted:
        (folder / name).unlink()
    for name in sorted(wanted - present):
        (folder / name).write_text(f"full-{name}\r\nnet1")
    if leases:
        (folder / "last_reserved_ip.0").write_text(str(base + leases + 1))
