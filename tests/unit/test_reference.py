"""The configuration reference, docs/reference.md, is what the tables in the code say; and links in documents lead somewhere.

`python -m tests.unit.test_reference` writes it again.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cni.link import features, plugins
from cni.link.plugins import rdma
from cni.shared import policy, rail
from cni.shared.config import Key
from ipam import keys

README = Path(__file__).parents[2] / "README.md"
REFERENCE = README.parent / "docs/reference.md"
DOCUMENTS = (README, README.with_name("SECURITY.md"), *sorted(README.parent.glob("docs/*.md")))
BEGIN = "<!-- reference: tests/unit/test_reference.py compares it with the tables in the code -->\n"
END = "<!-- end of reference -->\n"

SECTIONS: tuple[tuple[str, Sequence[Key]], ...] = (
    *((f"`{name}`", plugins.named(name).KEYS) for name in plugins.LINK_PLUGINS),
    (", ".join(f"`{name}`" for name in plugins.LINK_PLUGINS), [features.named(name).KEY for name in features.NAMES]),
    ("`rail`", rail.KEYS), ("an object as `rdma`", features.named("rdma").KEYS),
    ("`rdma`, the chained plugin", rdma.KEYS),
    ('`ipam` of `"type": "whereabouts"`, and the flat file: the range', keys.RANGE_KEYS),
    ("the same: everything else", keys.IPAM_KEYS), ("a member of `addresses`", keys.ADDRESS_KEYS),
    ("a member of `routes`", keys.ROUTE_KEYS), ("accepted for whereabouts' sake", keys.ACCEPTED_KEYS),
    ("`railcni.json`, the node's policy", policy.KEYS),
)  # fmt: skip


def wanted(key: Key) -> str:
    """What the key's error asks for: its reader is shown a value that no key takes."""
    try:
        key.read(0.5)
    except ValueError as fault:
        return str(fault).removeprefix("want ")
    return "any value"


def default(value: Any) -> str:
    if value is None or value == "" or (isinstance(value, list | tuple | dict) and not value):
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(f"`{member}`" for member in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def reference() -> str:
    parts = []
    for title, table in SECTIONS:
        parts.append(f"\n**{title}**\n\n| key | wanted | default | meaning |\n|---|---|---|---|\n")
        for key in table:
            assert key.name, f"{title}: a key outside of a class needs a name"
            cells = (f"`{key.name}`", wanted(key), default(key.default), key.doc.replace("|", "\\|"))
            parts.append("| " + " | ".join(cells) + " |\n")
    return "".join(parts) + "\n"


def split(text: str) -> tuple[str, str, str]:
    before, _, rest = text.partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before, inside, after


def test_the_reference_is_what_the_tables_say() -> None:
    assert split(REFERENCE.read_text())[1] == reference(), "write it again: python -m tests.unit.test_reference"


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_in_documents_lead_to_files_and_headings(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", document.read_text()):
        path, _, anchor = target.partition("#")
        there = document.parent / path if path else document
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text()), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_documents_name_exist(document: Path) -> None:
    named = set(
        re.findall(
            r"(?<![\w/.])(?:conf|docs|tests|cni|ipam)/[\w./-]*\w\.(?:py|ya?ml|conf|conflist|md|c|in)\b",
            document.read_text(),
        )
    )
    assert [name for name in sorted(named) if not (README.parent / name).exists()] == []


if __name__ == "__main__":
    before, _, after = split(REFERENCE.read_text())
    REFERENCE.write_text(before + BEGIN + reference() + END + after)
