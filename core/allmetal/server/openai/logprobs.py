"""Log probabilities in the two shapes that the OpenAI API has for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from allmetal.request import Logprobs
from allmetal.text.tokenizer import Tokenizer

# JSON has no infinity; a token that cannot come gets the least the API's clients expect.
_LEAST = -9999.0


@dataclass(frozen=True, slots=True)
class TokenText:
    """Single tokens as text.  Half a character shows as U+FFFD; its bytes are exact."""

    tokenizer: Tokenizer

    def bytes_of(self, token_id: int) -> bytes:
        return self.tokenizer.token_bytes(token_id)

    def __call__(self, token_id: int) -> str:
        return self.bytes_of(token_id).decode(errors="replace")


def for_chat(text: TokenText, entries: Sequence[Logprobs], top: int) -> dict[str, Any]:
    """`{"content": [{token, logprob, bytes, top_logprobs}, ..]}`."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        raw = text.bytes_of(token_id)
        token = raw.decode(errors="replace")
        return {"token": token, "logprob": _finite(logprob), "bytes": list(raw)}

    content = []
    for entry in entries:
        pairs = list(zip(entry.token_ids, entry.logprobs, strict=True))
        best = [one(*pair) for pair in pairs[1 : 1 + top]]
        content.append({**one(*pairs[0]), "top_logprobs": best})
    return {"content": content, "refusal": None}


@dataclass(slots=True)
class CompletionLogprobs:
    """`{tokens, token_logprobs, top_logprobs, text_offset}` of one choice, piece by piece."""

    text: TokenText
    offset: int = 0

    def add(self, entries: Sequence[Logprobs | None], token_ids: Sequence[int]) -> dict[str, Any]:
        """An entry is None for the first token of a prompt, before which there is nothing."""
        tokens = [self.text(token_id) for token_id in token_ids]
        offsets = []
        for token in tokens:
            offsets.append(self.offset)
            self.offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [e and _finite(e.logprobs[0]) for e in entries],
            "top_logprobs": [e and self._top(e) for e in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: Logprobs) -> dict[str, float]:
        pairs = list(zip(entry.token_ids, entry.logprobs, strict=True))
        # The chosen token is listed too, be it likely or not.
        return {self.text(i): _finite(value) for i, value in [*pairs[1:], pairs[0]]}


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {name: first[name] + second[name] for name in first}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST
