"""Models whose layers keep keys and values of several kinds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recordable import OFFERED
from recorder import Recorder

transformers = pytest.importorskip("transformers")

WINDOW = 6
PROMPTS = [[5, 17, 80, 3, 9, 9, 41, 22, 60, 1, 13, 44, 2, 8], [60, 61], [7] * 9]


@pytest.fixture(scope="module")
def gemma() -> Any:
    """Two sliding layers, one full, twice; blocks of 4 and a window of 6 tokens."""
    torch.manual_seed(1)
    config = transformers.Gemma3TextConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        max_position_embeddings=128,
        initializer_range=0.4,
    )
    return transformers.Gemma3ForCausalLM(config).eval()


def greedy(model: Any, prompt: list[int], length: int) -> list[int]:
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(length):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens


@pytest.fixture(params=["plain", "recorded"])
def driver(request: pytest.FixtureRequest, gemma: Any, driver_of: Any, host_device: Any) -> Any:
    if request.param == "plain":
        return driver_of(gemma)
    host_device.graphs = Recorder()
    ladders = {"graph_sizes": (1, 4), "graph_tokens": (8, 16)}
    return driver_of(gemma, host_device, OFFERED, **ladders)


def replays(driver: Any) -> int:
    graphs = driver.runner._device.graphs
    return 0 if graphs is None else graphs.replays


def test_every_group_has_its_own_blocks_in_shared_memory(gemma: Any, driver: Any) -> None:
    assert driver.num_groups == 3
    first, second, third = PROMPTS
    driver.run({0: 9, 3: 2}, driver.start(0, first), driver.start(3, second))
    driver.run({3: 1, 0: 5, 1: 3}, driver.start(1, third))
    driver.run({1: 6, 3: 1, 0: 1})
    for _ in range(12):
        driver.run({0: 1, 1: 1, 3: 1})
    assert replays(driver) in (0, 15)
    for slot, prompt in ((0, first), (3, second), (1, third)):
        tokens = driver.sequences[slot].tokens
        assert tokens == greedy(gemma, prompt, len(tokens) - len(prompt))


def test_blocks_behind_the_window_may_be_gone(gemma: Any, driver: Any) -> None:
    """Their places in the sliding groups' tables point to the null block from then on."""
    prompt = PROMPTS[0]
    driver.run({0: 14}, driver.start(0, prompt))
    for step in range(14):
        plan = driver.plan({0: 1})
        behind = (14 + step - WINDOW) // 4
        sliding = [g for g, group in enumerate(driver.layout.groups) if group.spec.window]
        plan.new_blocks.extend((0, group, 0, [0] * behind) for group in sliding)
        driver.note(plan, driver.runner.execute(plan))
    assert replays(driver) in (0, 15)
    assert driver.sequences[0].tokens == greedy(gemma, prompt, 15)
