"""The IPAM records of this node, and a file of addresses to prefer or avoid at the next ADD.

Prefer: kubelet calls DEL for a pod's old sandbox before the ADD for its new sandbox, so ADD finds no lease of the pod.
Avoid: when another host answers for an address, ADD fails and releases the address. The next ADD must not get it.

The file `remembered` beside the node's records has SLOTS slots. The hash of an entry's key determines the entry's slot.
A later entry replaces an earlier entry in its slot, so no lock and no cleaning are needed. Entries are only hints: a
lost, damaged or unwritten entry changes no lease and makes no call fail.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cni.shared.kernel import files
from cni.shared.records import Records
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError
from cni.shared.spec.request import Attachment
from ipam import stores
from ipam.leases import PART, Lease, Owner, recorded_leases
from ipam.ranges import parse_address

FILE = "remembered"
SLOTS, SLOT = 4096, 512  # the number of slots, and the bytes of each
SECONDS = 3600  # the life of an entry; kubelet tries again every five minutes to make a sandbox
AVOIDED_SECONDS = 600
_COMPLETE = b"\xff" * 16  # the key of the last slot, whose only entry never expires


def released(records: Records, leases: Sequence[Lease]) -> None:
    """Remember the addresses in `leases`, which an attachment has just released, for the next ADD of its pod."""
    if leases and leases[0].pod[1]:
        first = leases[0]
        addresses = [lease.text for lease in leases[:8]]  # one address is enough for a group of rails with one index
        key = key_of("pod", *first.pod[:2], first.network, first.ifname)
        _write(records, key, {"uid": first.pod[2], "addresses": addresses}, SECONDS)


def preferred(records: Records, owner: Owner) -> list[tuple[int, int]]:
    """The addresses, (family, value), that the owner's pod last released in the owner's network under its ifname."""
    if not owner.pod[1]:
        return []
    found = _read(records, key_of("pod", *owner.pod[:2], owner.attachment.network, owner.attachment.ifname))
    try:
        is_of_pod = "" in (found["uid"], owner.pod[2]) or found["uid"] == owner.pod[2]
        return [parse_address(text) for text in found["addresses"]] if is_of_pod else []
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def found_in_use(records: Records, address: str) -> None:
    """Remember for some minutes that another host uses `address`, "address/length"."""
    _write(records, key_of("avoid", address), {"avoid": address}, AVOIDED_SECONDS)
    records.log.warning(f"{address} is in use by another host: this node avoids it for {AVOIDED_SECONDS} s")


def is_avoided(records: Records, address: str) -> bool:
    """Whether `address`, with its prefix length, was found in use a short time ago."""
    return bool(_read(records, key_of("avoid", address)))


def is_complete(records: Records) -> bool:
    """Whether each AddressLease of this node has a record. False after a loss of the state directory, until the records
    have been restored from the leases."""
    return "complete" in _read(records, _COMPLETE)


def set_complete(records: Records) -> None:
    """Note that each AddressLease of this node has a record."""
    _write(records, _COMPLETE, {"complete": True}, SECONDS)


def avoided(directory: str) -> list[tuple[str, float]]:
    """The addresses that this node avoids, sorted, each with the time, in seconds since 1970, until which it does."""
    found: dict[str, float] = {}
    try:
        data = files.read_regular(f"{directory}/{FILE}", SLOTS * SLOT, os.O_NOFOLLOW, private=True)
    except (OSError, ValueError):
        return []
    for at in range(0, len(data), SLOT):
        entry = _entry(data[at : at + SLOT])
        if isinstance(entry.get("avoid"), str):
            found.setdefault(entry["avoid"], float(entry["until"]))
    return sorted(found.items())


def key_of(*texts: str) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _read(records: Records, key: bytes) -> dict[str, Any]:
    try:
        fd = records.open_file(FILE)
        try:
            found = _entry(os.pread(fd, SLOT, _offset(key)))
        finally:
            os.close(fd)
    except (CniError, OSError):
        return {}
    return found if found.get("key") == key.hex() else {}


def _entry(data: bytes) -> dict[str, Any]:
    """The entry in the bytes of a slot; {} if there is none, or it has expired."""
    if not data.startswith(b"{"):
        return {}
    try:
        found: dict[str, Any] = codec.loads(data.rstrip(b"\0"))
        return found if "complete" in found or 0 < found["until"] - time.time() <= SECONDS else {}
    except (ValueError, KeyError, TypeError):
        return {}


def _write(records: Records, key: bytes, entry: dict[str, Any], seconds: int) -> None:
    data = codec.dumps({"key": key.hex(), "until": int(time.time()) + seconds, **entry}).encode()
    try:
        fd = records.open_file(FILE)
        try:
            os.pwrite(fd, data.ljust(SLOT, b"\0")[:SLOT], _offset(key))
        finally:
            os.close(fd)
    except (CniError, OSError) as fault:
        records.log.debug(f"the address is not remembered: {fault}")


def _offset(key: bytes) -> int:
    return (SLOTS - 1 if key == _COMPLETE else int.from_bytes(key[:8], "big") % (SLOTS - 1)) * SLOT


# --- the records ---


def read_record(attachment: Attachment, records: Records) -> dict[str, Any] | None:
    """The IPAM record of `attachment`; None when it is missing or damaged."""
    record = records.read(attachment, PART)
    if record is None:
        return None
    try:
        recorded_leases(attachment, record)
    except ValueError as fault:
        records.log.error(f"the record of {attachment} is damaged: {fault}; only the store is used")
        return None
    return record


def is_pending(attachment: Attachment, records: Records) -> bool:
    """Whether the record of `attachment` notes a pending release."""
    record = records.read(attachment, PART)
    return record is not None and record.get("pending") is True


def restorer(store_ref: dict[str, Any], records: Records, owner: Owner | None = None) -> Callable[[], list[Lease]]:
    """Return a function that reads the leases to write to a new, empty store: those in records that name `store_ref`.

    For a store of the kind addresslease with an `owner`, the function reads only records of the owner's container or
    pod in the owner's network, whichever store they name.
    """
    if owner and store_ref.get("kind") == "addresslease":
        return recorder(owner.attachment.network, records, owner.attachment.container_id, owner.pod[1])

    def restore() -> list[Lease]:
        listed = [(attachment, record) for attachment, _, record in (*records.all(PART), *records.newer(PART))]
        named = [x for x in listed if not isinstance(x[1].get("store"), dict) or stores.same(x[1]["store"], store_ref)]
        # A record of a newer format is read as far as possible: the version that wrote it releases a surplus address.
        found = _leases_of(named, records)
        if found and not stores.is_shared(store_ref):
            records.log.warning(f"the store was new; restored from the attachment records: {texts(found)}")
        return found

    return restore


def recorder(network: str, records: Records, *names: str) -> Callable[[], list[Lease]]:
    """Return a function that reads the leases in all records of a network, whichever store the records name.

    `names` are container IDs or pod names. With `names`, only records that contain one of the names are read.
    """
    return lambda: _leases_of(records.of_network(network, PART, *names), records)


def _leases_of(listed: Iterable[tuple[Attachment, dict[str, Any]]], records: Records) -> list[Lease]:
    found: list[Lease] = []
    for attachment, record in listed:
        try:
            found += recorded_leases(attachment, record)
        except ValueError as fault:
            records.log.error(f"the record of {attachment} cannot be read: {fault}; its addresses are not restored")
    return found


def texts(leases: Iterable[Lease]) -> str:
    """The addresses of `leases`, for messages."""
    return ", ".join(lease.text for lease in leases)
