from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

from allmetal.cli import COMMANDS
from allmetal.request import SamplingParams

DOCS = Path(__file__).parents[2] / "docs"
ROOT = DOCS.parent


def test_every_sampling_field_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (DOCS / "sampling.md").read_text(), re.M))
    words = {None: "none", (): "none", True: "on", False: "off"}

    assert {f.name for f in fields(SamplingParams)} == rows.keys()
    for field in fields(SamplingParams):
        if isinstance(field.default, int | float | bool):
            expected = words.get(field.default) if isinstance(field.default, bool) else None
            assert (expected or str(field.default)) == rows[field.name], field.name


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()

    for page in DOCS.glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page


def test_every_command_has_a_section() -> None:
    page = (DOCS / "cli.md").read_text()

    assert list(COMMANDS) == re.findall(r"^## allmetal (\w+)$", page, re.M)


def test_every_core_dependency_is_argued_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[^\w-]", text)[0] for text in project["dependencies"]]
    table = (DOCS / "dependencies.md").read_text().split("## Of the platforms")[0]

    assert sorted(names) == sorted(re.findall(r"^\| ([\w-]+) \| (?!job)", table, re.M))
