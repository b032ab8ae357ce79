"""What sampling parameters may hold."""

from __future__ import annotations

from typing import Any

import pytest

from allmetal.errors import RequestError
from allmetal.request import SamplingParams


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 1.5},
        {"max_tokens": "5"},
        {"max_tokens": 3.7},
        {"min_tokens": None},
        {"top_k": 1.5},
        {"seed": 1.5},
        {"logprobs": 0.5},
        {"logprobs": True},
        {"temperature": None},
        {"temperature": "0"},
        {"stop": "end"},
        {"stop": None},
        {"stop": ("a", 5)},
        {"bad_words": "word"},
        {"stop_token_ids": 5},
        {"stop_token_ids": ("a",)},
        {"allowed_token_ids": "ab"},
        {"bad_word_ids": (5,)},
        {"logit_bias": {"5": 1.0}},
        {"logit_bias": [(5, 1.0)]},
        {"logit_bias": None},
    ],
)
def test_a_wrong_type_is_refused_by_name(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(RequestError, match=f"^{name} must"):
        SamplingParams(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": 2**64},
        {"top_k": 10**30},
        {"temperature": 1e39},
        {"temperature": float("nan")},
        {"repetition_penalty": 1e-50},
        {"repetition_penalty": 1e39},
        {"repetition_penalty": float("nan")},
        {"logit_bias": {5: 1e39}},
        {"logit_bias": {5: float("inf")}},
        {"logit_bias": {5: float("nan")}},
        {"top_p": float("nan")},
        {"min_p": float("nan")},
        {"presence_penalty": float("nan")},
        {"frequency_penalty": float("nan")},
    ],
)
def test_what_would_overflow_is_refused(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(RequestError, match=f"^{name} "):
        SamplingParams(**wrong)


def test_lists_and_sets_do_as_well_as_tuples() -> None:
    SamplingParams(stop=["a"], stop_token_ids=[5], allowed_token_ids={5}, bad_word_ids=[[5, 6]])  # type: ignore[arg-type]
