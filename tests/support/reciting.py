"""A tiny llama that recites: after a mark at the prompt's end it says one text, token by token.

Its weights make each token's successor the most likely one by far, so what it says comes through
the whole engine and sampler, and is known.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tiny import CORPUS, HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS

SPECIAL = ["<s>", "<|end|>", "<|user|>", "<|assistant|>"]
SHARPNESS = 40.0


def make_reciting_llama(
    folder: Path, texts: Mapping[str, Sequence[str]], template: str, special: Sequence[str] = ()
) -> Path:
    """`texts`: a mark, which becomes a token -> the pieces of what follows it, each a token of its
    own; no piece may occur twice.  `special`: pieces and marks that are special tokens."""
    pieces = [piece for text in texts.values() for piece in text]
    assert len(set(pieces)) == len(pieces), "a piece has one successor"
    folder.mkdir(parents=True, exist_ok=True)
    backend = _tokenizer([*texts, *pieces], {*special, *texts})
    backend.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|end|>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    size = backend.get_vocab_size(with_added_tokens=True)
    after: dict[int, int] = {}
    for mark, text in texts.items():
        ids = [backend.token_to_id(piece) for piece in (mark, *text, "<|end|>")]
        assert None not in ids
        after |= dict(itertools.pairwise(ids))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(size, after), folder / "model.safetensors", {"format": "pt"})
    return folder


def _tokenizer(added: Sequence[str], special: set[str]) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    for text in added:
        token = tokenizers.AddedToken(text, special=text in special, normalized=False)
        (backend.add_special_tokens if text in special else backend.add_tokens)([token])
    return backend


def _weights(size: int, after: Mapping[int, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    embedding = matrix(size, HIDDEN)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    head = 0.1 * matrix(size, HIDDEN)
    for token, successor in after.items():
        head[successor] += SHARPNESS * embedding[token] / HIDDEN**0.5
    ones, layer = np.ones(HIDDEN, np.float32), "model.layers.0."
    return {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": ones,
        "lm_head.weight": head,
        layer + "input_layernorm.weight": ones,
        layer + "post_attention_layernorm.weight": ones,
        layer + "self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.o_proj.weight": np.zeros((HIDDEN, HEADS * HEAD_DIM), np.float32),
        layer + "mlp.gate_proj.weight": matrix(INNER, HIDDEN),
        layer + "mlp.up_proj.weight": matrix(INNER, HIDDEN),
        layer + "mlp.down_proj.weight": np.zeros((HIDDEN, INNER), np.float32),
    }
