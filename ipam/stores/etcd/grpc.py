"""Unary calls of gRPC, one at a time: HTTP/2 over a connection of ipam.stores.http.

etcd's JSON gateway costs a member as much again as the call itself, and the libraries of gRPC import for 140 ms and more.
The server is asked not to index headers. So all calls that succeed end with the same bytes, and only other headers are
decoded. Sources: RFC 9113 (HTTP/2), RFC 7541 (HPACK), PROTOCOL-HTTP2.md of grpc/grpc.
"""

from __future__ import annotations

import errno

from ipam.stores import http

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8  # kinds of frames
_END_STREAM, _END_HEADERS, _PADDED, _ACK = 1, 4, 8, 1  # flags
_TABLE_SIZE, _PUSH, _INITIAL_WINDOW = 1, 2, 4  # settings
_DEFAULT_WINDOW, _LARGEST_WINDOW = (1 << 16) - 1, (1 << 31) - 1  # bytes of flow control (RFC 9113, section 5.2)
_LARGEST_FRAME = 1 << 14  # bytes of a frame
_REFUSED = b"\0\0\0\7"  # why a stream is reset: it was not served
_REGULAR = {"content-type": "application/grpc", "te": "trailers", "user-agent": http.AGENT}
_STATUSES = {8: b"200", 9: b"204", 10: b"206", 11: b"304", 12: b"400", 13: b"404", 14: b"500"}  # by index of :status
_LENGTHS = (
    b"ISXXXXXXXTZXXZXXXXXXXXZXXXXXXXXXBFFHIBDGFFDGDBBBAAABBBBBBBCDKBHF"
    b"IBCCCCCCCCCCCCCCCCCCCCCCDCDIOIJBKABABABBBACCBBBABCBAABCCCCCKGJIX"
    b"PRPPRRRSRSSSSSTSTTRSTSSSSQRSRSSTRQPRRSSQSRRTQRSSQQRQSRSSPRRRSRRS"
    b"VVPORSRUVVVWWVTUOQVWWVWTQQVVXWWWPTPQRQQSRRUUTTVSVWVVWWWWWXWWWWWV"
)  # of the Huffman code of each octet, in bits, A for 5; the code is canonical (RFC 7541, appendix B)


class NoGrpc(Exception):
    """The server speaks HTTP/1: it has served nothing."""


class NotServed(Exception):
    """The server has certainly not served the call (RFC 9113, section 8.7)."""


