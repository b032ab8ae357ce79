"""What crosses the API: sampling parameters in, outputs out.  Plain data, no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from allmetal.constraint import StructuredOutput as StructuredOutput
from allmetal.constraint import Thinking as Thinking
from allmetal.errors import RequestError

FinishReason: TypeAlias = Literal["stop", "length", "abort", "error"]

LARGEST = 1e6
"""Of what logits are scaled or shifted by, so that no product or sum of theirs overflows."""

_INTEGERS = ("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs", "prompt_logprobs")
_REALS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_MANY: Mapping[str, type] = {
    "stop": str,
    "bad_words": str,
    "shown_special_tokens": str,
    "stop_token_ids": int,
    "allowed_token_ids": int,
    "bad_word_ids": Collection,
}
_NAMES: Mapping[type, str] = {str: "texts", int: "token ids", Collection: "tuples of token ids"}
_OPTIONAL = frozenset({"max_tokens", "seed", "logprobs", "prompt_logprobs", "allowed_token_ids"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request chooses its tokens.

    The order of effects is: allowed ids, bad words, bias and minimum length, penalties,
    temperature, min-p, top-k, top-p.  Reported logprobs are of the raw distribution.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None  # None: off; 0: of the chosen token only
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    shown_special_tokens: tuple[str, ...] = ()  # those that stay in the text all the same
    structured: StructuredOutput | None = None
    thinking: Thinking | None = None

    def __post_init__(self) -> None:
        for rules in (self._types, self._rules):  # ranges are asked of the right types only
            for ok, message in rules():
                if not ok:
                    hint = "see docs/sampling.md for each parameter's range"
                    raise RequestError(message, hint=hint)

    def _types(self) -> Iterator[tuple[bool, str]]:
        """Where Python would go on for a while, and fail far from here."""
        for name in _INTEGERS:
            value = getattr(self, name)
            plain = isinstance(value, int) and not isinstance(value, bool)
            fits = plain or (value is None and name in _OPTIONAL)
            yield fits, f"{name} must be an integer, not {value!r}"
            small = value is None or -(2**63) <= value < 2**63
            yield small, f"{name} must fit into 64 bits, {value} does not"
        for name in _REALS:
            value = getattr(self, name)
            yield isinstance(value, int | float), f"{name} must be a number, not {value!r}"
        for name, kind in _MANY.items():
            values = getattr(self, name)
            fits = (values is None and name in _OPTIONAL) or (
                isinstance(values, Collection)
                and not isinstance(values, str | bytes | Mapping)
                and all(isinstance(value, kind) for value in values)
            )
            yield fits, f"{name} must be a tuple of {_NAMES[kind]}, not {values!r}"
        for name, kind in (("structured", StructuredOutput), ("thinking", Thinking)):
            value = getattr(self, name)
            fits = value is None or isinstance(value, kind)
            yield fits, f"{name} must be a {kind.__name__}, not {value!r}"
        bias = self.logit_bias
        fits = isinstance(bias, Mapping) and all(
            isinstance(token, int) and isinstance(value, int | float)
            for token, value in bias.items()
        )
        yield fits, f"logit_bias must map token ids to numbers, not {bias!r}"

    def _rules(self) -> tuple[tuple[bool, str], ...]:
        return (
            (self.n >= 1, f"n must be at least 1, not {self.n}"),
            (
                self.max_tokens is None or self.max_tokens >= 1,
                f"max_tokens must be at least 1, not {self.max_tokens}",
            ),
            (self.min_tokens >= 0, f"min_tokens must not be negative, not {self.min_tokens}"),
            (
                self.max_tokens is None or self.min_tokens <= self.max_tokens,
                f"min_tokens ({self.min_tokens}) exceeds max_tokens ({self.max_tokens})",
            ),
            (
                0 <= self.temperature <= LARGEST,
                f"temperature must be in [0, {LARGEST:g}], not {self.temperature}",
            ),
            (self.top_k >= 0, f"top_k must be 0 (off) or positive, not {self.top_k}"),
            (0 < self.top_p <= 1, f"top_p must be in (0, 1], not {self.top_p}"),
            (0 <= self.min_p <= 1, f"min_p must be in [0, 1], not {self.min_p}"),
            (
                -2 <= self.presence_penalty <= 2,
                f"presence_penalty must be in [-2, 2], not {self.presence_penalty}",
            ),
            (
                -2 <= self.frequency_penalty <= 2,
                f"frequency_penalty must be in [-2, 2], not {self.frequency_penalty}",
            ),
            (
                1 / LARGEST <= self.repetition_penalty <= LARGEST,
                f"repetition_penalty must be in [{1 / LARGEST:g}, {LARGEST:g}], "
                f"not {self.repetition_penalty}",
            ),
            (
                self.logprobs is None or self.logprobs >= 0,
                f"logprobs must not be negative, not {self.logprobs}",
            ),
            (
                self.prompt_logprobs is None or self.prompt_logprobs >= 0,
                f"prompt_logprobs must not be negative, not {self.prompt_logprobs}",
            ),
            (all(self.stop), "a stop string must not be empty"),
            (all(self.bad_words), "a bad word must not be empty"),
            (
                all(-LARGEST <= value <= LARGEST for value in self.logit_bias.values()),
                f"logit_bias values must be in [-{LARGEST:g}, {LARGEST:g}]",
            ),
            (
                self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
                "allowed_token_ids must name at least one token",
            ),
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """What a text's vector is made of.  `second_at`: where its second segment begins, of a pair."""

    second_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence for the engine: token ids in, token ids out.

    `sampling` is resolved: n is 1, bad words are ids, stop strings stay with the caller.
    Lower `priority` runs first.  `cache_salt` keeps prefix reuse within one salt.  With `pooling`
    a vector of the prompt is wanted, and no token.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str = ""
    pooling: PoolingParams | None = None


class Logprobs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Log probabilities at one position: the chosen token first, then the most likely ones.

    `ranks[0]` is the chosen token's rank (1 is the most likely).
    """

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


class Refusal(msgspec.Struct, frozen=True):
    """Why a request that was taken cannot be served after all, and what would help."""

    message: str
    hint: str | None = None


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one engine step adds to one request.  A Struct, since hundreds are made a step."""

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[Logprobs] | None = None
    prompt_logprobs: list[Logprobs | None] | None = None
    num_cached_tokens: int = 0
    queue_s: float = 0.0
    error: str | None = None
    refusal: Refusal | None = None
    pooled: bytes | None = None


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One of a request's n completions, as far as it has come."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A request with its completions; `finished` once all of them are.

    `queue_s`: how long it waited for its first step.  `error` says why where a completion's finish
    reason is "error"; `refusal`, where it was the request's fault.  `pooled`: the vector of a
    prompt that is not continued, as `engine.vectors` reads it.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[Logprobs | None] | None = None
    num_cached_tokens: int = 0
    queue_s: float = 0.0
    finished: bool = False
    error: str | None = None
    refusal: Refusal | None = None
    pooled: bytes | None = None
