"""The matrix shows what platforms say and what the kit found, and the pages in the docs are those
of today."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from allmetal.errors import ConfigError
from allmetal.platform.contract import (
    Absent,
    CapabilityTable,
    DeviceInfo,
    Emulated,
    Native,
    Unsupported,
)
from allmetal.platform.discover import (
    GROUP,
    Failed,
    Found,
    NotInstalled,
    State,
    discover,
    known_platforms,
)
from allmetal.platform.evidence import Evidence, Tally, read_evidence
from allmetal.platform.features import REGISTRY
from allmetal.platform.matrix import Matrix, matrix, narrowed
from allmetal.platform.matrix_page import as_page
from allmetal.platform.matrix_text import as_json, as_markdown, as_table
from allmetal.platform.null import NullPlatform

DOCS = Path(__file__).parents[3] / "docs"
DEVICE = DeviceInfo(index=0, name="thing 9000", total_memory=1, traits={"fast": "yes"})


class Metal(NullPlatform):
    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        fast = device.traits.get("fast")
        return {
            "dtype.float32": Native("vector units"),
            "dtype.bfloat16": Native("matrix | units") if fast else Emulated("slowly"),
            "attention.sinks": Native("flash <attention>"),
            "moe": Unsupported("not yet"),
        }


class Raises(NullPlatform):
    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        raise RuntimeError("ouch")


def found(name: str, state: State, platform: NullPlatform | None = None) -> Found:
    return Found(name=name, origin=f"{name} 1.0", state=state, platform=platform)


PLATFORMS = [
    found("metal", (DEVICE,), Metal()),
    found("away", Absent("nothing plugged in"), Metal()),
    found("bad", Failed("ImportError: x")),
    found("raises", (DEVICE,), Raises()),
    found("other", NotInstalled('pip install "allmetal[other]"')),
    *discover(only={"null"}),
]


def run(date: str, device: str = "thing 9000", **features: Tally) -> Evidence:
    return Evidence(
        platform="metal",
        plugin="metal 1.0",
        device=device,
        driver="7",
        date=date,
        commit="0123456789abcdef+",
        versions={"torch": "3.0"},
        levels=(0, 1),
        total=Tally(passed=5, failed=1, skipped=2),
        features={name.replace("__", "."): tally for name, tally in features.items()},
        families={},
        failures=[("test_attention_is_what_it_claims[x]", "row 6 is off")],
    )


RUNS = [
    run("2026-01-01T00:00:00Z", dtype__float32=Tally(failed=9)),
    run(
        "2026-02-01T00:00:00Z",
        dtype__float32=Tally(passed=3),
        dtype__bfloat16=Tally(skipped=4),
        attention__sinks=Tally(passed=2, failed=1),
    ),
]


def words(made: Matrix, platform: str) -> dict[str, str]:
    (column,) = [c for c in made.columns if c.platform == platform]
    return {feature: cell.word for feature, cell in column.cells.items()}


def test_each_platform_is_asked_about_its_own_device_or_any() -> None:
    made = matrix(PLATFORMS)
    assert ["metal", "away", "bad", "raises", "other"] == [c.platform for c in made.columns]
    assert words(made, "metal")["dtype.bfloat16"] == "native"
    assert words(made, "away")["dtype.bfloat16"] == "emulated"
    assert words(made, "metal")["moe"] == "no"
    assert words(made, "metal")["sleep"] == "no"
    assert words(made, "metal")["attention.soft_cap"] == "emulated", "the reference computes it"
    assert set(words(made, "metal")) == set(REGISTRY)
    assert words(made, "bad") == words(made, "raises") == words(made, "other") == {}
    assert words(matrix(PLATFORMS, live=False), "metal")["dtype.bfloat16"] == "emulated"


def test_beside_each_word_stands_what_the_latest_run_found() -> None:
    (metal, *_) = matrix(PLATFORMS, evidence=RUNS).columns
    states = {feature: cell.evidence for feature, cell in metal.cells.items()}
    assert states["dtype.float32"] == "tested"
    assert states["attention.sinks"] == "failing"
    assert states["dtype.bfloat16"] == "declared", "what was skipped was not tested"
    assert states["moe"] == "", "a refusal needs no evidence"
    assert states["sleep"] == "untested"
    assert metal.cells["dtype.float32"].proof == (
        "3 tests passed: thing 9000, 2026-02-01, metal 1.0, torch 3.0",
    )
    assert metal.cells["attention.sinks"].proof == (
        "1 of 3 tests failed: thing 9000, 2026-02-01, metal 1.0, torch 3.0",
    )
    assert [r.date[:4] for r in metal.runs] == ["2026"]
    (_, away, *_) = matrix(PLATFORMS, evidence=RUNS).columns
    assert away.runs == ()


def test_a_failure_on_any_device_shows() -> None:
    other = run("2025-01-01T00:00:00Z", device="old thing", dtype__float32=Tally(failed=1))
    (metal, *_) = matrix(PLATFORMS, evidence=[*RUNS, other]).columns
    assert metal.cells["dtype.float32"].evidence == "failing"
    assert [r.device for r in metal.runs] == ["thing 9000", "old thing"]


def test_what_was_emulated_then_is_no_proof_of_a_kernel_that_came_later() -> None:
    passed = run("2026-02-01T00:00:00Z", dtype__float32=Tally(passed=3))
    for emulated, state in ((frozenset[str](), "tested"), ({"dtype.float32"}, "declared")):
        then = replace(passed, emulated=frozenset(emulated))
        (metal, *_) = matrix(PLATFORMS, evidence=[then]).columns
        assert (metal.cells["dtype.float32"].word, metal.cells["dtype.float32"].evidence) == (
            "native",
            state,
        )


def test_a_matrix_is_narrowed_to_platforms_and_features_or_their_kinds() -> None:
    made = narrowed(matrix(PLATFORMS), ["metal"], ["quant", "moe"])
    assert [c.platform for c in made.columns] == ["metal"]
    quants = ("int8", "w8a8", "gguf", "fp8")
    assert set(made.features) == {"moe", *(f"quant.{kind}" for kind in quants)}
    assert set(words(made, "metal")) == set(made.features)
    with pytest.raises(ConfigError, match="no platform is called 'iron'"):
        narrowed(made, ["iron"])
    with pytest.raises(ConfigError, match=r"no feature is called 'quant\.int7'") as error:
        narrowed(matrix(PLATFORMS), [], ["quant.int7"])
    assert "quant.int8" in str(error.value.hint)


def test_a_terminal_shows_words_marks_and_what_is_wrong_or_to_install() -> None:
    lines = as_table(matrix(PLATFORMS, evidence=RUNS)).splitlines()
    (line,) = [x for x in lines if x.startswith("dtype.bfloat16")]
    assert line.split() == ["dtype.bfloat16", "native", "○", "emulated", "○", "-", "-", "-"]
    (line,) = [x for x in lines if x.startswith("attention.sinks")]
    assert line.split()[1:3] == ["native", "✗"]
    marks = "✓ tested, ◐ emulated, ◔ schema-checked, ◌ compiled, ✗ failing, ○ declared, · untested"
    assert marks in lines
    assert "metal: metal 1.0; thing 9000" in lines
    kit = "  kit of 2026-02-01 on thing 9000: 5 passed, 1 failed, 2 skipped at levels 0, 1"
    assert f"{kit} (torch 3.0, commit 0123456789ab+)" in lines
    assert "away: away 1.0; any device; nothing plugged in" in lines
    assert "bad: bad 1.0; its plugin (bad 1.0) is broken: ImportError: x" in lines
    assert "raises: raises 1.0; its capabilities raised RuntimeError: ouch" in lines
    assert 'other: other 1.0; it is not installed; pip install "allmetal[other]"' in lines


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_narrow_terminal_is_not_overrun(width: int) -> None:
    six = [found(f"metal{n}", Absent("nothing " * 30), Metal()) for n in range(6)]
    table = as_table(matrix([*PLATFORMS[:1], *six], evidence=RUNS), width)
    lines = table.splitlines()
    assert max(map(len, lines)) <= max(width, 24 + 7 * 8)
    (line,) = [x for x in lines if x.startswith("dtype.float32 ")]
    assert ("native" in line) == (width == 200)
    assert ("nat native, emu emulated" in table) == (width != 200)
    reasons = as_table(narrowed(matrix(PLATFORMS, evidence=RUNS), ["metal"]), width)
    assert max(map(len, reasons.splitlines())) <= width
    whole = as_table(narrowed(matrix(PLATFORMS, evidence=RUNS), ["metal"]))
    assert whole.split() == reasons.split()


def test_evidence_says_what_was_left_out_and_where_it_is_not_the_kits() -> None:
    part = replace(RUNS[1], left_out="draws of tokens")
    other = replace(RUNS[1], device="red, blue", kind="compiled", levels=(), date="2026-01-09")
    text = as_table(matrix(PLATFORMS, evidence=[part, other]))
    assert "at levels 0, 1, without draws of tokens (torch 3.0" in text
    assert "  tests of 2026-01-09 on red, blue, compiled: 5 passed, 1 failed, 2 skipped (" in text


def test_one_platform_or_one_feature_is_shown_with_reasons() -> None:
    made = matrix(PLATFORMS, evidence=RUNS)
    text = as_table(narrowed(made, ["metal"]))
    assert re.search(r"^  moe +no +not yet$", text, re.MULTILINE)
    assert re.search(r"^  dtype.float32 +native +✓ tested +vector units$", text, re.MULTILINE)
    text = as_table(narrowed(made, [], ["attention.sinks"]))
    assert "1 of 3 tests failed: thing 9000" in text
    assert 'pip install "allmetal[other]"' in text


def test_markdown_has_the_reasons_and_no_stray_column() -> None:
    text = as_markdown(matrix(PLATFORMS, evidence=RUNS))
    table = [line for line in text.splitlines() if line.startswith("|")]
    groups = len({feature.group for feature in REGISTRY.values()})
    assert len(table) == len(REGISTRY) + 2 * groups
    assert {line.count("|") for line in table} == {8}
    assert "- **native** `dtype.bfloat16`: matrix | units" in text
    assert "- **failing** `test_attention_is_what_it_claims[x]`: row 6 is off" in text
    assert '\n`pip install "allmetal[other]"`\n' in text


def test_json_says_all_of_it() -> None:
    plain = json.loads(as_json(matrix(PLATFORMS, evidence=RUNS)))
    said = plain["platforms"]["metal"]["features"]["attention.sinks"]
    assert (said["is"], said["why"], said["evidence"]) == (
        "native",
        "flash <attention>",
        "failing",
    )
    assert said["proof"]
    assert plain["platforms"]["other"]["install"] == 'pip install "allmetal[other]"'
    assert set(plain["features"]) == set(REGISTRY)


class Page(HTMLParser):
    """Cells, and tags left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: dict[str, dict[str, str | None]] = {}
        self.open: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in ("meta", "input", "link", "img", "br"):
            self.open.append(tag)
        self.loads += [v or "" for k, v in attrs if k in ("src", "href")]
        if title := given.get("data-title"):
            self.cells[title] = given

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_every_cell_stands_alone_and_takes_no_words_for_markup() -> None:
    text = as_page(matrix(PLATFORMS, evidence=RUNS))
    page = Page(text)
    assert page.open == []
    assert page.loads == [], "nothing is fetched from elsewhere"
    assert len(page.cells) == 2 * len(REGISTRY)
    cell = page.cells["attention.sinks on metal"]
    assert cell["data-why"] == "flash <attention>"
    assert cell["data-evidence"] == "failing"
    assert "1 of 3 tests failed" in str(cell["data-proof"])
    assert "flash <attention>" not in text
    assert "pip install &#34;allmetal[other]&#34;" in text


def ours() -> Matrix:
    missing = set(known_platforms()) - {p.name for p in entry_points(group=GROUP)}
    if missing:
        pytest.skip(f"needs every platform installed; missing: {', '.join(sorted(missing))}")
    shown = [f for f in discover() if f.name in known_platforms()]
    return matrix(shown, evidence=read_evidence([DOCS / "evidence"]), live=False)


def test_the_page_in_the_docs_is_current() -> None:
    expected = as_markdown(ours())
    assert expected in (DOCS / "support.md").read_text(), "docs/support.md is old: make docs"


def test_the_html_page_in_the_docs_is_current() -> None:
    expected = as_page(ours())
    assert expected.strip() == (DOCS / "support.html").read_text().strip(), "make docs"
