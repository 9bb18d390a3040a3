"""JSON to and from Python objects, as a standard without NaN and Infinity.

What is decoded may be hostile. Nesting is bounded, so that whatever was decoded can also be encoded and compared;
`loads_foreign` bounds size and number of values too, and `loads_reply` the number of values in what is bounded already, so
that time and memory are bounded.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


class TooMuch(ValueError):
    """JSON, but more of it than is read: the text says of what, and how much would be read."""


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:  # infinity, which could not be encoded again
        raise ValueError(f"number {text[:20]} is too large")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} digits is too long")
    return int(digits)


_decode = json.JSONDecoder(parse_float=_finite, parse_int=_bounded, parse_constant=_no_constant).decode
_encode = json.JSONEncoder(check_circular=False, allow_nan=False).encode
_encode_unicode = json.JSONEncoder(check_circular=False, allow_nan=False, ensure_ascii=False).encode
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
            _encode_unicode(value).encode()
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
    try:
        value = _decode(text)
    except json.JSONDecodeError as fault:
        raise ValueError(f"{fault.msg} at line {fault.lineno}, column {fault.colno}") from None
    except RecursionError:
        raise TooMuch(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > _DEPTH and not _is_shallow(value):
        raise TooMuch(_TOO_DEEP)
    return value


def dumps(value: object) -> str:
    """`value` as JSON text on one line, ASCII only."""
    return _encode(value)


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
