"""Under an engine: a request's tokens depend on nothing that the engine decides."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from recordable import OFFERED
from recorder import Recorder

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.engine.limits import Limits
from allmetal.executor.local import LocalExecutor
from allmetal.request import Request, SamplingParams

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.9, "seed": 3},
    {"temperature": 1.0, "top_k": 10, "min_p": 0.02, "seed": 9, "logprobs": 2},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 1.2, "seed": 4, "bad_word_ids": ((5, 6), (7,)), "logit_bias": {9: 2.0}},
    {"temperature": 0.5, "seed": 8, "min_tokens": 6, "stop_token_ids": tuple(range(40))},
]
BLOCK_BYTES = 4 * 2 * 2 * 8 * 4 * 2  # tokens, k and v, heads, channels, bytes, layers


def requests() -> list[Request]:
    rng = random.Random(0)
    return [
        Request(
            request_id=f"r{number}",
            prompt_token_ids=[rng.randrange(97) for _ in range(rng.randrange(1, 40))],
            sampling=SamplingParams(max_tokens=12, **kind),
        )
        for number, kind in enumerate(KINDS * 2)
    ]


@pytest.fixture
def run(folder: Path, host_device: Any, make_plan: Any, platform_of: Any) -> Any:
    """Serve requests with an engine of these limits; gives their tokens and the engine's stats."""

    def serve(
        batches: Sequence[Sequence[Request]],
        num_blocks: int = 512,
        graphs: Recorder | None = None,
        tokens: tuple[int, ...] = (),
        **limits: Any,
    ) -> tuple[dict[str, list[int]], Any]:
        bounds = Limits(
            **{
                "max_model_len": 64,
                "max_num_seqs": 6,
                "max_num_batched_tokens": 256,
                "block_size": 4,
                **limits,
            }
        )
        plan = dataclasses.replace(
            make_plan("llama", 97),
            kv_cache_memory=num_blocks * BLOCK_BYTES,
            async_scheduling=bounds.async_scheduling,
            graph_sizes=(1, 2, 4, 6) if graphs else (),
            graph_tokens=tokens,
        )
        config = EngineConfig(model=str(folder))
        host_device.graphs = graphs
        platform = platform_of(host_device, OFFERED if graphs else None)
        executor = LocalExecutor(config, plan, platform=platform)
        engine = Engine(executor, bounds)
        tokens: dict[str, list[int]] = {}
        for batch in batches:
            for request in batch:
                tokens[request.request_id] = []
                engine.add(request)
            while engine.has_work:
                for delta in engine.step():
                    assert delta.error is None, delta.error
                    tokens[delta.request_id] += delta.token_ids
        stats = engine.stats()
        engine.close()
        return tokens, stats

    return serve


def test_company_chunks_and_preemption_change_no_token(run: Any) -> None:
    together, _ = run([requests()])
    assert all(together.values())
    alone, _ = run([[request] for request in requests()], prefix_caching=False)
    assert together == alone
    chunked, _ = run([requests()], max_num_batched_tokens=7, async_scheduling=False)
    assert together == chunked
    cramped, stats = run([requests()], num_blocks=26)
    assert stats.num_preemptions > 0
    assert together == cramped


def test_steps_that_are_replayed_change_no_token(run: Any) -> None:
    plain, _ = run([requests()])
    graphs = Recorder()
    replayed, _ = run([requests()], graphs=graphs)
    assert plain == replayed
    assert graphs.replays > 10
    cramped, stats = run([requests()], num_blocks=26, graphs=graphs, tokens=(8, 40, 256))
    assert stats.num_preemptions > 0
    assert plain == cramped
    chunked, _ = run([requests()], graphs=graphs, tokens=(3, 7), max_num_batched_tokens=7)
    assert plain == chunked
