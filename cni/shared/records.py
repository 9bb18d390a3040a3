"""The node's attachment records (the files that remember attachments), and the locks of attachments and devices.

On disk, under STATE (mode 0700):

    lock                                         a file for OFD byte-range locks: one byte is the lock of a part of an
                                                 attachment, of a device, of a device-info file, or of an address
    remembered                                   released addresses (ipam.local)
    pending                                      exists when a release is pending because its store is out of reach
    unended                                      its mtime is the time of the next search for unended attachments,
                                                 whose DEL failed or never came
    held/                                        the index of records by address (ipam.local)
    attachments/NETWORK:CONTAINERID:IFNAME:PART  a record, JSON; PART is "link", "ipam" or "rdma" (by plugin)

The separator cannot occur in any of the names (cni.shared.spec.request). If the names are too long for a file name, "#"
and a hash replace them; the record itself always names its attachment. A record is written before the first side effect
of an ADD and is removed last in a DEL, so the next process finds everything that a killed process left. `write` waits
for the disk only if the record is about leases or addresses that survive a power loss. Any other record may be
incomplete after a power loss, and then counts as absent (docs/durability.md). Each part of an attachment has its own
lock: our link plugin holds the lock of its part while it calls our IPAM plugin, which takes the lock of another part.

Records decide which links and leases are deleted, moved and released. So a record is trusted only if no user but root
can have written it, and if its checksum, the last member, is right. Every later format keeps the number of the format,
the checksum and the members network, containerID and ifname. So an older version can distinguish a newer record from a
damaged record. `read` refuses a record of a newer format. Listings skip it, so calls for other attachments succeed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Sequence
from typing import Any

from cni.shared.kernel import files, locks, node
from cni.shared.log import Log
from cni.shared.spec import codec
from cni.shared.spec.errors import IoFailure, TryAgainLater
from cni.shared.spec.request import Attachment

STATE = "/var/lib/cni/railcni"
FORMAT = 1
WAIT_SECONDS = 60.0  # longest wait of a DEL for an ADD that still runs; kubelet itself gives up after 240 s
GROUP = "@"  # begins the member "network" of a rail group's record, but no name of a CNI network
LINK = "link"  # the part of an attachment that a link plugin of this suite records
PENDING, UNENDED = "pending", "unended"  # files beside the records; a record has a member of the same name
LOOK_SECONDS = 300.0  # from one search for unended attachments to the next
RETRY_SECONDS = 10.0  # the same while an unended attachment is known
_RECORD_BYTES = 64 << 20  # far above the size of a record with the largest configuration
_SEAL = b', "checksum": "%s"}'
_SEAL_BYTES = len(_SEAL) - len("%s") + 32
_SECTOR = 512  # bytes that a disk writes whole or not at all
_NAME_BYTES = 200  # NAME_MAX is 255; the temporary name of a durable write is a little longer than the record's


class HeldLock:
    """A lock that is held until `release`, or until the end of the `with` block."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> HeldLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        os.close(self._fd)  # the lock belongs to the open file description, and ends with it


