"""The values of a JSON or YAML document, with their places: offsets in the text, and line and column in the file.

A NetworkAttachmentDefinition has its network as JSON inside a YAML scalar, in any of YAML's five styles. A fault in
this JSON is shown with its line in the YAML file. The value of a scalar differs from its source only in white space,
quotes and escapes. So the place of each character of the value is the next occurrence of that character in the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

MOST_DEPTH = 100
MOST_NODES = 100_000
Keys = tuple[str | int, ...]


def value_at(document: Any, *keys: str) -> Any:
    """The value in `document` at the path `keys`, which must match exactly; None if a key or an object is missing."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def object_at(document: Any, *keys: str) -> dict[str, Any]:
    """The object in `document` at the path `keys`; {} if the path leads to no object."""
    found = value_at(document, *keys)
    return found if isinstance(found, dict) else {}


def string_at(document: Any, *keys: str) -> str:
    """The string in `document` at the path `keys`; "" if the path leads to no string."""
    found = value_at(document, *keys)
    return found if isinstance(found, str) else ""


class DocumentTooLarge(ValueError):
    """A document has more levels (MOST_DEPTH), or more values (MOST_NODES), than any network needs."""


@dataclass
class Member:
    """A key of an object, and its value `node`. The key is at the characters from `start` to `end` of the text."""

    name: str
    start: int
    end: int
    node: TreeNode


@dataclass
class TreeNode:
    """A value at the characters from `start` to `end`. An object has `members`, a list `items`, a scalar `value`."""

    start: int
    end: int
    value: Any = None
    members: list[Member] | None = None
    items: list[TreeNode] | None = None
    scalar: yaml.ScalarNode | None = None  # the YAML node of the value; None for JSON

    @cached_property
    def data(self) -> Any:
        """The value in the form of Python's module json. If a key occurs twice, its last value counts."""
        if self.members is not None:
            return {m.name: m.node.data for m in self.members}
        return self.value if self.items is None else [item.data for item in self.items]

    def member(self, name: str) -> Member | None:
        """The member with exactly this name, or else with a name that differs only in case; None without either."""
        folded = [m for m in self.members or [] if m.name.lower() == name.lower()]
        exact = [m for m in folded if m.name == name]
        return exact[-1] if exact else next(iter(folded), None)

    def walk(self, keys: Keys) -> tuple[Member | None, TreeNode, int]:
        """Follow the path `keys` until a key is missing. Returns (the last member found, or None for an item of a list;
        the last node found; the number of keys found)."""
        found: Member | None = None
        node, depth = self, 0
        for key in keys:
            if key == 0 and node.members is not None:  # an object in place of a list with one object
                depth += 1
                continue
            if isinstance(key, int):
                if node.items is None or key >= len(node.items):
                    break
                found, node = None, node.items[key]
            else:
                inner = node.member(key)
                if inner is None:
                    break
                found, node = inner, inner.node
            depth += 1
        return found, node, depth

    def objects(self) -> Iterator[TreeNode]:
        """Yield each object and each list in this tree once, including the node itself."""
        seen: set[int] = set()
        pending = [self]
        while pending:
            node = pending.pop()
            if id(node) in seen or (node.members is None and node.items is None):
                continue
            seen.add(id(node))
            yield node
            pending += [m.node for m in node.members or []] + (node.items or [])


class _Bounded(yaml.SafeLoader):
    """A YAML loader that refuses deep nesting before it costs much time."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise DocumentTooLarge(f"it has more than {MOST_DEPTH} levels")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def compose(text: str) -> yaml.Node | None:
    """Parse a YAML document. Returns its root, or None if it is empty. Raises yaml.YAMLError or DocumentTooLarge."""
    loader = _Bounded(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def of_yaml(root: yaml.Node) -> TreeNode:
    """The tree of the YAML document with this root. Raises DocumentTooLarge, or yaml.YAMLError for an invalid value."""
    known: dict[int, TreeNode] = {}  # by id: an alias has the node of its anchor, which is converted once
    constructor = yaml.SafeLoader("")

    def convert(node: yaml.Node, depth: int) -> TreeNode:
        if depth > MOST_DEPTH or len(known) > MOST_NODES:
            raise DocumentTooLarge("it is nested too deeply, or has too many values")
        if id(node) in known:
            return known[id(node)]
        made = TreeNode(node.start_mark.index, node.end_mark.index)
        if isinstance(node, yaml.MappingNode):
            constructor.flatten_mapping(node)  # "<<", a merge
            made.members = []
            for key, value in node.value:
                name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
                inner = convert(value, depth + 1)
                made.members.append(Member(name, key.start_mark.index, key.end_mark.index, inner))
        elif isinstance(node, yaml.SequenceNode):
            made.items = [convert(v, depth + 1) for v in node.value]
        else:
            made.value = constructor.construct_object(node)
            made.scalar = node if isinstance(node, yaml.ScalarNode) else None
        known[id(node)] = made
        return made

    return convert(root, 0)


class Text:
    """A text from the file `path`: its content `whole`, or a part. `places` has each character's offset in `whole`."""

    def __init__(self, path: str, text: str, whole: str | None = None, places: Sequence[int] | None = None) -> None:
        self.path = path
        self.text = text
        self._whole = text if whole is None else whole
        self._places = range(len(text) + 1) if places is None else places

    def scalar(self, node: yaml.Node) -> Text:
        """Return the value of `node`, a YAML scalar in this text, as a Text."""
        start = node.start_mark.index
        if getattr(node, "style", None) in ("|", ">"):  # a block scalar begins in the next line
            start = self.text.find("\n", start) + 1
        return self.inner(node.value, start, node.end_mark.index)

    def part(self, start: int, end: int) -> Text:
        """Return the part of the text from the offset `start` to the offset `end`."""
        return Text(self.path, self.text[start:end], self._whole, self._places[start : end + 1])

    def bracketed(self) -> Text:
        """Return the text in brackets. The places of "[" and "]" are the two ends of the text."""
        return Text(self.path, f"[{self.text}]", self._whole, [self._places[0], *self._places, self._places[-1]])

    def inner(self, value: str, start: int, end: int) -> Text:
        """Return `value`, a string in this text, as a Text. `start` and `end` are the offsets of its source in this
        text; the source may have escapes."""
        places, index = [], start
        for character in value:
            found = -1 if character.isspace() else self.text.find(character, index, end)
            places.append(self._places[index if found < 0 else found])
            index = index if found < 0 else found + 1
        return Text(self.path, value, self._whole, [*places, self._places[index]])

    def position(self, offset: int) -> tuple[int, int]:
        """The (line, column) in the file of the character at `offset`; both count from 1."""
        index = self._places[min(offset, len(self.text))]
        return self._whole.count("\n", 0, index) + 1, index - self._whole.rfind("\n", 0, index)

    def line(self, number: int) -> str:
        """The line `number` of the file, counted from 1, without the line break."""
        lines = self._whole.split("\n", number)
        return lines[number - 1].rstrip("\r") if number <= len(lines) else ""
