"""JSON with the place of each value, or its first fault with what to write in its place.

A text without a fault is read as Python's json reads it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from cni.library.documents.tree import MOST_DEPTH, MOST_NODES, DocumentTooLarge, Member, TreeNode

_BLANK = re.compile(r"[ \t\r\n]*")
_FOREIGN_BLANK = re.compile(r"[\s\ufeff\u200b]+")
_COMMENT = re.compile(r"//[^\n]*|\#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_BEGUN_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z_.+-])")
_WORD = re.compile(r"[^\s,:{}\[\]\"'#=;]+")
_LITERALS = {"true": True, "false": False, "null": None}
_CLOSING_QUOTES = {"'": "'", "\u201c": "\u201d", "\u201d": "\u201d", "\u2018": "\u2019", "\u2019": "\u2019"}
_MOST_DIGITS = 4300  # sys.int_info.default_max_str_digits


class Fault(ValueError):
    """The first fault of the syntax, from `start` to `end` of the text; `fix` is the remedy."""

    def __init__(self, start: int, end: int, message: str, fix: str) -> None:
        super().__init__(message)
        self.start, self.end, self.fix = start, end, fix


def parse(text: str) -> TreeNode:
    """Read the value of `text`. Raises Fault when the text is not JSON."""
    reader = _Reader(text)
    try:
        return reader.whole()
    except DocumentTooLarge as fault:
        raise Fault(reader.at, reader.at, str(fault), "make it smaller") from None


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._nodes = 0
        self._depth = 0

    def whole(self) -> TreeNode:
        self._skip()
        if not self._next:
            raise Fault(0, 0, "is empty: want a JSON object", 'write {"cniVersion": "1.0.0", "name": ..., "type": ...}')
        node = self._value("the text")
        self._skip()
        if one := self._next:
            rest = self.text[self.at : self.at + 20].split("\n")[0]
            fix = f"remove this {one}, or open it before" if one in "}]" else "remove it"
            raise Fault(self.at, self.at + len(rest), "there is more text after the end of the JSON value", fix)
        return node

    def _value(self, where: str) -> TreeNode:
        self._nodes += 1
        if self._nodes > MOST_NODES or self._depth > MOST_DEPTH:
            raise DocumentTooLarge(f"it has more than {MOST_DEPTH} levels, or more than {MOST_NODES} values")
        start, one = self.at, self._next
        if one in ("{", "["):
            return self._object() if one == "{" else self._list()
        value: Any
        if one == '"' or one in _CLOSING_QUOTES:
            value = self._string()
        elif number := _NUMBER.match(self.text, start):
            value = self._number(number)
        elif word := _WORD.match(self.text, start):
            value = self._word(word)
        else:
            raise Fault(start, start + 1, f"a value is missing: {where} has none", "write a value here")
        return TreeNode(start, self.at, value)

    def _object(self) -> TreeNode:
        members: list[Member] = []
        node = TreeNode(self.at, self.at, members=members)
        while self._goes_on(node, "}", members[-1].start if members else None):
            start = self.at
            name = self._key()
            end = self.at
            self._skip()
            if self._next == "=":
                raise Fault(self.at, self.at + 1, f'a colon is wanted after "{name}", not =', f'write "{name}": ')
            if self._next != ":":
                raise Fault(start, end, f'a colon is missing after "{name}"', f'write "{name}": ')
            self.at += 1
            self._skip()
            members.append(Member(name, start, end, self._value(f'"{name}"')))
        return node

    def _list(self) -> TreeNode:
        items: list[TreeNode] = []
        node = TreeNode(self.at, self.at, items=items)
        while self._goes_on(node, "]", items[-1].start if items else None):
            items.append(self._value("this place of the list"))
        return node

    def _goes_on(self, node: TreeNode, closing: str, last: int | None) -> bool:
        """Go to the next member of `node`, whose `last` one began there; return False after the closing bracket."""
        end = self.at
        if last is None:
            self.at += 1
            self._depth += 1
        self._skip()
        comma = self.at
        if self._next == ",":
            if last is None:
                raise Fault(comma, comma + 1, "there is nothing before this comma", "remove it")
            self.at += 1
            self._skip()
            if self._next == ",":
                raise Fault(self.at, self.at + 1, "there are two commas", "remove one")
            if self._next in ("}", "]"):
                message = f"a comma stands before {self._next}"
                raise Fault(comma, comma + 1, message, f"remove the comma before {self._next}")
        elif self._next == ";":
            raise Fault(comma, comma + 1, "a comma is wanted here, not ;", "write ,")
        elif last is not None and self._next not in ("", "}", "]"):
            shown = " ".join(self.text[last:end].split())
            shown = shown if len(shown) <= 60 else shown[-1]
            start = end - 1 if "\n" in self.text[last:end] else last
            raise Fault(start, end, f"a comma is missing after {shown}", f"write {shown},")
        if self._next in ("", "}", "]") and self._next != closing:
            opening = self.text[node.start]
            message = f"the {opening} here is never closed"
            raise Fault(node.start, node.start + 1, message, f"write {closing} where it ends")
        if self._next != closing:
            return True
        self.at += 1
        self._depth -= 1
        node.end = self.at
        return False

    def _key(self) -> str:
        start, one = self.at, self._next
        if one == '"' or one in _CLOSING_QUOTES:
            return self._string()
        if one in ("{", "["):
            raise Fault(start, start + 1, "a key is missing before this value", 'write "KEY": before it')
        word = _WORD.match(self.text, start)
        if word is None:
            raise Fault(start, start + 1, f"a key is wanted here, not {one}", f"remove {one}")
        raise Fault(start, word.end(), f"the key {word.group()} has no quotes", f'write "{word.group()}"')

    def _string(self) -> str:
        start, quote = self.at, self._next
        if quote != '"':
            end = self.text.find(_CLOSING_QUOTES[quote], start + 1) + 1 or start + 1
            message = f"strings stand between straight double quotes, not {quote}"
            raise Fault(start, end, message, f'write "{self.text[start + 1 : end - 1]}"')
        match = _BEGUN_STRING.match(self.text, start)
        end = match.end() if match else start
        one = self.text[end : end + 1]
        if one in ("", "\n"):
            raise Fault(start, end, "the string is not closed on its line", 'write " where it ends')
        if one == "\\":
            raise Fault(end, end + 2, "a \\ in a string begins an escape, and this is not one", "write \\\\")
        if one != '"':
            shown = {"\t": "a tab", "\r": "a carriage return"}.get(one, "a control character")
            raise Fault(end, end + 1, f"there is {shown} in a string", f"write {json.dumps(one)[1:-1]}")
        self.at = end + 1
        text = str(json.loads(self.text[start : self.at]))
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise Fault(start, self.at, "has half of a surrogate pair (\\ud800 to \\udfff)", "remove it")
        return text

    def _number(self, match: re.Match[str]) -> int | float:
        start, self.at = self.at, match.end()
        if len(match.group()) > _MOST_DIGITS:
            message = f"a number of {len(match.group())} digits is too long"
            raise Fault(start, self.at, message, "write a smaller one")
        value: int | float = json.loads(match.group())
        if value in (float("inf"), float("-inf")):
            raise Fault(start, self.at, f"number {match.group()[:20]} is too large", "write a smaller one")
        return value

    def _word(self, match: re.Match[str]) -> bool | None:
        start, word = self.at, match.group()
        self.at = match.end()
        if word in _LITERALS:
            return _LITERALS[word]
        if word.lower() in _LITERALS or word == "None":
            raise Fault(start, self.at, f"{word} is no JSON", f"write {'null' if word == 'None' else word.lower()}")
        if word.isascii() and word.isdigit() and len(word) < _MOST_DIGITS:
            raise Fault(start, self.at, f"{word} begins with a zero", f"write {int(word)}")
        raise Fault(start, self.at, f"{word[:40]} has no quotes", f'write "{word[:40]}"')

    @property
    def _next(self) -> str:
        """The next character, "" at the end."""
        return self.text[self.at : self.at + 1]

    def _skip(self) -> None:
        """Go to the next character that is not white space. Raises Fault for what JSON does not have there."""
        blank = _BLANK.match(self.text, self.at)
        self.at = blank.end() if blank else self.at
        if comment := _COMMENT.match(self.text, self.at):
            raise Fault(self.at, comment.end(), "JSON has no comments", "remove it")
        if foreign := _FOREIGN_BLANK.match(self.text, self.at):
            shown = f"U+{ord(foreign.group()[0]):04X}"
            raise Fault(self.at, foreign.end(), f"JSON does not have the white space {shown}", "write a space")
