"""Messages for refused values, made from pydantic's errors, with the value and the accepted values; and the most likely
meaning of a misspelt word."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from cni.documents.tree import Keys
from cni.shared.config import slip

_MOST_CHARACTERS = 60
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_WANTED = {
    "string_type": "want a string",
    "int_type": "want an integer",
    "bool_type": "want true or false",
    "list_type": "want a list",
    "dict_type": "want an object",
    "model_type": "want an object",
    "extra_forbidden": "is no key here",
    "invalid_key": "is no key here",
    "greater_than_equal": "want {ge} or more",
    "less_than_equal": "want {le} at most",
    "too_short": "want {min_length} or more members",
    "too_long": "want {max_length} members at most",
    "string_too_short": "want {min_length} or more characters",
    "value_error": "{error}",
}
"""The messages, by pydantic's error type; other types have pydantic's own message."""


def refusals(invalid: ValidationError) -> Iterator[tuple[Keys, str]]:
    """Yield (keys, reason) for each refused value, in the order of the model; the reason is "" for a missing value."""
    for error in invalid.errors(include_url=False):
        kind, context = error["type"], error.get("ctx", {})
        if kind == "literal_error":
            choices = [*filter(None, re.findall("'([^']*)'", context["expected"]))]
            wanted = f"want {'one of ' if len(choices) > 1 else ''}{', '.join(choices)}"
        else:
            wanted = _WANTED[kind].format(**context) if kind in _WANTED else error["msg"].lower()
        yield tuple(error["loc"]), "" if kind == "missing" else f"{shown(error['input'])}: {wanted}"


def name_of(keys: Keys) -> str:
    """The dotted name of keys: "plugins[0].mtu" for ("plugins", 0, "mtu")."""
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys).removeprefix(".")


def keys_of(name: str) -> Keys:
    """The keys of a dotted name: ("plugins", 0, "mtu") for "plugins[0].mtu"."""
    return tuple(int(number) if number else word for number, word in _PART.findall(name))


def shown(value: Any) -> str:
    """`value` as JSON, shortened; a value that JSON cannot express, such as a YAML date, as text."""
    try:
        text = json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError):  # a key that JSON refuses, or a YAML alias that contains itself
        text = str(value)
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."


def near(word: str, names: Iterable[str]) -> str:
    """The member of `names` that `word` most likely means; "" when none is similar."""
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(_bare(name), name)
    bare = _bare(word)
    found = difflib.get_close_matches(bare, folded, n=1, cutoff=0.75)
    return folded.get(found[0] if found else slip(bare, folded), "")  # a slip such as mut for mtu


def correction(word: str, names: Iterable[str], otherwise: str = "remove it") -> str:
    """The remedy for the unknown `word`: to write the most similar of `names`, or `otherwise` when none is similar."""
    likely = near(word, names)
    return f'write "{likely}"' if likely else otherwise


def _bare(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")
