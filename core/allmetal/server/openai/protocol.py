"""Bodies of the OpenAI API, typed.  A null field means the same as an absent one.

What is not supported is refused by name rather than ignored: an answer that silently lacks what
was asked for is worse than none.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from allmetal.errors import RequestError

# What crosses to the engine has 64 bits.
Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# Each choice is a sequence with a state of its own from the start.
Choices = Annotated[int, msgspec.Meta(le=1024)]

# Each is a token with its number, at every position; the vocabulary has hundreds of thousands.
Entries = Annotated[int, msgspec.Meta(le=100)]


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class CommonRequest(msgspec.Struct, kw_only=True):
    """What completions and chat completions share."""

    # Accepted and without effect here: they are for the caller's or the vendor's books.
    inert: ClassVar[frozenset[str]] = frozenset(
        {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
    )
    # Known fields that cannot be had, unless they hold one of these values, which ask for nothing.
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[Int, float] | None = None
    stop: str | list[str] | None = None
    seed: Int | None = None

    # Beyond OpenAI's, named as other engines name them.
    top_k: Int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[Int] | None = None
    allowed_token_ids: list[Int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Entries | None = None
    priority: Int | None = None
    cache_salt: str | None = None


class CompletionRequest(CommonRequest, kw_only=True):
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "best_of": (1,),
        "tools": ([],),
        "suffix": ("",),
        "response_format": ({"type": "text"},),
    }

    prompt: str | list[str | Int | list[Int]]
    echo: bool | None = None
    logprobs: Entries | None = None


class ChatRequest(CommonRequest, kw_only=True):
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
    }

    messages: list[dict[str, Any]]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Entries | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


Body = TypeVar("Body", bound=CommonRequest)


def decode(raw: bytes, kind: type[Body]) -> Body:
    """A request body.  Raises RequestError naming the field that is wrong."""
    try:
        fields = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    if not isinstance(fields, dict):
        raise RequestError("the body must be a JSON object")
    fields = {name: value for name, value in fields.items() if value is not None}
    _check_names(fields, kind)
    try:
        return msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise RequestError(_readable(str(error))) from None


def _check_names(fields: Mapping[str, object], kind: type[CommonRequest]) -> None:
    known = set(kind.__struct_fields__)
    for name, value in fields.items():
        if name in known or name in kind.inert:
            continue
        if name in kind.refused:
            if value in kind.refused[name]:
                continue
            raise RequestError(f"{name} is not supported", hint=f"leave {name} out")
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "leave it out"
        raise RequestError(f"there is no parameter {name}", hint=hint)


def _readable(message: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.seed`" with the field first."""
    what, at, path = message.partition(" - at `$")
    if not at:
        return message
    return f"{path.rstrip('`').lstrip('.')}: {what[0].lower()}{what[1:]}"
