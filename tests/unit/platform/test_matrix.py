"""The matrix shows what platforms say, and the page in the docs is that of today."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from allmetal.platform.capabilities import FEATURES
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
from allmetal.platform.matrix import Matrix, matrix, reasons, render_matrix
from allmetal.platform.null import NullPlatform

PAGE = Path(__file__).parents[3] / "docs/support.md"
DEVICE = DeviceInfo(index=0, name="thing 9000", total_memory=1, traits={"fast": "yes"})


class Metal(NullPlatform):
    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        fast = device.traits.get("fast")
        return {
            "dtype.float32": Native("vector units"),
            "dtype.bfloat16": Native("matrix | units") if fast else Emulated("slowly"),
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


def words(made: Matrix, platform: str) -> dict[str, str]:
    (column,) = [c for c in made.columns if c.platform == platform]
    return {feature: cell.word for feature, cell in column.cells.items()}


def test_each_platform_is_asked_about_its_own_device_or_any() -> None:
    made = matrix(PLATFORMS)
    assert ["metal", "away", "bad", "raises", "other"] == [c.platform for c in made.columns]
    assert words(made, "metal")["dtype.bfloat16"] == "native"
    assert words(made, "away")["dtype.bfloat16"] == "emulated"
    assert words(made, "metal")["moe"] == "no"
    assert words(made, "metal")["sleep"] == "unknown"
    assert set(words(made, "metal")) == set(FEATURES)
    assert words(made, "bad") == words(made, "raises") == words(made, "other") == {}
    assert words(matrix(PLATFORMS, live=False), "metal")["dtype.bfloat16"] == "emulated"
    assert ("moe", "no: not yet") in reasons(made, "metal")


def test_a_terminal_shows_words_and_what_is_wrong_or_to_install() -> None:
    lines = render_matrix(matrix(PLATFORMS)).splitlines()
    (line,) = [x for x in lines if x.startswith("dtype.bfloat16")]
    assert line.split() == ["dtype.bfloat16", "native", "emulated", "-", "-", "-"]
    assert "metal: metal 1.0; thing 9000" in lines
    assert "away: away 1.0; any device; nothing plugged in" in lines
    assert "bad: bad 1.0; its plugin (bad 1.0) is broken: ImportError: x" in lines
    assert "raises: raises 1.0; its capabilities raised RuntimeError: ouch" in lines
    assert 'other: other 1.0; it is not installed; pip install "allmetal[other]"' in lines


def test_markdown_has_the_reasons_and_no_stray_column() -> None:
    text = render_matrix(matrix(PLATFORMS), "md")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == len(FEATURES) + 2
    assert {line.count("|") for line in table} == {8}
    assert "- **native** `dtype.bfloat16`: matrix | units" in text
    assert '```bash\npip install "allmetal[other]"\n```' in text


def test_json_says_all_of_it() -> None:
    plain = json.loads(render_matrix(matrix(PLATFORMS), "json"))
    assert plain["platforms"]["metal"]["features"]["moe"] == {"is": "no", "why": "not yet"}
    assert plain["platforms"]["other"]["install"] == 'pip install "allmetal[other]"'
    assert set(plain["features"]) == set(FEATURES)


def test_the_page_in_the_docs_is_current() -> None:
    missing = set(known_platforms()) - {p.name for p in entry_points(group=GROUP)}
    if missing:
        pytest.skip(f"needs every platform installed; missing: {', '.join(sorted(missing))}")
    ours = [f for f in discover() if f.name in known_platforms()]
    expected = render_matrix(matrix(ours, live=False), "md")
    assert expected in PAGE.read_text(), "docs/support.md is out of date: make docs"
