"""What stands in a state directory: leases (read from a copy, for a journal), records, other files; and what is wrong."""

import ipaddress
import json
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STORE = "leases.db"
_STANDING = (
    "lock", "remembered", STORE, f"{STORE}-journal", "pending", "unended",
)  # fmt: skip
_RAILS = "rails of "
_LEAF_BITS = 12  # a row of the table `bitmap` stands for so many bits of an address (ipam/stores/file/schema.py)
_POOL, _SCOPE = 0, 2  # kinds of rows there; those of odd kinds summarise full rows


@dataclass(frozen=True, order=True)
class Lease:
    """A row of the lease file: whose address."""

    container: str
    address: str
    pool: str
    network: str
    ifname: str

    @property
    def record(self) -> str:
        """The name of the record that must tell of it; that of a container in a group of rails is the group's."""
        if self.ifname.startswith(_RAILS):
            return f"@{self.ifname.removeprefix(_RAILS)}:{self.container}:{self.ifname}:ipam"
        return f"{self.network}:{self.container}:{self.ifname}:ipam"


@dataclass
class Found:
    """What a store says: its leases; what about it cannot be; what only a call that was broken off may leave; what only a
    request that comes after its call may leave, and the next claim there puts right."""

    leases: list[Lease] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


@dataclass
class State(Found):
    """`records` by the names of their files; `others` are files which should not be there."""

    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def of(self, container: str) -> list[str]:
        """All that stands for a container, in words."""
        return [f"lease {lease.address}" for lease in self.leases if lease.container == container] + [
            f"record {name}" for name in self.records if name.split(":")[1] == container
        ]

    def addresses(self, container: str) -> list[str]:
        return sorted(lease.address for lease in self.leases if lease.container == container)

    def is_pending(self, container: str) -> bool:
        """Whether the release of what the container holds is written down as one to be made."""
        return any(r.get("pending") is True for name, r in self.records.items() if name.split(":")[1] == container)


def read(directory: Path, served: Found | None = None) -> State:
    """The state below `directory`, which is railcni's state directory on some disk; `served` are the leases when these
    are kept by a server."""
    state = State()
    if served:
        state.leases, state.unfinished, state.late = served.leases, served.unfinished, served.late
        state.faults += served.faults
    for path in sorted(p for p in directory.rglob("*") if not p.is_dir()):  # none where there is no directory
        name = str(path.relative_to(directory))
        if name in _STANDING or name.startswith("held/"):  # an index: what is left in it changes nothing
            continue
        if path.parent.name == "attachments" and not path.name.startswith("."):
            try:
                state.records[path.name] = json.loads(path.read_bytes())
            except ValueError as fault:
                state.faults.append(f"record {path.name} is torn: {fault}")
        else:
            state.others.append(name)
    _read_leases(directory, state)
    _compare(state)
    return state


def _read_leases(directory: Path, state: State) -> None:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for name in (STORE, f"{STORE}-journal"):
            if (directory / name).exists():
                shutil.copy(directory / name, folder)
        file = Path(folder) / STORE
        if not file.exists() or not file.stat().st_size:
            return
        connection = sqlite3.connect(file)
        try:
            for (said,) in connection.execute("PRAGMA integrity_check"):
                if said != "ok":
                    state.faults.append(f"the lease file is damaged: {said}")
            if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                _fetch(connection, state)
        except sqlite3.DatabaseError as fault:
            state.faults.append(f"the lease file cannot be read: {fault}")
        finally:
            connection.close()


def _fetch(connection: sqlite3.Connection, state: State) -> None:
    rows = connection.execute("SELECT container, address, pool, network, ifname, scope FROM lease").fetchall()
    wanted: dict[tuple[int, str, bytes], int] = {}
    for container, key, pool, network, ifname, scope in rows:
        state.leases.append(Lease(container, str(ipaddress.ip_address(key)), pool, network, ifname))
        value = int.from_bytes(key, "big")
        number = (value >> _LEAF_BITS).to_bytes(3 if len(key) == 4 else 15, "big")
        for kind, space in ((_POOL, pool), (_SCOPE, scope)):
            if space is not None:
                leaf = (kind, space, number)
                wanted[leaf] = wanted.get(leaf, 0) | 1 << value % (1 << _LEAF_BITS)
    found = {
        (kind, space, number): int.from_bytes(bits, "little")
        for kind, space, number, bits in connection.execute("SELECT kind, space, number, bits FROM bitmap")
        if kind in (_POOL, _SCOPE)
    }
    if found != wanted:
        state.faults.append(f"bitmaps and leases differ: {found} for {wanted}")
    state.leases.sort()


def _compare(state: State) -> None:
    """No lease without a record that names its address; two leases of one address cannot be by the file's keys."""
    for lease in state.leases:
        record = state.records.get(lease.record)
        if record is None:
            state.faults.append(f"lease {lease.address} of {lease.container} has no record")
        elif lease.address not in record.get("addresses", []):
            state.faults.append(f"record {lease.record} does not name {lease.address}: {record.get('addresses')}")
