"""A log of everything that was written to a state directory, and the disks that a power loss may leave of it.

The disk promises what POSIX does: a file's bytes once it was synced, a name once its directory was. Until then a sector (512
bytes) or a name is on it or not, in any order; a rename is done as a whole or not at all."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.trace import Call

SECTOR = 512
TOP = "/var/lib"  # what lies below is recorded; its own name is on the disk before anything else
RECORDED = "openat,write,pwrite64,fsync,fdatasync,ftruncate,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,link,linkat,fallocate,exit_group"

_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_PATH = re.compile(r"<((?:\\x[0-9a-f]{2})*)>")


@dataclass(frozen=True)
class Write:
    """`data` at `offset` of the file `inode`."""

    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Resize:
    inode: int
    size: int


@dataclass(frozen=True)
class Names:
    """A change of the directory `inode`: names that go, and names that come with the inodes that they stand for."""

    inode: int
    gone: tuple[str, ...]
    come: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Sync:
    inode: int


@dataclass(frozen=True)
class Began:
    """The call number `number` began."""

    number: int


@dataclass(frozen=True)
class Ended:
    """The call number `number` has answered."""

    number: int


Entry = Write | Resize | Names | Sync | Began | Ended


@dataclass
class Disk:
    """Files by inode, and directories by inode; 0 is the top directory."""

    files: dict[int, bytes] = field(default_factory=dict)
    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})

    def apply(self, entry: Entry) -> None:
        if isinstance(entry, Write):
            old = self.files[entry.inode].ljust(entry.offset, b"\0")
            self.files[entry.inode] = old[: entry.offset] + entry.data + old[entry.offset + len(entry.data) :]
        elif isinstance(entry, Resize):
            self.files[entry.inode] = self.files[entry.inode][: entry.size].ljust(entry.size, b"\0")
        elif isinstance(entry, Names):
            names = self.directories[entry.inode]
            for name in entry.gone:
                names.pop(name, None)
            names.update(entry.come)

    def copy(self) -> Disk:
        return Disk(dict(self.files), {inode: dict(names) for inode, names in self.directories.items()})

    def tree(self) -> dict[str, bytes | None]:
        """Path below the top -> content, None for a directory."""
        return dict(self._walk(0, ""))

    def _walk(self, inode: int, prefix: str) -> Iterator[tuple[str, bytes | None]]:
        for name, child in sorted(self.directories[inode].items()):
            if child in self.directories:
                yield prefix + name, None
                yield from self._walk(child, f"{prefix}{name}/")
            else:
                yield prefix + name, self.files[child]

    def find(self, path: str) -> int:
        """The inode of an absolute path below TOP; KeyError."""
        inode = 0
        for name in path.removeprefix(TOP).strip("/").split("/"):
            if name:
                inode = self.directories[inode][name]
        return inode

    def add(self, directory: bool) -> int:
        """A new inode, without a name as yet."""
        inode = 1 + max([*self.files, *self.directories])
        if directory:
            self.directories[inode] = {}
        else:
            self.files[inode] = b""
        return inode


class Journal:
    """The entries, in their order, and the live disk that they have led to. `before` is on the disk from the start."""

    def __init__(self, before: Path | None = None) -> None:
        self.live = Disk()
        self.entries: list[Entry] = []
        if before is not None:
            self._load(before, 0)
        self.start = self.live.copy()

    def _load(self, folder: Path, inode: int) -> None:
        for path in sorted(folder.iterdir()):
            child = self.live.add(path.is_dir())
            self.live.directories[inode][path.name] = child
            if path.is_dir():
                self._load(path, child)
            else:
                self.live.files[child] = path.read_bytes()

    def put(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.live.apply(entry)

    def record(self, calls: Sequence[Call], number: int, finished: bool = True) -> None:
        """The calls of one process, as traced with `strace -y -xx -e trace=RECORDED`; not `finished`: it was killed."""
        self.put(Began(number))
        for call in calls:
            if not call.result.startswith(("-1", "?")):
                self._take(call)
        if finished:
            self.put(Ended(number))

    def _take(self, call: Call) -> None:
        strings = [bytes.fromhex(found.replace("\\x", "")) for found in _STRING.findall(call.text)]
        paths = [bytes.fromhex(found.replace("\\x", "")).decode() for found in _PATH.findall(call.text)]
        name = call.name.removesuffix("at").removesuffix("at2") if call.name != "openat" else "openat"
        if name in ("openat", "mkdir", "unlink", "rename", "link"):
            full = [_join(base, text.decode()) for base, text in zip((paths * 2) or ["", ""], strings, strict=False)]
            if full and all(path.startswith(TOP) for path in full):
                self._rename(name, call, full)
            return
        if not paths or not paths[0].startswith(TOP):
            return
        inode = self.live.find(paths[0])
        if name in ("write", "pwrite64"):
            (data,) = strings
            last = call.text.rpartition(", ")[2]
            offset = int(last) if name == "pwrite64" else len(self.live.files[inode])  # our own writes append
            self.put(Write(inode, offset, data))
        elif name == "ftruncate":
            self.put(Resize(inode, int(call.text.rpartition(", ")[2])))
        elif name in ("fsync", "fdatasync"):
            self.put(Sync(inode))
        else:
            raise ValueError(f"a call that this journal does not know: {call.what}")

    def _rename(self, name: str, call: Call, full: list[str]) -> None:
        folder, _, last = full[0].rpartition("/")
        inode = self.live.find(folder) if full[0] != TOP else -1
        if name == "openat":
            if "O_CREAT" in call.text and last not in self.live.directories[inode]:
                self.put(Names(inode, (), ((last, self.live.add(directory=False)),)))
            elif "O_TRUNC" in call.text:
                self.put(Resize(self.live.find(full[0]), 0))
        elif name == "mkdir":
            if inode >= 0:
                self.put(Names(inode, (), ((last, self.live.add(directory=True)),)))
        elif name == "unlink":
            self.put(Names(inode, (last,), ()))
        elif name == "rename" and full[1].rpartition("/")[0] == folder:
            self.put(Names(inode, (last,), ((full[1].rpartition("/")[2], self.live.find(full[0])),)))
        else:
            raise ValueError(f"a call that this journal does not know: {call.what}")

    # --- what a power loss leaves ---

    def disks(self, point: int, count: int, seed: int) -> list[Disk]:
        """Up to `count` different disks after a power loss behind the entry `point`: none and all of what is not sure,
        all but one thing, only one thing, writes torn in the middle, and any mixture, drawn with `seed`."""
        sure, pending = self._sort(point)
        everything = list(range(len(pending)))
        choices: list[Sequence[int]] = [[], everything]
        rest: list[Sequence[int]] = [[i for i in everything if i != k] for k in everything]
        rest += [[k] for k in everything]
        for group in {id(entry): entry for entry, _ in pending}.values():
            mine = [i for i, (entry, _) in enumerate(pending) if entry is group]
            rest += [[i for i in everything if i not in mine], mine]
            if len(mine) > 1:
                half = mine[len(mine) // 2 :]
                rest += [
                    [i for i in everything if i not in half],
                    [i for i in everything if i not in mine or i in half],
                ]
        draw = random.Random(seed * 1_000_003 + point)
        rest += [[i for i in everything if draw.random() < 0.5] for _ in range(max(8, count // 2))]
        draw.shuffle(rest)
        found: dict[str, Disk] = {}
        for choice in [*choices, *rest]:
            if len(found) >= count:
                break
            disk = self._disk(sure, [pending[i] for i in choice])
            found.setdefault(repr(disk.tree()), disk)
        return list(found.values())

    def _sort(self, point: int) -> tuple[list[tuple[int, Entry]], list[tuple[Entry, tuple[int, Entry]]]]:
        """The entries up to `point` with their numbers: those that are on the disk for sure, and those that may be,
        by sectors, each with the entry that it is a part of."""
        synced: dict[int, int] = {}
        for i, entry in enumerate(self.entries[: point + 1]):
            if isinstance(entry, Sync):
                synced[entry.inode] = i
        sure: list[tuple[int, Entry]] = []
        pending: list[tuple[Entry, tuple[int, Entry]]] = []
        for i, entry in enumerate(self.entries[: point + 1]):
            if not isinstance(entry, Write | Resize | Names):
                continue
            if synced.get(entry.inode, -1) > i:
                sure.append((i, entry))
            else:
                pending += [(entry, (i, part)) for part in _sectors(entry)]
        return sure, pending

    def _disk(self, sure: Sequence[tuple[int, Entry]], chosen: Sequence[tuple[Entry, tuple[int, Entry]]]) -> Disk:
        disk = self.start.copy()
        for inode in self.live.files:
            disk.files.setdefault(inode, b"")
        for inode in self.live.directories:
            disk.directories.setdefault(inode, {})
        for _, entry in sorted([*sure, *(part for _, part in chosen)], key=lambda pair: pair[0]):
            disk.apply(entry)
        return disk


def _sectors(entry: Entry) -> list[Entry]:
    """A write, cut at the borders of sectors."""
    if not isinstance(entry, Write):
        return [entry]
    parts: list[Entry] = []
    at, end = entry.offset, entry.offset + len(entry.data)
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        parts.append(Write(entry.inode, at, entry.data[at - entry.offset : until - entry.offset]))
        at = until
    return parts


def _join(base: str, name: str) -> str:
    return name if name.startswith("/") else f"{base}/{name}"
