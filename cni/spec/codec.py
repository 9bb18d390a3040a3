"""JSON to and from Python objects, by the C scanner and encoder of the standard library.

`import json` costs an exec 6 ms, because its Python half compiles regular expressions; the C half
(`_json`) costs 0.2 and does the same work. The Python half is loaded only to say where an input is wrong.
"""

from __future__ import annotations

import _json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar


class _Strict:
    """What the C scanner asks of its context: standard JSON, and no NaN or Infinity."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    memo: ClassVar[dict[str, str]] = {}

    @staticmethod
    def parse_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")


_scan = _json.make_scanner(_Strict())  # type: ignore[arg-type]  # typeshed asks for a JSONDecoder
_encode = _json.make_encoder(None, None, _json.encode_basestring_ascii, None, ": ", ", ", False, False, False)  # type: ignore[arg-type]
_WHITE = " \t\n\r"


def loads(data: bytes) -> Any:
    """The value that the UTF-8 JSON text `data` stands for; ValueError names the line and column of a fault."""
    text = data.decode("utf-8")  # UnicodeDecodeError is a ValueError
    start = 0
    while start < len(text) and text[start] in _WHITE:
        start += 1
    try:
        value, end = _scan(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (StopIteration, ValueError, SystemError):  # Python 3.11 reports some faults as SystemError
        raise ValueError(_where(text)) from None
    if text[end:].strip(_WHITE):
        raise ValueError(_where(text))
    return value


def dumps(value: object) -> str:
    """`value` as JSON text on one line, ASCII only."""
    return "".join(_encode(value, 0))


def _where(text: str) -> str:
    import json

    try:
        json.loads(text, parse_constant=_Strict.parse_constant)
    except json.JSONDecodeError as fault:
        return f"{fault.msg} at line {fault.lineno}, column {fault.colno}"
    except ValueError as fault:
        return str(fault)
    return "not JSON"
