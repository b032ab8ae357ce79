"""Models by their configuration only: their weights are made up where they run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
    "hidden_act": "silu",
    "attention_bias": False,
    "torch_dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        **_QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "max_position_embeddings": 131072,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "qwen3-8b": {
        **_QWEN3,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}


def write(name: str, folder: Path) -> Path:
    """A folder that `--load-format dummy` can open."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[name]))
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a dense decoder must read and compute: bytes, and operations a token.

    `weights` leaves out a table of embeddings that is only looked up.  `pair`: operations for
    each (query, key) pair, all layers.
    """

    weights: int
    kv_per_token: int
    body: int
    head: int
    pair: int


def work_of(shape: Mapping[str, Any], itemsize: int = 2) -> Work:
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    heads, kv_heads, dim = (
        shape[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    attention = hidden * dim * (2 * heads + 2 * kv_heads)
    body = layers * (attention + 3 * hidden * shape["intermediate_size"])
    head = hidden * shape["vocab_size"]
    return Work(
        weights=(body + head) * itemsize,
        kv_per_token=2 * layers * kv_heads * dim * itemsize,
        body=2 * body,
        head=2 * head,
        pair=4 * layers * heads * dim,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """Seconds below which no engine can be, from what the card was seen to reach: bytes and
    operations a second.  Attention and products are counted one after the other, as they depend on
    each other; within each, what takes longer counts."""

    work: Work
    bandwidth: float
    matmul: float

    def decode(self, sequences: int, context: float) -> float:
        """One step in which each sequence has `context` tokens before its own."""
        one = self.work.body + self.work.head
        products = max(self.work.weights / self.bandwidth, sequences * one / self.matmul)
        return products + sequences * context * self.work.kv_per_token / self.bandwidth

    def prefill(self, prompts: int, length: int) -> float:
        """Prompts of `length`, and the logits of their last tokens."""
        pairs = prompts * length * (length + 1) / 2
        tokens = prompts * length
        operations = tokens * self.work.body + prompts * self.work.head + pairs * self.work.pair
        return max(operations / self.matmul, self.work.weights / self.bandwidth)

    def generate(self, requests: int, prompt: int, output: int, most: int) -> float:
        """All of it, at most `most` at once: the prompts, then every further token."""
        together = min(requests, most)
        steps = requests / together * (output - 1)
        return self.prefill(requests, prompt) + steps * self.decode(together, prompt + output / 2)
