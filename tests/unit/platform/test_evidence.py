"""Evidence files are read whole or refused by name."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from allmetal.errors import ConfigError
from allmetal.platform.evidence import (
    Tally,
    latest,
    of_plugins,
    read_evidence,
    shipped,
    state_of,
)

MADE: dict[str, Any] = {
    "format": 1,
    "platform": "metal",
    "plugin": "allmetal-metal 2.0",
    "date": "2026-11-30T12:00:00Z",
    "commit": None,
    "device": {"name": "thing", "driver": "7"},
    "versions": {"torch": "3"},
    "levels": [0, 1],
    "correctness": {
        "total": {"passed": 1, "failed": 1, "skipped": 0},
        "features": {"moe": {"passed": 1, "failed": 0, "skipped": 2}},
        "families": {},
        "failures": [{"test": "test_x", "reason": "off"}],
    },
}


def write(folder: Path, name: str = "a.json", **changes: Any) -> Path:
    (folder / name).write_text(json.dumps({**MADE, **changes}))
    return folder


def test_a_file_is_read_back(tmp_path: Path) -> None:
    (found,) = read_evidence([write(tmp_path)])
    assert (found.platform, found.device, found.driver) == ("metal", "thing", "7")
    assert (found.day, found.commit) == ("2026-11-30", "")
    assert found.features == {"moe": Tally(passed=1, skipped=2)}
    assert found.failures == [("test_x", "off")]
    assert found.says("moe") == "thing, 2026-11-30, allmetal-metal 2.0, torch 3"
    assert found.emulated == frozenset()
    said = {"moe": {"word": "emulated"}, "mla": {"word": "native"}}
    (found,) = read_evidence([write(tmp_path, capabilities=said)])
    assert found.emulated == {"moe"}
    (found,) = read_evidence([write(tmp_path, left_out="the rest")])
    assert found.left_out == "the rest"
    assert read_evidence([]) == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": 7}, "it has format 7, and this is 1"),
        ({"correctness": {}}, "it lacks 'total'"),
        ({"device": "thing"}, "string indices"),
        ({"kind": "guessed"}, "there is no evidence of kind 'guessed'; there are run, emulated"),
    ],
)
def test_a_file_that_is_none_is_named_with_what_is_wrong(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=rf"a\.json is no evidence of this core: .*{why}"):
        read_evidence([write(tmp_path, **changes)])
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ConfigError, match="Expecting property name"):
        read_evidence([tmp_path])


def test_the_latest_run_on_each_device_counts(tmp_path: Path) -> None:
    write(tmp_path, "old.json", date="2026-01-01T00:00:00Z")
    write(tmp_path, "new.json")
    write(tmp_path, "other.json", device={"name": "other", "driver": ""})
    assert [e.path.rpartition("/")[2] for e in latest(read_evidence([tmp_path]))] == [
        "new.json",
        "other.json",
    ]


def test_what_is_known_of_a_feature() -> None:
    assert state_of("moe", True, []) == "declared"
    assert state_of("moe", None, []) == "untested"
    assert state_of("moe", False, []) == ""


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        (["emulated"], "emulated"),
        (["schema-checked"], "schema-checked"),
        (["compiled"], "compiled"),
        (["compiled", "emulated", "schema-checked"], "emulated"),
        (["compiled", "run"], "tested"),
    ],
)
def test_what_passed_without_the_device_is_called_what_it_is(
    tmp_path: Path, kinds: list[str], state: str
) -> None:
    for number, kind in enumerate(kinds):
        device = {"name": f"thing {number}", "driver": "7"}
        write(tmp_path, f"{number}.json", kind=kind, device=device)

    assert state == state_of("moe", True, read_evidence([tmp_path]))


def test_a_plugin_ships_evidence_of_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "allmetal_metal_of_a_test" / "evidence"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise AssertionError('nothing is imported')")
    write(folder, "mine.json")
    write(folder, "theirs.json", platform="cpu")
    monkeypatch.syspath_prepend(str(tmp_path))
    group = "allmetal.platforms"
    points = [
        EntryPoint("metal", "allmetal_metal_of_a_test.deep:Metal", group),
        EntryPoint("gone", "allmetal_that_is_not_there:Gone", group),
    ]
    assert ["metal"] == [each.platform for each in of_plugins(points)]


def test_the_evidence_of_this_repository_can_be_read() -> None:
    (folder,) = shipped()
    assert read_evidence([folder])
