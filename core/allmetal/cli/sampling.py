"""Sampling flags of `run` and `chat`, made from SamplingParams."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from allmetal.cli.options import add_options, given
from allmetal.request import SamplingParams

DOCS = {
    "max_tokens": "most tokens to generate",
    "min_tokens": "no end before this many tokens",
    "temperature": "0 takes the most likely token each time; higher is more random",
    "top_k": "sample from the k most likely tokens; 0: from all",
    "top_p": "sample from the most likely tokens that together have this probability",
    "min_p": "drop tokens less likely than this share of the most likely one",
    "presence_penalty": "lower the logit of tokens that were generated",
    "frequency_penalty": "the same, for each time they were",
    "repetition_penalty": "divide the logit of tokens in prompt or output; 1: off",
    "stop": "end where this text comes; may be given several times",
    "stop_token_ids": "end after this token; may be given several times",
    "include_stop_str_in_output": "keep the stop text in the output",
    "ignore_eos": "go on past the end that the model sets",
    "logit_bias": "add BIAS to a token's logit; may be given several times",
    "allowed_token_ids": "allow no token but these; may be given several times",
    "bad_words": "never generate this text; may be given several times",
    "skip_special_tokens": "leave special tokens out of the text",
}

# One prompt, one text: no n, no logprobs.  --seed is the engine's.
SKIPPED = frozenset(
    {"n", "seed", "bad_word_ids", "logprobs", "prompt_logprobs"}
    | {"shown_special_tokens", "structured", "thinking"}
)


def add_sampling_options(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    add_options(
        parser,
        SamplingParams,
        skip=SKIPPED,
        docs=DOCS,
        defaults={"max_tokens": max_tokens},
        group="sampling (default: as the model's makers recommend)",
    )


def sampling_from(
    args: argparse.Namespace, recommended: Mapping[str, Any], *, max_tokens: int
) -> SamplingParams:
    """What was typed, else what the model's makers recommend, else the defaults."""
    return SamplingParams(
        **{"max_tokens": max_tokens, **recommended, **given(args, SamplingParams)}
    )
