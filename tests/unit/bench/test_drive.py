"""What is timed is what is claimed."""

from __future__ import annotations

import pytest
import stand_ins

from allmetal.bench.drive import BenchmarkError, Workload, drive
from allmetal.bench.latency import measure_latency
from allmetal.bench.settings import LatencySettings, ThroughputSettings
from allmetal.bench.throughput import measure_throughput
from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.errors import ConfigError


@pytest.fixture
def engine() -> Engine:
    return stand_ins.counting(EngineConfig(model="x"))


def workload(seed: int = 0, output_len: int = 5) -> Workload:
    return Workload(stand_ins.VOCAB_SIZE, input_len=40, output_len=output_len, seed=seed)


def test_every_request_has_all_its_tokens_in_time_order(engine: Engine) -> None:
    runs = drive(engine, workload().take(9), concurrency=4)

    assert len(runs) == 9
    for run in runs:
        assert len(run.tokens) == 5
        assert [run.added, *run.tokens] == sorted([run.added, *run.tokens])
        assert run.ttft >= 0
        assert len(run.gaps) == 4
    assert not engine.has_work


def test_no_more_than_the_concurrency_run_at_once(engine: Engine) -> None:
    most = 0
    step = engine.step

    def watched() -> object:
        nonlocal most
        most = max(most, engine.stats().num_running + engine.stats().num_waiting)
        return step()

    engine.step = watched  # type: ignore[method-assign, assignment]
    drive(engine, workload().take(9), concurrency=3)

    assert most == 3


def test_prompts_differ_from_each_other_and_from_run_to_run_only_by_seed() -> None:
    prompts = [request.prompt_token_ids for request in workload().take(20)]

    assert len({tuple(prompt[:8]) for prompt in prompts}) == 20
    assert prompts == [request.prompt_token_ids for request in workload().take(20)]
    assert prompts != [request.prompt_token_ids for request in workload(seed=1).take(20)]


def test_work_that_the_prefix_cache_skipped_is_no_figure(engine: Engine) -> None:
    drive(engine, workload().take(2), concurrency=1)

    with pytest.raises(BenchmarkError, match="work was skipped"):
        drive(engine, workload().take(2), concurrency=1)


def test_latency_counts_tokens_per_second_from_the_times(engine: Engine) -> None:
    settings = LatencySettings(input_len=30, output_len=8, repetitions=3, warmup=0)
    figures = {figure.name: figure for figure in measure_latency(engine, settings)}

    for ttft, prefill in zip(figures["ttft"].values, figures["prefill"].values, strict=True):
        assert ttft / 1e3 * prefill == pytest.approx(30)
    for each, speed in zip(figures["decode"].values, figures["decode_speed"].values, strict=True):
        assert each / 1e3 * speed == pytest.approx(1)


def test_throughput_counts_every_token(engine: Engine) -> None:
    settings = ThroughputSettings(
        requests=5, input_len=30, output_len=8, repetitions=2, warmup=1, concurrency=2
    )
    figures = {figure.name: figure for figure in measure_throughput(engine, settings)}

    for seconds, output, total, requests in zip(
        *(figures[name].values for name in ("duration", "output", "total", "requests")), strict=True
    ):
        assert seconds * requests == pytest.approx(5)
        assert seconds * output == pytest.approx(5 * 8)
        assert seconds * total == pytest.approx(5 * 38)


def test_lengths_that_do_not_fit_are_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="exceed the longest sequence"):
        measure_latency(engine, LatencySettings(input_len=500, output_len=100))


@pytest.mark.parametrize("wrong", [{"output_len": 1}, {"repetitions": 0}, {"warmup": -1}])
def test_settings_without_a_figure_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        LatencySettings(**wrong)
    with pytest.raises(ConfigError):
        ThroughputSettings(**wrong)
