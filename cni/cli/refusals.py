"""What pydantic refuses of a document, in the words of this project: the key, its value, what is wanted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from cni.cli.source import Keys

_MOST_CHARACTERS = 60
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
    "string_too_short": "want {min_length} or more characters",
    "value_error": "{error}",
}
"""By pydantic's types of errors: those that the models of this command can have."""


@dataclass(frozen=True)
class Refusal:
    """A value that is not right and what would be, or a key that `is_missing`."""

    keys: Keys
    value: Any
    wanted: str
    is_missing: bool

    def __str__(self) -> str:
        value = "" if self.is_missing or not self.keys else shown(self.value)
        return ": ".join(filter(None, (" ".join(filter(None, (name_of(self.keys), value))), self.wanted)))


def of(invalid: ValidationError) -> Iterator[Refusal]:
    """All that was refused, in the order of the model's keys."""
    for error in invalid.errors(include_url=False):
        kind, context = error["type"], error.get("ctx", {})
        if kind == "literal_error":
            choices = [*filter(None, re.findall("'([^']*)'", context["expected"]))]
            wanted = f"want {'one of ' if len(choices) > 1 else ''}{', '.join(choices)}"
        else:
            wanted = _WANTED[kind].format(**context) if kind in _WANTED else error["msg"].lower()
        is_missing = kind == "missing"
        yield Refusal(tuple(error["loc"]), error["input"], "is missing" if is_missing else wanted, is_missing)


def name_of(keys: Keys) -> str:
    """ "plugins[0].mtu" of ("plugins", 0, "mtu")."""
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys).removeprefix(".")


def shown(value: Any) -> str:
    """`value` as JSON, shortened; what is no JSON, such as a date of YAML, as text."""
    try:
        text = json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError):  # of a key; an alias of YAML that holds itself
        text = str(value)
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
