"""Drive a model by hand, without an engine: for tests of model files, ours and a plugin's.

Legend: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from allmetal.platform.batch import AttentionBatch, Batch
from allmetal_models.base import CausalLM


class Driver:
    """Sequences that grow by what is fed, each in scattered cache blocks of its own.

    All layers share one KV group, so `num_blocks` blocks serve `num_sequences` equally.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        block_size: int,
        device: torch.device,
        num_sequences: int = 1,
        num_blocks: int = 64,
    ) -> None:
        self.model = model
        self._block_size, self._device = block_size, device
        dtypes = [getattr(torch, spec.dtype) for spec in model.kv_specs]
        caches = [
            torch.full(op.cache_shape(num_blocks), float("nan")).to(device, dtype)
            for op, dtype in zip(model.attention_ops, dtypes, strict=True)
        ]
        model.bind_caches(caches, [0] * len(caches))
        # Block 0 is the null block; sequences take turns and go downwards.
        free = list(range(num_blocks - 1, 0, -1))
        self._blocks = [free[i::num_sequences] for i in range(num_sequences)]
        self._lengths = [0] * num_sequences

    def feed(self, *tokens: Sequence[int]) -> list[torch.Tensor]:
        """One step: these tokens of each sequence (none for a sequence left out of the step).

        Gives the logits [T, V] of each sequence that got tokens, after every one of them.
        """
        return [self.model.logits(states) for states in self.hidden(*tokens)]

    def hidden(self, *tokens: Sequence[int]) -> list[torch.Tensor]:
        """As `feed`, the hidden states [T, C] in place of logits."""
        fed = [(index, list(ids)) for index, ids in enumerate(tokens) if ids]
        hidden = self.model.forward(self._batch(fed))
        for index, ids in fed:
            self._lengths[index] += len(ids)
        return list(torch.split(hidden, [len(ids) for _, ids in fed]))

    def greedy(self, prompt: Sequence[int], steps: int) -> list[int]:
        """Tokens after `prompt` on the only sequence, the likeliest at every step."""
        chosen: list[int] = []
        ids = list(prompt)
        for _ in range(steps):
            (logits,) = self.feed(ids)
            ids = [int(logits[-1].argmax())]
            chosen += ids
        return chosen

    def _batch(self, fed: Sequence[tuple[int, list[int]]]) -> Batch:
        positions: list[int] = []
        slots: list[int] = []
        starts, lengths = [0], list[int]()
        for index, ids in fed:
            done, blocks = self._lengths[index], self._blocks[index]
            here = range(done, done + len(ids))
            positions += here
            slots += [
                blocks[p // self._block_size] * self._block_size + p % self._block_size
                for p in here
            ]
            starts.append(starts[-1] + len(ids))
            lengths.append(done + len(ids))
        size = min(len(self._blocks[index]) for index, _ in fed)
        tables = [self._blocks[index][:size] for index, _ in fed]
        group = AttentionBatch(
            query_start=torch.tensor(starts, dtype=torch.int32, device=self._device),
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=self._device),
            block_table=torch.tensor(tables, dtype=torch.int32, device=self._device),
            slot_mapping=torch.tensor(slots, device=self._device),
            max_query_len=max(len(ids) for _, ids in fed),
            max_seq_len=max(lengths),
            host_query_lens=[len(ids) for _, ids in fed],
            host_seq_lens=lengths,
        )
        token_ids = [token for _, ids in fed for token in ids]
        return Batch(
            token_ids=torch.tensor(token_ids, device=self._device),
            positions=torch.tensor(positions, device=self._device),
            groups=(group,),
        )
