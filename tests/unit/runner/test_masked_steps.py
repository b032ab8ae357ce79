"""Steps whose tokens are chosen later: launched ahead, recorded or not, masks hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recordable import OFFERED, Events
from recorder import Recorder

from allmetal.executor.contract import StepPlan, TokenMasks
from allmetal.request import SamplingParams

V = 97
PROMPT = [5, 17, 80, 3, 9, 9, 41]


def only(step: StepPlan, allowed: dict[int, int]) -> TokenMasks:
    bits = np.zeros((len(allowed), 128), np.uint8)
    for row, token in enumerate(allowed.values()):
        bits[row, token] = 1
    packed = np.packbits(bits, axis=1, bitorder="little").tobytes()
    return TokenMasks(step_id=step.step_id, slots=list(allowed), bits=packed)


@pytest.fixture(params=["plain", "recorded", "recorded and asynchronous"])
def driver(request: Any, llama: Any, driver_of: Any, host_device: Any) -> Any:
    if request.param == "plain":
        return driver_of(llama)
    host_device.graphs = Recorder()
    host_device.asynchronous = "asynchronous" in request.param
    host_device.streams = Events() if host_device.asynchronous else None
    return driver_of(llama, host_device, OFFERED, graph_sizes=(1, 2, 4))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_that_a_mask_leaves_is_what_the_next_step_goes_on_from(
    driver: Any, expected: Any, temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, max_tokens=None)
    runner = driver.runner
    plan = driver.plan({3: len(PROMPT)}, driver.start(3, PROMPT, sampling))
    forced = [60, 2, 96, 0, 31]
    chosen = []
    for token in forced:
        held = runner.forward(plan)
        chosen += runner.choose(held, only(plan, {3: token})).collect().token_ids
        plan = driver.plan({3: 1})
    driver.sequences[3].tokens += chosen

    assert forced == chosen
    if not temperature:
        [last] = runner.execute(plan).token_ids
        assert expected([*PROMPT, *forced], 1)[-1] == last


def test_a_sequence_beside_a_masked_one_is_not_touched(driver: Any, expected: Any) -> None:
    other = [60, 61]
    plan = driver.plan({3: len(PROMPT), 0: 2}, driver.start(3, PROMPT), driver.start(0, other))
    tokens = []
    for _ in range(6):
        held = driver.runner.forward(plan)
        made = driver.runner.choose(held, only(plan, {3: 7})).collect().token_ids
        assert 7 == made[0]
        tokens.append(made[1])
        plan = driver.plan({3: 1, 0: 1})

    assert expected(other, 6) == [*other, *tokens]
