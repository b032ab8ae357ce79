"""JSON as models write it, checked as it comes: what goes on is JSON or a beginning of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

_State: TypeAlias = Callable[[str, int, list[str]], int]
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")
_WORDS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",  # models that know Python slip
    "False": "false",
    "None": "null",
}
_SPACE = " \t\r\n"
_CLOSES = {"{": "}", "[": "]"}
_DEEPEST = 512


class JSONText:
    """One JSON value, character by character, without recursion.

    Mended on the way: line breaks and other control characters within strings, escapes that JSON
    does not have, True, False and None.  Anything else that is no JSON sets `bad`.
    """

    def __init__(self) -> None:
        self.done = False
        self.bad = False
        self._open: list[str] = []
        self._state: _State = self._value
        self._word = ""  # a number or a name, held until it is whole
        self._hex = 0
        self._is_key = False
        self._may_close = False

    def feed(self, text: str, start: int = 0) -> tuple[int, str]:
        """Take `text` from `start` on, up to the value's end or its first wrong character.

        Gives the index of the first character not taken, and what to pass on.
        """
        out: list[str] = []
        at = start
        while at < len(text) and not (self.done or self.bad):
            at = self._state(text, at, out)
        return at, "".join(out)

    def finish(self) -> str:
        """The text ends here: a number that was held is whole.  Sets `bad` if the value is not."""
        out: list[str] = []
        if self._word:
            self._end_word(out)
        if not self.done:
            self.bad = True
        return "".join(out)

    # ---- states: each takes text[at:] some way, and says how far -------------------------------

    def _value(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        closing, self._may_close = self._may_close, False
        if char in _SPACE:
            self._may_close = closing
            out.append(char)
        elif char in "{[":
            if len(self._open) == _DEEPEST:
                return self._fail(at)
            self._open.append(char)
            self._state = self._key if char == "{" else self._value
            self._may_close = True
            out.append(char)
        elif char == "]" and closing:
            self._close(char, out)
        elif char == '"':
            self._is_key = False
            self._state = self._string
            out.append(char)
        elif char.isalnum() or char == "-":
            self._state = self._in_word
            return at
        else:
            return self._fail(at)
        return at + 1

    def _key(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        if char == '"':
            self._is_key = True
            self._state = self._string
        elif char == "}" and self._may_close:
            self._close(char, out)
            return at + 1
        elif char not in _SPACE:
            return self._fail(at)
        self._may_close = self._may_close and char in _SPACE
        out.append(char)
        return at + 1

    def _colon(self, text: str, at: int, out: list[str]) -> int:
        if text[at] == ":":
            self._state = self._value
        elif text[at] not in _SPACE:
            return self._fail(at)
        out.append(text[at])
        return at + 1

    def _after(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        if char == ",":
            self._state = self._key if self._open[-1] == "{" else self._value
            self._may_close = False
            out.append(char)
        elif char == _CLOSES[self._open[-1]]:
            self._close(char, out)
        elif char in _SPACE:
            out.append(char)
        else:
            return self._fail(at)
        return at + 1

    def _string(self, text: str, at: int, out: list[str]) -> int:
        if plain := _PLAIN.match(text, at):
            out.append(plain[0])
            return plain.end()
        char = text[at]
        if char == '"':
            out.append(char)
            if self._is_key:
                self._state = self._colon
            else:
                self._end_value()
        elif char == "\\":
            self._state = self._escape
        else:
            out.append(f"\\u{ord(char):04x}" if char != "\n" else "\\n")
        return at + 1

    def _escape(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        self._state = self._string
        if char in '"\\/bfnrt':
            out.append(f"\\{char}")
        elif char == "u":
            self._state, self._hex = self._in_hex, 4
            self._word = ""
        else:  # no escape of JSON's: the backslash stands for itself
            out.append("\\\\")
            return at
        return at + 1

    def _in_hex(self, text: str, at: int, out: list[str]) -> int:
        if text[at] not in "0123456789abcdefABCDEF":
            return self._fail(at)
        self._word += text[at]
        if len(self._word) == 4:
            out.append(f"\\u{self._word}")
            self._word = ""
            self._state = self._string
        return at + 1

    def _in_word(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        if (char.isalnum() or char in "+-.") and len(self._word) < 400:
            self._word += char
            return at + 1
        self._end_word(out)
        return at

    # ---- ends ------------------------------------------------------------------------------

    def _end_word(self, out: list[str]) -> None:
        word, self._word = self._word, ""
        known = word if _NUMBER.match(word) else _WORDS.get(word)
        if self._state != self._in_word or known is None:
            self.bad = True
            return
        out.append(known)
        self._end_value()

    def _close(self, char: str, out: list[str]) -> None:
        self._open.pop()
        out.append(char)
        self._end_value()

    def _end_value(self) -> None:
        if self._open:
            self._state = self._after
        else:
            self.done = True

    def _fail(self, at: int) -> int:
        self.bad = True
        return at
