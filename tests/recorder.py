"""Black-box calls as they were, to compare two versions of the product.

    RAILCNI_RECORD=OLD pytest tests/blackbox tests/hosts                     records: a line of JSON for each call
    RAILCNI_RECORD=NEW RAILCNI_BIN=/new/bin pytest tests/blackbox tests/hosts   the same tests, another product
    python -m tests.recorder OLD NEW                                         prints the differences, and ends with 1 for any

A line has the test and the number of the call in it, the call, the exit code and reply, and the state of the node after it: links with their addresses and routes, leases, files of the state directory. Values that
differ from run to run are replaced by names in the order in which they appear: `_VOLATILE`.

The tool exists for a redesign and ends with it.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.node import Node, Reply

FILE = os.environ.get("RAILCNI_RECORD", "")

_numbers: collections.Counter[str] = collections.Counter()
_VOLATILE = {
    "mac": re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"),
    "link-local": re.compile(r"\bfe80:[0-9a-f:]+"),
    "uuid": re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
    "folder": re.compile(
        r"/tmp/[\w./-]*?(?=/bin\b|[\"' ,:]|$)|(?:/[\w.+-]+)+(?=/bin/(?:macvlan|host-device|sriov|rdma|whereabouts|railcni)\b)"
    ),
    "namespace": re.compile(r"/proc/\d+/"),
    "port": re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=localhost:)\d+"),
    "time": re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?"),
    "duration": re.compile(r"\b\d+(?:\.\d+)? (?:ms|s)\b"),
    "pid": re.compile(r"\bprocess \d+|\bpid \d+"),
}


def note(node: Node, call: tuple[Any, ...], reply: Reply) -> None:
    """Append one call (executable, verb, configuration, other arguments), if RAILCNI_RECORD names a file."""
    if not FILE:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    _numbers[test] += 1
    line = {
        "test": test,
        "number": _numbers[test],
        "call": call,
        "reply": [reply.status, reply.document],
        "state": _state(node),
    }
    with open(FILE, "a") as file:  # one write a line: several processes of pytest append to one file
        file.write(json.dumps(line, default=lambda value: getattr(value, "path", str(value))) + "\n")


def _state(node: Node) -> dict[str, Any]:
    views = {"host": node.host} | {name: pod.view for name, pod in node.pods.items()}
    links: dict[str, Any] = {}
    for place, view in views.items():
        try:
            links[place] = {name: dataclasses.asdict(link) for name, link in view.links().items()}
        except OSError as error:  # a namespace that the test has removed
            links[place] = type(error).__name__
    return {"links": links, "leases": node.leases(), "files": node.files()}


def differences(old: str, new: str) -> Iterator[str]:
    """What differs between two files of records: a unified diff for each call."""
    before, after = _calls(old), _calls(new)
    for key in sorted(before.keys() | after.keys()):
        if key not in before or key not in after:
            yield f"{key[0]}, call {key[1]}: in {old if key in before else new} alone"
            continue
        lines = list(difflib.unified_diff(before[key], after[key], lineterm="", n=1))[2:]
        if lines:
            yield "\n".join([f"{key[0]}, call {key[1]}", *lines])


def _calls(path: str) -> dict[tuple[str, int], list[str]]:
    """(test, number of the call) -> its record as lines of text without what differs from run to run."""
    found = {}
    names: dict[str, dict[tuple[str, str], str]] = collections.defaultdict(dict)
    with open(path) as file:
        for text in file:
            call = json.loads(text)
            test, number = call.pop("test"), call.pop("number")
            for view in call["state"]["links"].values():
                for link in view.values() if isinstance(view, dict) else ():
                    del link["index"], link["lower"], link["lower_netnsid"], link["carrier"]
                    link["addresses"] = [a for a in link["addresses"] if not a["text"].startswith("fe80:")]
                    link["routes"] = [r for r in link["routes"] if not r["dst"].startswith(("fe80:", "ff00:"))]
            found[test, number] = _named(json.dumps(call, indent=1, sort_keys=True), names[test]).splitlines()
    return found


def _named(text: str, names: dict[tuple[str, str], str]) -> str:
    """`text` with each volatile value replaced by its name, which is the same within a test."""
    for kind, pattern in _VOLATILE.items():
        text = pattern.sub(lambda m, kind=kind: names.setdefault((kind, m[0]), f"<{kind} {len(names)}>"), text)
    return text


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    count = 0
    for difference in differences(*sys.argv[1:]):
        count += 1
        print(difference, end="\n\n")
    print(f"{count} calls differ")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
