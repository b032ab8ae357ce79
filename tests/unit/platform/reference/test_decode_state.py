"""A decode step's inputs against plain loops over lists."""

from __future__ import annotations

import torch

from allmetal.platform.reference import kernels
from allmetal.platform.specs import DecodeStateSpec

SLOTS, LONGEST, BLOCK, GROUPS = 5, 20, 4, 2
PADDING = SLOTS


def test_a_steps_inputs_are_what_loops_over_the_state_give() -> None:
    (kernel,) = kernels()["decode_state"]
    op = kernel.build(DecodeStateSpec(block_size=BLOCK))
    tokens = torch.randint(0, 1000, (SLOTS + 1, LONGEST + 1), dtype=torch.int32)
    tables = torch.randint(1, 90, (GROUPS, SLOTS + 1, LONGEST // BLOCK), dtype=torch.int32)
    tables[:, PADDING] = 0
    slots, lengths = [3, 0, 4, PADDING, PADDING], [20, 5, 7, 1, 1]
    opened = [[95, 0, 0, 0, 0], [96, 97, 0, 0, 0]]
    state, before = tokens.tolist(), tables.tolist()
    for group in range(GROUPS):
        for slot, length, block in zip(slots, lengths, opened[group], strict=True):
            if block:
                before[group][slot][(length - 1) // BLOCK] = block

    words = torch.tensor([slots, lengths, *opened])
    token_ids, positions, seq_lens, block_tables, mappings = op.read(words, tokens, tables)

    rows = list(zip(slots, lengths, strict=True))
    assert token_ids.tolist() == [state[slot][length - 1] for slot, length in rows]
    assert positions.tolist() == [length - 1 for length in lengths]
    assert seq_lens.tolist() == lengths
    assert tables.tolist() == before
    assert block_tables.tolist() == [[table[slot] for slot in slots] for table in before]
    assert mappings.tolist() == [
        [table[slot][(n - 1) // BLOCK] * BLOCK + (n - 1) % BLOCK for slot, n in rows]
        for table in before
    ]
    assert {token_ids.dtype, positions.dtype, mappings.dtype} == {torch.int64}
    assert {seq_lens.dtype, block_tables.dtype} == {torch.int32}

    kept = op.write(words, tokens, torch.tensor([7, 8, -1, 1, 1]))
    assert kept.tolist() == [7, 8, -1, 1, 1]
    for (slot, length), token in zip(rows, [7, 8, 0, 1, 1], strict=True):
        state[slot][length] = token
    assert tokens.tolist() == state


def test_a_token_without_a_finite_logit_is_none() -> None:
    (kernel,) = kernels()["decode_state"]
    op = kernel.build(DecodeStateSpec(block_size=BLOCK))
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[0.0, 1.0], [0.0, -inf], [nan, 0.0], [inf, 0.0], [0.0, 0.0], [0.0, 0.0]])
    chosen = torch.tensor([1, 1, 0, 0, 2, -5])
    tokens = torch.full((6, 3), 9, dtype=torch.int32)
    words = torch.tensor([range(6), [1] * 6, [0] * 6])

    assert op.write(words, tokens, chosen, logits).tolist() == [1, -1, -1, -1, -1, -1]
    assert tokens[:, 1].tolist() == [1, 0, 0, 0, 0, 0]
    assert tokens[:, [0, 2]].eq(9).all()
