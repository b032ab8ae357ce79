"""Scaling of the rotary embedding, from metadata and factor tensors to Hugging Face's words.

A GGUF file of Llama 3.1 and later holds no parameters of its scaling but the factor of each
frequency (rope_freqs.weight).  Its parameters are found again from the factors, or the factors are
given as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol


class _Facts(Protocol):
    @property
    def factors(self) -> Mapping[str, list[float]]: ...
    def get(self, key: str, default: Any = None) -> Any: ...


LLAMA3_ORIGINAL = 8192
"""Positions Llama 3 was trained for; with low and high factors 1 and 4 in all its releases."""


def rope_scaling(facts: _Facts, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The value of "rope_scaling"; None when frequencies are as trained."""
    original = facts.get("rope.scaling.original_context_length")
    if "rope_factors_long.weight" in facts.factors:
        return {
            "rope_type": "longrope",
            "long_factor": facts.factors["rope_factors_long.weight"],
            "short_factor": facts.factors["rope_factors_short.weight"],
            "original_max_position_embeddings": original,
        }
    if "rope_freqs.weight" in facts.factors:
        return _from_frequencies(facts.factors["rope_freqs.weight"], config)
    kind = facts.get("rope.scaling.type", "none")
    factor = facts.get("rope.scaling.factor", facts.get("rope.scale_linear"))
    if factor is None or kind == "none":
        return None
    if kind == "yarn":
        return _yarn(facts, factor, original or config["max_position_embeddings"])
    return {"rope_type": kind, "factor": factor}


def _yarn(facts: _Facts, factor: float, original: int) -> dict[str, Any]:
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    extras = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
    for key, name in extras.items():
        value = facts.get(f"rope.scaling.{key}")
        if value is not None:
            scaling[name] = value
    return scaling


def _from_frequencies(factors: list[float], config: Mapping[str, Any]) -> dict[str, Any] | None:
    if all(factor == 1.0 for factor in factors):
        return None
    largest = max(factors)
    expected = llama3_factors(len(factors), config["rope_theta"], largest)
    if all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(factors, expected, strict=True)):
        return {
            "rope_type": "llama3",
            "factor": largest,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": LLAMA3_ORIGINAL,
        }
    return {
        "rope_type": "longrope",
        "long_factor": factors,
        "short_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }


def llama3_factors(count: int, theta: float, factor: float) -> list[float]:
    """What Llama 3.1's scaling divides each of `count` frequencies by."""
    low, high = 1.0, 4.0
    out = []
    for i in range(count):
        wavelength = 2 * math.pi * theta ** (i / count)
        if wavelength < LLAMA3_ORIGINAL / high:
            out.append(1.0)
        elif wavelength > LLAMA3_ORIGINAL / low:
            out.append(factor)
        else:
            smooth = (LLAMA3_ORIGINAL / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return out