class Connection(http.Connection):
    """A connection for gRPC; with TLS the context must offer the protocol h2."""

    __slots__ = (
        "_consumed",
        "_first_headers",
        "_initial_window",
        "_pending",
        "_stream",
        "_trailers_of_success",
        "_window",
        "at",
    )

    def __init__(self, socket: Any, host: str, context: Any, deadline: float) -> None:
        super().__init__(socket, host, context, deadline)
        settings = ((_TABLE_SIZE, 0), (_PUSH, 0), (_INITIAL_WINDOW, _LARGEST_WINDOW))
        content = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in settings)
        granted = _frame(_WINDOW_UPDATE, 0, 0, (_LARGEST_WINDOW - _DEFAULT_WINDOW).to_bytes(4, "big"))
        self._pending = _PREFACE + _frame(_SETTINGS, 0, 0, content) + granted  # what is sent with the next call
        self._consumed = 0  # bytes that the server has sent and may send again
        self._window = self._initial_window = _DEFAULT_WINDOW  # of the connection, of a new stream
        self._stream = -1
        self.at = 0  # the index of its endpoint
        scheme = b"\x87" if context else b"\x86"
        self._first_headers = b"\x20\x83" + scheme + _literal(":authority", self._host)  # 20: no table; 83: POST
        self._trailers_of_success: bytes | None = None  # the last headers of a call that succeeded

    def call(self, method: str, message: bytes, token: str, deadline: float) -> tuple[int, bytes]:
        """(0, the reply), or (a code of gRPC, or -1, and the error's text). `method` is SERVICE/NAME.

        Lost, Untrusted, NoGrpc, NotServed; the connection is closed then.
        """
        try:
            headers, data = self._exchange(method, message, token, deadline)
            self.reused = self.answers = True
            reply = data[5:]
            is_whole = reply and not data[0] and int.from_bytes(data[1:5], "big") == len(reply)
            if is_whole and headers[-1] == self._trailers_of_success:
                return 0, reply
            fields = dict(field for block in headers for field in _decoded(block))
            code, status = fields.get(b"grpc-status", b""), fields.get(b":status", b"")
            if code == b"0" and is_whole:
                self._trailers_of_success = headers[-1]
                return 0, reply
            if status != b"200":
                return -1, b"status " + status
            if not int(code):
                raise ValueError
            return int(code), fields.get(b"grpc-message") or b"code " + code
        except OSError as fault:
            raise self.lost(fault) from None
        except (ValueError, IndexError):
            self.close()
            if self._buffer.startswith(b"HTTP/1") and not self.reused:
                raise NoGrpc from None
            raise http.Lost(errno.EPROTO, "the reply is not gRPC") from None

    def _exchange(self, method: str, message: bytes, token: str, deadline: float) -> tuple[list[bytes], bytes]:
        """(blocks of headers, data) of the reply. ValueError."""
        self._stream += 2
        regular = _REGULAR | {"token": token} if token else _REGULAR
        block = self._first_headers + _literal(":path", f"/etcdserverpb.{method}")
        block += b"".join(_literal(name, value) for name, value in regular.items())
        self._pending += _frame(_HEADERS, _END_HEADERS, self._stream, block)
        data = b"\0" + len(message).to_bytes(4, "big") + message
        window = self._initial_window
        headers: list[bytes] = []
        replies: list[bytes] = []
        flags = 0
        is_last = False
        while not flags & _END_STREAM:
            unsent = data
            while data and (size := min(len(data), window, self._window, _LARGEST_FRAME)) > 0:
                last = size == len(data)
                self._pending += _frame(_DATA, _END_STREAM if last else 0, self._stream, data[:size])
                window, self._window, data = window - size, self._window - size, data[size:]
            if self._pending and (unsent or len(self._pending) > _LARGEST_FRAME):
                pending, self._pending = self._pending, b""
                self._send(pending, deadline)
            before = self._initial_window
            kind, flags, stream, content = self._next(deadline)
            window += self._initial_window - before
            is_last = is_last or kind == _GOAWAY
            if stream != self._stream or kind not in (_DATA, _HEADERS, _WINDOW_UPDATE):
                flags = 0
            elif kind == _WINDOW_UPDATE:
                window += int.from_bytes(content, "big")
                flags = 0
            else:
                (replies if kind == _DATA else headers).append(content)
        if is_last:
            self.close()
        return headers, b"".join(replies)

    def _next(self, deadline: float) -> tuple[int, int, int, bytes]:
        """(kind, flags, stream, content) of the next frame, whose effect on the connection is made. ValueError."""
        head = self._exactly(9, deadline)
        size, kind, flags, stream = int.from_bytes(head[:3], "big"), head[3], head[4], int.from_bytes(head[5:], "big")
        padded = kind in (_DATA, _HEADERS) and flags & _PADDED
        # none is of a server of gRPC
        if size > _LARGEST_FRAME or padded or (kind == _HEADERS and not flags & _END_HEADERS):
            self._buffer = head + self._buffer
            raise ValueError
        content = self._exactly(size, deadline)
        if kind == _DATA:
            self._consumed += size
            if self._consumed > _LARGEST_WINDOW // 2:
                self._pending += _frame(_WINDOW_UPDATE, 0, 0, self._consumed.to_bytes(4, "big"))
                self._consumed = 0
        elif kind == _WINDOW_UPDATE and not stream:
            self._window += int.from_bytes(content, "big")
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            if kind == _SETTINGS:
                found = {content[i : i + 2]: int.from_bytes(content[i + 2 : i + 6], "big") for i in range(0, size, 6)}
                self._initial_window = found.get(bytes((0, _INITIAL_WINDOW)), self._initial_window)
            self._pending += _frame(kind, _ACK, 0, content if kind == _PING else b"")
        elif kind == _RESET and stream == self._stream and content != _REFUSED:
            raise OSError(errno.ECONNABORTED, "the server has ended the call")
        elif (kind == _RESET and stream == self._stream) or (
            kind == _GOAWAY and int.from_bytes(content[:4], "big") < self._stream
        ):
            self.close()
            raise NotServed
        return kind, flags, stream, content


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content


def _literal(name: str, value: str) -> bytes:
    """A header that is not indexed."""
    return b"\0" + b"".join(_size(len(text)) + text for text in (name.encode("latin-1"), value.encode("latin-1")))


def _size(value: int) -> bytes:
    if value < 127:
        return bytes((value,))
    rest, out = value - 127, bytearray(b"\x7f")
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes((*out, rest))


def _decoded(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The headers of a block that have a name in it, and :status. IndexError."""
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0xE0 == 0x20:  # a new size of the table
            _, at = _number(block, at, 5)
            continue
        index, at = _number(block, at, 7 if first & 0x80 else 6 if first & 0x40 else 4)
        name = b":status" if index in _STATUSES else b""
        value = _STATUSES.get(index, b"")
        if not first & 0x80:
            if not index:
                name, at = _text(block, at)
            value, at = _text(block, at)
        yield name, value


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """(the number at `at` with a prefix of so many bits, the place after it)."""
    value = block[at] & (1 << bits) - 1
    shift = 0
    more = value == (1 << bits) - 1
    while more:
        at += 1
        value += (block[at] & 127) << shift
        shift += 7
        more = block[at] > 127
    return value, at + 1


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    size, start = _number(block, at, 7)
    text = block[start : start + size]
    return _plain(text) if block[at] & 0x80 else text, start + size


def _plain(text: bytes) -> bytes:
    """A text in the Huffman code, decoded."""
    octets: dict[tuple[int, int], int] = {}  # by length and code
    code = length = 0
    for octet in sorted(range(256), key=lambda octet: _LENGTHS[octet]):
        code <<= _LENGTHS[octet] - 60 - length
        length = _LENGTHS[octet] - 60
        octets[length, code] = octet
        code += 1
    out = bytearray()
    code = length = 0
    for i in range(8 * len(text)):
        code, length = code << 1 | text[i >> 3] >> (7 - i & 7) & 1, length + 1
        if (length, code) in octets:
            out.append(octets[length, code])
            code = length = 0
    return bytes(out)
