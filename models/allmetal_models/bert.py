"""BERT, RoBERTa and XLM-RoBERTa, for vectors of texts and for labels.

Sources: arXiv:1810.04805, arXiv:1907.11692, arXiv:1911.02116.
"""

from __future__ import annotations

import torch

from allmetal.errors import ModelError
from allmetal_models.config import HFConfig, count
from allmetal_models.context import BuildContext
from allmetal_models.defaults import complete
from allmetal_models.layers.encoder import Dense, Encoder, EncoderConfig
from allmetal_models.layers.formats import is_stored
from allmetal_models.layers.pooling import Head, Pooler
from allmetal_models.layers.scope import Scope
from allmetal_models.pooling_config import PoolingConfig

# Heads for other uses, and tables of positions that were saved with old checkpoints.
_IGNORED = r"position_ids$|^cls\.|^lm_head\.|(^|\.)pooler\.|^classifier\."


def build(hf: HFConfig, ctx: BuildContext) -> Encoder:
    hf = complete(hf)
    if hf.get("position_embedding_type", "absolute") != "absolute":
        raise ModelError(f"positions of kind {hf['position_embedding_type']!r} are not known")
    assert ctx.pooling is not None
    config, root = _config(hf), Scope(ctx)
    prefix = "bert" if hf["model_type"] == "bert" else "roberta"
    probe = "embeddings.word_embeddings.weight"
    # A model saved with a head has its body under a name.
    inside = ctx.pooling.num_labels > 0 or is_stored(ctx, f"{prefix}.{probe}")
    body = root / prefix if inside else root
    head = _head(root, body, hf, ctx.pooling, config.hidden_size)
    return Encoder(root, body, config, Pooler(ctx.pooling, config.hidden_size, head), _IGNORED)


def _config(hf: HFConfig) -> EncoderConfig:
    # RoBERTa counts positions from behind the one that pads.
    first = 0 if hf["model_type"] == "bert" else int(hf["pad_token_id"]) + 1
    return EncoderConfig(
        vocab_size=count("vocab_size", hf["vocab_size"]),
        hidden_size=count("hidden_size", hf["hidden_size"]),
        intermediate_size=count("intermediate_size", hf["intermediate_size"]),
        num_layers=count("num_hidden_layers", hf["num_hidden_layers"]),
        num_heads=count("num_attention_heads", hf["num_attention_heads"]),
        num_positions=count("max_position_embeddings", hf["max_position_embeddings"]),
        num_types=count("type_vocab_size", hf["type_vocab_size"]),
        norm_eps=float(hf["layer_norm_eps"]),
        activation=str(hf["hidden_act"]),
        first_position=first,
    )


def _head(root: Scope, body: Scope, hf: HFConfig, pooling: PoolingConfig, size: int) -> Head | None:
    """dense, tanh, scores; BERT keeps the first with its body."""
    if not pooling.num_labels:
        return None
    if hf["model_type"] == "bert":
        dense = Dense([body / "pooler.dense"], size, size)
        scores = Dense([root / "classifier"], size, pooling.num_labels)
    else:
        dense = Dense([root / "classifier.dense"], size, size)
        scores = Dense([root / "classifier.out_proj"], size, pooling.num_labels)
    return lambda pooled: scores(torch.tanh(dense(pooled)))
