"""Level 1: a decode step's inputs from the sequences' state, and its tokens back to it.

Legend: B sequences, S slots, L longest sequence, G KV groups, P blocks a sequence at most.
"""

from __future__ import annotations

import pytest
import torch

from allmetal.platform.specs import DecodeStateSpec
from allmetal.testing.conformance.base import Bench, Conformance, expected_op, same_bits, title
from allmetal.testing.conformance.problems import DECODE_STATE

NUM_SLOTS, NUM_BLOCKS, VOCAB = 40, 1000, 300
SHAPES = ((1, 1, 5), (1, 7, 130), (2, 33, 70), (3, 40, 3000))
"""(G, B, L - 1)."""


class DecodeStateConformance(Conformance):
    level = 1

    @pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
    @pytest.mark.parametrize("spec", DECODE_STATE, ids=title)
    def test_decode_state_is_what_it_claims(
        self, bench: Bench, spec: DecodeStateSpec, shape: tuple[int, int, int]
    ) -> None:
        words, tokens, tables = _problem(bench, spec, *shape)
        chosen, logits = _choice(bench, words)
        expected = expected_op(spec)
        known, noted = tokens.clone(), tables.clone()
        answers = expected.read(words, known, noted)
        last = (words[1] - 1) // spec.block_size
        inside = torch.arange(tables.shape[2]) <= last[:, None]  # [B, P]
        answers[3].masked_fill_(~inside, 0)
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            sent, here, there = bench.put(words), bench.put(tokens), bench.put(tables)
            read = [bench.get(x) for x in op.read(sent, here, there)]
            assert [x.dtype for x in answers] == [x.dtype for x in read], kernel.name
            assert [x.shape for x in answers] == [x.shape for x in read], kernel.name
            read[3].masked_fill_(~inside, 0)
            for mine, theirs in zip(answers, read, strict=True):
                assert torch.equal(mine, theirs), kernel.name
            for scores in (None, logits):
                ids = chosen if scores is not None else chosen.clamp(min=0)
                wanted = expected.write(words, known, ids, scores)
                put = None if scores is None else bench.put(scores)
                kept = bench.get(op.write(sent, here, bench.put(ids), put))
                assert torch.equal(wanted, kept), kernel.name
                assert same_bits(bench.get(here), known), kernel.name
            assert same_bits(bench.get(there), noted), kernel.name
            assert same_bits(bench.get(sent), words), kernel.name


def _choice(bench: Bench, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, some of them none, and logits that are not all numbers."""
    num_rows = words.shape[1]
    logits = bench.normal(num_rows, VOCAB)
    chosen = bench.integers(0, VOCAB, num_rows)
    for row, bad in enumerate((float("nan"), float("inf"), float("-inf"))):
        if row < num_rows - 4:
            logits[row, chosen[row]] = bad
    if num_rows > 8:
        chosen[3:5] = torch.tensor([VOCAB, -1])
    padding = words[0] == NUM_SLOTS  # those rows agree
    chosen[padding], logits[padding] = 7, 0.5
    return chosen, logits


def _problem(
    bench: Bench, spec: DecodeStateSpec, num_groups: int, num_rows: int, longest: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """words, tokens and tables; the last rows of several are padding on a slot of their own."""
    width = -(-longest // spec.block_size)
    tokens = bench.integers(0, 50_000, NUM_SLOTS + 1, longest + 1).to(torch.int32)
    tables = bench.integers(1, NUM_BLOCKS, num_groups, NUM_SLOTS + 1, width).to(torch.int32)
    tables[:, NUM_SLOTS] = 0
    slots = torch.randperm(NUM_SLOTS, generator=bench.generator)[:num_rows]
    lengths = bench.integers(1, longest + 1, num_rows)
    lengths[0] = longest
    if num_rows > 1:  # the first token of a block
        lengths[1] = 1 + (longest - 1) // spec.block_size * spec.block_size
    if num_rows > 4:
        slots[-2:], lengths[-2:] = NUM_SLOTS, 1
    opens = ((lengths - 1) % spec.block_size == 0) & (slots != NUM_SLOTS)
    fresh = bench.integers(1, NUM_BLOCKS, num_groups, num_rows) * opens
    return torch.cat([slots[None], lengths[None], fresh]), tokens, tables
