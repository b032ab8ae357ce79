"""A GGUF file's metadata as the config.json that Hugging Face's model of the family would have.

Source: the hparams of llama.cpp (llama-model.cpp, one case an architecture) and the converter's
set_gguf_parameters.  What a file leaves out is what llama.cpp takes for granted there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from allmetal.checkpoint.gguf import experts
from allmetal.checkpoint.gguf.reader import Value
from allmetal.checkpoint.gguf.rope import rope_scaling
from allmetal.errors import CheckpointError, UnknownModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a config is made of.  `factors`: tensors of rotary factors by name."""

    where: str
    architecture: str
    metadata: Mapping[str, Value]
    tensor_shapes: Mapping[str, tuple[int, ...]]
    factors: Mapping[str, list[float]]

    def get(self, key: str, default: Any = None) -> Any:
        """The architecture's own value, `{arch}.{key}`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CheckpointError(
                f"{self.where}: the metadata lacks {self.architecture}.{key}",
                hint="convert the model again with a present llama.cpp",
            )
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """A positive count.  It may be listed per layer; then all layers must agree."""
        value = self.get(key, default) if default is not None else self.need(key)
        listed = value.tolist() if isinstance(value, np.ndarray) else [value]
        if len(set(listed)) > 1:
            raise CheckpointError(
                f"{self.where}: {self.architecture}.{key} differs between layers: {sorted(listed)}"
            )
        if not listed or not isinstance(listed[0], int) or listed[0] < 1:
            raise CheckpointError(
                f"{self.where}: {self.architecture}.{key} is {value!r}, not a positive number"
            )
        return listed[0]

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default) if default is not None else self.need(key)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise CheckpointError(f"{self.where}: {self.architecture}.{key} is {value!r}")
        return value

    def has(self, tensor: str) -> bool:
        return tensor in self.tensor_shapes


def hf_config(facts: Facts) -> dict[str, Any]:
    """Raises UnknownModelError for an architecture that is not listed here."""
    build = FAMILIES.get(facts.architecture)
    if build is None:
        raise UnknownModelError(
            f"{facts.where} is of the GGUF architecture {facts.architecture!r}, which is not read",
            hint=f"architectures that are read: {', '.join(sorted(FAMILIES))};"
            " or give the model as a folder of safetensors",
        )
    if facts.get("expert_count", 0) and facts.architecture not in experts.SPARSE:
        raise UnknownModelError(
            f"{facts.where} is a mixture of experts of the GGUF architecture"
            f" {facts.architecture!r}, which is not read",
            hint="give the model as a folder of safetensors",
        )
    return _common(facts) | build(facts)


def _common(facts: Facts) -> dict[str, Any]:
    if not facts.has("token_embd.weight"):
        raise CheckpointError(f"{facts.where} has no tensor token_embd.weight")
    heads = facts.number("attention.head_count")
    hidden = facts.number("embedding_length")
    config: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": facts.number("feed_forward_length"),
        "num_hidden_layers": facts.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": facts.number("attention.head_count_kv", heads),
        "head_dim": facts.number("attention.key_length", max(1, hidden // heads)),
        "max_position_embeddings": facts.number("context_length"),
        "rms_norm_eps": facts.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": facts.real("rope.freq_base", 10000.0),
        "vocab_size": facts.tensor_shapes["token_embd.weight"][0],
        "tie_word_embeddings": not facts.has("output.weight"),
        "attention_bias": facts.has("blk.0.attn_q.bias"),
    }
    for key in ("bos", "eos", "padding"):
        token = facts.metadata.get(f"tokenizer.ggml.{key}_token_id")
        config[f"{'pad' if key == 'padding' else key}_token_id"] = token
    scaling = rope_scaling(facts, config)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config


def _llama(facts: Facts) -> dict[str, Any]:
    if facts.get("expert_count", 0):
        return experts.mixtral(facts)
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "mlp_bias": facts.has("blk.0.ffn_gate.bias"),
    }


def _qwen2(facts: Facts) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "use_sliding_window": False,
    }


def _qwen3(facts: Facts) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_act": "silu",
        "use_sliding_window": False,
    }


def _gemma(facts: Facts) -> dict[str, Any]:
    return {
        "model_type": "gemma",
        "architectures": ["GemmaForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }


def _layer_types(facts: Facts, period: int) -> list[str]:
    """Every `period`-th layer sees everything; a file may list the layers instead."""
    listed = facts.get("attention.sliding_window_pattern")
    count = facts.number("block_count")
    if isinstance(listed, int):
        period = listed
    elif listed is not None:
        return ["sliding_attention" if int(slides) else "full_attention" for slides in listed]
    return [
        "sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(count)
    ]


def _gemma2(facts: Facts) -> dict[str, Any]:
    hidden, heads = facts.number("embedding_length"), facts.number("attention.head_count")
    largest = facts.number("block_count") == 46  # the 27B scales by the width of its layers
    return {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": hidden // heads
        if largest
        else facts.number("attention.key_length"),
        "attn_logit_softcapping": facts.real("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": facts.real("final_logit_softcapping", 30.0),
        "sliding_window": facts.number("attention.sliding_window", 4096),
        "layer_types": _layer_types(facts, 2),
        "tie_word_embeddings": True,
    }


def _gemma3(facts: Facts) -> dict[str, Any]:
    hidden, heads = facts.number("embedding_length"), facts.number("attention.head_count")
    largest = facts.number("block_count") == 62  # the 27B, as in Gemma 2
    window = facts.get("attention.sliding_window")
    return {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": hidden // heads
        if largest
        else facts.number("attention.key_length"),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": facts.get("final_logit_softcapping"),
        "sliding_window": window,
        "layer_types": _layer_types(facts, 6 if window else 1),
        "rope_local_base_freq": facts.real("rope.freq_base_swa", 10000.0),
    }


def _phi3(facts: Facts) -> dict[str, Any]:
    hidden, heads = facts.number("embedding_length"), facts.number("attention.head_count")
    rotary = facts.number("rope.dimension_count", hidden // heads)
    return {
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "hidden_act": "silu",
        "partial_rotary_factor": rotary / (hidden // heads),
        # 0 says that there is none: so Phi-4 is told from Phi-3.
        "sliding_window": facts.get("attention.sliding_window") or None,
        "original_max_position_embeddings": facts.number(
            "rope.scaling.original_context_length", facts.number("context_length")
        ),
    }


def _olmo2(facts: Facts) -> dict[str, Any]:
    config = {
        "model_type": "olmo2",
        "architectures": ["Olmo2ForCausalLM"],
        "hidden_act": "silu",
    }
    window = facts.get("attention.sliding_window")
    if not window:
        return config
    return config | {
        "model_type": "olmo3",
        "architectures": ["Olmo3ForCausalLM"],
        "sliding_window": window,
        "layer_types": _layer_types(facts, 4),
    }


def _granite(facts: Facts) -> dict[str, Any]:
    head_dim = facts.number("embedding_length") // facts.number("attention.head_count")
    return {
        "model_type": "granite",
        "architectures": ["GraniteForCausalLM"],
        "hidden_act": "silu",
        "attention_multiplier": facts.real("attention.scale", head_dim**-0.5),
        "embedding_multiplier": facts.real("embedding_scale", 1.0),
        "residual_multiplier": facts.real("residual_scale", 1.0),
        "logits_scaling": facts.real("logit_scale", 1.0),
        "mlp_bias": facts.has("blk.0.ffn_gate.bias"),
    }


def _smollm3(facts: Facts) -> dict[str, Any]:
    layers = facts.number("block_count")
    return {
        "model_type": "smollm3",
        "architectures": ["SmolLM3ForCausalLM"],
        "hidden_act": "silu",
        # llama.cpp leaves every fourth layer without rotary embedding; no file can say otherwise.
        "no_rope_layer_interval": 4,
        "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(layers)],
        "use_sliding_window": False,
        "mlp_bias": False,
    }


def _glm4(facts: Facts) -> dict[str, Any]:
    if facts.get("rope.dimension_sections") is not None or facts.get("nextn_predict_layers", 0):
        raise UnknownModelError(
            f"{facts.where} is a GLM-4 with more than its text model, which is not read"
        )
    head_dim = facts.number(
        "attention.key_length",
        facts.number("embedding_length") // facts.number("attention.head_count"),
    )
    return {
        "model_type": "glm4",
        "architectures": ["Glm4ForCausalLM"],
        "hidden_act": "silu",
        "partial_rotary_factor": facts.number("rope.dimension_count") / head_dim,
    }


FAMILIES: Mapping[str, Callable[[Facts], dict[str, Any]]] = {
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "glm4": _glm4,
    "granite": _granite,
    "llama": _llama,
    "olmo2": _olmo2,
    "olmoe": experts.olmoe,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": experts.qwen3_moe,
    "smollm3": _smollm3,
}
"""Architecture in the file -> what its family adds to, or overrules in, the common values."""


def generation_config(metadata: Mapping[str, Value]) -> dict[str, Any]:
    """What ends a text, as far as the metadata says it by number."""
    ends: list[int] = []
    for key in ("eos", "eot", "eom"):
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int) and token not in ends:
            ends.append(token)
    return {"eos_token_id": ends} if ends else {}
