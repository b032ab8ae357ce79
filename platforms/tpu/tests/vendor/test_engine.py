"""The engine on TorchTPU, its steps compiled by XLA: the reference's tokens, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import on_cpu
import pytest

from allmetal.engine.engine import Engine
from allmetal.platform.contract import DeviceInfo
from allmetal.testing.conformance import engines
from allmetal.testing.conformance.engines import Served, expected, random_prompt, serve
from allmetal.testing.conformance.tiny_models import KINDS, Kind
from allmetal_tpu import TpuPlatform

NUM_TOKENS = 6
TIE = 1e-4
KIND = {kind.name: kind for kind in KINDS}
Rounds = Sequence[Sequence[tuple[int, ...]]]


def prompts(*lengths: int, seed: int = 0) -> list[tuple[int, ...]]:
    return [random_prompt(length, seed + n) for n, length in enumerate(lengths)]


def hold(kind: Kind, served: Served, rounds: Rounds) -> None:
    flat = [prompt for each in rounds for prompt in each]
    for prompt, tokens in zip(flat, served.tokens, strict=True):
        differs = expected(kind, "float32", prompt, NUM_TOKENS).leaves(tokens, TIE)
        assert not differs, f"{kind}, {len(prompt)} tokens: {differs}"


@pytest.mark.parametrize("name", ["dense", "soft-cap", "window-and-full", "norm-of-each-head"])
def test_a_model_chooses_the_references_tokens(
    tpu: TpuPlatform, info: DeviceInfo, name: str
) -> None:
    """Longer than a step has room for, and beside one that is decoded meanwhile."""
    rounds = [prompts(70, 5), prompts(70, 9)]

    served = serve(
        KIND[name],
        tpu,
        info,
        rounds,
        num_tokens=NUM_TOKENS,
        dtype="float32",
        max_num_batched_tokens=32,
        max_model_len=128,
    )

    assert served.plan.static_shapes
    assert served.plan.graph_tokens == (16, 32)
    hold(KIND[name], served, rounds)
    assert served.stats.prefix_hits > 0 or name == "window-and-full"


def test_what_comes_again_in_other_lengths_compiles_nothing(
    tpu: TpuPlatform, info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of other prompts, whose steps fall into the sizes of the rounds before."""
    first = [prompts(40, 9), prompts(20, 8, 3, seed=10), prompts(50, 3, 17, seed=20)]
    again = [prompts(39, 10, seed=30), prompts(19, 9, 2, seed=40), prompts(51, 2, 18, seed=50)]
    compiled: list[int] = []
    run = engines._run

    def counted(
        engine: Engine, rounds: Rounds, num_tokens: int, num_logprobs: int | None
    ) -> Served:
        """Twice the first rounds, since how a step is cut depends on what runs beside it."""
        answers = []
        for each in (first, first, again):
            before = on_cpu.compilations()
            answers.append(run(engine, each, num_tokens, num_logprobs))
            compiled.append(on_cpu.compilations() - before)
        return answers[-1]

    with monkeypatch.context() as patched:
        patched.setattr(engines, "_run", counted)
        served = serve(
            KIND["dense"],
            tpu,
            info,
            again,
            num_tokens=NUM_TOKENS,
            num_logprobs=3,
            dtype="float32",
            max_num_batched_tokens=32,
            max_model_len=128,
            prefix_caching=False,
        )

    hold(KIND["dense"], served, again)
    assert compiled[0] > 0
    assert compiled[2] == 0, compiled
