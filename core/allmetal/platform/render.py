"""A plan for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from allmetal.platform.plan import AUTO, Decision, Plan


def render(plan: Plan) -> str:
    """A table of every decision; a row marked ! is not what was asked."""
    head = ("", "feature", "asked", "got", "by", "why")
    rows = [head, *(_cells(row) for row in plan.decisions)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
    return "\n".join([title(plan), "", *(line.rstrip() for line in lines)])


def title(plan: Plan) -> str:
    device = plan.device
    size = f", {device.total_memory / 2**30:.1f} GiB" if device.total_memory else ""
    return (
        f"{plan.model.model_type} ({plan.model.parameter_bytes / 2**30:.2f} GiB) "
        f"on {plan.platform}: {device.name}{size}"
    )


def warning(row: Decision) -> str:
    """One sentence of a row that is not what was asked."""
    if row.asked == AUTO:
        return f"{row.feature}: {row.got} is used: {row.reason}"
    return f"{row.feature} {row.asked} cannot be had, {row.got} is used: {row.reason}"


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain values that json can write."""
    plain: dict[str, Any] = _plain(plan)
    return plain


def _cells(row: Decision) -> tuple[str, ...]:
    return ("!" if row.fallback else "", row.feature, row.asked, row.got, row.by, row.reason)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
