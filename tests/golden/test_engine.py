"""Through the engine: chunked prefill, prefix hits, preemption and batching change no token.

Many requests meet in a cache too small for them and a token budget smaller than their prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from golden import BLOCK_SIZE, Golden, expected_greedy, prompt

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.platform.specs import FAMILIES
from allmetal.request import Request, SamplingParams

STEPS = 32
BLOCKS = 22
"""Of the cache, when all layers share a table: the longest request just fits."""

PREFIX = prompt(30, seed=20)
PROMPTS = [
    PREFIX + prompt(17, seed=21),
    prompt(5, seed=22),
    PREFIX + prompt(9, seed=23),
    prompt(41, seed=24),
    PREFIX,
    prompt(23, seed=25),
]
REFERENCE = dict.fromkeys(FAMILIES, "reference")


def engine_of(model: Golden, kernel: Mapping[str, str], **options: object) -> Engine:
    config = EngineConfig(
        model=str(model.folder),
        platform="cpu",
        dtype="float32",
        threads=1,
        block_size=BLOCK_SIZE,
        max_num_seqs=4,
        max_num_batched_tokens=13,
        kv_cache_memory=BLOCKS * BLOCK_SIZE * bytes_per_token(model),
        kernel=kernel,
        **options,  # type: ignore[arg-type]
    )
    return Engine.from_config(config)


def bytes_per_token(model: Golden) -> int:
    config = model.expected.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers * 2 * config.num_key_value_heads * head_dim * 4


def run(engine: Engine, prompts: Sequence[list[int]], name: str) -> list[list[int]]:
    """Greedy tokens of each, all requests given at once."""
    sampling = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)
    found: dict[str, list[int]] = {}
    for index, ids in enumerate(prompts):
        found[f"{name}-{index}"] = []
        engine.add(Request(request_id=f"{name}-{index}", prompt_token_ids=ids, sampling=sampling))
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None
            found[delta.request_id] += delta.token_ids
    return list(found.values())


@pytest.fixture(scope="module")
def expected() -> Callable[[Golden], list[list[int]]]:
    known: dict[str, list[list[int]]] = {}

    def tokens(model: Golden) -> list[list[int]]:
        if model.name not in known:
            known[model.name] = [expected_greedy(model.expected, ids, STEPS) for ids in PROMPTS]
        return known[model.name]

    return tokens


@pytest.mark.parametrize("kernel", [{}, REFERENCE], ids=["cpu", "reference"])
def test_no_token_depends_on_how_requests_share_the_engine(
    model: Golden, kernel: Mapping[str, str], expected: Callable[[Golden], list[list[int]]]
) -> None:
    engine = engine_of(model, kernel)
    try:
        assert run(engine, PROMPTS, "first") == expected(model)
        assert run(engine, PROMPTS[::-1], "again") == expected(model)[::-1]
        stats = engine.stats()
    finally:
        engine.close()
    assert stats.prefix_hits >= len(PREFIX) // BLOCK_SIZE * BLOCK_SIZE
    if any(spec.window is None for spec in engine.loaded.kv_specs):
        assert stats.num_preemptions > 0
    else:  # Windows hold so few blocks that nobody has to give way.
        assert stats.num_preemptions == 0
