"""Netlink: encode and decode messages and attributes, and exchange them with the kernel by a Socket.

The codec does no I/O. A message has a header, struct nlmsghdr (length, type, flags, sequence, port), and a body. A body
has the fixed header of its family and then attributes: struct nlattr (length, type) and a payload, padded to 4 bytes.
All integers are in host order. Sources: netlink(7), rtnetlink(7), include/uapi/linux/netlink.h and rtnetlink.h.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from errno import EINTR, ENOBUFS
from fcntl import ioctl
from struct import Struct
from sys import byteorder
from typing import Self

Message = tuple[int, int, int, bytes]  # type, flags, sequence number, body

# struct nlmsghdr flags
REQUEST, ACK, _ECHO = 0x1, 0x4, 0x8
DUMP = 0x300  # NLM_F_ROOT | NLM_F_MATCH
REPLACE, EXCLUSIVE, CREATE, APPEND = 0x100, 0x200, 0x400, 0x800
_DUMP_INTERRUPTED = 0x10
_ACK_HAS_ATTRIBUTES = 0x200
_ERROR, _DONE = 2, 3  # message types; from 16 on they belong to the family

NESTED = 0x8000  # a flag of an attribute's type: the payload consists of attributes
_TYPE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER

_HEADER = Struct("=IHHII")
_ATTRIBUTE = Struct("=HH")
_INT = Struct("=i")
_SUCCESS = bytes(_INT.size)  # the code of an acknowledgement
_COOKIE = Struct("=Q")
_UNSIGNED = Struct("=I")

_NETNS_COOKIE = 71  # SO_NETNS_COOKIE, include/uapi/asm-generic/socket.h
_SOL_NETLINK = 270
_GET_NAMESPACE = 0x894C  # SIOCGSKNS, include/uapi/linux/sockios.h; since Linux 4.10
_EXT_ACK, _GET_STRICT_CHK = 11, 12  # setsockopt(2) of netlink(7)
_EXT_ACK_MESSAGE = 1  # NLMSGERR_ATTR_MSG
_RECEIVE = 1 << 16  # bytes; the kernel fills at most 32 KiB of a dump at a time
_UNSENT_SECONDS = 1  # the interval of checks whether the sending thread has failed
_ATTEMPTS = 16  # to read a list that changes while it is read


class KernelError(OSError):
    """The kernel refused a request with `errno`. `text` is the kernel's explanation (extended acknowledgement), or ""."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(number, os.strerror(number))
        self.text = text

    def __str__(self) -> str:
        return f"{self.strerror} ({self.text})" if self.text else str(self.strerror)


def pack_message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """The message of type `kind` with `body`; the kernel fills in the port."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def unpack_messages(data: bytes) -> Iterator[Message]:
    """Yield (type, flags, sequence number, body) of each message in `data`. Raises ValueError if one is truncated."""
    start = 0
    end = len(data)
    while start < end:
        if end - start < _HEADER.size:
            raise ValueError("netlink message cut off in its header")
        length, kind, flags, sequence, _port = _HEADER.unpack_from(data, start)
        if not _HEADER.size <= length <= end - start:
            raise ValueError(f"netlink message of {length} bytes in {end - start}")
        yield kind, flags, sequence, data[start + _HEADER.size : start + length]
        start += (length + 3) & ~3


def attribute(kind: int, payload: bytes) -> bytes:
    """The padded attribute of type `kind`. If `kind` has the flag NESTED, `payload` consists of attributes."""
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + bytes(-length & 3)


def number(kind: int, value: int) -> bytes:
    """An attribute of type `kind` with the 32-bit number `value`; a negative number is written as signed."""
    return attribute(kind, _UNSIGNED.pack(value & 0xFFFFFFFF))


def numbers(values: dict[int, int | None]) -> bytes:
    """An attribute for each 32-bit number in `values`, a dictionary by attribute type. None values are left out."""
    return b"".join([number(kind, value) for kind, value in values.items() if value is not None])


def string(kind: int, value: str) -> bytes:
    """An attribute of type `kind` with the string `value` and a final zero byte."""
    return attribute(kind, value.encode("utf-8", "surrogateescape") + b"\0")


def unpack_attributes(data: bytes, start: int = 0) -> dict[int, bytes]:
    """The payloads of the attributes in `data` from the even offset `start` on, by type without flags.

    Of several attributes with one type only the last is returned; `unpack_list` returns all. Raises ValueError for a
    truncated attribute.
    """
    found = {}
    end = len(data)
    words = memoryview(data[: end & ~1]).cast("H")  # a plugin spends much of its time in this loop
    while end - start >= 4:
        length, kind = words[start // 2], words[start // 2 + 1]
        if not 4 <= length <= end - start:
            raise ValueError(f"netlink attribute of {length} bytes in {end - start}")
        found[kind & _TYPE_MASK] = data[start + 4 : start + length]
        start += (length + 3) & ~3
    return found


def unpack_list(data: bytes) -> list[tuple[int, bytes]]:
    """Return (type without flags, payload) of each attribute in `data`, in order. Raises ValueError if truncated."""
    found: list[tuple[int, bytes]] = []
    while data:
        end = max((number_of(data[:2]) + 3) & ~3, _ATTRIBUTE.size)
        found += unpack_attributes(data[:end]).items()
        data = data[end:]
    return found


def text_of(payload: bytes) -> str:
    """The string in the payload of an attribute; bytes that are not UTF-8 become surrogates, as in file names."""
    return payload.rstrip(b"\0").decode("utf-8", "surrogateescape")


def number_of(payload: bytes) -> int:
    """The unsigned number in a payload of 1, 2, 4 or 8 bytes; 0 for an empty payload."""
    return int.from_bytes(payload, byteorder)


def signed_of(payload: bytes) -> int:
    """The signed 32-bit number in a payload."""
    value: int = _INT.unpack(payload)[0]
    return value


def address_of(text: str) -> tuple[int, bytes]:
    """The family and the bytes of the IP address `text`. Raises ValueError for any other text."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        return family, socket.inet_pton(family, text)
    except (OSError, ValueError):  # ValueError: a zero byte
        raise ValueError(f'"{text}" is no address') from None


