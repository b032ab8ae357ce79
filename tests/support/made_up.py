"""Small model configs, and models of them with made-up weights: no transformers needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from allmetal.platform.reference import kernels
from allmetal.platform.select import Kernels
from allmetal.platform.specs import DenseWeight, WeightFormat
from allmetal.runner.weights import dummy_readers
from allmetal_models.base import CausalLM, WeightReader
from allmetal_models.context import BuildContext
from allmetal_models.registry import build_model

LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
PHI3 = {**LLAMA, "model_type": "phi3", "sliding_window": None}
GEMMA3 = {
    **LLAMA,
    "model_type": "gemma3_text",
    "head_dim": 16,
    "sliding_window": 8,
    "sliding_window_pattern": 2,
}
GLM4 = {**LLAMA, "model_type": "glm4", "head_dim": 16}
OLMO2 = {**LLAMA, "model_type": "olmo2"}


def dense(name: str) -> WeightFormat:
    return DenseWeight(dtype="float32")


def context(
    *,
    offered: Kernels | None = None,
    weight_format: Callable[[str], WeightFormat] = dense,
    quantization: str | None = None,
    dtype: torch.dtype = torch.float32,
    **ranks: Any,
) -> BuildContext:
    return BuildContext(
        kernels=offered or Kernels(kernels()),
        dtype=dtype,
        device=torch.device("cpu"),
        kv_dtype=str(dtype).removeprefix("torch."),
        block_size=4,
        weight_format=weight_format,
        quantization=quantization,
        max_model_len=64,
        **ranks,
    )


def scaled(readers: Iterable[tuple[str, WeightReader]]) -> Iterator[tuple[str, WeightReader]]:
    """Made-up weights are tiny; large ones let a wrong layer show in the result."""
    for name, reader in readers:
        yield name, Scaled(reader, 8.0 if "norm" not in name else 1.0)


class Scaled:
    def __init__(self, reader: WeightReader, factor: float) -> None:
        self._reader, self._factor = reader, factor
        self.name, self.shape, self.format = reader.name, reader.shape, reader.format

    def read(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        return self._reader.read(dim, start, length) * self._factor

    def dequantize(
        self,
        dtype: torch.dtype,
        dim: int | None = None,
        start: int = 0,
        length: int | None = None,
    ) -> torch.Tensor:
        return self.read(dim, start, length).to(dtype)


def made_up(hf: Mapping[str, Any], ctx: BuildContext) -> CausalLM:
    """A model with weights that depend on their names only."""
    model = build_model(hf, ctx)
    model.load_weights(scaled(dummy_readers(model.weight_shapes, dtype="float32")))
    return model
