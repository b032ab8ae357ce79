"""Choice of tokens: two launches when all rows are greedy or none filters, eight when some do.

Bytes moved: the logits, 4 B V, once; six times with filters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import SamplingOp, SamplingSpec
from allmetal_triton.jit.sampling import chunk_masses, chunk_tops, draw, pick_top
from allmetal_triton.jit.thresholds import STATE_WORDS, collect, narrow, resolve
from allmetal_triton.target import Target

_CHUNK = 4096
_WARPS = 4
"""Of a chunk's program: with more, adding up across them takes longer than within."""
_LISTED = 128
"""Scores of a chunk that are looked through one by one."""
_PASSES = 3
"""Each narrows the interval by eight: of 150,000 scores spread evenly, 300 are left."""
_PIVOTS = 8
_SEARCHED_AT_ONCE = 2048
_LARGEST = _CHUNK * 1024


@dataclass(frozen=True, slots=True)
class TritonSampling:
    target: Target
    name: str = "triton_sampling"

    def supports(self, spec: SamplingSpec) -> Support:
        if spec.vocab_size > _LARGEST:
            return Unsupported(f"vocab_size must be at most {_LARGEST}, not {spec.vocab_size}")
        return Supported(rank=10)

    def build(self, spec: SamplingSpec) -> SamplingOp:
        return _Op(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tops:
    """What is known of each chunk, [B, S]."""

    tops: torch.Tensor
    places: torch.Tensor
    lows: torch.Tensor | None
    sums: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """The interval that passes have left of each row, and its scores by chunk, [B, S, LISTED]."""

    states: torch.Tensor
    scores: torch.Tensor
    counts: torch.Tensor


class _Op:
    def __init__(self, spec: SamplingSpec) -> None:
        self._size = spec.vocab_size
        padded: int = triton.next_power_of_2(spec.vocab_size)
        self._chunk = min(_CHUNK, padded)
        self._chunks = triton.cdiv(spec.vocab_size, self._chunk)
        self._row_of_chunks = triton.next_power_of_2(self._chunks)

    def __call__(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor | None,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        min_p: torch.Tensor | None,
        uniform: torch.Tensor | None,
    ) -> torch.Tensor:
        rows = logits.shape[0]
        tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
        if not rows:
            return tokens
        known = self._tops(logits, temperature)
        if temperature is None:
            pick_top[(rows,)](
                known.tops, known.places, tokens, self._chunks, S=self._row_of_chunks, num_warps=1
            )
            return tokens
        assert uniform is not None
        filtered = top_k is not None or top_p is not None or min_p is not None
        least = None
        if filtered:
            least = self._thresholds(logits, temperature, top_k, top_p, min_p, known)
            self._masses(logits, temperature, known, least)
        draw[(rows,)](
            logits,
            temperature,
            uniform,
            known.tops,
            known.places,
            least,
            known.sums,
            tokens,
            logits.stride(0),
            self._size,
            self._chunks,
            CHUNK=self._chunk,
            S=self._row_of_chunks,
            num_warps=8,
        )
        return tokens

    def _tops(self, logits: torch.Tensor, temperature: torch.Tensor | None) -> _Tops:
        shape, device = (logits.shape[0], self._chunks), logits.device

        def floats() -> torch.Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        known = _Tops(
            tops=floats(),
            places=torch.empty(shape, dtype=torch.int32, device=device),
            lows=None if temperature is None else floats(),
            sums=None if temperature is None else floats(),
        )
        chunk_tops[shape](
            logits,
            temperature,
            known.tops,
            known.places,
            known.lows,
            known.sums,
            logits.stride(0),
            self._size,
            self._chunks,
            CHUNK=self._chunk,
            num_warps=_WARPS,
        )
        return known

    def _thresholds(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        min_p: torch.Tensor | None,
        known: _Tops,
    ) -> torch.Tensor:
        """The least score kept of each row, [B]."""
        rows, device = logits.shape[0], logits.device
        left = None
        if top_k is not None or top_p is not None:
            left = self._narrow(logits, temperature, top_k, top_p, min_p, known)
        least = torch.empty(rows, dtype=torch.float32, device=device)
        resolve[(rows,)](
            logits,
            temperature,
            top_k,
            top_p,
            min_p,
            known.tops,
            known.lows,
            None if left is None else left.states,
            None if left is None else left.scores,
            None if left is None else left.counts,
            least,
            logits.stride(0),
            self._size,
            self._chunks,
            LISTED=_LISTED,
            S=self._row_of_chunks,
            BLOCK=_SEARCHED_AT_ONCE,
            NARROWED=left is not None,
            num_warps=8,
        )
        return least

    def _narrow(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        min_p: torch.Tensor | None,
        known: _Tops,
    ) -> _Left:
        rows, device = logits.shape[0], logits.device
        grid, sizes = (rows, self._chunks), (logits.stride(0), self._size, self._chunks)
        states = torch.empty((2, rows, STATE_WORDS), dtype=torch.float32, device=device)
        weights = torch.empty((2, *grid, _PIVOTS), dtype=torch.float32, device=device)
        for turn in range(_PASSES):
            here, last = turn % 2, (turn + 1) % 2
            narrow[grid](
                logits,
                temperature,
                top_k,
                top_p,
                min_p,
                known.tops,
                known.lows,
                states[last],
                weights[last],
                states[here],
                weights[here],
                *sizes,
                CHUNK=self._chunk,
                S=self._row_of_chunks,
                FIRST=turn == 0,
                num_warps=_WARPS,
            )
        after = _PASSES % 2
        left = _Left(
            states=states[after],
            scores=torch.empty((*grid, _LISTED), dtype=torch.float32, device=device),
            counts=torch.empty(grid, dtype=torch.int32, device=device),
        )
        collect[grid](
            logits,
            temperature,
            top_k,
            top_p,
            known.tops,
            states[1 - after],
            weights[1 - after],
            left.states,
            left.scores,
            left.counts,
            *sizes,
            CHUNK=self._chunk,
            S=self._row_of_chunks,
            LISTED=_LISTED,
            num_warps=_WARPS,
        )
        return left

    def _masses(
        self, logits: torch.Tensor, temperature: torch.Tensor, known: _Tops, least: torch.Tensor
    ) -> None:
        """Overwrites the chunks' sums with what is left of them."""
        chunk_masses[(logits.shape[0], self._chunks)](
            logits,
            temperature,
            known.tops,
            least,
            known.sums,
            logits.stride(0),
            self._size,
            self._chunks,
            CHUNK=self._chunk,
            S=self._row_of_chunks,
            num_warps=_WARPS,
        )
