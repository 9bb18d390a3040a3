"""Convert JSON to Python objects and back. As in the JSON standard, NaN and Infinity are refused.

The text may be hostile. A limit on nesting ensures that each decoded value can be encoded and compared. To bound time
and memory, `loads_foreign` also limits the size of the text and the number of values. `loads_reply` limits only the
number of values, since the size of a reply is limited already.
"""

from __future__ import annotations

import json
from typing import Any


class TooMuch(ValueError):
    """JSON that exceeds a limit of this module; the message names the limit."""


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
MOST_BYTES = 8 << 20  # of a foreign text; Kubernetes accepts no object above 1.5 MiB
_VALUES = 100_000  # in a foreign text: an empty list takes 30 times the memory of its text
_VALUES_OF_REPLY = 4_000_000  # values that take some 500 MiB of memory; ipam.stores.http limits the text of a reply
_TOO_DEEP = f"it is nested too deeply, more than {_DEPTH} levels"
_DIGITS = 4300  # of an integer: Python's own limit, for bounded time (sys.int_info)


def loads_foreign(data: bytes) -> Any:
    """The value of the untrusted JSON text `data`. Raises ValueError, or TooMuch for too many bytes or values."""
    if len(data) > MOST_BYTES:
        raise TooMuch(f"it is larger than {MOST_BYTES >> 20} MiB")
    value = loads_reply(data, _VALUES)
    if b"\\u" in data:
        try:
            _encode_unicode(value).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair (\\ud800 to \\udfff) without the other half") from None
    return value


def loads_reply(data: bytes, most: int = _VALUES_OF_REPLY) -> Any:
    """The value of a server's JSON text `data`. Raises ValueError, or TooMuch for more than `most` values."""
    if data.count(b",") + data.count(b"[") + data.count(b"{") > most:
        raise TooMuch(f"it has more than {most} values")
    return loads(data)


def loads(data: bytes) -> Any:
    """The value of the UTF-8 JSON text `data`. Raises ValueError with the line and column of a syntax error."""
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
    """Convert `value` to JSON text on one line, in ASCII."""
    return _encode(value)


def shown(value: object) -> str:
    """Convert `value` to JSON text of at most 60 characters, for a message."""
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
