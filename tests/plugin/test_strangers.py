"""A stranger's plugin, from a descriptor to a device type of its own: wheel, fresh environment,
served completion, and every token as the cpu platform's float32 reference has it.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from servers import NAME, Server
from venvs import ROOT, Venv, environment

from .conftest import HERE, MAX_TOKENS, PROMPTS, Install, run

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(300)]

Expected = Callable[..., list[str]]


def served(venv: Venv, model: Path) -> tuple[list[str], dict[str, object]]:
    """(completions by `allmetal serve` and the openai client, the plan it says it runs)."""
    with Server(model, python=venv.python) as server:
        answer = server.client().completions.create(
            model=NAME,
            prompt=PROMPTS,
            max_tokens=MAX_TOKENS,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        plan = server.get("/v1/platform").json()
    return [choice.text for choice in answer.choices], plan


def explained(venv: Venv, model: Path, *flags: str) -> tuple[set[tuple[str, str]], dict[str, str]]:
    """((family, kernel) of all that would run, feature -> what the plan makes of it)."""
    told = json.loads(venv.allmetal("explain", model, "--json", "--max-num-seqs", "8", *flags))
    kernels = {(row["family"], row["kernel"]) for row in told["kernels"]}
    return kernels, {row["feature"]: row["got"] for row in told["plan"]["decisions"]}


def test_the_descriptor_is_about_thirty_lines() -> None:
    source = (HERE / "1_descriptor/allmetal_acme/__init__.py").read_text()

    assert len([line for line in source.splitlines() if line.strip()]) <= 32


def test_a_descriptor_alone_serves_on_reference_kernels(
    install: Install, tiny_llama: Path, expected: Expected
) -> None:
    venv = install(1)

    completions, plan = served(venv, tiny_llama)

    assert expected() == completions
    assert ("acme", "Acme One") == (plan["platform"], plan["device"]["name"])  # type: ignore[index]
    assert {"reference"} == {kernel for _, kernel in explained(venv, tiny_llama)[0]}


def test_one_kernel_of_its_own_takes_what_it_claims(
    install: Install, tiny_llama: Path, expected: Expected
) -> None:
    venv = install(2)

    kernels, _ = explained(venv, tiny_llama)

    assert {("attention", "acme_attention")} == {k for k in kernels if k[1] != "reference"}
    assert expected()[0] == run(venv, tiny_llama, PROMPTS[0])


def test_it_brings_quantised_products_and_recorded_steps(
    install: Install, tiny_llama: Path, expected: Expected
) -> None:
    venv = install(3)
    int8 = ("--quantization", "int8")

    kernels, plan = explained(venv, tiny_llama, *int8)

    assert {("attention", "acme_attention"), ("linear", "acme_int8")} <= kernels
    assert "4 sizes up to 8" == plan["graph_capture"]
    assert expected(quantization="int8")[0] == run(venv, tiny_llama, PROMPTS[0], *int8)


def test_its_communicator_carries_a_model_over_two_ranks(
    install: Install, tiny_llama: Path
) -> None:
    venv = install(3)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"

    def start(rank: int, size: int) -> subprocess.Popen[str]:
        command = (venv.python, HERE / "rank.py", str(rank), str(size), address, tiny_llama)
        return subprocess.Popen(
            command, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    answers = []
    for rank in (*(start(rank, 2) for rank in range(2)), start(0, 1)):
        out, problems = rank.communicate(timeout=120)
        assert rank.returncode == 0, problems
        answers.append(json.loads(out))
    first, second, alone = answers

    assert alone["tokens"] == first["tokens"] == second["tokens"]
    assert alone["sums"] == 0
    assert first["sums"] == second["sums"] > 0


def test_it_runs_on_a_device_type_that_torch_never_heard_of(
    install: Install, tiny_llama: Path, expected: Expected
) -> None:
    venv = install(4)

    completions, plan = served(venv, tiny_llama)

    assert expected() == completions
    assert "acme" == plan["platform"]
    types = json.loads(venv.run(HERE / "device_types.py", tiny_llama))
    assert {"cache": ["acme"], "weights": ["acme"], "hidden": "acme"} == types


def test_the_kit_holds_it_to_its_claims_on_that_device(install: Install) -> None:
    """What it says, its attention, and models of every kind, eager and recorded."""
    venv = install(4)
    others = ("linear", "norm", "gated", "sampling", "state", "input", "preempt", "prefix", "chunk")
    select = " and ".join(f"not {name}" for name in others)
    (venv.folder / "test_acme.py").write_text((HERE / "test_acme.txt").read_text())

    report = venv.run("-m", "pytest", "-q", "test_acme.py", "-k", select)

    assert " passed" in report
    assert "failed" not in report


def test_what_the_core_wheel_brings_names_no_stranger() -> None:
    """Not a line of the core was patched for any of this."""
    assert [] == [p for p in (ROOT / "core").rglob("*.py") if "acme" in p.read_text().lower()]
