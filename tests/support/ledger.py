"""An executor whose cache holds token ids: each sampled token is a function of every token the
sequence can see, read back through its block tables, so any wrong block changes the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

from allmetal.executor.contract import LoadedModel, StepOutput, StepPlan
from allmetal.executor.null import DoneStep
from allmetal.platform.kv import CacheLayout, KVSpec
from allmetal.platform.plan import Decision

VOCAB = 97


def next_token(visible: list[tuple[int, ...]]) -> int:
    """From what each group sees of the sequence."""
    return crc32(repr(visible).encode()) % VOCAB


def expected(prompt: list[int], count: int, windows: list[int | None]) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token([_seen(tokens, window) for window in windows]))
    return tokens[len(prompt) :]


def _seen(tokens: list[int], window: int | None) -> tuple[int, ...]:
    return tuple(tokens if window is None else tokens[-window:])


@dataclass
class LedgerExecutor:
    """Slots with tokens, blocks with (group, position, token) entries."""

    windows: list[int | None]
    num_blocks: int
    layout: CacheLayout | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    tables: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    cells: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    fail_at: set[int] = field(default_factory=set)
    steps: list[StepPlan] = field(default_factory=list)

    def load(self) -> LoadedModel:
        specs = tuple(
            KVSpec(
                kind="full" if w is None else "sliding_window",
                num_kv_heads=1,
                head_dim=1,
                dtype="int8",
                window=w,
            )
            for w in self.windows
        )
        return LoadedModel(kv_specs=specs, kv_bytes=0, weight_bytes=0, vocab_size=VOCAB)

    def allocate(self, layout: CacheLayout) -> Sequence[Decision]:
        self.layout = layout
        return ()

    def execute(self, step: StepPlan) -> _Later:
        return _Later(self, step)

    def close(self) -> None:
        self.layout = None

    def run(self, step: StepPlan) -> StepOutput:
        self.steps.append(step)
        if step.step_id in self.fail_at:
            raise RuntimeError("the device fell over")
        assert self.layout is not None
        groups = range(len(self.layout.groups))
        for start in step.starts:
            self.tokens[start.slot] = list(start.token_ids)
            for group in groups:
                self.tables[start.slot, group] = []
        for slot, group, index, blocks in step.new_blocks:
            table = self.tables[slot, group]
            assert len(table) == index, "blocks must extend the table without a gap"
            table += blocks
        assert sum(step.num_scheduled) == step.num_tokens
        assert len(set(step.slots)) == len(step.slots)
        for row, slot in enumerate(step.slots):
            for position in self._positions(step, row):
                for group in groups:
                    block, offset = self._cell(slot, group, position)
                    assert block != 0, "a token is written to the null block"
                    self.cells[block, offset] = (group, position, self.tokens[slot][position])
        sampled = [
            self._sample(step, row, slot)
            for row, slot in enumerate(step.slots)
            if step.samples[row]
        ]
        return StepOutput(step_id=step.step_id, token_ids=sampled)

    def _positions(self, step: StepPlan, row: int) -> range:
        return range(step.num_computed[row], step.num_computed[row] + step.num_scheduled[row])

    def _cell(self, slot: int, group: int, position: int) -> tuple[int, int]:
        assert self.layout is not None
        index, offset = divmod(position, self.layout.block_size)
        return self.tables[slot, group][index], offset

    def _sample(self, step: StepPlan, row: int, slot: int) -> int:
        assert self.layout is not None
        length = step.num_computed[row] + step.num_scheduled[row]
        assert length == len(self.tokens[slot])
        by_layer: dict[int, tuple[int, ...]] = {}
        for group, kv_group in enumerate(self.layout.groups):
            window = kv_group.spec.window
            first = 0 if window is None else max(0, length - window)
            seen = []
            for position in range(first, length):
                *at, token = self.cells[self._cell(slot, group, position)]
                assert at == [group, position], "a block holds another layer or position"
                seen.append(token)
            for layer in kv_group.layers:
                by_layer[layer] = tuple(seen)
        token = next_token([by_layer[layer] for layer in range(len(self.windows))])
        token = self.choose(step, slot, token)
        self.tokens[slot].append(token)
        return token

    def choose(self, step: StepPlan, slot: int, token: int) -> int:
        """The token that comes where `token` would."""
        return token


@dataclass
class _Later:
    """Runs when asked for, but in order: as a device that is behind the host."""

    executor: LedgerExecutor
    step: StepPlan

    def result(self) -> StepOutput:
        return DoneStep(self.executor.run(self.step)).output

    def done(self) -> bool:
        return False
