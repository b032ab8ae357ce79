"""From a model's raw vectors to what users ask for: embeddings, labels and scores."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from allmetal.errors import RequestError, StepFailedError
from allmetal.platform.contract import ModelFacts
from allmetal.request import RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """A text's vector, and how many tokens it took."""

    vector: list[float]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """`probabilities` of the model's labels, in their order: they sum to one, or, of a single
    label, are each in [0, 1]."""

    label: str
    probabilities: list[float]
    num_tokens: int


def pooled(output: RequestOutput) -> RequestOutput:
    """Itself, if it has a vector.  Raises StepFailedError where its step failed."""
    if output.pooled is None:
        raise StepFailedError(f"the step of this request failed: {output.error}")
    return output


def values_of(output: RequestOutput) -> list[float]:
    assert output.pooled is not None
    values = array("f")
    values.frombytes(output.pooled)
    return values.tolist()


def embedding(output: RequestOutput) -> Embedding:
    return Embedding(vector=values_of(output), num_tokens=len(output.prompt_token_ids))


def classification(output: RequestOutput, labels: Sequence[str]) -> Classification:
    shares = _probabilities(values_of(output))
    best = max(range(len(shares)), key=shares.__getitem__)
    return Classification(
        label=labels[best] if best < len(labels) else f"LABEL_{best}",
        probabilities=shares,
        num_tokens=len(output.prompt_token_ids),
    )


def relevance(output: RequestOutput) -> float:
    """Of a pair, by a model with one label, in [0, 1]."""
    [share] = _probabilities(values_of(output))
    return share


def similarity(a: Sequence[float], b: Sequence[float]) -> float:
    """The cosine of the angle between two vectors."""
    size = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / size if size else 0.0


def check_embeds(model: ModelFacts) -> None:
    """Raises RequestError for a model that makes no vectors."""
    if model.task != "embed":
        raise RequestError(
            f"this model was loaded to {model.task}, not to make vectors of texts",
            hint="start with --task embed, or take an embedding model",
        )


def check_classifies(model: ModelFacts) -> None:
    """Raises RequestError for a model without labels."""
    if model.task != "classify":
        raise RequestError(
            f"this model was loaded to {model.task}, and has no labels",
            hint="take a model for sequence classification",
        )


def judges_pairs(model: ModelFacts) -> bool:
    """Whether the model judges two texts together; else their vectors are compared.

    Raises RequestError where neither can be had.
    """
    if model.task == "embed":
        return False
    if model.task == "classify" and len(model.labels) == 1:
        return True
    raise RequestError(
        f"this model was loaded to {model.task} and cannot compare texts",
        hint="take an embedding model, or a reranker with one label",
    )


def _probabilities(scores: Sequence[float]) -> list[float]:
    if len(scores) == 1:
        return [_sigmoid(scores[0])]
    top = max(scores)
    shares = [math.exp(score - top) for score in scores]
    total = math.fsum(shares)
    return [share / total for share in shares]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
