"""Keys and plugins that a network names, against those that there are: what is unknown, what was meant."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cni import plugins
from cni.cli.lint import known
from cni.cli.lint.scope import Scope, keys_of, shown
from cni.cli.refusals import name_of
from cni.cli.source import Keys
from cni.config import Fault, Key
from ipam import keys as tables

Nested = Mapping[str, Sequence[Key]]
"""The tables of the objects that some keys take."""


def told(scope: Scope, keys: Keys, faults: Sequence[Fault], table: Sequence[Key], nested: Nested) -> None:
    """The `faults` of a plugin's reader, at the keys that they name."""
    for fault in faults:
        at = (*keys, *keys_of(fault.key))
        outer, _, inner = fault.key.lower().partition(".")
        read = next((k.read for k in table if k.name.lower() == fault.key.lower()), None)
        for name, members in nested.items():
            if name.lower() == outer:
                read = next((k.read for k in members if k.name.lower() == inner), read)
        scope.error(at, message_of(fault), (read and proposal(read, fault.value)) or remedy(fault.wanted))


def message_of(fault: Fault) -> str:
    """A fault without its key, which a finding has beside it."""
    return f"{shown(fault.value)}: {fault.wanted}" if fault.value is not None else fault.wanted


def remedy(wanted: str) -> str:
    """What a fault asks for, from its "want ..."."""
    _, found, what = wanted.rpartition("want ")
    return f"write {what}" if found else ""


def proposal(read: Any, value: Any) -> str:
    """What was most likely meant by `value`: a value like it that the reader takes; "" when none is found."""
    for candidate in (value, *_like(value)):
        try:
            read(candidate)
        except (ValueError, TypeError):
            continue
        return f"write {json.dumps(candidate)}" if candidate is not value else ""
    try:
        read(value)
    except ValueError as fault:
        _, listed, choices = str(fault).partition("want one of ")
        meant = known.near(value, choices.split(", ")) if listed and isinstance(value, str) else ""
        return f'write "{meant}"' if meant else ""
    return ""


def _like(value: Any) -> Iterable[Any]:
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("true", "false"):
            yield text.lower() == "true"
        if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 20:
            yield int(text)
        yield from (text, text.lower(), text.replace("_", "-").lower())
        yield [text]
    elif isinstance(value, float) and value.is_integer():
        yield int(value)
    elif isinstance(value, int):
        yield str(value)
        if value in (0, 1):
            yield bool(value)
    elif isinstance(value, list) and len(value) == 1:
        yield value[0]


def unknown_keys(
    scope: Scope, keys: Keys, document: Mapping[str, Any], table: Iterable[Key], whose: str, kind: str = ""
) -> None:
    """A warning for each key of `document` that nobody reads, or that is written otherwise than it is documented."""
    names = [key.name for key in table]
    tops = {n.partition(".")[0] for n in names} | ({*known.OF_RUNTIMES, *known.OF_MULTUS} if kind else set())
    for name, value in document.items():
        at = (*keys, name)
        nested = [n.partition(".")[2] for n in names if "." in n and n.partition(".")[0].lower() == name.lower()]
        if name in tops:
            pass
        elif same := next((n for n in sorted(tops) if n.lower() == name.lower()), ""):
            scope.warn(at, f'"{name}" is read as "{same}"', f'write "{same}"', at_key=True)
        else:
            meant = known.near(name, sorted(tops))
            message = f'{whose} has no key "{name}": it is ignored'
            scope.warn(at, message, f'write "{meant}"' if meant else _elsewhere(name, kind), at_key=True)
        if nested and isinstance(value, dict):
            for inner in value:
                if inner.lower() not in {n.lower() for n in nested}:
                    meant = known.near(inner, nested)
                    message = f'{whose} has no key "{name_of((name, inner))}": it is ignored'
                    scope.warn((*at, inner), message, f'write "{meant}"' if meant else "remove it", at_key=True)


def executable(scope: Scope, at: Keys, name: str, names: Collection[str], what: str) -> None:
    """An error for a `name` that is one of `names` misspelled; a warning for one that nobody knows, which may be installed."""
    if name in names:
        return
    message, meant = f"no {what} of the name {name} is known", known.near(name, sorted(names))
    if slip := known.slip(name, sorted(names)):
        scope.error(at, f"{message}: the runtime finds none", f'write "{slip}"')
    else:
        scope.warn(at, message, f'write "{meant}"' if meant else "see that the runtime's plugin folder has it")


def _elsewhere(name: str, kind: str) -> str:
    """Where the key `name`, which the plugin does not have, belongs."""
    if kind and name.lower() in {k.name.lower() for k in (*tables.RANGE_KEYS, *tables.IPAM_KEYS)}:
        return f'move "{name}" into "ipam"'
    if not kind and any(name.lower() == k.name.lower() for own in known.OWN_LINKS for k in plugins.named(own).KEYS):
        return f'move "{name}" out of "ipam", to the plugin'
    return "remove it"
