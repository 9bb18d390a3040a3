"""The memory of this node beside its records: addresses to prefer or avoid at the next ADD, and holders of addresses.

Kubelet calls DEL for a pod's old sandbox before the ADD for its new one, so no lease has the pod's former address. And
when another host answers for an address, the ADD fails and releases the address, so the next ADD could get it again.

The file `remembered` beside the node's records has SLOTS slots. The hash of an entry's key is the number of its slot,
so a later entry replaces an earlier one of the same slot, and no lock and no cleaning are needed. Entries are only
hints: if one is lost, damaged or cannot be written, no lease changes and no call fails.

The folder `held` beside this file is an index of the records by address, for the search of an ADD: a symbolic link per
address, whose target names the attachment. The record of the attachment decides, so a stale or lost link changes no
lease. A missing folder is made from the records.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING

from cni.shared.kernel import files
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError
from cni.shared.spec.request import Attachment
from ipam.leases import PART, recorded_leases
from ipam.ranges import parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.records import Records
    from ipam.leases import Lease, Owner, Want

FILE = "remembered"
SLOTS, SLOT = 4096, 512  # the number of slots, and the bytes of each
SECONDS = 3600  # a pod whose sandbox cannot be made is tried again every five minutes
AVOIDED_SECONDS = 600
_COMPLETE = b"\xff" * 16  # the key of the last slot, whose one entry never ends


def released(records: Records, leases: Sequence[Lease]) -> None:
    """Remember the addresses of an attachment that its pod has just released."""
    if leases and leases[0].pod[1]:
        first = leases[0]
        texts = [lease.text for lease in leases[:8]]  # for a group of rails one is enough: all have the same index
        key = _key("pod", *first.pod[:2], first.network, first.ifname)
        _write(records, key, {"uid": first.pod[2], "addresses": texts}, SECONDS)


def preferred(records: Records, owner: Owner) -> list[tuple[int, int]]:
    """The addresses, (family, value), that the pod of `owner` has released in this network under this ifname."""
    if not owner.pod[1]:
        return []
    found = _read(records, _key("pod", *owner.pod[:2], owner.attachment.network, owner.attachment.ifname))
    try:
        is_of_pod = "" in (found["uid"], owner.pod[2]) or found["uid"] == owner.pod[2]
        return [parse_address(text) for text in found["addresses"]] if is_of_pod else []
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def found_in_use(records: Records, address: str) -> None:
    """Remember that another host uses `address`, given with its prefix length."""
    _write(records, _key("avoid", address), {"avoid": address}, AVOIDED_SECONDS)
    records.log.warning(f"{address} is in use by another host: this node avoids it for {AVOIDED_SECONDS} s")


def is_avoided(records: Records, address: str) -> bool:
    """Whether `address`, with its prefix length, was found in use a short time ago."""
    return bool(_read(records, _key("avoid", address)))


def is_complete(records: Records) -> bool:
    """Whether each AddressLease of this node has a record.

    This is false from the loss of the state directory until the records have been made again from the leases.
    """
    return "complete" in _read(records, _COMPLETE)


def set_complete(records: Records) -> None:
    """Note that the node's records have all its AddressLeases."""
    _write(records, _COMPLETE, {"complete": True}, SECONDS)


def avoided(directory: str) -> list[tuple[str, float]]:
    """(address, end) of each address that this node avoids until `end`, in seconds since 1970; sorted."""
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


def _key(*texts: str) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _read(records: Records, key: bytes) -> dict[str, Any]:
    """The entry of `key`; {} if there is none."""
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
    """The entry in the bytes of a slot; {} if there is none, or its time has ended."""
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


# --- the index of holders ---


def note_holder(records: Records, attachment: Attachment, wants: Sequence[Want]) -> None:
    """Note in the index that `attachment` holds the addresses of `wants`."""
    target = codec.dumps(list(attachment.key()))
    for want in wants:
        path = _link(records, want)
        try:
            _make_folder(records)
            forget_holder(records, [want])
            os.symlink(target, path)
        except OSError as fault:
            records.log.debug(f"{want.text} is not in the index of held addresses: {fault}")


def forget_holder(records: Records, wants: Sequence[Want]) -> None:
    """Remove the addresses of `wants` from the index."""
    for want in wants:
        try:
            os.unlink(_link(records, want))
        except OSError:
            pass  # the index does not have it


def holder(records: Records, want: Want) -> Attachment | None:
    """The attachment that holds the address of `want`, as the index says; None if there is none."""
    try:
        _make_folder(records)
        return Attachment(*codec.loads(os.readlink(_link(records, want)).encode()))
    except (OSError, ValueError, TypeError):
        return None


def _link(records: Records, want: Want) -> str:
    space = f"pool {want.pool}" if want.scope is None else f"scope {want.scope}"
    return f"{records.directory}/held/{_key(space, want.text).hex()}"


def _make_folder(records: Records) -> None:
    """Make the index from the present records, if it is missing."""
    try:
        os.stat(records.directory + "/held")
        return
    except FileNotFoundError:
        files.make_private_directory(records.directory + "/held")
    for attachment, _, record in records.all(PART):
        try:
            note_holder(records, attachment, recorded_leases(attachment, record))
        except ValueError:
            pass  # the next verb that reads the record reports this
