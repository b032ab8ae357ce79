"""The plan's part on kernels: which takes what, which features the model needs, and what is left
to the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from allmetal.platform.features import REGISTRY, features_of
from allmetal.platform.plan import AUTO, Decision, KernelUse, Plan, fall_back
from allmetal.platform.select import Choice
from allmetal.platform.words import problem

_DECIDED = ("dtype.", "kv_dtype.", "quant.")
"""Kinds of features that have a row of the planner's."""


def with_kernels(plan: Plan, choices: Sequence[Choice], explicit: Mapping[str, str]) -> Plan:
    """The plan with a row for each op family and each feature that the model's layers need.

    `explicit`: what the user chose.  Raises FallbackError where the reference would take what the
    policy leaves to the platform alone.
    """
    ordered = sorted(choices, key=lambda choice: choice.spec.family)
    later = [*_families(plan, ordered, explicit), *_needs(ordered)]
    said = {row.feature for row in later}
    kept = tuple(row for row in plan.decisions if row.feature not in said)
    return replace(plan, decisions=(*kept, *later), kernels=_uses(ordered))


def _uses(choices: Iterable[Choice]) -> tuple[KernelUse, ...]:
    """Problems with the same answer together."""
    groups: dict[tuple[str, str, bool, tuple[tuple[str, str], ...]], list[str]] = {}
    for c in choices:
        key = (c.spec.family, c.kernel.name, c.is_reference, c.refused)
        groups.setdefault(key, []).append(problem(c.spec))
    return tuple(
        KernelUse(
            family=family,
            kernel=kernel,
            is_reference=is_reference,
            problems=tuple(problems),
            refused=refused,
        )
        for (family, kernel, is_reference, refused), problems in groups.items()
    )


def _families(
    plan: Plan, choices: Sequence[Choice], explicit: Mapping[str, str]
) -> Iterable[Decision]:
    if choices and not explicit and all(c.is_reference and not c.refused for c in choices):
        why = "the platform brings no kernels, and the reference ones are slow"
        yield fall_back(
            plan.policies, plan.platform, "kernel", asked=AUTO, got="reference", reason=why
        )
        return
    for family in dict.fromkeys(c.spec.family for c in choices):
        of_it = [c for c in choices if c.spec.family == family]
        names = ", ".join(dict.fromkeys(c.kernel.name for c in of_it))
        row = f"kernel.{family}"
        left = [c for c in of_it if c.is_reference]
        if family in explicit or not left:
            by = "user" if family in explicit else "platform"
            asked = explicit.get(family, AUTO)
            yield Decision(feature=row, asked=asked, got=names, by=by, reason=_count(of_it))
        else:
            yield fall_back(
                plan.policies, plan.platform, row, asked=AUTO, got=names, reason=_why(of_it, left)
            )


def _why(choices: Sequence[Choice], left: Sequence[Choice]) -> str:
    """Why the reference takes some of a family's problems, or all."""
    reasons = dict.fromkeys(f"{name}: {reason}" for c in left for name, reason in c.refused)
    refused = "; ".join(reasons) or "the platform brings none of its own"
    whose = "" if len(left) == len(choices) else f"{len(left)} of {len(choices)} problems: "
    return f"{whose}{refused}"


def _count(choices: Sequence[Choice]) -> str:
    return f"{len(choices)} problems" if len(choices) > 1 else ""


def _needs(choices: Iterable[Choice]) -> Iterable[Decision]:
    """Who does what the model's layers ask for."""
    doers: dict[str, dict[str, None]] = {}
    for choice in choices:
        for feature in features_of(choice.spec):
            if not feature.startswith(_DECIDED):
                doers.setdefault(feature, {})[choice.kernel.name] = None
    for feature, names in doers.items():
        doc = REGISTRY[feature].doc
        yield Decision(
            feature=feature, asked=AUTO, got=", ".join(names), by="model", reason=f"it has {doc}"
        )
