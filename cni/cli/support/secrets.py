"""The secrets in a text, and the text without them. Pure.

In two steps: `find` looks for secrets by their place (a key called password, a kubeconfig's token, an exec helper's
environment, a Secret's data), and `scrub` removes each of them from every text, at any place, and also
strings that look like a secret: private keys, JSON web tokens, bearer headers, passwords in URLs. It removes rather too
much than too little.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import yaml

REMOVED = "REMOVED"
_NAME = r"[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|bearer|authorization|api[-_]?key|access[-_]?key|private[-_]?key|client-key-data|client-certificate-data|credentials?)(?:[-_]?data)?"
_IS_SECRET = re.compile(rf"{_NAME}\Z", re.IGNORECASE)
_NO_SECRET = re.compile(r".*(file|path|name|expiry|ref|account|annotation|ttl|seconds|mode|source|s)\Z", re.IGNORECASE)
_MARKS = (
    re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=\s]{20,}(?<!\s)"),  # "-----BEGIN" in base64
    re.compile(r"eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)?"),  # a JSON web token
)
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{4,}")
_IN_URL = re.compile(r"(://[^/\s:@\"']*:)[^/\s@\"']+(@)")
_ASSIGNED = re.compile(
    rf"(?i)(?<![\w.-])({_NAME})(\\*[\"']?\s*[:=]\s*)(\\*[\"'](?:[^\"'\\\n]|\\[^\"'\n])*\\*[\"']?|[^\s,;}}\]\"'|>][^\s,;}}\]]*)"
)
_FLAG = re.compile(rf"(?i)(--?{_NAME}[= ])(\S+)")
_SHORT = 6
_MOST_DEPTH = 50


def is_secret(name: str) -> bool:
    """Whether the value of a key of this name is secret; `tokenFile` and `secretName` say only where one is."""
    return bool(_IS_SECRET.match(name)) and not (name != "credentials" and _NO_SECRET.match(name))


def find(text: str) -> set[str]:
    """The secrets in `text`, when it is JSON or YAML, also in JSON inside its strings."""
    found: set[str] = set()
    for document in _documents(text):
        found.update(_of(document, 0))
    return {part for secret in found for part in _parts(secret)}


def _documents(text: str) -> Iterator[Any]:
    try:
        yield json.loads(text)
        return
    except (ValueError, RecursionError):
        pass
    try:
        yield from yaml.safe_load_all(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        pass


def _of(value: Any, depth: int) -> Iterator[str]:
    if depth > _MOST_DEPTH:
        return
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        for document in _documents(value):
            if not isinstance(document, str):
                yield from _of(document, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _of(item, depth + 1)
    elif isinstance(value, dict):
        for key, inner in value.items():
            name = str(key)
            if is_secret(name) or (name in ("data", "stringData") and value.get("kind") == "Secret"):
                yield from _texts(inner)
            elif name == "exec" and isinstance(inner, dict):  # of a kubeconfig: its helper's environment and arguments
                yield from _texts([e.get("value") for e in inner.get("env") or [] if isinstance(e, dict)])
                yield from (a for a in _texts(inner.get("args")) if "=" in a or len(a) > 12)
            elif name == "auth-provider" and isinstance(inner, dict):
                yield from _texts(inner.get("config"))
            elif name == "env" and isinstance(inner, list):
                yield from (str(e.get("value")) for e in inner if isinstance(e, dict) and is_secret(str(e.get("name"))))
            else:
                yield from _of(inner, depth + 1)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


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
    try:
        forms.add(base64.b64decode(secret, validate=True).decode())
    except ValueError:
        pass
    yield from (form for form in forms if len(form) >= 3)


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without `secrets`, and without strings that look like one."""
    for secret in sorted(secrets, key=len, reverse=True):
        if secret not in text:
            continue
        if len(secret) < _SHORT:  # as a word of its own alone: it may be part of anything
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", REMOVED, text)
        else:
            text = text.replace(secret, REMOVED)
    for mark in _MARKS:
        text = mark.sub(REMOVED, text)
    text = _BEARER.sub(rf"\1{REMOVED}", text)
    text = _IN_URL.sub(rf"\1{REMOVED}\2", text)
    text = _FLAG.sub(rf"\1{REMOVED}", text)
    return _ASSIGNED.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    if not is_secret(found.group(1)):
        return found.group()
    value = found.group(3)
    quote_mark = re.match(r"\\*[\"']", value)
    opening = quote_mark.group() if quote_mark else ""
    return f"{found.group(1)}{found.group(2)}{opening}{REMOVED}{opening if value.endswith(opening or ' ') else ''}"
