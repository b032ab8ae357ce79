"""Under an engine: a request's tokens depend on nothing that the engine decides."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from recordable import OFFERED
from recorder import Recorder
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.engine.limits import Limits
from allmetal.executor.local import LocalExecutor
from allmetal.platform.contract import Graph, GraphCapture
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
        graphs: GraphCapture | None = None,
        tokens: tuple[int, ...] = (),
        static_shapes: bool = False,
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
            static_shapes=static_shapes,
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
                    for entry in delta.logprobs or []:
                        likely = tokens.setdefault(f"{delta.request_id}, likely", [])
                        likely += [*entry.token_ids, *entry.ranks]
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


class Programs:
    """Of a device that compiles: each is run when it is made and at every replay, and what is in it
    is not looked at."""

    computes = True
    inside = False
    made = 0

    def capture(self, run: Callable[[], object]) -> Graph:
        self.made += 1
        program = _Program(run, self)
        program.replay()
        return program


class _Program:
    def __init__(self, run: Callable[[], object], programs: Programs) -> None:
        self._run, self._programs = run, programs

    def replay(self) -> None:
        self._programs.inside = True
        self._run()
        self._programs.inside = False


class Launches(TorchDispatchMode):
    """All that is launched by hand, as a device that compiles for each shape tells it apart."""

    def __init__(self, programs: Programs) -> None:
        super().__init__()
        self.programs = programs
        self.kinds: set[object] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.programs.inside:
            said = tree_map(_shape_or_value, (args, kwargs or {}))
            self.kinds.add(f"{func} {said}")
        return func(*args, **(kwargs or {}))


def _shape_or_value(x: object) -> object:
    return (x.dtype, tuple(x.shape)) if isinstance(x, torch.Tensor) else x


SIZES = (8, 16, 64, 256)


def test_padded_steps_change_no_token(run: Any) -> None:
    plain, _ = run([requests()])
    options: dict[str, Any] = {"static_shapes": True, "tokens": SIZES}
    padded, _ = run([requests()], graphs=Programs(), **options)
    assert plain == padded
    cramped, stats = run([requests()], num_blocks=26, graphs=Programs(), **options)
    assert stats.num_preemptions > 0
    assert plain == cramped
    chunked, _ = run([requests()], graphs=Programs(), max_num_batched_tokens=8, **options)
    assert plain == chunked


def test_padded_steps_of_other_lengths_bring_no_new_shape(run: Any) -> None:
    """What is drawn, penalised or reported too; constraints are as long as they are."""

    def some(*lengths: int) -> list[Request]:
        rng = random.Random(len(lengths))
        return [
            Request(
                request_id=f"{lengths}-{number}",
                prompt_token_ids=[rng.randrange(97) for _ in range(length)],
                sampling=SamplingParams(max_tokens=6, ignore_eos=True, **KINDS[number % 4]),
            )
            for number, length in enumerate(lengths)
        ]

    programs = Programs()
    launches = Launches(programs)
    seen: list[set[object]] = []
    first = [some(17, 9, 25, 30), some(5, 2)]
    again = [some(19, 10, 21, 31), some(6, 2)]

    class Marked(list[Request]):
        def __iter__(self) -> Any:
            seen.append(set(launches.kinds))
            return super().__iter__()

    with launches:
        run(
            [*first, *first, *map(Marked, again), Marked()],
            graphs=programs,
            static_shapes=True,
            tokens=SIZES,
            async_scheduling=False,
            prefix_caching=False,
        )
    assert len(seen[0]) > 20
    assert seen[-1] - seen[0] == set()
