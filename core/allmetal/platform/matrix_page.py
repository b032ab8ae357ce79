"""A matrix as a page that stands alone: no script or font from elsewhere."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment, StrictUndefined

from allmetal.platform.evidence import Evidence
from allmetal.platform.matrix import Column, Matrix, Word
from allmetal.platform.matrix_text import LEGEND, MARKS, run_line


def as_page(matrix: Matrix) -> str:
    """HTML, the same for the same matrix."""
    source = files("allmetal.platform").joinpath("matrix.html").read_text(encoding="utf-8")
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(source)
    return template.render(
        platforms=[_card(column) for column in matrix.columns],
        groups=[
            {"name": group, "rows": [_row(matrix, feature) for feature in features]}
            for group, features in groupby(matrix.features, key=lambda f: matrix.features[f].group)
        ],
        legend=[(state, MARKS[state], doc) for state, doc in LEGEND.items()],
    )


def _card(column: Column) -> dict[str, Any]:
    words = Counter(cell.word for cell in column.cells.values())
    total = max(1, len(column.cells))
    return {
        "name": column.platform,
        "origin": column.origin,
        "device": column.device,
        "note": column.note,
        "install": column.install,
        "shares": [(word, words[word], 100 * words[word] / total) for word in _WORDS],
        "runs": [_run(run) for run in column.runs],
    }


_WORDS: tuple[Word, ...] = ("native", "emulated", "no")


def _run(run: Evidence) -> dict[str, Any]:
    return {
        "line": run_line(run),
        "passed": run.total.passed,
        "failed": run.total.failed,
        "device": run.device,
        "day": run.day,
        "failures": list(run.failures),
    }


def _row(matrix: Matrix, feature: str) -> dict[str, Any]:
    known = matrix.features[feature]
    return {
        "name": feature,
        "doc": known.doc,
        "without": known.without,
        "option": f"--{known.option.replace('_', '-')}" if known.option else "",
        "cells": [_cell(column, feature) for column in matrix.columns],
    }


def _cell(column: Column, feature: str) -> dict[str, Any]:
    cell = column.cells.get(feature)
    if cell is None:
        return {"platform": column.platform, "word": "", "mark": "", "why": "", "proof": []}
    return {
        "platform": column.platform,
        "word": cell.word,
        "evidence": cell.evidence,
        "mark": MARKS[cell.evidence],
        "why": cell.why,
        "proof": list(cell.proof),
    }
