"""The part of a config.json that decoders share.  No torch here: `facts` reads it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from allmetal.errors import CheckpointError, ModelError
from allmetal.platform.specs import Activation

HFConfig: TypeAlias = Mapping[str, Any]
"""A config.json as it was parsed."""

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes and settings under one set of names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    activation: Activation
    max_positions: int
    tie_embeddings: bool


def text_config(hf: HFConfig) -> HFConfig:
    """The language model's own config where a multimodal one wraps it."""
    nested = hf.get("text_config")
    return nested if isinstance(nested, Mapping) else hf


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """Reads the shared fields.  CheckpointError names one that is missing or no size."""
    said = {key: value for key, value in hf.items() if value is not None}

    def need(name: str) -> Any:
        if name not in said:
            raise CheckpointError(
                f"config.json of this {hf.get('model_type', 'model')} lacks {name!r}",
                hint="download the model's config.json again",
            )
        return said[name]

    def size(name: str, default: int | None = None) -> int:
        return count(name, need(name) if default is None else said.get(name, default))

    num_heads = size("num_attention_heads")
    hidden_size = size("hidden_size")
    return DecoderConfig(
        vocab_size=size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=size("intermediate_size"),
        num_layers=size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=size("num_key_value_heads", num_heads),
        head_dim=size("head_dim", hidden_size // num_heads),
        norm_eps=float(said.get("rms_norm_eps", 1e-6)),
        activation=activation(str(said.get("hidden_activation") or said.get("hidden_act", "silu"))),
        max_positions=size("max_position_embeddings"),
        tie_embeddings=bool(said.get("tie_word_embeddings", False)),
    )


def count(name: str, value: Any) -> int:
    """`value` as a number of at least 1.  CheckpointError, with the field's name, if it is none."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise CheckpointError(
            f"config.json: {name} must be a whole number of at least 1, not {value!r}",
            hint="download the model's config.json again",
        )
    return number


def activation(name: str) -> Activation:
    """Our name of an activation.  ModelError if there is none."""
    if name not in _ACTIVATIONS:
        raise ModelError(
            f"activation {name!r} is not known; there are {', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[name]


def layer_windows(layer_types: Sequence[str], sliding_window: int | None) -> tuple[int | None, ...]:
    """The attention window of each layer: `layer_types` says which layers slide."""
    kinds = {"full_attention": None, "sliding_attention": sliding_window}
    unknown = sorted(set(layer_types) - set(kinds))
    if unknown:
        raise ModelError(f"attention of kind {', '.join(unknown)} is not known")
    return tuple(kinds[kind] for kind in layer_types)


def every_nth_full(hf: HFConfig, num_layers: int) -> list[str]:
    """`layer_types`, or the older spelling: every `sliding_window_pattern`-th layer sees all."""
    period = int(hf["sliding_window_pattern"])
    return hf.get("layer_types") or [
        "sliding_attention" if (index + 1) % period else "full_attention"
        for index in range(num_layers)
    ]


def last_layers_slide(hf: HFConfig, num_layers: int) -> list[str]:
    """`layer_types`, or the older spelling: layers from `max_window_layers` on have a window."""
    first = int(hf["max_window_layers"]) if hf.get("use_sliding_window") else num_layers
    return hf.get("layer_types") or [
        "full_attention" if index < first else "sliding_attention" for index in range(num_layers)
    ]
