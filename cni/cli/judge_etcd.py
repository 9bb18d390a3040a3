"""Whether the keys of an etcd store belong together: every lease has all of its keys, and no key stands alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from cni.cli import findings as kinds
from cni.cli.findings import LOOK, Finding, about
from cni.cli.inventory import of_lease
from cni.spec.errors import StateDamaged
from ipam.ranges import format_address
from ipam.stores.base import Lease
from ipam.stores.etcd_keys import BLOCK, LEASE, parse, unescaped

_ALONE = (b"cooling", b"former", b"full", b"void")  # keys that go with no single lease


def find(
    entries: Mapping[bytes, bytes], root: bytes, expected: Callable[[Lease], Mapping[bytes, bytes]]
) -> tuple[list[Lease], list[Finding]]:
    """The leases among `entries`, all keys below `root`, and what is wrong; `expected` are the keys of a lease."""
    leases: list[Lease] = []
    found: list[Finding] = []
    wanted: dict[bytes, tuple[bytes, Lease]] = {}
    for key, value in entries.items():
        if not key.startswith(root + LEASE.encode() + b"/"):
            continue
        try:
            lease = parse(key, value)
        except StateDamaged as fault:
            found.append(Finding(kinds.UNREADABLE, LOOK, fault.msg))
            continue
        leases.append(lease)
        wanted |= {name: (text, lease) for name, text in expected(lease).items()}
    for key, (value, lease) in wanted.items():
        if entries.get(key) != value:
            state = "is not there" if key not in entries else "says something else"
            found.append(about(of_lease(lease), kinds.INDEX_DIFFERS, LOOK, f"key {_shown(key)} of this lease {state}"))
    for key in entries.keys() - wanted.keys():
        if key[len(root) :].partition(b"/")[0] not in _ALONE:
            name = _shown(key)
            message = f"key {name} goes with no lease: `etcdctl del {name}` when another look finds it again"
            found.append(Finding(kinds.INDEX_DIFFERS, LOOK, message))
    return leases, [*found, *_marks(entries, root)]


def _marks(entries: Mapping[bytes, bytes], root: bytes) -> Iterator[Finding]:
    """Marks of blocks that are not full: their addresses would never be given."""
    for key in entries:
        if not key.startswith(root + b"full/"):
            continue
        kind, space, size, place = key[len(root) :].split(b"/")[1:]
        step = 1 if int(size) == BLOCK else BLOCK
        below = kind + b"/" + space if step == 1 else b"full/" + kind + b"/" + space + b"/%d" % BLOCK
        width = len(place)
        parts = (root + below + b"/%0*x" % (width, int(place, 16) + i) for i in range(0, int(size), step))
        if any(part not in entries for part in parts):
            first = format_address(4 if width == 8 else 6, int(place, 16))
            message = (
                f"{int(size)} addresses from {first} on are marked as taken, and are not: `etcdctl del {_shown(key)}`"
            )
            yield Finding(kinds.INDEX_DIFFERS, LOOK, message, pool=unescaped(space), address=first)


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "replace")