class Records:
    """The records and locks in one directory. Files and directories are opened or made when they are needed. Every
    method raises IoFailure when the directory or a file in it cannot be used, or can be written by other users."""

    def __init__(self, directory: str = STATE, log: Log | None = None) -> None:
        self.directory = directory
        self._folder = directory + "/attachments"
        self.log = log or Log(level="panic")  # silent
        self._examined = False
        self._newer: dict[str, dict[str, Any]] = {}  # the records of a newer format that a listing has read

    def locked(self, attachment: Attachment, part: str, seconds: float = WAIT_SECONDS) -> HeldLock:
        """Take the lock of a `part` of `attachment`. Raises TryAgainLater if it is still locked after `seconds`."""
        busy = (
            f"another operation on {attachment.ifname} of container {attachment.container_id} (network"
            f" {attachment.network}) has been running for more than {seconds:g} s: retry when it has ended"
        )
        return self._locked(_offset(part, *attachment.key()), seconds, busy)

    def locked_device(self, device: str) -> HeldLock:
        """Take the lock of the PCI address `device`. Raises TryAgainLater if it is still locked after WAIT_SECONDS.

        An ADD takes this lock before it searches the records for the device, and holds the lock until its own record
        names the device.
        """
        busy = f"another attachment has been taking device {device} for more than {WAIT_SECONDS:g} s: retry"
        return self._locked(_offset("device", "", device, ""), WAIT_SECONDS, busy)

    def locked_info_file(self, path: str) -> HeldLock:
        """Take the lock of the device-info file `path`. Raises TryAgainLater if still locked after WAIT_SECONDS."""
        busy = f"another attachment has been writing {path} for more than {WAIT_SECONDS:g} s: retry"
        return self._locked(_offset("info", "", path, ""), WAIT_SECONDS, busy)

    def try_locked(self, attachment: Attachment, part: str) -> HeldLock | None:
        """Take the lock of a `part` of `attachment` if the lock is free; otherwise return None."""
        return self._try_locked(_offset(part, *attachment.key()))

    def try_locked_address(self, pool: str, address: str) -> HeldLock | None:
        """Take the lock of an `address` in `pool` before the address is claimed. Returns None if it is locked."""
        return self._try_locked(_offset("address", pool, address, ""))

    def open_file(self, name: str) -> int:
        """Open the file `name` in the directory. Returns a descriptor. A missing file or directory is made."""
        self._examine()
        path = f"{self.directory}/{name}"
        try:
            try:
                return files.open_checked(path)
            except FileNotFoundError:
                files.make_private_directory(self.directory)
                return files.open_checked(path)
        except OSError as fault:
            action = "use" if isinstance(fault, files.NotPrivate) else "open"
            raise self._refused(action, name, fault) from None

    def _locked(self, offset: int, seconds: float, busy: str) -> HeldLock:
        fd = self.open_file("lock")
        try:
            locks.lock_byte(fd, offset, seconds)
        except TimeoutError:
            os.close(fd)
            where = f"byte {offset} of {self.directory}/lock is locked; `lslocks` names the process"
            raise TryAgainLater(busy, where) from None
        except OSError as fault:
            os.close(fd)
            raise self._refused("lock", "lock", fault) from None
        return HeldLock(fd)

    def _try_locked(self, offset: int) -> HeldLock | None:
        fd = self.open_file("lock")
        if locks.try_lock_byte(fd, offset):
            return HeldLock(fd)
        os.close(fd)
        return None

    def read(self, attachment: Attachment, part: str) -> dict[str, Any] | None:
        """The record of a `part` of `attachment`; None if there is none. A damaged record is renamed, with a line in
        the log, and counts as missing. Raises IoFailure for a record of a newer format, which must not be ignored."""
        name = _name(attachment, part)
        document = self._load(name)
        if document and _is_newer(document):
            raise _newer_format(f"{self._folder}/{name}", document)
        return document

    def write(self, attachment: Attachment, part: str, document: dict[str, Any]) -> None:
        """Write the record. It survives a crash of the process and, if `_outlives_boot` is true, a power loss."""
        document = {
            "format": FORMAT,
            "network": attachment.network,
            "containerID": attachment.container_id,
            "ifname": attachment.ifname,
            "bootID": node.boot_id(),
            **document,
        }
        self._examine()
        try:
            name = _name(attachment, part)
            files.write_whole_below(self._folder, name, _sealed(document), _outlives_boot(document))
        except OSError as fault:
            raise self._refused("write", "attachments", fault) from None

    def remove(self, attachment: Attachment, part: str) -> None:
        """Remove the record of a `part` of `attachment`, if there is one."""
        self._examine()
        try:
            files.remove(self._folder, _name(attachment, part))
        except OSError as fault:
            raise self._refused("remove a record from", "attachments", fault) from None

    def remind(self, on: bool, due: bool = False) -> None:
        """Make the file that reminds later calls of pending releases, or remove it if `on` is false. Ignore a failure.
        If `due` is true, the next call retries the releases at once, without the usual pause after an attempt."""
        try:
            if on:
                self._stamp(PENDING, 0 if due else time.time())
                files.sync(self.directory)  # pending releases outlive this boot
            else:
                os.unlink(f"{self.directory}/{PENDING}")
        except OSError:
            pass  # GC finds pending releases in the records

    def is_reminded(self, seconds: float) -> bool:
        """Whether `remind` set a reminder at least `seconds` ago. A time in the future counts as long ago."""
        try:
            age = time.time() - self._time_of(PENDING)
        except OSError:
            return False
        return not 0 <= age < seconds

    def look_in(self, seconds: float) -> None:
        """Plan the next search for attachments whose DEL failed or never came, `seconds` from now. Ignore a failure."""
        try:
            self._stamp(UNENDED, time.time() + seconds)
        except OSError:
            pass  # there is no directory yet, or GC finds the attachments in the records

    def is_look_due(self) -> bool:
        """Whether a search for attachments whose DEL failed or never came is due. The first search is due LOOK_SECONDS
        after the first call of this method on the node."""
        try:
            return not 0 < self._time_of(UNENDED) - time.time() <= LOOK_SECONDS
        except OSError:
            self.look_in(LOOK_SECONDS)
            return False

    def _stamp(self, name: str, at: float) -> None:
        path = f"{self.directory}/{name}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        os.utime(path, (at, at))

    def _time_of(self, name: str) -> float:
        return os.stat(f"{self.directory}/{name}", follow_symlinks=False).st_mtime

    def sweep(self, network: str) -> None:
        """Remove the temporary files that killed writers left for unlocked records of `network` and of rail groups."""
        for name in self._names(hidden=True):
            key = name.removeprefix(".").removesuffix(".tmp")
            names = key.split(":")
            swept = names[0] == network or names[0].startswith(GROUP)
            if files.temporary_of(key) == name and len(names) == 4 and swept:
                held = self.try_locked(Attachment(*names[:3]), names[3])
                if held:
                    with held:
                        self._forget(name)

    def _forget(self, name: str) -> None:
        try:
            os.unlink(f"{self._folder}/{name}")
        except FileNotFoundError:
            pass
        except OSError as fault:
            raise self._refused("remove", f"attachments/{name}", fault) from None

    def of_network(self, network: str, part: str, *texts: str) -> list[tuple[Attachment, dict[str, Any]]]:
        """(attachment, record) for each record of `part` in `network`. If `texts` are given, only records that contain
        one of them as a JSON string."""
        every = self._every(network + ":", part, texts=texts)
        return [(a, d) for a, _, d in every if a.network == network]

    def of_groups(self, part: str) -> list[tuple[Attachment, dict[str, Any]]]:
        """Return (attachment, record) for each record of `part` of a rail group: its network begins with GROUP."""
        return [(a, d) for a, _, d in self._every(GROUP, part) if a.network.startswith(GROUP)]

    def of_container(self, container_id: str, part: str) -> list[tuple[Attachment, dict[str, Any]]] | None:
        """(attachment, record) for each of the container's records of `part`; None if one is damaged or newer."""
        within = f":{container_id}:"
        found = [(a, d) for a, _, d in self._every("", part, within) if a.container_id == container_id]
        if any(a.container_id == container_id for a, _, _ in self.newer(part)):
            return None
        damaged = any(within in name and name.endswith(f":{part}") for name in self._names(hidden=True))
        return None if damaged else found

    def all(self, part: str = "", *texts: str) -> list[tuple[Attachment, str, dict[str, Any]]]:
        """Return (attachment, part, record) for each record. If `part` is given, only records of `part`; if `texts` are
        given, only records that contain one of them as a JSON string."""
        return self._every("", part, texts=texts)

    def refuse_newer(self, *devices: str) -> None:
        """Raise IoFailure when a record of a newer format contains one of `devices`, which are PCI or MAC addresses.

        Listings skip such a record, although it may be the only sign that the device is in use: the device may be on
        the host, have a userspace driver, or have been in a sandbox that is gone. The whole text is searched, since a
        newer format may have other members, but every format writes addresses in full.
        """
        for name, document in self._newer.items():
            text = codec.dumps(document)
            if any(device and codec.dumps(device) in text for device in devices):
                raise _newer_format(f"{self._folder}/{name}", document)

    def newer(self, part: str = "") -> list[tuple[Attachment, str, dict[str, Any]]]:
        """Return (attachment, part, record) for each record of a newer format that listings of this object have
        skipped. Only the members that name the attachment have a known meaning."""
        parts = [(name.rpartition(":")[2], document) for name, document in self._newer.items()]
        return [(a, p, d) for p, d in parts if part in ("", p) and (a := _attachment(d))]

    def _every(
        self, prefix: str, part: str, within: str = "", texts: Sequence[str] = ()
    ) -> list[tuple[Attachment, str, dict[str, Any]]]:
        found = []
        wanted = [codec.dumps(text).encode() for text in texts if text]
        end = f":{part}" if part else ""
        named = [
            n for n in self._names() if n.endswith(end) and ((n.startswith(prefix) and within in n) or n[0] == "#")
        ]
        for name in sorted(named):
            document = self._load(name, wanted)
            attachment = document and _attachment(document)
            if document and _is_newer(document):
                if name not in self._newer:
                    self.log.warning(f"ignored: {_newer_format(f'{self._folder}/{name}', document).msg}")
                self._newer[name] = document
            elif document and attachment:
                found.append((attachment, name.rpartition(":")[2], document))
        return found

    def _names(self, hidden: bool = False) -> list[str]:
        self._examine()
        try:
            return [n for n in os.listdir(self._folder) if (n[0] == ".") == hidden and ":" in n]
        except FileNotFoundError:
            return []
        except OSError as fault:
            raise self._refused("list", "attachments", fault) from None

    def _load(self, name: str, texts: Sequence[bytes] = ()) -> dict[str, Any] | None:
        """The record in the file `name`; None if it is missing or damaged, or contains none of the given `texts`."""
        self._examine()
        path = f"{self._folder}/{name}"
        try:
            data = files.read_regular(path, _RECORD_BYTES, os.O_NOFOLLOW, private=True)
            if _is_part(data):
                self.log.warning(f"record {path} was incomplete when the power was lost: removed")
                self._forget(name)
                return None
            if texts and not any(text in data for text in texts):
                return None
            document = _unsealed(data)
            attachment = _attachment(document)
            if _is_newer(document) or (attachment and _name(attachment, name.rpartition(":")[2]) == name):
                return document
            reason = "does not describe the attachment of its name"
        except FileNotFoundError:
            return None
        except ValueError as fault:
            reason = str(fault)
        except OSError as fault:
            if fault.errno != errno.ELOOP:
                raise self._refused("read", f"attachments/{name}", fault) from None
            reason = "is a symbolic link"
        aside = f"{self._folder}/.damaged.{name}"
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise self._refused("set aside", f"attachments/{name}", fault) from None
        self.log.error(f"record {path} is damaged ({reason}): set aside as {aside}")
        return None

    def _examine(self) -> None:
        """Raise IoFailure if other users can write the directories. Only the first call checks this."""
        if self._examined:
            return
        for what, path in (("", self.directory), ("attachments", self._folder)):
            try:
                files.check_private_directory(path, links=not what)
            except (FileNotFoundError, NotADirectoryError):
                pass  # the code that makes or reads the directory reports this
            except OSError as fault:
                raise self._refused("use", what, fault) from None
        self._examined = True

    def _refused(self, action: str, what: str, fault: OSError) -> IoFailure:
        place = f"{self.directory}/{what}".rstrip("/")
        if isinstance(fault, files.NotPrivate):
            return IoFailure(f"cannot {action} {place}: {fault.strerror}")
        remedy = {
            errno.ENOSPC: "free space there",
            errno.EDQUOT: "free space there",
            errno.EROFS: "mount it writable",
            errno.EACCES: "run as root",
            errno.EPERM: "run as root",
            errno.ELOOP: "it is a symbolic link: see who put it there, and remove it",
        }.get(fault.errno or 0, "see that the directory is a local, writable one")
        return IoFailure(f"cannot {action} {place}: {fault.strerror}; {remedy}")


