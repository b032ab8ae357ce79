"""Sampling as a model's makers recommend it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allmetal.errors import CheckpointError, RequestError
from allmetal.request import SamplingParams

_RECOMMENDED = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
}


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SamplingParams that generation_config.json sets.

    They stand in where a user of the server or the command line is silent; `LLM.generate` takes
    SamplingParams as they are.  Raises CheckpointError for a value that no request could have.
    """
    found = {
        name: kind(value)
        for name, kind in _RECOMMENDED.items()
        if isinstance(value := generation_config.get(name), int | float)
        and not isinstance(value, bool)
    }
    if found.get("top_k") == -1:  # how others write "off"
        found["top_k"] = 0
    try:
        SamplingParams(**found)
    except RequestError as error:
        raise CheckpointError(
            f"generation_config.json: {error.message}", hint="mend or remove that field"
        ) from None
    return found
