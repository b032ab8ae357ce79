"""A tiny random llama with a real tokenizer and chat template, as a folder that can be served.

Made with numpy and the tokenizers library alone, so that it is there at once.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file

CORPUS = [
    "The quick brown fox jumps over the lazy dog and runs away.",
    "One engine, all metal: a scheduler, a cache of blocks, and kernels for every platform.",
    "Käse, Brot und Äpfel; naïve café; 你好，世界。 🙂 🚀",
    "Once upon a time there was a small model that said random things.",
]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<s>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16


def make_tiny_llama(folder: Path, *, max_model_len: int = 512, seed: int = 0) -> Path:
    """Write the checkpoint into `folder`.  Random weights make lively, meaningless text."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_tokenizer(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": max_model_len,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    save_file(_weights(vocab_size, seed), folder / "model.safetensors", {"format": "pt"})
    return folder


def _write_tokenizer(folder: Path) -> int:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    backend.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|end|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return int(backend.get_vocab_size())


def _weights(vocab_size: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (gain * rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    ones = np.ones(HIDDEN, np.float32)
    tensors = {
        "model.embed_tokens.weight": matrix(vocab_size, HIDDEN, gain=8.0),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(vocab_size, HIDDEN, gain=3.0),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        tensors |= {
            name + "input_layernorm.weight": ones,
            name + "post_attention_layernorm.weight": ones,
            name + "self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            name + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            name + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            name + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM, gain=4.0),
            name + "mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            name + "mlp.up_proj.weight": matrix(INNER, HIDDEN),
            name + "mlp.down_proj.weight": matrix(HIDDEN, INNER, gain=4.0),
        }
    return tensors
