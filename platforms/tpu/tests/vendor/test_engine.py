"""The engine on TorchTPU, its steps compiled by XLA: the reference's tokens, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import on_cpu
import pytest
from conftest import PACKAGES
from tokenizers import Tokenizer, models

from allmetal.engine.engine import Engine
from allmetal.engine.llm import LLM
from allmetal.platform.contract import DeviceInfo
from allmetal.request import RequestOutput, SamplingParams
from allmetal.testing.conformance import engines
from allmetal.testing.conformance.engines import Served, expected, random_prompt, serve
from allmetal.testing.conformance.tiny_models import KINDS, VOCAB, Kind, save_model
from allmetal_tpu import TpuPlatform
from allmetal_tpu.probe import probe

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


LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("soft-cap", "norm-of-each-head")]


@pytest.mark.parametrize("name", ["dense", "window-and-full", *LONG])
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


EXPERTS = Kind(
    "experts",
    {
        **KIND["dense"].config,
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
)


@pytest.mark.parametrize(
    "kind", [EXPERTS, pytest.param(KIND["int8-weights"], marks=pytest.mark.slow)], ids=str
)
def test_routed_experts_and_narrow_weights_choose_the_references_tokens(
    tpu: TpuPlatform, info: DeviceInfo, kind: Kind
) -> None:
    rounds = [prompts(20, 5)]

    served = serve(
        kind,
        tpu,
        info,
        rounds,
        num_tokens=NUM_TOKENS,
        dtype="float32",
        max_num_batched_tokens=32,
        max_model_len=64,
    )

    hold(kind, served, rounds)


SAMPLED = (
    SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=8, ignore_eos=True),
    SamplingParams(temperature=1.0, top_k=10, min_p=0.02, seed=9, logprobs=2, max_tokens=8),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.4, max_tokens=8),
    SamplingParams(temperature=1.2, seed=4, logit_bias={9: 2.0}, min_tokens=4, max_tokens=8),
    SamplingParams(temperature=0.0, prompt_logprobs=1, max_tokens=3),
)


def test_what_is_drawn_and_reported_is_what_the_cpu_platform_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through `LLM`, on a machine with a TPU as far as its files say."""
    machine = on_cpu.machine(tmp_path / "machine")
    monkeypatch.setattr("allmetal_tpu.platform.probe", lambda *_: probe(machine, PACKAGES))
    # Kernels in Pallas, which the platform offers where jax is installed, run on a TPU alone.
    monkeypatch.setattr("allmetal_tpu.kernels.pallas.kernels", lambda _: {})
    folder = save_model(KIND["dense"], tmp_path / "model")
    words = Tokenizer(models.WordLevel({f"w{n} ": n for n in range(VOCAB)}, unk_token="w0 "))
    words.save(str(folder / "tokenizer.json"))
    options: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 4,
        "kv_cache_memory": 8 << 20,
        "fallback": {"kernel": "allow", "dtype": "allow"},
    }
    tokens = prompts(12, 30, 9, 5, 20)
    answers = {}
    for name in ("tpu", "cpu"):
        with LLM(str(folder), platform=name, **options) as llm:
            answers[name] = llm.generate(tokens, list(SAMPLED))
    assert [None] * 5 == [got.error for got in answers["tpu"]]
    for got, right in zip(answers["tpu"], answers["cpu"], strict=True):
        assert got.outputs[0].token_ids == right.outputs[0].token_ids
        assert likely(got) == likely(right)
    assert len(answers["tpu"][1].outputs[0].logprobs or ()) == 8
    assert len(answers["tpu"][4].prompt_logprobs or ()) == 20


def likely(output: RequestOutput) -> list[list[int]]:
    """The tokens that were reported beside those of the prompt and of the answer."""
    entries = [*(output.prompt_logprobs or ()), *(output.outputs[0].logprobs or ())]
    return [entry.token_ids for entry in entries if entry is not None]
