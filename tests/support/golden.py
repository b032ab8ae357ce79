"""Tiny random models of every family, as transformers saves and computes them, and ours of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from allmetal.checkpoint.contract import Checkpoint
from allmetal.checkpoint.folder import FolderCheckpoint
from allmetal.platform.reference import kernels
from allmetal.platform.select import Kernels
from allmetal.runner.weights import weight_format, weight_readers
from allmetal_models.context import BuildContext
from allmetal_models.layers.decoder import Decoder
from allmetal_models.registry import build_model
from allmetal_models.testing import Driver

BLOCK_SIZE = 4
CPU = torch.device("cpu")

# Odd sizes, so that nothing fits by chance: 3 query heads share a key-value head.
SIZES: Mapping[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 300.0, **settings}}


def case(config: str, **settings: Any) -> Callable[[], PretrainedConfig]:
    """A class of transformers with `SIZES` and what the case changes."""
    return lambda: getattr(transformers, config)(**{**SIZES, **settings})


def gemma3_with_vision() -> PretrainedConfig:
    text = {**SIZES, "head_dim": 16, "sliding_window": 7, "sliding_window_pattern": 2}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    return transformers.Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=99,
        boi_token_index=97,
        eoi_token_index=98,
    )


LONGROPE = {"short_factor": [1.0, 1.1, 1.3, 1.9], "long_factor": [1.2, 2.0, 3.5, 6.0]}
LLAMA3 = rope(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=40,
)
YARN = {"factor": 4.0, "original_max_position_embeddings": 40}

CASES: Mapping[str, Callable[[], PretrainedConfig]] = {
    "llama": case("LlamaConfig"),
    "llama-biases": case(
        "LlamaConfig", attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=12
    ),
    "llama-linear": case("LlamaConfig", **rope("linear", factor=2.5)),
    "llama-dynamic": case("LlamaConfig", **rope("dynamic", factor=4.0)),
    "llama-llama3": case("LlamaConfig", **LLAMA3),
    "llama-yarn": case("LlamaConfig", **rope("yarn", **YARN)),
    "mistral": case("MistralConfig", sliding_window=None),
    "mistral-window": case("MistralConfig", sliding_window=7, head_dim=16),
    "qwen2": case("Qwen2Config", tie_word_embeddings=True),
    "qwen2-window": case(
        "Qwen2Config", use_sliding_window=True, sliding_window=6, max_window_layers=1
    ),
    "qwen3": case("Qwen3Config", head_dim=16),
    "qwen3-biases": case("Qwen3Config", head_dim=10, attention_bias=True, tie_word_embeddings=True),
    "gemma": case("GemmaConfig", head_dim=16),
    "gemma2": case(
        "Gemma2Config",
        head_dim=16,
        sliding_window=7,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=4.0,
    ),
    "gemma3": case(
        "Gemma3TextConfig",
        head_dim=16,
        sliding_window=9,
        query_pre_attn_scalar=20,
        num_hidden_layers=4,
        sliding_window_pattern=2,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 200.0},
        },
    ),
    "gemma3-vision": gemma3_with_vision,
    "phi3": case("Phi3Config", sliding_window=11),
    "phi3-partial": case(
        "Phi3Config",
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 300.0,
            "partial_rotary_factor": 0.5,
        },
    ),
    "phi3-longrope": case(
        "Phi3Config", original_max_position_embeddings=160, **rope("longrope", **LONGROPE)
    ),
    "olmo2": case("Olmo2Config"),
    "olmo3": case(
        "Olmo3Config",
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "yarn", "rope_theta": 300.0, **YARN},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    ),
    "granite": case(
        "GraniteConfig",
        embedding_multiplier=3.0,
        attention_multiplier=0.2,
        residual_multiplier=0.7,
        logits_scaling=2.5,
        tie_word_embeddings=True,
    ),
    "qwen3_moe": case(
        "Qwen3MoeConfig",
        head_dim=16,
        num_experts=7,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        norm_topk_prob=True,
        mlp_only_layers=[1],
    ),
    "mixtral": case("MixtralConfig", num_local_experts=5, num_experts_per_tok=2),
    "mixtral-window": case(
        "MixtralConfig", num_local_experts=3, num_experts_per_tok=1, sliding_window=7
    ),
    "olmoe": case("OlmoeConfig", num_experts=6, num_experts_per_tok=4),
    "qwen2_moe": case(
        "Qwen2MoeConfig",
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=40,
        decoder_sparse_step=2,
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=1,
    ),
    "glm4_moe": case(
        "Glm4MoeConfig",
        head_dim=16,
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        n_shared_experts=2,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.7,
        first_k_dense_replace=1,
        use_qk_norm=True,
    ),
    "smollm3": case("SmolLM3Config", no_rope_layer_interval=2),
    "smollm3-window": case(
        "SmolLM3Config",
        no_rope_layers=[0, 1, 1],
        use_sliding_window=True,
        sliding_window=8,
    ),
    "glm4": case("Glm4Config", head_dim=16),
}


@dataclass(frozen=True, slots=True)
class Golden:
    """A saved model, and transformers' own of it."""

    name: str
    folder: Path
    expected: PreTrainedModel


