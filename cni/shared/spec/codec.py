"""JSON to and from Python objects, by the C scanner and encoder of the standard library.

`import json` costs an exec 6 ms, because its Python half compiles regular expressions; the C half
(`_json`) costs 0.2 and does the same work. The Python half is loaded only to say where an input is wrong.

What is decoded may be hostile. Nesting is bounded, so that whatever was decoded can also be encoded and compared;
`loads_foreign` bounds size and number of values too, and `loads_reply` the number of values in what is bounded already, so
that time and memory are bounded.
"""

from __future__ import annotations

import _json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, ClassVar


class TooMuch(ValueError):
    """JSON, but more of it than is read: the text says of what, and how much would be read."""


class _Strict:
    """What the C scanner asks of its context: standard JSON, and no NaN or Infinity."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_int = int
    memo: ClassVar[dict[str, str]] = {}

    @staticmethod
    def parse_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    @staticmethod
    def parse_float(text: str) -> float:
        value = float(text)
        if value - value != 0:  # infinity, which could not be encoded again
            raise ValueError(f"number {text[:20]} is too large")
        return value


_scan = _json.make_scanner(_Strict())  # type: ignore[arg-type]  # typeshed asks for a JSONDecoder
_encode = _json.make_encoder(None, None, _json.encode_basestring_ascii, None, ": ", ", ", False, False, False)  # type: ignore[arg-type]
_encode_unicode = _json.make_encoder(None, None, _json.encode_basestring, None, ": ", ", ", False, False, False)  # type: ignore[arg-type]
_WHITE = " \t\n\r"
_DEPTH = 100  # lists and objects within one another
MOST_BYTES = 8 << 20  # Kubernetes takes no object of more than 1.5 MiB
_VALUES = 100_000  # an empty list takes 30 times the memory of its text
_VALUES_OF_REPLY = 4_000_000  # with the most that ipam.stores.http reads, some 500 MiB
_TOO_DEEP = f"it is nested too deeply, more than {_DEPTH} levels"
_DIGITS = 4300  # of an integer: what Python converts in bounded time (sys.int_info)


def loads_foreign(data: bytes) -> Any:
    """As `loads`, for a text that anybody may have written: TooMuch also for one that is long or has many values."""
    if len(data) > MOST_BYTES:
        raise TooMuch(f"it is larger than {MOST_BYTES >> 20} MiB")
    value = _loads_bounded(data, _VALUES)
    if b"\\u" in data:
        try:
            "".join(_encode_unicode(value, 0)).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair (\\ud800 to \\udfff) without the other half") from None
    return value


def loads_reply(data: bytes) -> Any:
    """As `loads`, for what a server says: TooMuch also for a text that has many values."""
    return _loads_bounded(data, _VALUES_OF_REPLY)


def _loads_bounded(data: bytes, most: int) -> Any:
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > most:
        raise TooMuch(f"it has more than {most} values")
    return loads(data)


def loads(data: bytes) -> Any:
    """The value that the UTF-8 JSON text `data` stands for; ValueError names the line and column of a fault."""
    text = data.decode("utf-8")  # UnicodeDecodeError is a ValueError
    start = 0
    while start < len(text) and text[start] in _WHITE:
        start += 1
    try:
        value, end = _scan(text, start)
    except RecursionError:
        raise TooMuch(_TOO_DEEP) from None
    except (StopIteration, ValueError, SystemError):  # Python 3.11 reports some faults as SystemError
        raise ValueError(_where(text)) from None
    if text[end:].strip(_WHITE):
        raise ValueError(_where(text))
    if text.count("[") + text.count("{") > _DEPTH and not _is_shallow(value):
        raise TooMuch(_TOO_DEEP)
    return value


def dumps(value: object) -> str:
    """`value` as JSON text on one line, ASCII only."""
    return "".join(_encode(value, 0))


def shown(value: object) -> str:
    """`value` as JSON text of at most 60 characters, for a message."""
    text = dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(_DEPTH + 1):
        level = [part for part in level if isinstance(part, dict | list)]
        if not level:
            return True
        level = [inner for part in level for inner in (part.values() if isinstance(part, dict) else part)]
    return False


def _where(text: str) -> str:
    import json

    def parse_int(digits: str) -> int:
        if len(digits) > _DIGITS:
            raise ValueError(f"a number of {len(digits)} digits is too long")
        return 0

    try:
        json.loads(text, parse_constant=_Strict.parse_constant, parse_float=_Strict.parse_float, parse_int=parse_int)
    except json.JSONDecodeError as fault:
        return f"{fault.msg} at line {fault.lineno}, column {fault.colno}"
    except ValueError as fault:
        return str(fault)
    except RecursionError:
        return _TOO_DEEP
    return "not JSON"