def digest(attachment: Attachment, salt: str, size: int) -> bytes:
    """A digest, `size` bytes long, of `attachment` and `salt`."""
    return _hash(size, salt, *attachment.key())


def _hash(size: int, *texts: str) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogateescape"), digest_size=size).digest()


def _offset(*texts: str) -> int:
    """The offset of the lock for `texts`. It must not change, since two versions may run during an upgrade."""
    return int.from_bytes(_hash(8, *texts), "big") >> 2  # an off_t is signed, and the range ends at offset + 1


def _name(attachment: Attachment, part: str) -> str:
    key = ":".join(attachment.key())
    if len(key) > _NAME_BYTES:
        key = "#" + digest(attachment, "name", 16).hex()
    return f"{key}:{part}"


def _sealed(document: dict[str, Any]) -> bytes:
    """The bytes of a record: JSON whose last member is the checksum of all bytes before this member."""
    data = codec.dumps(document)[:-1].encode()
    return data + _SEAL % hashlib.blake2b(data, digest_size=16).hexdigest().encode()


def _unsealed(data: bytes) -> dict[str, Any]:
    """The record in `data`. Raises ValueError with the reason when the record is damaged."""
    content = data[:-_SEAL_BYTES]
    if data != content + _SEAL % hashlib.blake2b(content, digest_size=16).hexdigest().encode():
        raise ValueError("its checksum is wrong: it is not as it was written")
    document: dict[str, Any] = codec.loads(data)
    del document["checksum"]
    return document


