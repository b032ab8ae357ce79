"""A stranger's distribution in four versions, each built and installed into a fresh environment.

A folder of a version holds what is new or changed in it; the rest is as it was before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from venvs import ROOT, Venv, build_wheel, make_venv

from allmetal import LLM, SamplingParams

HERE = Path(__file__).parent
PROMPTS = ["The quick brown fox", "Once upon a time", "One engine, all metal: a scheduler, 你好"]
MAX_TOKENS = 24
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
FAMILIES = ("attention", "attention_input", "linear", "rms_norm", "gated_activation", "sampling")
REFERENCE = dict.fromkeys(FAMILIES, "reference")

Install = Callable[[int], Venv]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """In every process that is started: threads that wait for each other on a busy machine make a
    test ten times as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def core_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("core") / "dist")


@pytest.fixture(scope="session")
def install(core_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """A fresh environment with two wheels: the core and a version of Acme's plugin."""

    @cache
    def make(version: int) -> Venv:
        folder = tmp_path_factory.mktemp(f"acme{version}")
        for step in sorted(HERE.glob(f"[1-{version}]_*")):
            shutil.copytree(step, folder / "acme", dirs_exist_ok=True)
        wheel = build_wheel(folder / "acme", folder / "dist")
        venv = make_venv(folder / "venv", "torch", "pytest", "safetensors")
        venv.install(core_wheel, wheel)
        return venv

    return make


@pytest.fixture(scope="session")
def expected(tiny_llama: Path) -> Callable[..., list[str]]:
    """What the cpu platform's float32 reference says to each prompt."""

    def complete(**options: object) -> list[str]:
        torch.set_num_threads(1)
        with LLM(
            str(tiny_llama),
            platform="cpu",
            dtype="float32",
            kernel=REFERENCE,
            kv_cache_memory=1 << 24,
            **options,
        ) as llm:
            return [out.outputs[0].text for out in llm.generate(PROMPTS, GREEDY)]

    return complete


def run(venv: Venv, model: Path, prompt: str, *flags: str) -> str:
    """One completion by `allmetal run`."""
    output = venv.allmetal(
        *("run", model, prompt, "--raw", "--quiet", "--temperature", "0", "--ignore-eos"),
        *("--max-tokens", str(MAX_TOKENS), "--kv-cache-memory", "16MiB", *flags),
    )
    return output.removesuffix("\n")
