"""A model's tokens as what checks outputs wants them."""

from __future__ import annotations

from functools import partial

from allmetal.config import EngineConfig
from allmetal.plugins.manager import plugins
from allmetal.structured.compiler import GrammarCompiler
from allmetal.structured.contract import Vocabulary
from allmetal.text import load_text
from allmetal.text.tokenizer import Tokenizer


def grammar_compiler(config: EngineConfig, size: int) -> GrammarCompiler:
    """What an engine of this config compiles constraints with."""
    return GrammarCompiler(
        partial(load_vocabulary, config, size),
        plugins().structured_providers(),
        preferred=config.structured_provider,
        limit_s=config.structured_timeout,
    )


def load_vocabulary(config: EngineConfig, size: int) -> Vocabulary:
    """Of the model that is served; `size` is the width of its logits."""
    tokenizer, _ = load_text(config)
    return vocabulary_of(tokenizer, size)


def vocabulary_of(tokenizer: Tokenizer, size: int) -> Vocabulary:
    """Special tokens are no part of an answer, and rows without a token are none."""
    special = tokenizer.special_ids | set(tokenizer.eos_token_ids)
    known = min(size, tokenizer.vocab_size)
    tokens = [None if i in special else tokenizer.token_bytes(i) or None for i in range(known)]
    return Vocabulary(
        tokens=[*tokens, *[None] * (size - known)],
        stop_token_ids=tuple(i for i in tokenizer.eos_token_ids if i < size),
        size=size,
    )
