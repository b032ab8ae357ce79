"""What a model gives for a whole text, where it gives anything but more text.  No torch here.

Sources: the `modules.json` of sentence-transformers; the heads of transformers' models for
sequence classification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from allmetal.errors import CheckpointError, ModelError
from allmetal.platform.contract import Task
from allmetal_models.config import HFConfig

Pooling: TypeAlias = Literal["cls", "mean", "last"]

ENCODERS = frozenset({"bert", "roberta", "xlm-roberta"})
"""Model types that see all of a text at once, and cannot continue it."""

_MODES: Mapping[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_CLASSIFIER = "ForSequenceClassification"
_KNOWN_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """Which of a text's hidden states count, and what is made of them.

    `num_labels` 0: they are the result, of length 1 if `normalize`; else a head scores labels.
    """

    kind: Pooling
    normalize: bool = False
    num_labels: int = 0


def task_of(hf: HFConfig, modules: Mapping[str, Any], asked: str = "auto") -> Task:
    """What the checkpoint is for, or what was asked.  ModelError where it cannot do that.

    `modules`: those of sentence-transformers, by kind (see `Checkpoint.modules`).
    """
    classifier = any(name.endswith(_CLASSIFIER) for name in hf.get("architectures") or ())
    own: Task = "generate"
    if classifier:
        own = "classify"
    elif modules or hf.get("model_type") in ENCODERS:
        own = "embed"
    if asked in ("auto", own):
        return own
    if asked == "classify":
        raise ModelError("this checkpoint has no head that scores labels", hint="leave --task out")
    if asked == "generate" and (classifier or hf.get("model_type") in ENCODERS):
        raise ModelError("this model cannot continue a text", hint=f"--task {own}")
    return "generate" if asked == "generate" else "embed"


def pooling_config(hf: HFConfig, modules: Mapping[str, Any], task: Task) -> PoolingConfig | None:
    """None for a model that generates.  Without a word of its own an encoder's vectors are the
    mean over the text's tokens and a decoder's the last token's, brought to length 1."""
    encoder = hf.get("model_type") in ENCODERS
    if task == "generate":
        return None
    if task == "classify":
        return PoolingConfig(kind="cls" if encoder else "last", num_labels=len(labels_of(hf)))
    if unknown := sorted(set(modules) - _KNOWN_MODULES):
        raise ModelError(f"vectors of this checkpoint go through {', '.join(unknown)}")
    if "Pooling" not in modules:
        return PoolingConfig(kind="mean" if encoder else "last", normalize=True)
    return PoolingConfig(kind=_kind(modules["Pooling"]), normalize="Normalize" in modules)


def _kind(settings: Mapping[str, Any]) -> Pooling:
    chosen = [
        name for name, on in settings.items() if name.startswith("pooling_mode_") and on is True
    ]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        raise ModelError(
            f"pooling by {' and '.join(chosen) or 'nothing'} is not known; "
            f"there are {', '.join(_MODES)}"
        )
    return _MODES[chosen[0]]


def labels_of(hf: HFConfig) -> tuple[str, ...]:
    """In the order of their scores.  transformers leaves out the two it gives unasked."""
    named = hf.get("id2label")
    if not isinstance(named, Mapping):
        count = hf.get("num_labels", 2)
        if not isinstance(count, int) or count < 1:
            raise CheckpointError(f"config.json: there are {count!r} labels")
        return tuple(f"LABEL_{index}" for index in range(count))
    try:
        return tuple(str(named[key]) for key in sorted(named, key=int))
    except ValueError:
        raise CheckpointError("config.json: id2label must be keyed by numbers") from None
