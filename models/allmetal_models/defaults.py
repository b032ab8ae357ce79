"""What a family means where its published config.json is silent.  No torch here.

A null in a config is not silence: Mistral's `"sliding_window": null` says that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping

from allmetal_models.config import HFConfig, text_config

_GEMMA: HFConfig = {"head_dim": 256, "tie_word_embeddings": True}
_GEMMA3: HFConfig = {
    **_GEMMA,
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
_EPS: HFConfig = {"rms_norm_eps": 1e-5}
_ENCODER: HFConfig = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "max_position_embeddings": 512,
}

DEFAULTS: Mapping[str, HFConfig] = {
    "bert": {**_ENCODER, "pad_token_id": 0},
    "gemma": {**_GEMMA, "hidden_act": "gelu_pytorch_tanh"},
    "gemma2": {
        **_GEMMA,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "glm4": {"head_dim": 128, "attention_bias": True},
    "glm4_moe": {
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "use_qk_norm": False,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    },
    "granite": {
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    "mistral": {"sliding_window": 4096},
    "mixtral": _EPS,
    "olmo2": _EPS,
    "olmo3": {**_EPS, "sliding_window": 4096, "sliding_window_pattern": 4},
    "olmoe": _EPS,
    "phi3": _EPS,
    "qwen2": {"sliding_window": 4096, "max_window_layers": 28},
    "qwen2_moe": {"qkv_bias": True, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3_moe": {"norm_topk_prob": False},
    "roberta": {**_ENCODER, "pad_token_id": 1},
    "smollm3": {"tie_word_embeddings": True, "no_rope_layer_interval": 4},
    "xlm-roberta": {**_ENCODER, "pad_token_id": 1},
}


def complete(hf: HFConfig) -> HFConfig:
    """The language model's own config, filled up where it is silent."""
    return {**DEFAULTS.get(str(hf.get("model_type")), {}), **text_config(hf)}
