"""Tiny models with random weights, one of each kind of layer: a config, and a checkpoint of it.

Weights are as large as trained ones act, so that tokens differ and a wrong layer shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from allmetal.platform.reference import kernels
from allmetal.platform.select import Kernels
from allmetal.platform.specs import DenseWeight
from allmetal_models.context import BuildContext
from allmetal_models.registry import build_model

VOCAB = 212
"""Two ranks can share it."""
MAX_POSITIONS = 1024
_SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": MAX_POSITIONS,
    "rope_theta": 3000.0,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
}
WINDOW = 19


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """`features`: what its layers need beside numbers.  `quantization`: while loading."""

    name: str
    config: Mapping[str, Any]
    features: tuple[str, ...] = ()
    quantization: str | None = None

    def __str__(self) -> str:
        return self.name


def _kind(name: str, model_type: str, *features: str, **changes: Any) -> Kind:
    quantization = changes.pop("quantization", None)
    config = {**_SIZES, "model_type": model_type, **changes}
    return Kind(name, config, features, quantization)


_SLIDES, _CAPS = "attention.sliding_window", "attention.soft_cap"
KINDS = (
    _kind("dense", "llama"),
    _kind("every-head-its-own", "llama", num_key_value_heads=4, tie_word_embeddings=True),
    _kind("biases", "qwen2", num_key_value_heads=1, use_sliding_window=False),
    _kind("window", "mistral", _SLIDES, sliding_window=WINDOW),
    _kind(
        "soft-cap",
        "gemma2",
        _SLIDES,
        _CAPS,
        sliding_window=WINDOW,
        sliding_window_pattern=2,
        query_pre_attn_scalar=64,
        attn_logit_softcapping=2.0,
        tie_word_embeddings=False,
        final_logit_softcapping=6.0,
    ),
    _kind(
        "window-and-full",
        "gemma3_text",
        _SLIDES,
        num_hidden_layers=4,
        sliding_window=WINDOW,
        sliding_window_pattern=2,
        query_pre_attn_scalar=64,
        rope_local_base_freq=200.0,
        tie_word_embeddings=False,
    ),
    _kind("norm-of-each-head", "qwen3", use_sliding_window=False),
    _kind("norm-of-all-heads", "olmo2"),
    _kind("half-a-head-rotates", "phi3", partial_rotary_factor=0.5, sliding_window=None),
    _kind("rotates-in-pairs", "glm4", partial_rotary_factor=0.5),
    _kind("no-rotation", "smollm3", no_rope_layers=[1, 0]),
    _kind("int8-weights", "llama", "quant.int8", quantization="int8"),
)
"""Each is of a model type that the core has; its name is what is special."""


def save_model(kind: Kind, folder: Path) -> Path:
    """Write config.json and weights; the same every time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(kind.config)))
    context = BuildContext(
        kernels=Kernels(kernels()),
        dtype=torch.float32,
        device=torch.device("meta"),
        kv_dtype="float32",
        block_size=16,
        weight_format=lambda name: DenseWeight(dtype="float32"),
        quantization=None,
        max_model_len=MAX_POSITIONS,
    )
    shapes = build_model(kind.config, context).weight_shapes
    generator = torch.Generator().manual_seed(0)
    centred = str(kind.config["model_type"]).startswith("gemma")
    tensors = {
        name: _values(name, shape, generator, centred=centred) for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def _values(
    name: str, shape: tuple[int, ...], generator: torch.Generator, *, centred: bool
) -> torch.Tensor:
    """`centred`: norms add one to their weight themselves."""
    noise: torch.Tensor = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return 0.3 * noise + (0.0 if centred or "bias" in name else 1.0)
    # A table that outweighs the layers would make a tied model repeat its input.
    size = 0.3 if "embed_tokens" in name else 1.3
    return noise * (size / math.sqrt(shape[-1]))