class Socket:
    """A netlink socket, which stays bound to the network namespace in which the thread makes it.

    `protocol` is a NETLINK_* number, by default that of rtnetlink. Raises OSError EPROTONOSUPPORT when the kernel does
    not have the protocol.
    """

    def __init__(self, protocol: int = 0) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._sequence = 0
        for option in (_EXT_ACK, _GET_STRICT_CHK):  # strict: the kernel filters a dump by its header
            try:
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            except OSError:
                pass  # a kernel before 4.20: refusals have no text, and dumps are not filtered

    def namespace_cookie(self) -> int:
        """The cookie of this socket's network namespace, unique in this boot; 0 before Linux 5.14. Unlike the cookie,
        the inode of a namespace is given to another namespace when the first one is gone."""
        try:
            cookie: int = _COOKIE.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _NETNS_COOKIE, _COOKIE.size))[0]
        except OSError:
            return 0
        return cookie

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; a second call does nothing."""
        self._socket.close()

    def namespace(self) -> int:
        """A descriptor of the socket's network namespace, which the caller must close. Raises OSError on failure."""
        return ioctl(self._socket.fileno(), _GET_NAMESPACE)

    def request(self, kind: int, body: bytes, flags: int = 0) -> list[bytes]:
        """Send a request and return the bodies of its replies. Raises KernelError when the kernel refuses."""
        return self._exchange(kind, flags | ACK, body)

    def get(self, kind: int, body: bytes) -> bytes:
        """Send a request for one object and return the body of its reply. Raises KernelError on a refusal."""
        return self._exchange(kind, 0, body)[0]

    def request_and_leave(self, kind: int, body: bytes) -> None:
        """Send a request and return when the kernel confirms it, even if sendto(2) returns later.

        The kernel confirms an echoed request (NLM_F_ECHO) before it frees memory, and returns from sendto(2)
        afterwards. A thread waits for this return, so that the caller can continue. The process cannot end before the
        thread. Raises KernelError when the kernel refuses.
        """
        from threading import Thread  # only a DEL needs a thread

        self._sequence += 1
        message = pack_message(kind, _ECHO | ACK | REQUEST, self._sequence, body)
        unsent: list[OSError] = []

        def send() -> None:
            try:
                self._socket.send(message)
            except OSError as fault:
                unsent.append(fault)

        try:
            Thread(target=send, daemon=True).start()
        except RuntimeError:  # no thread can be started
            send()
        self._socket.settimeout(_UNSENT_SECONDS)
        try:
            while not unsent:
                try:
                    data = self._socket.recv(_RECEIVE)
                except TimeoutError:
                    continue
                except OSError as fault:
                    raise KernelError(fault.errno or 0) from None
                for reply in unpack_messages(data):
                    if reply[2] == self._sequence:
                        _raise_refusal(reply)
                        return
        finally:
            self._socket.settimeout(None)
        raise KernelError(unsent[0].errno or 0)

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """The bodies of all objects that the kernel lists for a GET request. Raises KernelError on a refusal. A list
        that changes while it is read is read again. After 16 attempts, raises KernelError with EINTR."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._exchange(kind, DUMP, body)
            except KernelError as fault:
                if fault.errno != EINTR:
                    raise
        return self._exchange(kind, DUMP, body)

    def dump_if_known(self, kind: int, body: bytes, *unknown: int) -> list[bytes]:
        """The result of `dump`; [] when the kernel refuses with an errno in `unknown`, since it has no such objects."""
        try:
            return self.dump(kind, body)
        except KernelError as fault:
            if fault.errno in unknown:
                return []
            raise

    def _exchange(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        self._sequence += 1
        self._socket.send(pack_message(kind, flags | REQUEST, self._sequence, body))
        replies: list[bytes] = []
        interrupted = False
        while True:
            try:
                data = self._socket.recv(_RECEIVE)
            except OSError as fault:
                if fault.errno != ENOBUFS or not flags & DUMP:
                    raise KernelError(fault.errno or 0) from None
                interrupted = True  # the kernel had no memory for a part of the list, and sends the rest
                continue
            for message in unpack_messages(data):
                kind, its_flags, sequence, reply = message
                if sequence != self._sequence:
                    continue  # the rest of an earlier exchange that failed
                interrupted = interrupted or bool(its_flags & _DUMP_INTERRUPTED)
                if kind not in (_ERROR, _DONE):
                    replies.append(reply)
                    if flags & (ACK | DUMP):
                        continue
                elif reply[: _INT.size] != _SUCCESS:
                    _raise_refusal(message)
                if interrupted:
                    raise KernelError(EINTR, "the list changed while it was read")
                return replies


def _raise_refusal(message: Message) -> None:
    """Raise KernelError when `message`, an acknowledgement or the end of a dump, reports a failure."""
    kind, flags, _, body = message
    if kind not in (_ERROR, _DONE) or len(body) < _INT.size:
        return
    code = signed_of(body[: _INT.size])
    if code >= 0:
        return
    text = ""
    if flags & _ACK_HAS_ATTRIBUTES:
        start = _INT.size
        if kind == _ERROR:  # the request comes before the attributes
            echoed: int = _HEADER.unpack_from(body, start)[0]
            start += (echoed + 3) & ~3
        text = text_of(unpack_attributes(body, start).get(_EXT_ACK_MESSAGE, b""))
    raise KernelError(-code, text)
