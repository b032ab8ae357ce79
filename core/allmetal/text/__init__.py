"""Text in, token ids out, and back: tokenizers, chat templates, incremental detokenising."""

from __future__ import annotations

from allmetal.text.detokenizer import Detokenizer
from allmetal.text.load import load_text, load_tokenizer
from allmetal.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "load_text", "load_tokenizer"]
