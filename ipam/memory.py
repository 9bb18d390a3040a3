"""What this node knows of addresses beside its records: those to prefer and to avoid at the next ADD, and their holders.

Kubelet calls DEL for a pod's old sandbox before the ADD for its new one, so no lease tells the new one what the pod had. And
when another host answers for an address, the ADD fails and releases it, so no lease keeps the next ADD from the same address.

The file `remembered` beside the node's records has SLOTS slots. The hash of an entry's key is the number of its slot, so a
later entry replaces an earlier one of the same slot, and no lock and no cleaning are needed. All of it is a preference: an entry
that is lost, damaged or cannot be written changes no lease and fails no call.

The folder `held` beside it is an index of the records by address, for the search of an ADD: a link per address, whose target
names the attachment. Its record has the last word, so a link that is left or lost changes no lease. A folder that is missing is
made from the records.
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
from ipam import records as ipam_records
from ipam.ranges import parse_address
from ipam.records import PART

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.records import Records
    from ipam.leases import Lease, Owner, Want

FILES = ("remembered", "lock")  # entries are written to the first, and read from the second too, where they were before
SLOTS, SLOT = 4096, 512  # the number of slots, and the bytes of each
SECONDS = 3600  # a pod whose sandbox cannot be made is tried again every five minutes
AVOIDED_SECONDS = 600
_COMPLETE = b"\xff" * 16  # the key of the last slot, which has no other entry and does not end


def released(records: Records, leases: Sequence[Lease]) -> None:
    """Remember the addresses of an attachment that its pod has just released."""
    if leases and leases[0].pod[1]:
        first = leases[0]
        texts = [lease.text for lease in leases[:8]]  # for a group of rails one is enough: all have one index
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
    """Remember that another host uses `address`, which has its prefix length."""
    _write(records, _key("avoid", address), {"avoid": address}, AVOIDED_SECONDS)
    records.log.warning(f"{address} is in use by another host: this node avoids it for {AVOIDED_SECONDS} s")


def is_avoided(records: Records, address: str) -> bool:
    """Whether `address`, with its prefix length, was found in use a short time ago."""
    return bool(_read(records, _key("avoid", address)))


def is_complete(records: Records) -> bool:
    """Whether the node's records have all its AddressLeases: those of a lost state directory were read back."""
    return "complete" in _read(records, _COMPLETE)


def set_complete(records: Records) -> None:
    """Note that the node's records have all its AddressLeases."""
    _write(records, _COMPLETE, {"complete": True}, SECONDS)


def avoided(directory: str) -> list[tuple[str, float]]:
    """The addresses that this node avoids, each with the time in seconds since 1970 until which it does."""
    found: dict[str, float] = {}
    for name in FILES:
        try:
            data = files.read_regular(f"{directory}/{name}", SLOTS * SLOT, os.O_NOFOLLOW, private=True)
        except (OSError, ValueError):
            continue
        for at in range(0, len(data), SLOT):
            entry = _entry(data[at : at + SLOT])
            if isinstance(entry.get("avoid"), str):
                found.setdefault(entry["avoid"], float(entry["until"]))
    return sorted(found.items())


def _key(*texts: str) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _read(records: Records, key: bytes) -> dict[str, Any]:
    """The entry of `key`; {} for none."""
    for name in FILES:
        try:
            fd = records.open_file(name)
            try:
                found = _entry(os.pread(fd, SLOT, _offset(key)))
            finally:
                os.close(fd)
        except (CniError, OSError):
            continue
        if found.get("key") == key.hex():
            return found
    return {}


def _entry(data: bytes) -> dict[str, Any]:
    """The entry in a slot; {} for none, or for one that has ended."""
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
        fd = records.open_file(FILES[0])
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
    """Let the index say that `attachment` holds the addresses of `wants`."""
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
            pass  # it is in none


def holder(records: Records, want: Want) -> Attachment | None:
    """The attachment that holds the address of `want` by the index; None for none."""
    try:
        _make_folder(records)
        return Attachment(*codec.loads(os.readlink(_link(records, want)).encode()))
    except (OSError, ValueError, TypeError):
        return None


def _link(records: Records, want: Want) -> str:
    space = f"pool {want.pool}" if want.scope is None else f"scope {want.scope}"
    return f"{records.directory}/held/{_key(space, want.text).hex()}"


def _make_folder(records: Records) -> None:
    """Make the index of the present records, if there is none."""
    try:
        os.stat(records.directory + "/held")
        return
    except FileNotFoundError:
        files.make_private_directory(records.directory + "/held")
    for attachment, _, record in records.all(PART):
        try:
            note_holder(records, attachment, ipam_records.leases(attachment, record))
        except ValueError:
            pass  # the next verb that reads the record says so
