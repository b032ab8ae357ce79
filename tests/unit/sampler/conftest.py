"""A sampler over a state whose tokens a test writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from allmetal.executor.contract import SequenceStart, StepPlan
from allmetal.platform import reference
from allmetal.platform.select import Kernels
from allmetal.platform.specs import SamplingSpec
from allmetal.request import SamplingParams
from allmetal.runner.inputs import InputBuilder, StepInputs
from allmetal.runner.sampler.sampler import Sampled, Sampler
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Uploader

SLOTS, LENGTH = 8, 128


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Host:
    """As much of a device as uploads ask for."""

    torch_device = "cpu"
    asynchronous = False


class Bench:
    """Feeds a sampler made-up logits, with the prompts and parameters a test gives."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        uploader = Uploader(Host())  # type: ignore[arg-type]
        self.state = SequenceState(
            num_slots=SLOTS,
            max_model_len=LENGTH,
            num_groups=1,
            block_size=16,
            device=torch.device("cpu"),
        )
        self.inputs = InputBuilder(self.state, uploader, max_tokens=SLOTS * LENGTH)
        op = Kernels(reference.kernels()).bind(SamplingSpec(vocab_size=vocab_size))
        self.sampler = Sampler(self.state, uploader, op, vocab_size)
        self.lengths: dict[int, int] = {}

    def step(self, slots: list[int], starts: list[SequenceStart]) -> StepInputs:
        """Inputs of a step in which all known tokens of these slots are computed."""
        for start in starts:
            self.sampler.start(start)
            self.lengths[start.slot] = len(start.token_ids)
        new = {start.slot for start in starts}
        counts = [self.lengths[slot] if slot in new else 1 for slot in slots]
        plan = StepPlan(
            step_id=0,
            starts=starts,
            slots=slots,
            num_scheduled=counts,
            num_computed=[
                self.lengths[slot] - count for slot, count in zip(slots, counts, strict=True)
            ],
            samples=[True] * len(slots),
            new_blocks=[],
            num_tokens=sum(counts),
        )
        return self.inputs.build(plan)[1]

    def sample(
        self, logits: torch.Tensor, slots: list[int], starts: list[SequenceStart] | None = None
    ) -> Sampled:
        """One token for each slot, written behind its tokens."""
        rows = self.step(slots, starts or []).samples
        assert rows is not None
        sampled = self.sampler(logits.clone(), rows)
        self.state.write_tokens(rows.slots, rows.positions, sampled.token_ids)
        for slot in slots:
            self.lengths[slot] += 1
        return sampled


def make_start(
    slot: int,
    tokens: list[int],
    *,
    num_prompt: int | None = None,
    stops: tuple[int, ...] = (),
    seed: int = 0,
    **params: Any,
) -> SequenceStart:
    """A sequence that is greedy unless told otherwise."""
    return SequenceStart(
        slot=slot,
        token_ids=tokens,
        num_prompt_tokens=len(tokens) if num_prompt is None else num_prompt,
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": None, **params}),
        stop_token_ids=stops,
        seed=seed,
    )


@pytest.fixture
def bench() -> Bench:
    return Bench(vocab_size=50)


@pytest.fixture
def bench_of() -> type[Bench]:
    return Bench


@pytest.fixture(scope="session")
def start() -> Any:
    return make_start
