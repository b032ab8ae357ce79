"""Results beside each other: what may not be compared is not, and what is said follows from it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allmetal.bench.compare.differences import NotComparableError, differences
from allmetal.bench.compare.plots import Series, line_plot, short
from allmetal.bench.compare.ratios import rows
from allmetal.bench.compare.runs import read_results
from allmetal.bench.load.drive import Run
from allmetal.bench.load.records import Record
from allmetal.bench.load.result import ServingResult
from allmetal.bench.load.settings import LoadSettings
from allmetal.bench.load.sweep import grid, sweep, with_values
from allmetal.cli import main
from allmetal.errors import ConfigError

PLAN = {"platform": "cpu", "device": {"name": "a"}, "decisions": [{"feature": "x", "got": "1"}]}
Write = Callable[..., Path]


def result(gap_s: float, **changes: Any) -> dict[str, Any]:
    """Of 40 requests whose tokens come `gap_s` apart, a little more or less."""
    records = []
    for i in range(40):
        gap = gap_s * (1 + 0.1 * (i % 5 - 2))
        pieces = [i + gap * (n + 1) for n in range(10)]
        records.append(Record(scheduled=i, sent=i, pieces=pieces, num_output=10, num_input=5))
    made = ServingResult(
        model=changes.pop("model", "m"),
        url="http://x",
        settings=changes.pop("settings", LoadSettings(output_len=10)),
        run=Run(records=records, begin=0.0, end=records[-1].pieces[-1]),
        environment={"processor": "p", "cores": 2, "commit": changes.pop("commit", "c")},
        plan=changes.pop("plan", PLAN),
        server={},
    ).to_json()
    assert not changes
    return made


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(name: str, gap_s: float = 0.05, **changes: Any) -> Path:
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(result(gap_s, **changes)))
        return file

    return make


def test_ratios_are_to_the_first_and_say_which_way_is_better(write: Write) -> None:
    results = read_results([write("a", 0.05), write("b", 0.04), write("c", 0.0501)])
    found = {row.figure: row for row in rows(results)}

    assert found["ttft"].ratios == pytest.approx((1, 0.8, 1.002))
    assert found["ttft"].verdicts == ("", "better", "same")
    assert found["ttft p99"].ratios == pytest.approx((1, 0.8, 1.002))
    assert found["ttft p99"].verdicts == ("", "", "")
    slower = {row.figure: row for row in rows(results[1::-1])}
    assert slower["tpot"].verdicts == ("", "worse")


def test_more_of_a_rate_is_better(write: Write, tmp_path: Path) -> None:
    one = result(0.05)
    one["figures"]["output"]["median"] *= 1.2
    file = tmp_path / "quick.json"
    file.write_text(json.dumps(one))
    found = {row.figure: row for row in rows(read_results([write("a"), file]))}

    assert found["output"].verdicts == ("", "better")
    assert found["requests"].verdicts == ("", "same")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "other"}, "model: m / other"),
        ({"settings": LoadSettings(output_len=11)}, "setting output_len: 10 / 11"),
        ({"plan": PLAN | {"platform": "other"}}, "plan: platform: cpu / other"),
        ({"plan": PLAN | {"device": {"name": "b"}}}, "machine: device: a / b"),
        ({"plan": None}, "plan: plan: known / unknown"),
        ({"plan": PLAN | {"decisions": [{"feature": "x", "got": "2"}]}}, "plan: x: 1 / 2"),
    ],
)
def test_what_differs_is_refused_unless_told(
    write: Write, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    files = [str(write("a")), str(write("b", **change))]

    assert main(["bench", "compare", *files]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "hint: --anyway" in err
    assert main(["bench", "compare", *files, "--anyway"]) == 0
    out, err = capsys.readouterr()
    assert f"! {said}" in err
    assert "tpot p99" in out


def test_another_commit_is_what_is_compared(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "compare", str(write("a")), str(write("b", commit="d"))]) == 0
    assert "commit: c / d" in capsys.readouterr().err


def test_different_benchmarks_have_nothing_in_common(write: Write) -> None:
    first, second = read_results([write("a"), write("b")])
    object.__setattr__(second, "benchmark", "latency")

    with pytest.raises(NotComparableError, match="different benchmarks"):
        differences([first, second])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"benchmark": "serve"}', "\x00"])
def test_what_is_no_result_is_refused(tmp_path: Path, write: Write, text: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"bad\.json is no result"):
        read_results([write("a"), file])


def test_the_page_stands_alone_and_escapes_what_it_shows(write: Write, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    files = [str(write("a", model="<script>m")), str(write("b", 0.04, model="<script>m"))]
    assert main(["bench", "compare", *files, "--html", str(page)]) == 0
    text = page.read_text()

    assert "<script" not in text
    assert "&lt;script&gt;m" in text
    assert not re.search(r"(src|href|url)\s*[=(]", text)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 6
    for drawing in drawings:
        lines = ET.fromstring(drawing).findall(".//path[@class]")
        assert sum(line.get("class", "").startswith("line h") for line in lines) == 2


def test_a_plot_puts_values_where_its_axis_says() -> None:
    """The height of a tick's line is that of the value it names."""
    points = [(0.0, 0.0), (1.0, 50.0), (2.0, 100.0)]
    drawn = ET.fromstring(line_plot([Series(name="s", points=points, hue=0)], x="x", y="y"))
    [line] = [p for p in drawn.iter("path") if p.get("class") == "line h0"]
    heights = [float(h) for h in re.findall(r"[\d.]+ ([\d.]+)", line.get("d", ""))]
    ticks = {
        t.text: float(t.get("y", 0)) - 4 for t in drawn.iter("text") if t.get("class") == "end"
    }

    assert ticks["0"] == pytest.approx(heights[0], abs=0.1)
    assert ticks["100"] == pytest.approx(heights[2], abs=0.1)
    assert (heights[0] + heights[2]) / 2 == pytest.approx(heights[1], abs=0.1)
    assert ["12.3k", "1.23M", "0.5", "100"] == [short(v) for v in (12_300, 1.23e6, 0.5, 100.0)]


