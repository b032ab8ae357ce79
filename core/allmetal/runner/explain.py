"""What a model would run on, found out without loading it: decisions, kernels, memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from allmetal.checkpoint import open_checkpoint
from allmetal.config import EngineConfig
from allmetal.platform.kv import KVSpec
from allmetal.platform.plan import KernelUse, Plan
from allmetal.platform.render import render, to_json
from allmetal.platform.resolve import resolve
from allmetal.platform.select import Choice
from allmetal.runner.foretell import foretell
from allmetal.runner.outlook import MemoryOutlook, outlook, render_outlook

_OTHERS_SHOWN = 6
"""Problems of a kernel that are written out; a mixture's layers have many that differ in size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`choices` is empty where the platform's own executor computes."""

    plan: Plan
    choices: tuple[Choice, ...]
    kv_specs: tuple[KVSpec, ...]
    memory: MemoryOutlook
    notes: tuple[str, ...] = ()

    def to_text(self) -> str:
        parts = [
            render(self.plan),
            _kernels(self.plan.kernels),
            render_outlook(self.plan, self.memory, self.kv_specs),
        ]
        if self.notes:
            parts.append("\n".join(f"note: {note}" for note in self.notes))
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        memory = self.memory
        return {
            "plan": to_json(self.plan),
            "kernels": [
                {
                    "family": choice.spec.family,
                    "kernel": choice.kernel.name,
                    "reference": choice.is_reference,
                    "spec": str(choice.spec),
                    "refused": dict(choice.refused),
                }
                for choice in self.choices
            ],
            "memory": {
                "free": memory.free,
                "weights": memory.weights,
                "step": memory.step,
                "graphs": memory.graphs,
                "cache": memory.cache,
                "block_bytes": memory.layout.block_bytes if memory.layout else None,
                "num_blocks": memory.layout.num_blocks if memory.layout else None,
                "longest_sequence": memory.longest,
                "problem": memory.problem,
            },
            "notes": list(self.notes),
        }


def explain(config: EngineConfig) -> Explanation:
    """Raises what loading would raise: CheckpointError, ConfigError, NoKernelError .."""
    with closing(open_checkpoint(config)) as checkpoint:
        resolved = resolve(config, checkpoint)
        plan, platform = resolved.plan, resolved.platform
        foretold = resolved.foretold or foretell(config, plan, platform, checkpoint)
    return Explanation(
        plan=plan,
        choices=foretold.choices if resolved.executor is None else (),
        kv_specs=foretold.kv_specs,
        memory=outlook(config, plan, platform, foretold),
        notes=resolved.notes,
    )


def _kernels(uses: Sequence[KernelUse]) -> str:
    """Each kernel with the problems it takes and, once, why the others do not."""
    if not uses:
        return "kernels\n  inside the platform's own executor"
    width = max(len(use.family) for use in uses)
    lines = ["kernels"]
    for use in uses:
        mark = "!" if use.is_reference else " "
        lines.append(f"{mark} {use.family:{width}}  {use.kernel}")
        problems = list(use.problems)
        if len(problems) > _OTHERS_SHOWN:
            more = len(problems) - _OTHERS_SHOWN + 1
            problems[_OTHERS_SHOWN - 1 :] = [f"{more} more (--json has them)"]
        lines += [f"  {'':{width}}    {problem}" for problem in problems]
        lines += [f"  {'':{width}}    not {who}: {why}" for who, why in use.refused]
    return "\n".join(lines)
