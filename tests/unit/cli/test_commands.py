"""Commands that need a model, on a tiny one, in this process."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from allmetal import LLM, SamplingParams, cli
from allmetal.executor.local import LocalExecutor

FLAGS = ["--kv-cache-memory", "16MiB", "--threads", "1"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), kv_cache_memory=1 << 24, threads=1) as made:
        yield made


def greedy(llm: LLM, prompt: str | list[int], max_tokens: int) -> str:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
    return llm.generate(prompt, sampling)[0].outputs[0].text


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_run_goes_through_the_chat_template(
    tiny_llama: Path, llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(tiny_llama), "Hello", "--temperature", "0", "--max-tokens", "20"]

    assert cli.main([*words, *FLAGS]) == 0

    prompt = llm.chat_prompt([{"role": "user", "content": "Hello"}])
    out, err = capsys.readouterr()
    assert greedy(llm, prompt, 20).removesuffix("\n") + "\n" == out
    assert f"[prompt {len(prompt)} tokens, first token after" in err
    assert "20 tokens out" in err


def test_run_raw_continues_the_prompt_from_standard_input(
    tiny_llama: Path,
    llm: LLM,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    type_in(monkeypatch, "The quick\n")
    words = ["run", str(tiny_llama), "-", "--raw", "--quiet", "--temperature", "0"]

    assert cli.main([*words, "--max-tokens", "20", *FLAGS]) == 0

    out, err = capsys.readouterr()
    assert greedy(llm, "The quick", 20).removesuffix("\n") + "\n" == out
    assert err == ""


def test_run_streams(tiny_llama: Path) -> None:
    """The first text is there long before the last."""
    words = ["run", str(tiny_llama), "Hello", "--temperature", "0", "--max-tokens", "1500"]
    process = subprocess.Popen(
        [sys.executable, "-m", "allmetal", *words, "--ignore-eos", *FLAGS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 1)
    first = time.perf_counter()
    out, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert len(out) > 1000
    assert time.perf_counter() - first > 0.1


def test_run_can_be_interrupted(tiny_llama: Path) -> None:
    words = ["run", str(tiny_llama), "Hello", "--max-tokens", "4000", "--ignore-eos", *FLAGS]
    process = subprocess.Popen(
        [sys.executable, "-m", "allmetal", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert err == "interrupted\n"


def test_run_ends_quietly_when_its_reader_goes_away(tiny_llama: Path) -> None:
    words = ["run", str(tiny_llama), "Hello", "--max-tokens", "3000", "--ignore-eos", *FLAGS]
    process = subprocess.Popen(
        [sys.executable, "-m", "allmetal", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()

    assert process.wait(30) == 141
    assert process.stderr.read() == ""


def test_chat_remembers_until_it_is_reset(
    tiny_llama: Path,
    llm: LLM,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    type_in(monkeypatch, "First\nSecond\n\n/reset\n/what\nSecond\n/exit\nnever\n")
    words = ["chat", str(tiny_llama), "--temperature", "0", "--max-tokens", "12"]

    assert cli.main([*words, "--system", "Be kind.", *FLAGS]) == 0

    history = [{"role": "system", "content": "Be kind."}]
    expected = []
    for text in ("First", "Second"):
        history.append({"role": "user", "content": text})
        answer = greedy(llm, llm.chat_prompt(history), 12)
        history.append({"role": "assistant", "content": answer})
        expected.append(answer)
    fresh = [history[0], {"role": "user", "content": "Second"}]
    expected.append(greedy(llm, llm.chat_prompt(fresh), 12))
    out, err = capsys.readouterr()
    assert "".join(text.removesuffix("\n") + "\n" for text in expected) == out
    assert "/reset starts over" in err


def test_chat_goes_on_after_a_message_that_does_not_fit(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, f"{'long ' * 200}\nshort\n")
    words = ["chat", str(tiny_llama), "--max-model-len", "64", "--max-tokens", "3"]

    assert cli.main([*words, *FLAGS]) == 0

    out, err = capsys.readouterr()
    assert "error: the prompt has" in err
    assert out.strip()


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(tiny_llama: Path) -> None:
    words = ["chat", str(tiny_llama), "--max-tokens", "3000", "--ignore-eos", *FLAGS]
    process = subprocess.Popen(
        [sys.executable, "-m", "allmetal", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"Hello\n")
    process.stdin.flush()
    os.read(process.stdout.fileno(), 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(b"/reset\n/exit\n", timeout=30)

    assert process.returncode == 0
    assert err == b"[stopped]\n"
    assert len(out) < 9000


def test_explain_shows_plan_kernels_and_memory(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", str(tiny_llama), *FLAGS]) == 0
    text = capsys.readouterr().out
    assert cli.main(["explain", str(tiny_llama), "--json", *FLAGS]) == 0
    made = json.loads(capsys.readouterr().out)

    families = {row["family"] for row in made["kernels"]}
    assert families >= {"attention", "attention_input", "linear", "rms_norm", "sampling"}
    for row in made["kernels"]:
        assert row["kernel"] in text
        for name, reason in row["refused"].items():
            assert f"not {name}: {reason}" in text
    assert made["memory"]["num_blocks"] * made["memory"]["block_bytes"] <= 16 << 20
    assert made["memory"]["longest_sequence"] == 4096
    assert f"{made['memory']['num_blocks']} blocks of {made['plan']['block_size']} tokens" in text


def test_explain_foretells_what_loading_does(tiny_llama: Path, llm: LLM) -> None:
    from allmetal.config import EngineConfig
    from allmetal.runner.explain import explain

    foretold = explain(EngineConfig(model=str(tiny_llama), kv_cache_memory=1 << 24, threads=1))

    assert foretold.memory.layout == llm.engine.layout
    assert foretold.kv_specs == llm.engine.loaded.kv_specs
    assert foretold.memory.longest == llm.engine.max_model_len
    executor = llm.engine.executor
    assert isinstance(executor, LocalExecutor)
    assert executor._rank is not None
    chosen = {(choice.spec, choice.kernel.name) for choice in executor._rank.kernels.choices}
    assert {(choice.spec, choice.kernel.name) for choice in foretold.choices} == chosen


def test_explain_says_when_the_cache_would_not_fit(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", str(tiny_llama), "--kv-cache-memory", "900TiB"]) == 1

    assert "does not fit: 921600.00 GiB of cache memory were asked for" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["latency", "throughput"])
def test_bench_writes_figures_with_all_that_is_needed_to_repeat_them(
    kind: str, tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ["--input-len", "40", "--output-len", "5", "--repetitions", "2"]
    more = ["--requests", "6", "--concurrency", "3"] if kind == "throughput" else []
    file = tmp_path / "figures.json"

    code = cli.main(["bench", kind, str(tiny_llama), "--json", str(file), *lengths, *more, *FLAGS])

    assert code == 0
    made = json.loads(file.read_text())
    text = capsys.readouterr().out
    for name, figure in made["figures"].items():
        assert len(figure["all"]) == 2
        assert all(value > 0 for value in figure["all"])
        assert min(figure["all"]) <= figure["median"] <= max(figure["all"])
        assert name in text
    assert made["settings"]["input_len"] == 40
    assert made["plan"]["platform"] == "cpu"
    assert {"command", "commit", "device", "driver", "versions"} <= made["environment"].keys()
    assert made["environment"]["versions"]["torch"] == torch.__version__


def test_bench_refuses_lengths_that_do_not_fit(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "latency", str(tiny_llama), "--input-len", "5000", *FLAGS]

    assert cli.main(words) == 2
    assert "exceed the longest sequence of 4096" in capsys.readouterr().err


def test_matrix_has_every_feature_and_platform(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["matrix"]) == 0
    table = capsys.readouterr().out
    assert cli.main(["matrix", "--format", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert cli.main(["matrix", "--platform", "cpu"]) == 0
    why = capsys.readouterr().out
    assert cli.main(["matrix", "--format", "html", "--feature", "quant"]) == 0
    page = capsys.readouterr().out

    assert "cpu" in made["platforms"]
    for feature in made["features"]:
        assert feature in table
        assert feature in why
        assert made["platforms"]["cpu"]["features"][feature]["why"] in why
    assert "quant.int8 on cpu" in page
    assert "sleep on cpu" not in page
    assert cli.main(["matrix", "--platform", "abacus"]) == 2
    assert cli.main(["matrix", "--evidence", "nowhere"]) == 2


def test_plugin_test_runs_the_kit_and_the_matrix_shows_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kit" / "cpu.json"
    words = ["plugin", "test", "cpu", "--level", "1", "--select", "gated_activation_is"]
    assert cli.main([*words, "--evidence", str(file)]) == 0
    assert "level 1, gated_activation" in capsys.readouterr().out
    made = json.loads(file.read_text())
    assert (made["platform"], made["levels"]) == ("cpu", [1])
    assert {"device", "versions", "commit", "date", "plugin", "system"} <= made.keys()
    assert made["correctness"]["failures"] == []
    assert made["correctness"]["families"].keys() == {"gated_activation"}
    assert "speed" not in made
    words = ["matrix", "--platform", "cpu", "--feature", "dtype.float32", "--any-device"]
    assert cli.main([*words, "--evidence", str(file.parent)]) == 0
    assert "✓ tested" in capsys.readouterr().out
    assert cli.main(["plugin", "test", "abacus"]) == 2
    assert cli.main(["plugin", "test", "cpu", "--select", "no_such_test"]) == 2


def test_doctor_and_plugin_list_find_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) in (0, 1)
    assert "platform cpu" in capsys.readouterr().out
    assert cli.main(["plugin", "list", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert "cpu" in {row["name"] for row in listing["platforms"]}
    assert "llama" in listing["models"]
    assert cli.main(["plugin", "list"]) == 0
    assert "llama" in capsys.readouterr().out
