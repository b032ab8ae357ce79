"""What load is made, and what is told of it: against known answers and what numpy has not done."""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from allmetal.bench.load.arrivals import arrivals
from allmetal.bench.load.drive import Run
from allmetal.bench.load.events import EventReader
from allmetal.bench.load.figures import latencies, spread, timeline, within
from allmetal.bench.load.prompts import make_calls
from allmetal.bench.load.records import Call, Record
from allmetal.bench.load.settings import LoadSettings
from allmetal.bench.load.words import WordWriter
from allmetal.cli import main
from allmetal.cli.bench.serve import hidden
from allmetal.errors import ConfigError

WRITER = WordWriter(fixed=1, each=1.0, characters=6.0)


def gaps(rate: float, burstiness: float) -> list[float]:
    calls = [Call(prompt="x", output_len=1)] * 20_000
    times = arrivals(calls, rate=rate, burstiness=burstiness, seed=3)
    return [b - a for a, b in itertools.pairwise(times)]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_of_a_gamma_distribution(burstiness: float) -> None:
    """Its standard deviation is the mean over the root of the shape."""
    found = gaps(8.0, burstiness)

    assert statistics.mean(found) == pytest.approx(1 / 8)
    assert statistics.stdev(found) == pytest.approx(1 / 8 / burstiness**0.5, rel=0.06)


def test_without_chance_requests_come_evenly_and_without_a_rate_at_once() -> None:
    assert gaps(4.0, float("inf")) == pytest.approx([0.25] * 19_999)
    assert set(gaps(float("inf"), 1.0)) == {0.0}


@pytest.mark.parametrize("count", [1, 2])
def test_few_requests_come_at_their_times_too(count: int) -> None:
    calls = [Call(prompt="x", output_len=1)] * count

    assert [0.0, 0.5][:count] == arrivals(calls, rate=2.0, burstiness=1.0, seed=0)


def test_percentiles_are_those_of_the_standard_library() -> None:
    values = [(i * 7919 % 1000) ** 1.5 for i in range(500)]
    made = spread(values, "ms")
    expected = statistics.quantiles(values, n=100, method="inclusive")

    assert made is not None
    assert list(made.quantiles[1:100]) == pytest.approx(expected)
    assert (made.quantiles[0], made.quantiles[100]) == (min(values), max(values))
    assert made.mean == pytest.approx(statistics.mean(values))
    assert spread([], "ms") is None


def test_latencies_count_from_when_a_request_should_have_been_sent() -> None:
    late = Record(scheduled=1.0, sent=3.0, pieces=[3.5, 4.5, 5.0], num_output=6)
    found = {name: each.mean for name, each in latencies([late]).items()}

    assert {"ttft": 2500, "tpot": 300, "itl": 750, "e2e": 4000, "lateness": 2000} == found


def test_goodput_counts_what_keeps_within_every_limit() -> None:
    quick = Record(scheduled=0.0, pieces=[0.1, 0.2], num_output=2)
    slow_start = Record(scheduled=0.0, pieces=[0.6, 0.7], num_output=2)
    slow_token = Record(scheduled=0.0, pieces=[0.1, 0.9], num_output=2)

    assert within([quick, slow_start, slow_token], {"ttft": 500}) == 2
    assert within([quick, slow_start, slow_token], {"ttft": 500, "tpot": 150}) == 1


def test_a_timeline_holds_every_token_and_who_was_open() -> None:
    run = Run(begin=10.0, end=14.0)
    records = [
        Record(scheduled=10.0, sent=10.0, pieces=[10.5, 11.5, 12.2], num_output=6),
        Record(scheduled=11.0, sent=11.0, pieces=[13.9], num_output=4),
    ]
    found = timeline(run, records)

    assert found["output_tokens_per_s"] == [2, 2, 2, 4]
    assert found["open_requests"] == [1, 2, 1, 1]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_however_their_bytes_are_cut(size: int) -> None:
    stream = (
        b": keep-alive\r\n\r\n"
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\r\n\r\n'
        b'data:{"choices":[{"delta":{"content":"\xc3\xa4"}}],"other":[1]}\n\n'
        b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"x":1}}\n\n'
        b"data: [DONE]\n\n"
    )
    reader = EventReader()
    cut = [stream[i : i + size] for i in range(0, len(stream), size)]
    events = [event for data in cut for event in reader.feed(data)]

    assert [event.has_piece for event in events] == [False, True, True, False]
    usage = events[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 7)
    assert reader.done


