"""What is known of a model before anything is built.  No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from allmetal.platform.contract import ModelFacts
from allmetal.platform.kv import DTYPE_BYTES
from allmetal.quant.scheme import scheme_of
from allmetal_models.config import DecoderConfig, HFConfig, decoder_config, text_config
from allmetal_models.defaults import complete
from allmetal_models.moe_config import MoEConfig, moe_config
from allmetal_models.pooling_config import labels_of, pooling_config, task_of
from allmetal_models.registry import find
from allmetal_models.rope_config import longest_sequence

_DTYPES = ("bfloat16", "float16", "float32")
_NOT_LANGUAGE = re.compile(r"(^|\.)(vision_tower|multi_modal_projector)\.")


class StoredTensor(Protocol):
    """`is_blocks`: quantised in blocks of a GGML format; `dtype` is then that format's name."""

    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def is_blocks(self) -> bool: ...


def facts(
    hf: HFConfig,
    tensors: Mapping[str, StoredTensor],
    modules: Mapping[str, Any] = MappingProxyType({}),
    task: str = "auto",
) -> ModelFacts:
    """UnknownModelError where no model file serves the config, ModelError where it cannot do what
    is asked.

    `parameter_bytes` are those stored; without tensors (`--load-format dummy`), those a dense
    model of this shape has.
    """
    find(hf)
    text = complete(hf)
    config = decoder_config(text)
    dtype = _dtype(hf, tensors)
    got = task_of(hf, modules, task)
    pooling = pooling_config(hf, modules, got)
    stored = [t.nbytes for name, t in tensors.items() if not _NOT_LANGUAGE.search(name)]
    return ModelFacts(
        model_type=str(hf["model_type"]),
        dtype=dtype,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_model_len=longest_sequence(text),
        parameter_bytes=sum(stored) if stored else _dense_bytes(config, moe_config(text), dtype),
        quantization=_quantization(hf, tensors),
        task=got,
        whole_texts=pooling is not None and pooling.kind != "last",
        labels=labels_of(hf) if got == "classify" else (),
    )


def _quantization(hf: HFConfig, tensors: Mapping[str, StoredTensor]) -> str | None:
    if any(tensor.is_blocks for tensor in tensors.values()):
        return "gguf"
    scheme = scheme_of(hf)
    if scheme is None or not tensors:  # made-up tensors are dense
        return None
    if scheme.kind == "float":
        return "fp8"
    return "int8" if scheme.act_bits is None else "w8a8"


def _dtype(hf: HFConfig, tensors: Mapping[str, StoredTensor]) -> str:
    """The config's word, else the type most values are stored in, else bfloat16."""
    for part in (hf, text_config(hf)):
        said = str(part.get("dtype") or part.get("torch_dtype") or "").removeprefix("torch.")
        if said in _DTYPES:
            return said
    # Quantised files keep their norms in float32, which says nothing of what they came from.
    if any(t.is_blocks for t in tensors.values()):
        return "bfloat16"
    sizes = dict.fromkeys(_DTYPES, 0)
    for tensor in tensors.values():
        if tensor.dtype in sizes:
            sizes[tensor.dtype] += tensor.nbytes
    return max(_DTYPES, key=lambda dtype: sizes[dtype])


def _dense_bytes(c: DecoderConfig, moe: MoEConfig | None, dtype: str) -> int:
    """Matrices of a decoder; norms and biases are lost in them."""
    attention = 2 * c.hidden_size * c.head_dim * (c.num_heads + c.num_kv_heads)
    mlp = 3 * c.hidden_size * c.intermediate_size
    experts = 0
    if moe is not None:
        width = moe.num_experts * moe.intermediate_size + moe.shared_size
        experts = c.hidden_size * (3 * width + moe.num_experts)
    num_sparse = sum(moe.sparse) if moe else 0
    layers = c.num_layers * attention + (c.num_layers - num_sparse) * mlp + num_sparse * experts
    tables = c.vocab_size * c.hidden_size * (1 if c.tie_embeddings else 2)
    return (layers + tables) * DTYPE_BYTES[dtype]
