"""What files stand below a directory, as text, with that alone left out by which nobody can decide anything.

Times keep only their order (lifetimes of an address whether they end), namespaces get the caller's names for them, checksums
whether they are right. A cold journal, which SQLite reads nothing of, is left out. All else is kept."""

import os
import re
import stat
import struct
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

_SEALED = re.compile(rb'\A(.*), "checksum": "([0-9a-f]{32})"\}\Z', re.DOTALL)
_TIME = re.compile(rb"(?<![0-9])[0-9]{19}(?![0-9])")
_WHEN_READ = re.compile(rb'"read": [0-9]+')
_LIFETIMES = re.compile(
    rb"(?<=14000600)([0-9a-f]{8})([0-9a-f]{8})[0-9a-f]{16}"
)  # IFA_CACHEINFO, a struct ifa_cacheinfo
_NUMBER = re.compile(rb"(?<![0-9])[0-9]{4,18}(?![0-9])")
_WORKERS = "/railcni/warm"  # sockets and locks of warm workers: nobody decides anything by them
_JOURNAL = bytes.fromhex("d9d505f920a163d7")


class Files:
    """Reads trees; `since` is the time before which nothing that is read here was written, in ns since 1970."""

    def __init__(self, since: int) -> None:
        self._since = since

    def lines(
        self,
        tops: Sequence[Path],
        namespaces: Mapping[tuple[int, int], str],
        elsewhere: Sequence[tuple[str, bytes]] = (),
    ) -> list[str]:
        """A line for every file below `tops`, and for each name and text of `elsewhere`, whose times are of the same
        order; `namespaces` by (inode, cookie)."""
        until = time.time_ns()
        found = list(elsewhere)
        for number, top in enumerate(tops):
            for path in sorted(p for p in top.rglob("*") if _WORKERS not in p.as_posix()):
                head, content = _read(path, namespaces)
                found.append((f"{number} {path.relative_to(top)} {head}", content))
        binary = _eight_bytes(self._since, until)
        times: set[int] = set()
        for _, content in found:
            times |= {int(text) for text in _TIME.findall(content)}
            times |= {int.from_bytes(m[1], "big") for m in binary.finditer(content)}
        order = {at: n for n, at in enumerate(sorted(t for t in times if self._since <= t <= until))}
        names = {inode: f"<inode of {name}>" for (inode, _), name in namespaces.items()}
        names |= {cookie: f"<cookie of {name}>" for (_, cookie), name in namespaces.items()}
        return [f"{head} {_plain(content, order, binary, names)!r}" for head, content in found]


def _read(path: Path, namespaces: Mapping[tuple[int, int], str]) -> tuple[str, bytes]:
    status = path.lstat()
    head = f"{status.st_mode:o} {status.st_uid}:{status.st_gid}"
    if stat.S_ISLNK(status.st_mode):
        return head, os.readlink(path).encode()
    if not stat.S_ISREG(status.st_mode):
        return head, b""
    known = {inode: name for (inode, _), name in namespaces.items()}
    if status.st_dev != path.parent.stat().st_dev:  # something is mounted here
        return f"{head} mounted {known.get(status.st_ino, status.st_ino)}", b""
    data = path.read_bytes()
    sealed = _SEALED.match(data)
    if sealed:
        right = blake2b(sealed[1], digest_size=16).hexdigest().encode() == sealed[2]
        return f"{head} {'sealed' if right else 'with a wrong checksum'}", sealed[1]
    if path.name.endswith("-journal"):
        return head, journal(data)
    return head, data


def journal(data: bytes) -> bytes:
    """SQLite's rollback journal (https://sqlite.org/fileformat.html, section 3) without its random number, which the
    checksums begin with: "right" and "wrong" stand in their places."""
    if data[:1] == b"\0":  # hasHotJournal in src/pager.c
        return b"cold"
    if data[:8] != _JOURNAL or len(data) < 28:
        return data
    count, nonce, pages, sector, size = struct.unpack_from(">5I", data, 8)
    parts = [f"count {count} pages {pages} sector {sector} size {size} ".encode(), data[28:sector]]
    at = sector
    while size and at + size + 8 <= len(data):
        page = data[at + 4 : at + 4 + size]
        total = nonce + sum(page[i] for i in range(size - 200, 0, -200)) & 0xFFFFFFFF
        right = total == int.from_bytes(data[at + 4 + size : at + 8 + size], "big")
        parts += [data[at : at + 4], page, b"right" if right else b"wrong"]
        at += size + 8
    return b"".join([*parts, data[at:]])


def _eight_bytes(since: int, until: int) -> re.Pattern[bytes]:
    """Finds what may be a time between `since` and `until` in 8 bytes, wherever it begins."""
    heads = [re.escape(head.to_bytes(3, "big")) for head in range(since >> 40, (until >> 40) + 1)]
    return re.compile(b"(?=((?:" + b"|".join(heads) + b").{5}))", re.DOTALL)


def _plain(content: bytes, order: Mapping[int, int], binary: re.Pattern[bytes], names: Mapping[int, str]) -> bytes:
    def time_of(found: re.Match[bytes]) -> bytes:
        at = int(found[0])
        return b"<time %d>" % order[at] if at in order else found[0]

    def name_of(found: re.Match[bytes]) -> bytes:
        return names[int(found[0])].encode() if int(found[0]) in names else found[0]

    content = _WHEN_READ.sub(b'"read": <time>', _LIFETIMES.sub(_ends, content))
    starts = [m.start() for m in binary.finditer(content) if int.from_bytes(m[1], "big") in order]
    parts, at = [], 0
    for start in starts:
        if start >= at:
            parts += [content[at:start], b"<time %d>" % order[int.from_bytes(content[start : start + 8], "big")]]
            at = start + 8
    text = b"".join([*parts, content[at:]])
    return _NUMBER.sub(name_of, _TIME.sub(time_of, text))


def _ends(found: re.Match[bytes]) -> bytes:
    """Of a preferred and a valid lifetime whether each ends."""
    return b" ".join(b"for ever" if part == b"f" * 8 else b"ends" for part in found.groups())