def _is_part(data: bytes) -> bool:
    """Whether `data` is a fragment of a record after a power loss: some sectors are missing, or hold zeros."""
    return not data or b"\0" in data or (len(data) % _SECTOR == 0 and not data.endswith(b'"}'))


def _outlives_boot(document: dict[str, Any]) -> bool:
    """Whether the record `document` must survive a power loss, because its leases or addresses do.

    Leases in a store that nodes share survive a power loss of this node, and so do the addresses of a foreign IPAM
    plugin. Links and the leases in a file of this node do not.
    """
    store = document.get("store")
    return document.get("foreign") is True or (isinstance(store, dict) and store.get("kind") != "file")


def _is_newer(document: dict[str, Any]) -> bool:
    found = document.get("format")
    return isinstance(found, int) and found > FORMAT


def _newer_format(path: str, document: dict[str, Any]) -> IoFailure:
    """The error for a record of a newer format, which this version cannot read."""
    return IoFailure(
        f"record {path} has format {document['format']}, and this railcni knows {FORMAT}: a newer railcni has made that"
        " attachment; install that version again, at least until its pod is gone"
    )


def _attachment(document: dict[str, Any]) -> Attachment | None:
    names = [document.get(k) for k in ("network", "containerID", "ifname")]
    strings = [n for n in names if isinstance(n, str)]
    return Attachment(*strings) if len(strings) == len(names) else None