@pytest.mark.parametrize("points", [[], [(5.0, 5.0)], [(0.0, 1.0), (0.0, 1.0)]])
@pytest.mark.parametrize("log", [True, False])
def test_a_plot_of_little_is_no_error(points: list[tuple[float, float]], log: bool) -> None:
    line_plot([Series(name="s", points=points, hue=0)], x="x", y="y", log_x=log)


# ---- sweep ---------------------------------------------------------------------------------


def test_a_grid_has_every_combination_and_starts_few_servers() -> None:
    points = grid({"rate": ["1", "2"], "max_num_seqs": ["4", "8"]})

    assert [
        "max_num_seqs=4,rate=1",
        "max_num_seqs=4,rate=2",
        "max_num_seqs=8,rate=1",
        "max_num_seqs=8,rate=2",
    ] == [point.name for point in points]
    with pytest.raises(ConfigError, match="no setting 'ratee'"):
        grid({"ratee": ["1"]})


def test_values_are_of_their_settings_type() -> None:
    made = with_values(LoadSettings(), {"rate": "inf", "requests": "7", "ignore_eos": "off"})

    assert (made.rate, made.requests, made.ignore_eos) == (float("inf"), 7, False)
    with pytest.raises(ConfigError, match="'many' is no value of requests"):
        with_values(LoadSettings(), {"requests": "many"})


def test_a_file_of_another_workload_stops_a_sweep_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "rate=2.json").write_text(json.dumps(result(0.05)))

    with pytest.raises(ConfigError, match=r"measured with another .*rate"):
        sweep(
            tmp_path,
            grid({"rate": ["1", "2"]}),
            LoadSettings(output_len=10),
            url="http://127.0.0.1:9",
            serve=(),
            command=(),
            tell=print,
        )
