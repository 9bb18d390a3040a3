"""What this node remembers for a while of addresses: those that a pod has just released, to give it them again.

Kubelet calls DEL for a pod's old sandbox before the ADD for its new one, so no lease tells the new one what the pod had.

The content of the file `lock` of the node's records: SLOTS slots. The hash of an entry's key is the number of its slot, so a
later entry replaces an earlier one of the same slot, and no lock and no cleaning are needed. All of it is a preference: an entry
that is lost, damaged or cannot be written changes no lease and fails no call.
"""

from __future__ import annotations

import _blake2
import posix
import time

from cni.shared.spec import codec
from cni.shared.spec.errors import CniError
from ipam.ranges import parse_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.records import Records
    from ipam.leases import Lease, Owner

SLOTS, SLOT = 4096, 512  # the number of slots, and the bytes of each
SECONDS = 3600  # a pod whose sandbox cannot be made is tried again every five minutes


def released(records: Records, leases: Sequence[Lease]) -> None:
    """Remember the addresses of an attachment that its pod has just released."""
    if leases and leases[0].pod[1]:
        first = leases[0]
        texts = [lease.text for lease in leases[:8]]  # for a group of rails one is enough: all have one index
        _write(records, _key(first.pod, first.network, first.ifname), {"uid": first.pod[2], "addresses": texts})


def preferred(records: Records, owner: Owner) -> list[tuple[int, int]]:
    """The addresses, (family, value), that the pod of `owner` has released in this network under this ifname."""
    found = _read(records, _key(owner.pod, owner.attachment.network, owner.attachment.ifname)) if owner.pod[1] else {}
    try:
        is_of_pod = "" in (found["uid"], owner.pod[2]) or found["uid"] == owner.pod[2]
        return [parse_address(text) for text in found["addresses"]] if is_of_pod else []
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _key(pod: tuple[str, str, str], *names: str) -> bytes:
    texts = "\0".join((*pod[:2], *names)).encode("utf-8", "surrogateescape")
    return _blake2.blake2b(texts, digest_size=16).digest()


def _read(records: Records, key: bytes) -> dict[str, Any]:
    """The entry of `key`; {} for none."""
    try:
        fd = records.open_lock()
        try:
            found = codec.loads(posix.pread(fd, SLOT, _offset(key)).rstrip(b"\0"))
        finally:
            posix.close(fd)
        is_current = found["key"] == key.hex() and 0 < found["until"] - time.time() <= SECONDS
        return found if is_current else {}
    except (CniError, OSError, ValueError, KeyError, TypeError):
        return {}


def _write(records: Records, key: bytes, entry: dict[str, Any]) -> None:
    data = codec.dumps({"key": key.hex(), "until": int(time.time()) + SECONDS, **entry}).encode()
    try:
        fd = records.open_lock()
        try:
            posix.pwrite(fd, data.ljust(SLOT, b"\0")[:SLOT], _offset(key))
        finally:
            posix.close(fd)
    except (CniError, OSError) as fault:
        records.log.debug(f"the released addresses are not remembered: {fault}")


def _offset(key: bytes) -> int:
    return int.from_bytes(key[:8], "big") % SLOTS * SLOT
