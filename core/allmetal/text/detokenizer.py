"""Text as tokens come: whole characters only, and nothing that may still become a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from allmetal.text.pieces import Pieces
from allmetal.text.tokenizer import Tokenizer

_TAIL = 4
"""Tokens of the prompt that may hold the start of a character: it has four bytes at most."""


class Detokenizer:
    """One sequence's output.  However its tokens are handed over, the text is the same.

    A stop string is found as soon as its last character is there; of several the one that is
    complete first.  What follows it is dropped, and so is the stop string itself unless
    `include_stop_str_in_output`.  Within the first `min_tokens` tokens none is looked for.
    Of special tokens that are skipped, those in `shown` are not.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        shown: Sequence[str] = (),
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self.stopped: str | None = None
        self.num_tokens = 0
        """Tokens taken, up to the one that completed the stop string."""
        self._stops = tuple(stop)
        self._include = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._held = ""
        skip = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        kept = {tokenizer.backend.token_to_id(token) for token in shown}
        skip -= kept
        self._stream: _Stream
        if tokenizer.pieces is not None:
            self._stream = _ByteStream(tokenizer.pieces, prompt_token_ids, skip)
        else:
            self._stream = _WindowStream(tokenizer, prompt_token_ids, skip)

    def push(self, token_ids: Sequence[int]) -> str:
        """What these tokens make safe to show.  After a stop string: nothing."""
        shown = []
        for token_id in token_ids:
            if self.stopped is not None:
                break
            self.num_tokens += 1
            text = self._stream.push(token_id)
            if text:
                shown.append(self._pass(text))
        return "".join(shown)

    def finish(self) -> str:
        """What was held back; bytes that make no character become U+FFFD.  Call it once."""
        if self.stopped is not None:
            return ""
        text = self._pass(self._stream.finish())
        if self.stopped is None:
            text += self._held
            self._held = ""
        return text

    def _pass(self, text: str) -> str:
        if not self._stops or self.num_tokens <= self._min_tokens:
            return text
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, start, self.stopped = min(found)
            self._held = ""
            return text[: end if self._include else start]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that `stop` starts with."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


class _Stream(Protocol):
    def push(self, token_id: int) -> str: ...
    def finish(self) -> str: ...


class _ByteStream:
    """Each token's bytes through an incremental UTF-8 decoder."""

    def __init__(self, pieces: Pieces, prompt: Sequence[int], skip: frozenset[int]) -> None:
        self._pieces = pieces
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token_id in prompt[-_TAIL:]:
            self.push(token_id)
        shows_prompt = any(token_id not in skip for token_id in prompt)
        self._strip = pieces.strips_first_space and not shows_prompt

    _strip = False

    def push(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        text = self._decoder.decode(self._pieces.bytes_of(token_id))
        if self._strip and text:
            self._strip = False
            text = text.removeprefix(" ")
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowStream:
    """For decoders that look at several tokens: decodes a window twice and takes the difference.

    The window starts at tokens whose text is settled, so that spacing comes out right.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skip = skip
        self._window = list(prompt[-_TAIL:])
        self._settled = len(self._window)

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        return self._take(final=False)

    def finish(self) -> str:
        return self._take(final=True)

    def _take(self, *, final: bool) -> str:
        before = self._decode(self._window[: self._settled])
        after = self._decode(self._window)
        if len(after) <= len(before) or (after.endswith("\ufffd") and not final):
            return ""
        self._window = self._window[self._settled :]
        self._settled = len(self._window)
        return after[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        shown = [token_id for token_id in token_ids if token_id not in self._skip]
        return self._tokenizer.decode(shown, skip_special_tokens=False)
