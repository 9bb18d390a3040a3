"""The node's attachment records, and the lock under which every step of an attachment is taken.

On disk, under STATE (mode 0700):

    lock                                         one file; a byte of it per attachment and part (OFD byte-range locks)
    pending                                      there when a record is pending whose store is out of reach
    unended                                      there when a DEL could not end an attachment, whose record says so
    attachments/NETWORK:CONTAINERID:IFNAME:PART  a record, JSON; PART is "link" (the plugin's own) or "ipam"

The separator cannot occur in any of the names (cni.spec.request). A key that would exceed the longest file name is
replaced by "#" and its hash; the record itself always says whose it is. A record is written before the first side
effect of an ADD and goes last of all in a DEL, so what a killed process left can be found by whoever comes next.
The parts have locks of their own because our link plugin may exec our IPAM plugin.

A record decides what is deleted, moved and released. So it is believed only when none but root can have written it, and
when its checksum, its last member, says that nothing in it has changed. In every format to come the number of the
format and the checksum stay as they are: what an older version cannot read it can at least tell from damage, and leave.
"""

from __future__ import annotations

import _blake2
import errno
import posix
import time

from cni.kernel import files, locks, node
from cni.spec import codec
from cni.spec.errors import IoFailure, TryAgainLater
from cni.spec.request import Attachment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from cni.log import Log

STATE = "/var/lib/cni/railcni"
FORMAT = 1
WAIT_SECONDS = 60.0  # a DEL waits so long for an ADD that still runs; kubelet itself gives up after 240
GROUP = "@"  # what the "network" of a record begins with that belongs to a container in a group of rails; none of a CNI network can
PENDING, UNENDED = "pending", "unended"  # reminders; a record has a member of the same name
_RECORD_BYTES = 64 << 20  # far above what the largest configuration makes of a record
_SEAL = b', "checksum": "%s"}'
_SEAL_BYTES = len(_SEAL) - len("%s") + 32
_NAME_BYTES = 200  # NAME_MAX is 255; the temporary name of a durable write is a little longer than the record's


class Held:
    """A lock that is held until the `with` block ends."""

    __slots__ = ("_fd", "_offset")

    def __init__(self, fd: int, offset: int) -> None:
        self._fd = fd
        self._offset = offset

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        posix.close(self._fd)  # the lock belongs to the open file description and goes with it


