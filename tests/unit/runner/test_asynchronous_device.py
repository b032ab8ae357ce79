"""On a real device that works on after a call returns: the host never waits while launching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from allmetal.platform.contract import Advice, DeviceInfo, Memory, ModelFacts
from allmetal.request import SamplingParams

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a device whose waits torch.cuda.set_sync_debug_mode reports",
)

PROMPT = [5, 17, 80, 3, 9, 9, 41]


class Accelerator:
    """Torch's current accelerator, as a platform would open it."""

    asynchronous = True
    graphs = None
    communicator = None
    info = DeviceInfo(index=0, name="accelerator", total_memory=0)

    def __init__(self) -> None:
        self.torch_device = str(torch.accelerator.current_accelerator())
        self.streams = SimpleNamespace(event=lambda: torch.Event(self.torch_device))

    def memory(self) -> Memory:
        return Memory(*torch.accelerator.get_memory_info())

    def synchronize(self) -> None:
        torch.accelerator.synchronize()

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        return x.pin_memory()

    def versions(self) -> Mapping[str, str]:
        return {}

    def advice(self, model: ModelFacts) -> Advice:
        return Advice()

    def close(self) -> None: ...


KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.7},
    {"temperature": 1.0, "logit_bias": {3: 2.0}, "bad_word_ids": ((3, 4), (5,)), "logprobs": 3},
    {"temperature": 0.0, "allowed_token_ids": (1, 2, 3, 40), "prompt_logprobs": 2},
    {"temperature": 0.7, "min_tokens": 4, "frequency_penalty": 1.0},
]


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def excused(call: Any) -> Any:
    """The reference kernels may wait; they are not what is tested here."""

    def run(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        try:
            return call(*args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    return run


def outputs(driver: Any, *, guard: bool) -> list[Any]:
    """All kinds of rows, prompts in two chunks, then decoding, launched far ahead of results."""
    starts = [
        driver.start(slot, PROMPT, SamplingParams(max_tokens=None, **kind), seed=slot)
        for slot, kind in enumerate(KINDS)
    ]
    slots = range(len(KINDS))
    plans = [driver.plan(dict.fromkeys(slots, 4), *starts)]
    plans.append(driver.plan(dict.fromkeys(slots, 3)))
    plans += [driver.plan(dict.fromkeys(slots, 1)) for _ in range(12)]
    if not guard:
        return [driver.runner.launch(plan).collect() for plan in plans]
    runner = driver.runner
    runner._model = SimpleNamespace(
        forward=excused(runner._model.forward),
        logits=excused(runner._model.logits),
        vocab_size=runner._model.vocab_size,
    )
    runner._prompt_logprobs._model = runner._model
    runner._sampler._op = excused(runner._sampler._op)
    with no_waiting():
        launched = [runner.launch(plan) for plan in plans]
    return [step.collect() for step in launched]


def test_launching_never_waits_and_results_are_the_hosts(llama: Any, driver_of: Any) -> None:
    expected = outputs(driver_of(llama), guard=False)
    actual = outputs(driver_of(llama, Accelerator()), guard=True)
    for one, other in zip(expected, actual, strict=True):
        assert one.token_ids == other.token_ids
        assert (one.logprobs is None) == (other.logprobs is None)
        assert one.prompt_logprobs.keys() == other.prompt_logprobs.keys()
        for slot, entries in one.prompt_logprobs.items():
            for mine, theirs in zip(entries, other.prompt_logprobs[slot], strict=True):
                assert mine.token_ids == theirs.token_ids
                assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-3)
