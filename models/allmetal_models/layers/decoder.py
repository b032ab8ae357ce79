"""Embedding, blocks, last norm and head, put together: a `CausalLM`.

Legend: T tokens, N rows that are sampled, C channels, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from re import Pattern

import torch

from allmetal.errors import ModelError
from allmetal.platform.batch import Batch
from allmetal.platform.kv import KVSpec
from allmetal.platform.specs import AttentionOp
from allmetal_models.base import WeightReader
from allmetal_models.config import DecoderConfig
from allmetal_models.context import BuildContext
from allmetal_models.layers.blocks import Block, Stream
from allmetal_models.layers.embedding import LMHead, VocabEmbedding
from allmetal_models.layers.formats import Rows, is_stored
from allmetal_models.layers.linear import Linear
from allmetal_models.layers.loading import load
from allmetal_models.layers.norm import AddRMSNorm, Norm, RMSNorm
from allmetal_models.layers.pooling import Pooler
from allmetal_models.layers.scope import Scope


class Decoder:
    """`norm` closes the stream: an AddRMSNorm after blocks that leave a sum to do.

    `ignored` matches names in the checkpoint that this model has no use for.
    """

    def __init__(
        self,
        root: Scope,
        *,
        embed: VocabEmbedding,
        blocks: Sequence[Block],
        norm: AddRMSNorm | RMSNorm,
        head: LMHead | Pooler,
        vocab_size: int,
        ignored: Pattern[str],
    ) -> None:
        self._root = root
        self._embed, self._blocks, self._norm, self._head = embed, tuple(blocks), norm, head
        self.pooler = head if isinstance(head, Pooler) else None
        self.vocab_size = vocab_size
        self._ignored = ignored

    @property
    def kv_specs(self) -> tuple[KVSpec, ...]:
        return tuple(block.attention.kv_spec for block in self._blocks)

    @property
    def attention_ops(self) -> tuple[AttentionOp, ...]:
        return tuple(block.attention.op for block in self._blocks)

    def bind_caches(self, caches: Sequence[torch.Tensor], groups: Sequence[int]) -> None:
        for block, cache, group in zip(self._blocks, caches, groups, strict=True):
            block.attention.bind_cache(cache, group)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: layers[0].shape for name, layers in self._root.wanted.items()}

    def load_weights(self, readers: Iterable[tuple[str, WeightReader]]) -> None:
        load(self._root.ctx, self._root.wanted, readers, self._ignored)

    def forward(self, batch: Batch) -> torch.Tensor:
        x: torch.Tensor = self._embed(batch.token_ids)
        stream: Stream = None
        for block in self._blocks:
            x, stream = block(x, stream, batch)
        if isinstance(self._norm, RMSNorm):
            return self._norm(x)
        return self._norm(x, stream)[0]

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if isinstance(self._head, Pooler):
            raise ModelError("this model was built to give vectors of texts, not to continue them")
        return self._head(hidden, out)


def assemble(
    ctx: BuildContext,
    config: DecoderConfig,
    block: Callable[[Scope, int], Block],
    norm: Norm,
    *,
    post_norm: bool = False,
    embed_scale: float | None = None,
    logit_scale: float | None = None,
    logit_soft_cap: float | None = None,
    body: str = "model",
    head: str = "lm_head",
    ignored: str | None = None,
) -> Decoder:
    """The outer shape nearly all families share, under the names they share.

    `block` makes the block of a layer at its place.  `post_norm`: blocks leave nothing to add.
    `body` and `head`: where the checkpoint has them.
    """
    root = Scope(ctx)
    # A body that was saved alone has no name.
    alone = ctx.pooling is not None and is_stored(ctx, "embed_tokens.weight")
    model = root if alone else root / body
    vocab = (config.vocab_size, config.hidden_size)
    embed = VocabEmbedding(model / "embed_tokens", *vocab, scale=embed_scale)
    blocks = [block(model / f"layers.{index}", index) for index in range(config.num_layers)]
    place = model / "embed_tokens" if config.tie_embeddings else root / head
    return Decoder(
        root,
        embed=embed,
        blocks=blocks,
        norm=RMSNorm(model / "norm", norm) if post_norm else AddRMSNorm(model / "norm", norm),
        head=_pooler(root, config)
        or LMHead(place, *vocab, scale=logit_scale, soft_cap=logit_soft_cap),
        vocab_size=config.vocab_size,
        ignored=_ignored(ctx, config, head, ignored),
    )


def _pooler(root: Scope, config: DecoderConfig) -> Pooler | None:
    pooling, size = root.ctx.pooling, config.hidden_size
    if pooling is None:
        return None
    if pooling.kind != "last":
        raise ModelError(
            f"the vectors of this decoder are pooled by {pooling.kind!r}, over tokens that may be "
            "computed in several steps or found in the cache: only the last token can be had"
        )
    if not pooling.num_labels:
        return Pooler(pooling, size)
    every = Rows(at=root / "score", total=pooling.num_labels, ranges=((0, pooling.num_labels),))
    return Pooler(pooling, size, Linear([every], size))


def _ignored(
    ctx: BuildContext, config: DecoderConfig, head: str, pattern: str | None
) -> Pattern[str]:
    """Old checkpoints carry rotary tables, and some tied ones a second copy of the embedding."""
    patterns = [r"\.rotary_emb\.inv_freq$"]
    if config.tie_embeddings or ctx.pooling is not None:
        patterns.append(rf"^{re.escape(head)}\.weight$")
    if pattern is not None:
        patterns.append(pattern)
    return re.compile("|".join(patterns))