class Book:
    """The records and locks under one directory. Nothing is opened or made before it is needed.

    Every method raises IoFailure when the directory or what it needs of it cannot be used, or is not root's alone.
    """

    __slots__ = ("_examined", "_records", "directory", "log")

    def __init__(self, directory: str = STATE, log: Log | None = None) -> None:
        self.directory = directory
        self._records = directory + "/attachments"
        self.log = log
        self._examined = False

    def locked(self, attachment: Attachment, part: str, seconds: float = WAIT_SECONDS) -> Held:
        """Hold the lock of one part of `attachment`; TryAgainLater when another holds it for `seconds`."""
        fd = self._open_lock()
        offset = _offset(attachment, part)
        try:
            locks.lock_byte(fd, offset, seconds)
        except TimeoutError:
            posix.close(fd)
            raise TryAgainLater(
                f"another operation on {attachment.ifname} of container {attachment.container_id} (network"
                f" {attachment.network}) has been running for more than {seconds:g} s: retry when it has ended",
                f"byte {offset} of {self.directory}/lock is locked; `lslocks` names the process",
            ) from None
        except OSError as fault:
            posix.close(fd)
            raise self._refused("lock", "lock", fault) from None
        return Held(fd, offset)

    def locked_device(self, device: str, seconds: float = WAIT_SECONDS) -> Held:
        """Hold the lock of a device of the host, a PCI address; TryAgainLater when another holds it for `seconds`.

        An ADD holds it from its look at who has the device until its own record says that it has.
        """
        try:
            return self.locked(Attachment("", device, ""), "device", seconds)
        except TryAgainLater as fault:
            fault.msg = f"another attachment is about to take device {device} for more than {seconds:g} s: retry"
            raise

    def try_locked(self, attachment: Attachment, part: str) -> Held | None:
        """The lock when it is free now, else None."""
        fd = self._open_lock()
        offset = _offset(attachment, part)
        if locks.try_lock_byte(fd, offset):
            return Held(fd, offset)
        posix.close(fd)
        return None

    def read(self, attachment: Attachment, part: str) -> dict[str, Any] | None:
        """The record, or None when there is none. One that cannot be read is set aside, with a line in the log."""
        return self._load(_name(attachment, part))

    def write(self, attachment: Attachment, part: str, document: dict[str, Any]) -> None:
        """Write the record so that it outlives a crash of the process and of the machine."""
        document = {
            "format": FORMAT,
            "network": attachment.network,
            "containerID": attachment.container_id,
            "ifname": attachment.ifname,
            "bootID": node.boot_id(),
            **document,
        }
        data = _sealed(document)
        self._examine()
        try:
            try:
                files.write_durably(self._records, _name(attachment, part), data)
            except FileNotFoundError:  # the first record on this node
                files.make_private_directory(self._records)
                files.write_durably(self._records, _name(attachment, part), data)
        except OSError as fault:
            raise self._refused("write", "attachments", fault) from None

    def remove(self, attachment: Attachment, part: str) -> None:
        """Remove the record; there need not be one."""
        self._examine()
        try:
            files.remove_durably(self._records, _name(attachment, part))
        except FileNotFoundError:
            pass
        except OSError as fault:
            raise self._refused("remove a record from", "attachments", fault) from None

    def remind(self, on: bool, what: str = PENDING) -> None:
        """Leave a reminder of records that are `what`, or take it away; without one that cannot be left all goes on."""
        path = f"{self.directory}/{what}"
        try:
            if on:
                posix.close(
                    posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW, 0o600)
                )
                posix.utime(path)
            else:
                posix.unlink(path)
        except OSError:
            pass  # GC goes by the records

    def is_reminded(self, seconds: float, what: str = PENDING) -> bool:
        """Whether there is a reminder that is at least so old, or has a time to come."""
        try:
            age = time.time() - posix.stat(f"{self.directory}/{what}", follow_symlinks=False).st_mtime
        except OSError:
            return False
        return not 0 <= age < seconds

    def sweep(self, network: str) -> None:
        """Remove what killed writers of `network`'s records left; the record of a running one is locked."""
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
            posix.unlink(f"{self._records}/{name}")
        except FileNotFoundError:
            pass
        except OSError as fault:
            raise self._refused("remove", f"attachments/{name}", fault) from None

    def of_network(self, network: str, part: str) -> list[tuple[Attachment, dict[str, Any]]]:
        """Every record of one part that belongs to `network`."""
        return [(a, d) for a, _, d in self._every(network + ":", part) if a.network == network]

    def of_groups(self, part: str) -> list[tuple[Attachment, dict[str, Any]]]:
        """Every record of one part that belongs to a container in a group of rails, and to no network."""
        return [(a, d) for a, _, d in self._every(GROUP, part) if a.network.startswith(GROUP)]

    def of_container(self, container_id: str, part: str) -> list[tuple[Attachment, dict[str, Any]]] | None:
        """Every record of one part that belongs to a container; None when one of them is damaged, or was."""
        within = f":{container_id}:"
        found = [(a, d) for a, _, d in self._every("", part, within) if a.container_id == container_id]
        damaged = any(within in name and name.endswith(f":{part}") for name in self._names(hidden=True))
        return None if damaged else found

    def all(self, part: str = "") -> list[tuple[Attachment, str, dict[str, Any]]]:
        """Every record of the node, or those of one part: (attachment, part, document)."""
        return self._every("", part)

    def _every(self, prefix: str, part: str, within: str = "") -> list[tuple[Attachment, str, dict[str, Any]]]:
        found = []
        for name in sorted(self._names()):
            named = name.startswith("#") or (name.startswith(prefix) and within in name)
            if named and name.endswith(f":{part}" if part else ""):
                document = self._load(name)
                attachment = document and _attachment(document)
                if document and attachment:
                    found.append((attachment, name.rpartition(":")[2], document))
        return found

    def _names(self, hidden: bool = False) -> list[str]:
        self._examine()
        try:
            return [n for n in posix.listdir(self._records) if n.startswith(".") == hidden and ":" in n]
        except FileNotFoundError:
            return []
        except OSError as fault:
            raise self._refused("list", "attachments", fault) from None

    def _load(self, name: str) -> dict[str, Any] | None:
        self._examine()
        path = f"{self._records}/{name}"
        try:
            document = _unsealed(files.read_regular(path, _RECORD_BYTES, posix.O_NOFOLLOW, private=True))
            _check_format(f"{self.directory}/attachments/{name}", document)
            attachment = _attachment(document)
            if attachment and _name(attachment, name.rpartition(":")[2]) == name:
                return document
            reason = "is not a record of what its name says"
        except FileNotFoundError:
            return None
        except ValueError as fault:
            reason = str(fault)
        except OSError as fault:
            if fault.errno != errno.ELOOP:
                raise self._refused("read", f"attachments/{name}", fault) from None
            reason = "is a symbolic link"
        aside = f"{self._records}/.damaged.{name}"
        try:
            posix.rename(path, aside)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise self._refused("set aside", f"attachments/{name}", fault) from None
        if self.log:
            self.log.error(f"record {path} is damaged ({reason}): set aside as {aside}")
        return None

    def _open_lock(self) -> int:
        self._examine()
        path = self.directory + "/lock"
        flags = posix.O_RDWR | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK
        try:
            try:
                fd = posix.open(path, flags, 0o600)
            except FileNotFoundError:
                files.make_private_directory(self.directory)
                fd = posix.open(path, flags, 0o600)
        except OSError as fault:
            raise self._refused("open", "lock", fault) from None
        try:
            files.check_private_file(posix.fstat(fd))
        except OSError as fault:
            posix.close(fd)
            raise self._refused("use", "lock", fault) from None
        return fd

    def _examine(self) -> None:
        """Refuse directories that others can write, once: while they cannot, neither can they put others in place."""
        if self._examined:
            return
        for what, path in (("", self.directory), ("attachments", self._records)):
            try:
                files.check_private_directory(path, links=not what)
            except (FileNotFoundError, NotADirectoryError):
                pass  # what makes or reads it will say so
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
    """`size` bytes that depend on the attachment and `salt` alone."""
    text = "\0".join((salt, *attachment.key()))
    return _blake2.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=size).digest()


