"""Places in a file: a fault in JSON that a YAML file carries is shown with the file's own line.

A NetworkAttachmentDefinition holds its network as JSON inside a YAML scalar, in any of YAML's five styles. A scalar's
value differs from what is written in white space, quotes and escapes only, so the characters of the value are found
again by walking through the file and taking each at its next occurrence.
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml

Keys = tuple[str | int, ...]


class Text:
    """`text`, which is all of the file `path` or a part of it; `position` says where a character of it stands."""

    def __init__(self, path: str, text: str, whole: str | None = None, places: Sequence[int] | None = None) -> None:
        self.path = path
        self.text = text
        self._whole = text if whole is None else whole
        self._places = range(len(text) + 1) if places is None else places

    def scalar(self, node: yaml.Node) -> Text:
        """The value of a YAML scalar that was composed from this text."""
        start, end = node.start_mark.index, node.end_mark.index
        if getattr(node, "style", None) in ("|", ">"):  # the first line holds the style alone
            start = self.text.find("\n", start) + 1
        return self.inner(node.value, start, end)

    def part(self, start: int, end: int) -> Text:
        """The text from `start` to `end`."""
        return Text(self.path, self.text[start:end], self._whole, self._places[start : end + 1])

    def bracketed(self) -> Text:
        """The text between brackets, which stand at its ends."""
        return Text(self.path, f"[{self.text}]", self._whole, [self._places[0], *self._places, self._places[-1]])

    def inner(self, value: str, start: int, end: int) -> Text:
        """The `value` of the string that is written from `start` to `end`."""
        places = [self._places[place] for place in _align(value, self.text, start, end)]
        return Text(self.path, value, self._whole, places)

    def position(self, offset: int) -> tuple[int, int]:
        """(line, column) of the character `offset` in the file, counted from 1."""
        index = self._places[min(offset, len(self.text))]
        return self._whole.count("\n", 0, index) + 1, index - self._whole.rfind("\n", 0, index)

    def line(self, number: int) -> str:
        """The line `number` of the file, counted from 1, without its end."""
        lines = self._whole.split("\n", number)
        return lines[number - 1].rstrip("\r") if number <= len(lines) else ""


def _align(value: str, whole: str, start: int, end: int) -> list[int]:
    """For each character of `value`, and for its end, its index in `whole`, between `start` and `end`."""
    places, index = [], start
    for character in value:
        found = -1 if character.isspace() else whole.find(character, index, end)
        places.append(index if found < 0 else found)
        index = index if found < 0 else found + 1
    return [*places, index]
