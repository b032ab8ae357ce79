"""What a plan has recorded, and the row of what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allmetal.platform.contract import GraphCapture
from allmetal.platform.plan import Decision, Plan, fall_back, name_sizes
from allmetal.runner.graphs.decode import DecodeGraphs
from allmetal.runner.graphs.mixed import MixedGraphs


@dataclass(frozen=True, slots=True)
class StepGraphs:
    """None where nothing of the kind is recorded."""

    decode: DecodeGraphs | None = None
    mixed: MixedGraphs | None = None


def record_steps(
    plan: Plan, capture: GraphCapture | None, decode: DecodeGraphs, mixed: MixedGraphs
) -> tuple[StepGraphs, Sequence[Decision]]:
    """Raises FallbackError where the policy leaves no other choice."""
    reasons: list[str | None] = ["the device records nothing"]
    if capture is not None:
        reasons = [decode.record(capture, plan.graph_sizes)]
        if decode.sizes and plan.graph_tokens:
            reasons.append(mixed.record(capture, plan.graph_tokens))
    made = StepGraphs(decode if decode.sizes else None, mixed if mixed.sizes else None)
    missing = "; ".join(filter(None, reasons))
    if not missing:
        return made, ()
    got = name_sizes(decode.sizes, mixed.sizes)
    row = fall_back(
        plan.policies,
        plan.platform,
        "graph_capture",
        asked=name_sizes(plan.graph_sizes, plan.graph_tokens),
        got=got if decode.complete else f"{got}, greedy only",
        reason=missing,
        hint="--no-graph-capture",
        explicit=plan.is_wish("graph_capture"),
        default="warn",  # it was promised
    )
    return made, (row,)