def _offset(attachment: Attachment, part: str) -> int:
    return (
        int.from_bytes(digest(attachment, part, 8), "big") >> 2
    )  # an off_t is signed, and the range ends at offset + 1


def _name(attachment: Attachment, part: str) -> str:
    key = ":".join(attachment.key())
    if len(key) > _NAME_BYTES:
        key = "#" + digest(attachment, "name", 16).hex()
    return f"{key}:{part}"


def _sealed(document: dict[str, Any]) -> bytes:
    """The record as it is written: JSON whose last member is the checksum of what stands before it."""
    data = codec.dumps(document)[:-1].encode()
    return data + _SEAL % _blake2.blake2b(data, digest_size=16).hexdigest().encode()


def _unsealed(data: bytes) -> dict[str, Any]:
    """The record in `data`; ValueError says why it is none."""
    content = data[:-_SEAL_BYTES]
    if data != content + _SEAL % _blake2.blake2b(content, digest_size=16).hexdigest().encode():
        raise ValueError("its checksum is wrong: it is not as it was written")
    document: dict[str, Any] = codec.loads(data)
    del document["checksum"]
    return document


def _check_format(path: str, document: dict[str, Any]) -> None:
    """Refuse a record of a newer version: what it says must not be guessed, and nobody else would know it again."""
    found = document.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise IoFailure(
            f"record {path} has format {found}, and this railcni knows {FORMAT}: a newer railcni has made that attachment;"
            " install that version again, at least until its pod is gone"
        )


def _attachment(document: dict[str, Any]) -> Attachment | None:
    names = [document.get(k) for k in ("network", "containerID", "ifname")]
    strings = [n for n in names if isinstance(n, str)]
    return Attachment(*strings) if len(strings) == len(names) else None
