"""A platform may bring an executor of its own; the engine and the plan take it as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from allmetal import LLM, SamplingParams
from allmetal.config import EngineConfig
from allmetal.executor.contract import Executor, LoadedModel
from allmetal.executor.null import NullExecutor
from allmetal.platform import resolve
from allmetal.platform.contract import DeviceInfo, Unsupported
from allmetal.platform.discover import Found
from allmetal.platform.kv import KVSpec
from allmetal.platform.null import NullPlatform
from allmetal.platform.plan import Plan
from allmetal.runner.explain import explain

SPEC = KVSpec(kind="full", num_kv_heads=1, head_dim=8, dtype="float32")


class Own(NullPlatform):
    """Answers `token` everywhere, or leaves the model to the core."""

    name = "own"

    def __init__(self, token: int | None) -> None:
        self._token = token

    def executor(self, config: EngineConfig, plan: Plan) -> Executor | Unsupported:
        token = self._token
        if token is None:
            return Unsupported(f"no {plan.model.model_type} here")
        loaded = LoadedModel(
            kv_specs=(SPEC,), kv_bytes=1 << 20, weight_bytes=1, vocab_size=plan.model.vocab_size
        )
        return NullExecutor(loaded, lambda step, row: token)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Own], None]:
    def install(platform: Own) -> None:
        host = DeviceInfo(index=0, name="own", total_memory=1, traits={"kind": "host"})
        found = [Found(name="own", origin="own 1", state=(host,), platform=platform)]
        for name in ("discover",):
            monkeypatch.setattr(resolve, name, lambda only=None: found)

    return install


def test_its_tokens_are_served(installed: Callable[[Own], None], tiny_llama: Path) -> None:
    torch.set_num_threads(1)
    installed(Own(token=37))
    with LLM(str(tiny_llama), platform="own") as llm:
        assert isinstance(llm.engine.executor, NullExecutor)
        (out,) = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=3, temperature=0.0))
        assert llm.engine.plan is not None
        (row,) = [d for d in llm.engine.plan.decisions if d.feature == "executor"]
    assert [37] * 3 == out.outputs[0].token_ids
    assert ("the platform's own", "NullExecutor") == (row.got, row.reason)


def test_a_model_it_leaves_runs_on_its_kernels(
    installed: Callable[[Own], None], tiny_llama: Path
) -> None:
    installed(Own(token=None))
    with LLM(str(tiny_llama), platform="own") as llm:
        assert not isinstance(llm.engine.executor, NullExecutor)
        assert llm.engine.plan is not None
        (row,) = [d for d in llm.engine.plan.decisions if d.feature == "executor"]
    assert ("the core's", "no llama here") == (row.got, row.reason)


def test_explain_says_who_computes(installed: Callable[[Own], None], tiny_llama: Path) -> None:
    installed(Own(token=37))
    text = explain(EngineConfig(model=str(tiny_llama), platform="own")).to_text()
    assert "the platform's own  platform  NullExecutor" in text
    assert "kernels\n  inside the platform's own executor" in text
