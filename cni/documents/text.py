"""Places in a file: a fault in JSON inside a YAML file is shown with its line in the YAML file.

A NetworkAttachmentDefinition has its network as JSON inside a YAML scalar, in any of YAML's five styles. The value of a
scalar differs from its source only in white space, quotes and escapes. So the place of each character of the value is
the next occurrence of that character in the source.
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml

Keys = tuple[str | int, ...]


class Text:
    """The text of the file `path`, or a part of it; `position` gives the place of a character in the file."""

    def __init__(self, path: str, text: str, whole: str | None = None, places: Sequence[int] | None = None) -> None:
        self.path = path
        self.text = text
        self._whole = text if whole is None else whole
        self._places = range(len(text) + 1) if places is None else places

    def scalar(self, node: yaml.Node) -> Text:
        """Return the value of `node`, a YAML scalar of this text."""
        start, end = node.start_mark.index, node.end_mark.index
        if getattr(node, "style", None) in ("|", ">"):  # the first line has only the style
            start = self.text.find("\n", start) + 1
        return self.inner(node.value, start, end)

    def part(self, start: int, end: int) -> Text:
        """Return the part of the text from `start` to `end`."""
        return Text(self.path, self.text[start:end], self._whole, self._places[start : end + 1])

    def bracketed(self) -> Text:
        """Return the text with [ and ] around it; the places of the brackets are the two ends of the text."""
        return Text(self.path, f"[{self.text}]", self._whole, [self._places[0], *self._places, self._places[-1]])

    def inner(self, value: str, start: int, end: int) -> Text:
        """Return `value`, whose source is this text from `start` to `end`."""
        places = [self._places[place] for place in _align(value, self.text, start, end)]
        return Text(self.path, value, self._whole, places)

    def position(self, offset: int) -> tuple[int, int]:
        """The (line, column) in the file of the character at `offset`; both count from 1."""
        index = self._places[min(offset, len(self.text))]
        return self._whole.count("\n", 0, index) + 1, index - self._whole.rfind("\n", 0, index)

    def line(self, number: int) -> str:
        """The line `number` of the file, counted from 1, without the line break."""
        lines = self._whole.split("\n", number)
        return lines[number - 1].rstrip("\r") if number <= len(lines) else ""


def _align(value: str, whole: str, start: int, end: int) -> list[int]:
    """The index in `whole`, from `start` to `end`, of each character of `value`, and of the end of `value`."""
    places, index = [], start
    for character in value:
        found = -1 if character.isspace() else whole.find(character, index, end)
        places.append(index if found < 0 else found)
        index = index if found < 0 else found + 1
    return [*places, index]
