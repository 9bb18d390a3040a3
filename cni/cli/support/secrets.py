"""The secrets in a text, and the text without them. Pure.

There are two steps. `find` looks for secrets by their place: a key called password, a kubeconfig's token, an exec
helper's environment, a Secret's data. `scrub` removes these secrets everywhere in every text, and also strings that
look like a secret: private keys, JSON web tokens, bearer headers, passwords in URLs. It removes too much rather than
too little.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import yaml

REMOVED = "REMOVED"
_NAME = r"[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|bearer|authorization|api[-_]?key|access[-_]?key|private[-_]?key|client-key-data|client-certificate-data|credentials?)(?:[-_]?data)?"
_IS_SECRET = re.compile(rf"{_NAME}\Z", re.IGNORECASE)
_NO_SECRET = re.compile(r".*(file|path|name|expiry|ref|account|annotation|ttl|seconds|mode|source|s)\Z", re.IGNORECASE)
_KEY = "[A-Z0-9 ]*PRIVATE KEY-----"
_MARKS = (  # strings that look like a secret, each with the text in its place
    (re.compile(rf"(?s)-----BEGIN {_KEY}.*?(?:-----END {_KEY}|\Z)"), REMOVED),
    (re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=\s]{20,}(?<!\s)"), REMOVED),  # "-----BEGIN" in base64
    (re.compile(r"eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)?"), REMOVED),  # a JSON web token
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{4,}"), rf"\1{REMOVED}"),
    (re.compile(r"(://[^/\s:@\"']*:)[^/\s@\"']+(@)"), rf"\1{REMOVED}\2"),  # the password in a URL
    (re.compile(rf"(?i)(--?{_NAME}[= ])(\S+)"), rf"\1{REMOVED}"),  # an option
)
_ASSIGNED = re.compile(
    rf"(?i)(?<![\w.-])({_NAME})(\\*[\"']?\s*[:=]\s*)(\\*[\"'](?:[^\"'\\\n]|\\[^\"'\n])*\\*[\"']?|[^\s,;}}\]\"'|>][^\s,;}}\]]*)"
)
_SHORT = 6
_MOST_DEPTH = 50


def is_secret(name: str) -> bool:
    """Whether a key of this name has a secret value. `tokenFile` and `secretName` only say where a secret is."""
    return bool(_IS_SECRET.match(name)) and not (name != "credentials" and _NO_SECRET.match(name))


def find(text: str) -> set[str]:
    """The secrets in `text` if it is JSON or YAML, also those in JSON inside its strings."""
    found: set[str] = set()
    for document in _documents(text):
        found.update(_of(document))
    return {part for secret in found for part in _parts(secret)}


def _documents(text: str) -> Iterator[Any]:
    with suppress(ValueError, RecursionError):
        yield json.loads(text)
        return
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        yield from yaml.safe_load_all(text)


def _of(value: Any, depth: int = 0, hidden: bool = False) -> Iterator[str]:
    """Yield the secrets in a part of a document; if `hidden`, all its strings and numbers."""
    if depth > _MOST_DEPTH:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            if not hidden and isinstance(inner, dict) and key == "exec":  # of a kubeconfig: what its helper gets
                env = inner["env"] if isinstance(inner.get("env"), list) else []
                entries = [entry.get("value") for entry in env if isinstance(entry, dict)]
                yield from _of(entries, depth + 1, hidden=True)
                arguments = _of(inner.get("args"), depth + 1, hidden=True)
                yield from (a for a in arguments if "=" in a or len(a) > 12)
            elif not hidden and isinstance(inner, dict) and key == "auth-provider":
                yield from _of(inner.get("config"), depth + 1, hidden=True)
            else:
                yield from _of(inner, depth + 1, hidden or _hides(str(key), value))
    elif isinstance(value, list):
        for item in value:
            yield from _of(item, depth + 1, hidden)
    elif hidden and value is not None and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        for document in _documents(value):
            if not isinstance(document, str):
                yield from _of(document, depth + 1)


def _hides(key: str, holder: dict[Any, Any]) -> bool:
    """Whether the value of `key` in `holder` is secret, by the key, or by the kind or the name in `holder`."""
    if key in ("data", "stringData") and holder.get("kind") == "Secret":
        return True
    return is_secret(str(holder.get("name"))) if key == "value" else is_secret(key)


def _parts(secret: str) -> Iterator[str]:
    """The forms in which a secret may appear: whole, by lines, escaped, in base64, and decoded from base64."""
    forms = {secret, secret.strip(), *(word for word in secret.split() if len(word) >= 8)}
    if "=" in secret:
        forms.add(secret.partition("=")[2])
    for form in list(forms):
        for escaped in (json.dumps(form)[1:-1], json.dumps(form, ensure_ascii=False)[1:-1]):
            forms |= {escaped, json.dumps(escaped)[1:-1], json.dumps(json.dumps(escaped)[1:-1])[1:-1]}
        forms.add(quote(form, safe=""))
        forms.add(base64.b64encode(form.encode("utf-8", "replace")).decode())
    with suppress(ValueError):
        forms.add(base64.b64decode(secret, validate=True).decode())
    yield from (form for form in forms if len(form) >= 3)


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without `secrets`, and without strings that look like a secret."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORT:
            text = text.replace(secret, REMOVED)
        elif secret in text:  # only as a whole word: it may be a part of other words
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", REMOVED, text)
    for mark, left in _MARKS:
        text = mark.sub(left, text)
    return _ASSIGNED.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    name, sign, value = found.groups()
    if not is_secret(name):
        return found.group()
    quote_mark = re.match(r"\\*[\"']", value)
    opening = quote_mark.group() if quote_mark else ""
    return f"{name}{sign}{opening}{REMOVED}{opening if value.endswith(opening or ' ') else ''}"
