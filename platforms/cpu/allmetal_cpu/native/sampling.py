"""Logits to tokens in C++, a row at a time: passes over the vocabulary, and no sort of it."""

from __future__ import annotations

import torch

from allmetal.platform.specs import SamplingOp, SamplingSpec
from allmetal_cpu.native.kernel import NativeKernel
from allmetal_cpu.native.library import Library, pointer


def _make(spec: SamplingSpec, library: Library) -> SamplingOp:
    function = library.function("sampling", "float32")

    def run(
        logits: torch.Tensor,
        temperature: torch.Tensor | None,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        min_p: torch.Tensor | None,
        uniform: torch.Tensor | None,
    ) -> torch.Tensor:
        logits = logits.contiguous()
        tokens = torch.empty(logits.shape[0], dtype=torch.int64)
        options = (temperature, top_k, top_p, min_p, uniform)
        assert all(x is None or x.is_contiguous() for x in options)
        function(tokens.data_ptr(), logits.data_ptr(), *map(pointer, options), *logits.shape)
        return tokens

    return run


SAMPLING: NativeKernel[SamplingSpec, SamplingOp] = NativeKernel(lambda spec: None, _make)
