"""GGUF files of small models, written as llama.cpp's converter writes them.

Names come from the `gguf` package's own table, not from ours.  What the converter does to values
and metadata is stated here a second time, from convert_hf_to_gguf.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, quants
from transformers import PretrainedConfig, PreTrainedModel

from allmetal.checkpoint.gguf.rope import llama3_factors

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "granite": "granite",
    "smollm3": "smollm3",
    "glm4": "glm4",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "olmoe": "olmoe",
}
PERMUTED = ("llama", "granite", "smollm3")


def write_model(path: Path, model: PreTrainedModel, kind: str = "F32") -> Path:
    """Matrices as `kind` where their rows are whole blocks, all else as float32."""
    config = model.config
    arch = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(str(path), arch)
    write_hparams(writer, config, arch)
    tokens = [f"<{i}>" for i in range(config.vocab_size)]
    write_vocabulary(writer, "llama", tokens, scores=[float(-i) for i in range(len(tokens))])
    number = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, tensor in stacked(model.state_dict()):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        add_tensor(writer, stored, converted(name, tensor.float().numpy(), config, arch), kind)
    finish(writer)
    return path


def stacked(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All experts' gates in one tensor, and so their ups, as the converter has them: transformers
    keeps the two of an expert in one."""
    for name, tensor in state.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            place = name.removesuffix("gate_up_proj")
            yield f"{place}gate_proj.weight", gate
            yield f"{place}up_proj.weight", up
        elif name.endswith("experts.down_proj"):
            yield f"{name}.weight", tensor
        else:
            yield name, tensor


def converted(name: str, values: np.ndarray, config: PretrainedConfig, arch: str) -> np.ndarray:
    if arch in PERMUTED and name.endswith(("q_proj.weight", "q_proj.bias")):
        return permuted(values, config.num_attention_heads)
    if arch in PERMUTED and name.endswith(("k_proj.weight", "k_proj.bias")):
        return permuted(values, config.num_key_value_heads)
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1)
    return values


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """LlamaModel.permute: the halves of each head become neighbours."""
    shape = values.shape
    halves = values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return halves.swapaxes(1, 2).reshape(shape)


def add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    quantized = GGMLQuantizationType[kind]
    block, _ = gguf.GGML_QUANT_SIZES[quantized]
    if values.ndim < 2 or kind == "F32" or values.shape[-1] % block:
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
        return
    data = quants.quantize(values.astype(np.float32), quantized)
    writer.add_tensor(name, data, raw_dtype=quantized)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_vocabulary(
    writer: gguf.GGUFWriter,
    model: str,
    tokens: Sequence[str],
    *,
    scores: Sequence[float] | None = None,
    kinds: Sequence[int] | None = None,
    merges: Sequence[str] | None = None,
    pre: str = "default",
    ids: Mapping[str, int] | None = None,
    **flags: bool,
) -> None:
    """`ids`: bos, eos .. ; `flags`: add_bos_token, add_space_prefix .."""
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(tokens))
    if scores is not None:
        writer.add_token_scores(list(scores))
    writer.add_token_types(list(kinds) if kinds is not None else [1] * len(tokens))
    if merges is not None:
        writer.add_token_merges(list(merges))
    for name, id_ in (ids or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", id_)
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)


def write_hparams(writer: gguf.GGUFWriter, config: PretrainedConfig, arch: str) -> None:
    hidden, heads = config.hidden_size, config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(hidden)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if experts := getattr(config, "num_local_experts", None) or getattr(config, "num_experts", 0):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if (size := getattr(config, "moe_intermediate_size", None)) is not None:
        writer.add_expert_feed_forward_length(size)
    if arch not in ("phi3", "granite"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = dict(config.rope_parameters)
    full = rope.get("full_attention", rope)
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * full.get("partial_rotary_factor", 1.0)))
    if arch == "gemma3":
        writer.add_float32("gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
    _write_rope(writer, full, head_dim)
    _write_family(writer, config, arch)


def _write_rope(writer: gguf.GGUFWriter, rope: Mapping[str, Any], head_dim: int) -> None:
    match rope.get("rope_type", "default"):
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        case "llama3":
            factors = llama3_factors(head_dim // 2, rope["rope_theta"], rope["factor"])
            writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
        case "longrope":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            for length in ("long", "short"):
                factors = np.array(rope[f"{length}_factor"], np.float32)
                writer.add_tensor(f"rope_factors_{length}.weight", factors)


def _write_family(writer: gguf.GGUFWriter, config: PretrainedConfig, arch: str) -> None:
    if arch in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if arch == "phi3":
        writer.add_sliding_window(config.sliding_window or 0)
    if arch == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
