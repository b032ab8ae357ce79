"""A tiny model under an engine on a platform, and what the reference says of the same requests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch

from allmetal.cache.groups import group_layers
from allmetal.checkpoint import open_checkpoint
from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine, EngineStats
from allmetal.engine.limits import limits_of
from allmetal.executor.contract import BringsExecutor, Executor
from allmetal.executor.local import LocalExecutor
from allmetal.platform.contract import DeviceInfo, Platform, Unsupported
from allmetal.platform.kv import CacheLayout
from allmetal.platform.plan import Plan
from allmetal.platform.planner import plan
from allmetal.request import Logprobs, Request, SamplingParams
from allmetal.runner.foretell import foretell
from allmetal.testing.conformance.tiny_models import VOCAB, Kind, save_model
from allmetal.testing.reference_platform import ReferencePlatform
from allmetal_models.facts import facts

MakeExecutor: TypeAlias = Callable[[EngineConfig, Plan, Platform], Executor]
SPECIAL = 3
"""Token ids that prompts leave out."""
_PLENTY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The tokens of each request in order, with what was likely at each, and what it took."""

    tokens: list[list[int]]
    likely: list[list[Logprobs]]
    stats: EngineStats
    plan: Plan


def random_prompt(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 + seed)
    ids: list[int] = torch.randint(SPECIAL, VOCAB, (length,), generator=generator).tolist()
    return tuple(ids)


def executor_of(config: EngineConfig, plan: Plan, platform: Platform) -> Executor:
    """The platform's own where it brings one, else the core's."""
    if isinstance(platform, BringsExecutor):
        answer = platform.executor(config, plan)
        if not isinstance(answer, Unsupported):
            return answer
    return LocalExecutor(config, plan, platform=platform)


def serve(
    kind: Kind,
    platform: Platform,
    info: DeviceInfo,
    prompts: Sequence[Sequence[Sequence[int]]],
    *,
    num_tokens: int,
    blocks: int | None = None,
    num_logprobs: int | None = None,
    make_executor: MakeExecutor = executor_of,
    **options: Any,
) -> Served:
    """Greedy tokens of rounds of prompts: those of a round are given at once, the next round's
    once it is done.

    `blocks`: of the cache, for each of the model's KV groups; plenty if None.
    """
    with tempfile.TemporaryDirectory() as folder:
        save_model(kind, Path(folder))
        settings = {
            "platform": platform.name,
            "quantization": kind.quantization,
            "threads": 2,
            "max_num_seqs": 4,
            "strict": True,
            "fallback": {"kernel": "allow", "quant": "allow", "dtype": "allow"},
            **options,
        }
        config = EngineConfig(model=folder, **settings)
        config, made = _planned(config, platform, info, blocks or _PLENTY)
        engine = Engine(make_executor(config, made, platform), limits_of(config, made), made)
        try:
            return _run(engine, prompts, num_tokens, num_logprobs)
        finally:
            engine.close()


def _planned(
    config: EngineConfig, platform: Platform, info: DeviceInfo, blocks: int
) -> tuple[EngineConfig, Plan]:
    """The plan that resolving would make, with a cache of so many blocks."""
    with closing(open_checkpoint(config)) as checkpoint:
        model = facts(checkpoint.config, checkpoint.tensors, checkpoint.modules)
        device = platform.open(info)
        try:
            advice = device.advice(model)
        finally:
            device.close()
        table = platform.capabilities(info)
        made = plan(config, model, platform.name, info, table, advice)
        host = ReferencePlatform()
        specs = foretell(replace(config, kernel={}), made, host, checkpoint).kv_specs
    groups = group_layers(specs)
    one = CacheLayout(num_blocks=1, block_size=made.block_size, groups=groups)
    sized = replace(config, kv_cache_memory=(1 + blocks * len(groups)) * one.block_bytes)
    return sized, replace(made, kv_cache_memory=sized.kv_cache_memory)


def _run(
    engine: Engine,
    rounds: Sequence[Sequence[Sequence[int]]],
    num_tokens: int,
    num_logprobs: int | None,
) -> Served:
    sampling = SamplingParams(
        temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=num_logprobs
    )
    tokens: dict[str, list[int]] = {}
    likely: dict[str, list[Logprobs]] = {}
    for number, prompts in enumerate(rounds):
        for index, prompt in enumerate(prompts):
            name = f"{number}-{index}"
            tokens[name], likely[name] = [], []
            engine.add(Request(request_id=name, prompt_token_ids=list(prompt), sampling=sampling))
        while engine.has_work:
            for delta in engine.step():
                assert delta.error is None, delta.error
                tokens[delta.request_id] += delta.token_ids
                likely[delta.request_id] += delta.logprobs or []
    assert engine.plan is not None
    return Served(
        tokens=list(tokens.values()),
        likely=list(likely.values()),
        stats=engine.stats(),
        plan=engine.plan,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The reference's tokens after a prompt, and at each by how much the next best was less
    likely, in log probability."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]

    def leaves(self, got: Sequence[int], tie: float) -> str:
        """Where `got` first leaves these tokens, "" if nowhere.  What follows a choice between two
        tokens that are `tie` apart or closer is not compared."""
        assert len(got) == len(self.tokens)
        for index, (token, right) in enumerate(zip(got, self.tokens, strict=True)):
            if token != right and self.margins[index] <= tie:
                return ""
            if token != right:
                return (
                    f"token {index} is {token}, and the reference chooses {right}, by"
                    f" {self.margins[index]:.3g} more likely than any other"
                )
        return ""


@cache
def expected(kind: Kind, dtype: str, prompt: tuple[int, ...], num_tokens: int) -> Expected:
    """One request alone on the reference platform, its prompt in one piece, nothing reused."""
    host = ReferencePlatform()
    (info,) = _devices(host)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        served = serve(
            kind,
            host,
            info,
            [[prompt]],
            num_tokens=num_tokens,
            num_logprobs=2,
            dtype=dtype,
            max_num_seqs=1,
            prefix_caching=False,
            async_scheduling=False,
        )
    finally:
        torch.set_num_threads(before)
    return Expected(
        tokens=tuple(served.tokens[0]),
        # The chosen token comes first, then the two most likely ones, of which it is one.
        margins=tuple(entry.logprobs[1] - entry.logprobs[2] for entry in served.likely[0]),
    )


def _devices(platform: Platform) -> Sequence[DeviceInfo]:
    found = platform.probe()
    assert isinstance(found, list)
    return found
