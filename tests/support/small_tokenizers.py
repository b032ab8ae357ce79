"""Small tokenizers of both spellings, trained in a moment."""

from __future__ import annotations

from collections.abc import Callable

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from allmetal.text.tokenizer import Tokenizer, TokenizerParts

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The end is near; stop here!",
    "Größe, naïve, café, señor; Привет, мир; 你好，世界; こんにちは 🙂🙃 👨‍👩‍👧 नमस्ते",
    "def f(x):\n    return x + 1\n\n\nprint(f(2))\t# 3.14159 12345",
] * 20
KNOWN = [chr(c) for c in range(33, 127)] + ["\n", "é", "ö", "世"]
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def sentencepiece(*, prefix: bool) -> tokenizers.Tokenizer:
    """As Llama 2 has it: "▁" for spaces, bytes for characters it does not know."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", *SPECIAL, *(f"<0x{i:02X}>" for i in range(256))],
        initial_alphabet=["▁", *KNOWN],
        limit_alphabet=len(KNOWN) + 1,
        show_progress=False,
    )
    backend.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    backend.train_from_iterator(CORPUS, trainer)
    backend.pre_tokenizer = None  # type: ignore[assignment]  # words only bound the training
    return backend


BACKENDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte-level": byte_level,
    "sentencepiece": lambda: sentencepiece(prefix=False),
    "sentencepiece-prefix": lambda: sentencepiece(prefix=True),
}


def as_tokenizer(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(
        TokenizerParts(backend=backend, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    )
