"""What every verb of the IPAM plugin reads from a request first: the configuration, the owner and the store; and STATUS."""

from __future__ import annotations

import time

from cni.shared.kernel import node
from cni.shared.spec.errors import CniError, InvalidConfig, NotAvailable
from ipam import config as configuration
from ipam import stores
from ipam.leases import Owner
from ipam.ranges import format_address, parse_address
from ipam.records import PART
from ipam.stores.base import CREATE, SHARED_SECONDS
from ipam.upkeep import reclaim, restorer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cni.shared.log import Log
    from cni.shared.records import Records
    from cni.shared.spec.request import Attachment, Request
    from ipam.config import IpamConfig
    from ipam.rules import Need
    from ipam.stores.base import Store


def configured(request: Request, log: Log) -> IpamConfig:
    """The checked configuration; from now on `log` has the file and the level that it names."""
    config = configuration.read(request)
    log.path, log.level, log.hidden = config.log_file, config.log_level, config.hidden
    for note in config.notes:
        log.warning(note)
    if config.node_slice_size and config.datastore == "file":
        log.warning("ipam.node_slice_size has no effect: the file store's addresses are this node's alone")
    return config


def owner_of(request: Request, config: IpamConfig) -> Owner:
    namespace, name, uid = (_printable(part) for part in request.pod)
    netns = _printable(request.netns)
    machine = "" if config.datastore == "file" else node.machine_id()  # a file's leases are of one machine
    boot = node.boot_id()
    return Owner(request.attachment, (namespace, name, uid), config.node, boot, netns, time.time_ns(), machine)


def _printable(text: str) -> str:
    """`text` with "?" for bytes that are no UTF-8, which a store could not keep."""
    return text.encode("utf-8", "replace").decode()


def reached(recorded: dict[str, Any], config: IpamConfig) -> dict[str, Any]:
    """The description of the store that a record names; if the configuration names the same store, with its password."""
    if not stores.is_shared(recorded) or config.datastore != recorded.get("kind"):
        return recorded
    return stores.joined(recorded, stores.ref_of(config))


def preferred_of(config: IpamConfig, owner: Owner, log: Log) -> list[tuple[int, int]]:
    """The addresses, (family, value), in the pod's annotation; none unless the configuration has it read."""
    if not (config.preferred_ip_annotation and owner.pod[1]):
        return []
    from ipam import annotation

    return annotation.preferred(config.kubeconfig, owner.pod, min(SHARED_SECONDS, config.store_timeout), log)


def forget(attachment: Attachment, store: Store, records: Records, former: dict[str, Any] | None = None) -> None:
    """Replace the record of a failed ADD by the `former` one, or remove it if that is None, if nothing was claimed for certain.

    A store that was lost is restored from the records, so no record may name an address that its attachment does not have.
    """
    try:
        held = {format_address(lease.family, lease.value) for lease in store.find(attachment)}
        if former and held in (set(), set(former["addresses"])):
            records.write(attachment, PART, former)
        elif not former and not held:
            records.remove(attachment, PART)
    except CniError:
        pass  # DEL or GC ends it by the record


def attempt(
    config: IpamConfig,
    owner: Owner,
    target: Callable[[float], tuple[dict[str, Any], Sequence[Need]]],
    search: Callable[..., list[int]],
    records: Records,
    log: Log,
) -> None:
    """Search the store for the addresses that an ADD would claim, and claim none; NotAvailable when the ADD would fail.

    That is also when no store is named: runtimes call STATUS without a pod, and those that call it serve Kubernetes.
    """
    if config.unnamed:
        raise NotAvailable(config.unnamed)
    seconds = min(SHARED_SECONDS, config.store_timeout)
    try:
        store_ref, wanted = target(seconds)
        store = stores.open_store(store_ref, CREATE, restorer(store_ref, records, log), seconds)
        store.cooldown = config.cooldown_seconds
        with store.session():
            search(
                store,
                wanted,
                [None] * len(wanted),
                owner,
                False,
                lambda pool: reclaim(store, pool, owner, records, log),
            )
    except InvalidConfig:
        raise
    except CniError as fault:
        raise NotAvailable(fault.msg, fault.details) from None
    try:
        store.ready()
    except CniError as fault:
        raise NotAvailable(fault.msg, fault.details) from None


def address_of(text: str) -> tuple[int, int]:
    return parse_address(text.split("/")[0])