def test_prompts_are_the_seeds_and_no_two_begin_alike() -> None:
    settings = LoadSettings(requests=50, input_len=40)
    calls = make_calls(settings, WRITER)
    other = make_calls(replace(settings, workload_seed=1), WRITER)

    assert calls == make_calls(settings, WRITER)
    assert calls != other
    assert {39} == {len(str(call.prompt).split()) for call in calls}
    assert len({str(call.prompt)[:40] for call in calls}) == 50


def test_lengths_vary_by_the_share_that_was_asked_for() -> None:
    settings = LoadSettings(requests=400, output_len=100, length_spread=0.2)
    lengths = [call.output_len for call in make_calls(settings, WRITER)]

    assert (80, 120) == (min(lengths), max(lengths))
    assert statistics.mean(lengths) == pytest.approx(100, abs=2)


def test_prefixes_are_shared_and_what_follows_is_not() -> None:
    settings = LoadSettings(dataset="prefix", requests=60, prefix_len=30, prefixes=3, input_len=20)
    prompts = [str(call.prompt).split() for call in make_calls(settings, WRITER)]

    assert len({tuple(words[:29]) for words in prompts}) == 3
    assert len({tuple(words[29:]) for words in prompts}) == 60


def test_a_trace_keeps_its_times_its_lengths_and_the_blocks_it_shares(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]},
        {"timestamp": 3000, "input_length": 700, "output_length": 9, "hash_ids": [7, 9]},
        {"timestamp": 4000, "prompt": "as it is", "output_length": 2},
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    calls = make_calls(LoadSettings(dataset="trace", file=str(file), speedup=2.0), WRITER)
    first, second = (str(call.prompt).split() for call in calls[:2])

    assert [0.0, 1.0, 1.5] == [call.at for call in calls]
    assert [5, 9, 2] == [call.output_len for call in calls]
    assert first[:511] == second[:511]
    assert first[511:] != second[511 : len(first)]
    assert len(second) - len(first) == 100
    assert calls[2].prompt == "as it is"


def test_conversations_give_a_question_and_the_length_of_its_answer(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because it is so, yes"}]
    file = tmp_path / "talks.json"
    file.write_text(json.dumps([{"conversations": said}, {"conversations": said[:1]}, {"x": 1}]))
    [call] = make_calls(LoadSettings(dataset="sharegpt", file=str(file)), WRITER)

    assert call == Call(prompt="Why?", output_len=round(21 / 6))


@pytest.mark.parametrize("line", ["{}", "[]", '{"timestamp": "soon"}', '{"timestamp": 1}', "x"])
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(f'{{"timestamp": 1, "input_length": 3}}\n{line}\n')

    with pytest.raises(ConfigError, match="line 2 is no request"):
        make_calls(LoadSettings(dataset="trace", file=str(file)), WRITER)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dataset": "trace"}, "read from a file"),
        ({"file": "x"}, "reads no file"),
        ({"dataset": "trace", "file": "x", "rate": 1.0}, "its own arrivals"),
        ({"goodput": {"speed": 1.0}}, "no latency 'speed'"),
        ({"rate": 0.0}, "rate must be positive"),
        ({"burstiness": float("nan")}, "burstiness must be positive"),
        ({"requests": 0}, "must be positive"),
        ({"length_spread": 1.0}, "length_spread"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoadSettings(**wrong)  # type: ignore[arg-type]


def test_a_report_tells_neither_the_key_nor_what_does_not_apply() -> None:
    told = LoadSettings(api_key="secret", rate=float("inf"), field={"top_p": 0.5}).told()

    assert "secret" not in json.dumps(told)
    assert (told["rate"], told["field"]) == ("inf", {"top_p": 0.5})
    assert not {"prefix_len", "file", "trace_unit", "api_key", "timeout"} & told.keys()
    words = ["bench", "--api-key", "secret", "--api-key=secret", "--rate", "1"]
    assert ["bench", "--api-key", "...", "--api-key=...", "--rate", "1"] == hidden(words)


def test_where_nobody_listens_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "http://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err
