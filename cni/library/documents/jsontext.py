"""JSON read past its faults: each is noted with its remedy, and the rest is read all the same.

An author gets all faults at once, those of the syntax and those of the content. A text without a fault is read as
Python's json reads it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from cni.library.documents.tree import MOST_DEPTH, MOST_NODES, DocumentTooLarge, Member, TreeNode

_BLANK = re.compile(r"[ \t\r\n]*")
_FOREIGN_BLANK = re.compile(r"[\s\ufeff\u200b]+")
_COMMENT = re.compile(r"//[^\n]*|\#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?(?![0-9A-Za-z_.+-])")
_WORD = re.compile(r"[^\s,:{}\[\]\"'#=;]+")
_ESCAPE = re.compile(r'["\\/bfnrt]|u[0-9a-fA-F]{4}')
_LITERALS = {"true": True, "false": False, "null": None}
_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u201d": "\u201d", "\u2018": "\u2019", "\u2019": "\u2019"}
_MOST_DIGITS = 4300
_MOST_FAULTS = 50


@dataclass(frozen=True)
class Syntax:
    """A fault of the syntax, from `start` to `end`, with its remedy."""

    start: int
    end: int
    message: str
    fix: str


def parse(text: str) -> tuple[TreeNode | None, list[Syntax]]:
    """The value of `text`, as far as it can be read, and the faults of its syntax in their order."""
    reader = _Reader(text)
    try:
        node = reader.whole()
    except DocumentTooLarge as fault:
        return None, [*reader.faults, Syntax(reader.at, reader.at, str(fault), "make it smaller")]
    return node, sorted(reader.faults, key=lambda f: f.start)[:_MOST_FAULTS]


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.faults: list[Syntax] = []
        self._nodes = 0
        self._open: list[str] = []

    def whole(self) -> TreeNode | None:
        self._skip()
        if self.at == len(self.text):
            self._note(0, 0, "is empty: want a JSON object", 'write {"cniVersion": "1.0.0", "name": ..., "type": ...}')
            return None
        node = self._value("the text")
        self._skip()
        if self.at < len(self.text):
            behind = self.text[self.at : self.at + 20].split("\n")[0]
            one = behind[:1]
            fix = f"remove this {one}, or open it before" if one in "}]" else "remove it"
            self._note(self.at, self.at + len(behind), "there is more text after the end of the JSON value", fix)
        return node

    # --- the parts of JSON ---

    def _value(self, where: str) -> TreeNode:
        self._nodes += 1
        if self._nodes > MOST_NODES or len(self._open) > MOST_DEPTH:
            raise DocumentTooLarge(f"it has more than {MOST_DEPTH} levels, or more than {MOST_NODES} values")
        start, one = self.at, self._next
        if one == "{":
            return self._object()
        if one == "[":
            return self._list()
        if one in _QUOTES:
            value = self._string()
            return TreeNode(start, self.at, value)
        if number := _NUMBER.match(self.text, start):
            return self._number(number)
        word = _WORD.match(self.text, start)
        if word is None:
            self._note(start, start + 1, f"a value is missing: {where} has none", "write a value here")
            return TreeNode(start, start)
        return self._word(word)

    def _object(self) -> TreeNode:
        members: list[Member] = []
        node = TreeNode(self.at, self.at, members=members)
        self._enter("}")
        while self._goes_on(node):
            start = self.at
            name = self._key()
            if name is None:
                continue
            end = self.at
            self._skip()
            self._colon(name, start, end)
            value = self._value(f'"{name}"')
            members.append(Member(name, start, end, value))
            self._separator(start, value.end)
        self._leave(node)
        return node

    def _list(self) -> TreeNode:
        items: list[TreeNode] = []
        node = TreeNode(self.at, self.at, items=items)
        self._enter("]")
        while self._goes_on(node):
            start = self.at
            if self._next in ":=":
                self._pass(f"a list has no {self._next}", "remove it, or write an object: {...}")
                continue
            value = self._value("this place of the list")
            items.append(value)
            self._separator(start, value.end)
        self._leave(node)
        return node

    def _key(self) -> str | None:
        start, one = self.at, self._next
        if one in _QUOTES:
            return self._string()
        if one in "{[":
            self._note(start, start + 1, "a key is missing before this value", 'write "KEY": before it')
            self._separator(start, self._value("").end)
            return None
        word = _WORD.match(self.text, start)
        if word is None:
            self._pass(f"a key is wanted here, not {one}", f"remove {one}")
            return None
        self.at = word.end()
        self._note(start, self.at, f"the key {word.group()} has no quotes", f'write "{word.group()}"')
        return word.group()

    def _colon(self, name: str, start: int, end: int) -> None:
        if self._next == "=":
            self._pass(f'a colon is wanted after "{name}", not =', f'write "{name}": ')
        elif self._next == ":":
            self.at += 1
        else:
            self._note(start, end, f'a colon is missing after "{name}"', f'write "{name}": ')
        self._skip()

    def _separator(self, start: int, end: int) -> None:
        """Read up to the next member after one that went from `start` to `end`: a comma, but not before a bracket."""
        self._skip()
        one, comma = self._next, self.at
        if one == ",":
            self.at += 1
            self._skip()
            if self._next and self._next in "}]":
                self._note(
                    comma, comma + 1, f"a comma stands before {self._next}", f"remove the comma before {self._next}"
                )
            self._commas("there are two commas", "remove one")
        elif one == ";":
            self._pass("a comma is wanted here, not ;", "write ,")
        elif one and one not in "}]":
            shown = self._shown(start, end)
            start = end - 1 if "\n" in self.text[start:end] else start
            self._note(start, end, f"a comma is missing after {shown}", f"write {shown},")
            self.at += one in ":="  # as in {"a": "b": 1}

    def _string(self) -> str:
        start, quote = self.at, self.text[self.at]
        closing, self.at = _QUOTES[quote], self.at + 1
        parts: list[str] = []
        while True:
            one = self._next
            if one == "" or one == "\n":
                return self._unclosed(start, "".join(parts))
            self.at += 1
            if one == closing:
                break
            if one == "\\":
                parts.append(self._escape())
            else:
                if one < " ":
                    shown = {"\t": "a tab", "\r": "a carriage return"}.get(one, "a control character")
                    self._note(self.at - 1, self.at, f"there is {shown} in a string", f"write {json.dumps(one)[1:-1]}")
                parts.append(one)
        text = "".join(parts)
        try:  # a pair of surrogates, written as two escapes, is one character
            text = text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._note(start, self.at, "has half of a surrogate pair (\\ud800 to \\udfff)", "remove it")
        if quote != '"':
            self._note(start, self.at, f"strings stand between straight double quotes, not {quote}", f'write "{text}"')
        return text

    def _unclosed(self, start: int, text: str) -> str:
        """The string that begins at `start` and has no end on its line."""
        self._note(start, self.at, "the string is not closed on its line", 'write " where it ends')
        kept = text.rstrip()
        if kept.endswith(","):  # most likely the comma after it
            self.at = self.text.rindex(",", start, self.at)
            kept = kept[:-1]
        return kept

    def _escape(self) -> str:
        match = _ESCAPE.match(self.text, self.at)
        if match is None:
            self._note(self.at - 1, self.at + 1, "a \\ in a string begins an escape, and this is not one", "write \\\\")
            return "\\"
        self.at = match.end()
        code = match.group()
        if code[0] == "u":
            return chr(int(code[1:], 16))
        return str(json.loads(f'"\\{code}"'))

    def _number(self, match: re.Match[str]) -> TreeNode:
        start, text = self.at, match.group()
        self.at = match.end()
        if match.group(1) is None and match.group(2) is None:
            if len(text) > _MOST_DIGITS:
                self._note(start, self.at, f"a number of {len(text)} digits is too long", "write a smaller one")
                return TreeNode(start, self.at, 0)
            return TreeNode(start, self.at, int(text))
        value = float(text)
        if value - value != 0:
            self._note(start, self.at, f"number {text[:20]} is too large", "write a smaller one")
        return TreeNode(start, self.at, value)

    def _word(self, match: re.Match[str]) -> TreeNode:
        start, word = self.at, match.group()
        self.at = match.end()
        if word in _LITERALS:
            return TreeNode(start, self.at, _LITERALS[word])
        if word.lower() in _LITERALS or word == "None":
            plain = "null" if word == "None" else word.lower()
            self._note(start, self.at, f"{word} is no JSON", f"write {plain}")
            return TreeNode(start, self.at, _LITERALS[plain])
        if word.isascii() and word.isdigit() and len(word) < _MOST_DIGITS:
            self._note(start, self.at, f"{word} begins with a zero", f"write {int(word)}")
            return TreeNode(start, self.at, int(word))
        self._note(start, self.at, f"{word[:40]} has no quotes", f'write "{word[:40]}"')
        return TreeNode(start, self.at, word)

    # --- between the parts ---

    @property
    def _next(self) -> str:
        """The next character, "" at the end."""
        return self.text[self.at : self.at + 1]

    def _pass(self, message: str, fix: str) -> None:
        """Pass over a character that is no JSON here."""
        self._note(self.at, self.at + 1, message, fix)
        self.at += 1

    def _commas(self, message: str, fix: str) -> None:
        """Pass over commas that are too many."""
        while self._next == ",":
            self._pass(message, fix)
            self._skip()

    def _enter(self, closing: str) -> None:
        self._open.append(closing)
        self.at += 1
        self._skip()
        self._commas("there is nothing before this comma", "remove it")

    def _goes_on(self, node: TreeNode) -> bool:
        """Whether the object or list has another member; otherwise its closing bracket is read, or noted as missing."""
        self._skip()
        if self.at == len(self.text):
            self._unclosed_bracket(node)
            return False
        one = self.text[self.at]
        if one not in "}]":
            return True
        if one == self._open[-1]:
            self.at += 1
        elif one in self._open:  # that of one further out: ours is missing
            self._unclosed_bracket(node)
        else:
            self._pass(f"{self._open[-1]} is wanted here, not {one}", f"write {self._open[-1]}")
        return False

    def _unclosed_bracket(self, node: TreeNode) -> None:
        opening = self.text[node.start]
        message = f"the {opening} here is never closed"
        self._note(node.start, node.start + 1, message, f"write {self._open[-1]} where it ends")

    def _leave(self, node: TreeNode) -> None:
        self._open.pop()
        node.end = self.at

    def _skip(self) -> None:
        """Go to the next character that means something."""
        while True:
            blank = _BLANK.match(self.text, self.at)
            self.at = blank.end() if blank else self.at
            if comment := _COMMENT.match(self.text, self.at):
                self._note(self.at, comment.end(), "JSON has no comments", "remove it")
                self.at = comment.end()
            elif foreign := _FOREIGN_BLANK.match(self.text, self.at):
                shown = f"U+{ord(foreign.group()[0]):04X}"
                self._note(self.at, foreign.end(), f"JSON does not have the white space {shown}", "write a space")
                self.at = foreign.end()
            else:
                return

    def _shown(self, start: int, end: int) -> str:
        text = " ".join(self.text[start:end].split())
        return text if len(text) <= 60 else text[-1]

    def _note(self, start: int, end: int, message: str, fix: str) -> None:
        if len(self.faults) > 4 * _MOST_FAULTS:
            raise DocumentTooLarge("it has too many faults")
        self.faults.append(Syntax(start, max(start, min(end, len(self.text))), message, fix))