def make(config: PretrainedConfig, folder: Path, seed: int = 0) -> PreTrainedModel:
    """A model with random weights everywhere, biases and norms too, saved as transformers does."""
    config._attn_implementation = "eager"
    if config.model_type == "gemma3":
        model = transformers.Gemma3ForConditionalGeneration(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:  # norms start at their neutral value, biases at 0
                neutral = 0.0 if "bias" in name or config.model_type.startswith("gemma") else 1.0
                weight.copy_(neutral + 0.3 * noise)
            else:
                # A tied model whose embedding outweighs its layers would repeat its input.
                size = 0.3 if "embed_tokens" in name else 1.3
                weight.copy_(noise * size / weight.shape[-1] ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # learned, though no gradient reaches it
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    model.eval().save_pretrained(folder)
    return model


def load(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    max_model_len: int = 160,
    checkpoint: Checkpoint | None = None,
    **context: Any,
) -> Decoder:
    """Our model of a saved one, on the reference kernels."""
    checkpoint = checkpoint or FolderCheckpoint(folder)
    stored = checkpoint.tensors
    ctx = BuildContext(
        kernels=context.pop("kernels", None) or Kernels(kernels()),
        dtype=dtype,
        device=CPU,
        kv_dtype=str(dtype).removeprefix("torch."),
        block_size=BLOCK_SIZE,
        weight_format=lambda name: weight_format(stored[name]),
        quantization=context.pop("quantization", None),
        max_model_len=max_model_len,
        **context,
    )
    model = build_model(checkpoint.config, ctx)
    model.load_weights(weight_readers(checkpoint))
    assert isinstance(model, Decoder)
    return model


def drive(model: Decoder, num_sequences: int = 1) -> Driver:
    return Driver(model, block_size=BLOCK_SIZE, device=CPU, num_sequences=num_sequences)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens, none of them special."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(3, 96, (length,), generator=generator).tolist()


@torch.no_grad()
def expected_logits(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """[T, V] of one pass over the whole sequence, without a cache."""
    logits: torch.Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    return logits.float()


@torch.no_grad()
def expected_greedy(model: PreTrainedModel, ids: Sequence[int], steps: int) -> list[int]:
    """What transformers generates, told not to stop."""
    start = torch.tensor([list(ids)])
    found = model.generate(
        start,
        attention_mask=torch.ones_like(start),
        do_sample=False,
        max_new_tokens=steps,
        min_new_tokens=steps,
        eos_token_id=None,
        pad_token_id=0,
    )
    new: list[int] = found[0, len(ids) :].tolist()
    return new


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """||a - b|| / ||b||."""
    assert a.shape == b.shape
    return float((a.double() - b.double()).norm() / b.double().norm())
