"""A decode step's inputs and tokens, against the reference."""

from __future__ import annotations

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.specs import DecodeStateSpec

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.decode_state import TritonDecodeState

NUM_SLOTS = 300


# The last has more blocks a sequence than one pass copies, and more rows than a program writes.
@pytest.mark.parametrize(
    ("groups", "rows", "longest", "page"), [(1, 1, 5, 16), (2, 7, 90, 16), (1, 130, 3000, 2)]
)
def test_decode_state_agrees_with_the_reference(  # type: ignore[no-untyped-def]
    groups, rows, longest, page, generator, device
) -> None:
    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    spec = DecodeStateSpec(block_size=page)
    width = -(-longest // page)
    tokens = integers(0, 50_000, NUM_SLOTS + 1, longest + 1).int()
    tables = integers(1, 1000, groups, NUM_SLOTS + 1, width).int()
    tables[:, NUM_SLOTS] = 0
    slots = torch.randperm(NUM_SLOTS, generator=generator)[:rows]
    lengths = integers(1, longest + 1, rows)
    lengths[0] = longest
    chosen = integers(0, 50_000, rows)
    if rows > 4:  # two rows of padding
        slots[-2:], lengths[-2:], chosen[-2:] = NUM_SLOTS, 1, 7
    opens = ((lengths - 1) % page == 0) & (slots != NUM_SLOTS)
    words = torch.cat([slots[None], lengths[None], integers(1, 1000, groups, rows) * opens])
    here, there = tokens.to(device), tables.to(device)
    (exact,) = reference.kernels()["decode_state"]
    expected, ours = exact.build(spec), TritonDecodeState().build(spec)

    answers = expected.read(words, tokens, tables)
    read = ours.read(words.to(device), here, there)
    vocab = 50
    logits = torch.randn(rows, vocab, generator=generator)
    ids = integers(0, vocab, rows)
    logits[:3, ids[:3]] = torch.tensor([float("nan"), float("inf"), float("-inf")])[: min(rows, 3)]
    if rows > 8:
        ids[3:5] = torch.tensor([vocab, -1])
    if rows > 4:
        logits[-2:], ids[-2:] = 0.0, 7
    for more in ((chosen,), (ids, logits)):
        wanted = expected.write(words, tokens, *more)
        kept = ours.write(words.to(device), here, *(x.to(device) for x in more))
        assert torch.equal(wanted, kept.cpu())
        assert torch.equal(tokens, here.cpu())

    assert torch.equal(tables, there.cpu())
    assert torch.equal(tokens, here.cpu())
    past = torch.arange(width) * page >= lengths[:, None]
    for number, (mine, theirs) in enumerate(zip(answers, read, strict=True)):
        there_too = theirs.cpu()
        if number == 3:
            mine, there_too = (x.masked_fill(past, 0) for x in (mine, there_too))
        assert mine.dtype == there_too.dtype
        assert torch.equal(mine, there_too)
