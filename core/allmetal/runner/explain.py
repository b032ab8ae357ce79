"""What a model would run on, found out without loading it.

The model is built on torch's meta device, where tensors have shapes and no bytes, and the kernels
that its layers bind are noted down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch

from allmetal.cache.groups import blocks_by_group, layout_for, max_tokens_held
from allmetal.checkpoint import open_checkpoint
from allmetal.config import EngineConfig
from allmetal.errors import ConfigError
from allmetal.platform import reference
from allmetal.platform.contract import OpenOptions, Platform
from allmetal.platform.kv import CacheLayout, KVSpec
from allmetal.platform.plan import Plan
from allmetal.platform.render import render, to_json
from allmetal.platform.select import Choice, Kernels, with_reference
from allmetal.platform.specs import DecodeStateSpec, SamplingSpec
from allmetal.runner.rank import build_context, graph_bytes, kv_bytes, step_bytes
from allmetal_models.registry import build_model

_LENGTHS = (1024, 4096, 16384, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOutlook:
    """Sizes in bytes.  `layout` is None where the cache would not fit, and `problem` says why."""

    free: int
    weights: int
    step: int
    graphs: int
    layout: CacheLayout | None
    longest: int = 0
    problem: str = ""

    @property
    def cache(self) -> int:
        return 0 if self.layout is None else self.layout.num_blocks * self.layout.block_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    plan: Plan
    choices: tuple[Choice, ...]
    kv_specs: tuple[KVSpec, ...]
    memory: MemoryOutlook
    notes: tuple[str, ...] = ()

    def to_text(self) -> str:
        parts = [render(self.plan), _kernels(self.choices), _memory(self.plan, self.memory)]
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
    from allmetal.platform.resolve import resolve

    checkpoint = open_checkpoint(config)
    try:
        resolved = resolve(config, checkpoint)
        plan, platform = resolved.plan, resolved.platform
        offered = with_reference(platform.kernels(plan.device), reference.kernels())
        kernels = Kernels(offered, explicit=config.kernel)
        context = build_context(plan, torch.device("meta"), kernels, checkpoint)
        model = build_model(checkpoint.config, context)
        kernels.choose(SamplingSpec(vocab_size=model.vocab_size))
        if plan.graph_sizes:
            kernels.choose(DecodeStateSpec(block_size=plan.block_size))
    finally:
        checkpoint.close()
    return Explanation(
        plan=plan,
        # An executor of the platform's own asks none of these kernels.
        choices=kernels.choices if resolved.executor is None else (),
        kv_specs=model.kv_specs,
        memory=_outlook(config, plan, platform, model.kv_specs),
        notes=resolved.notes,
    )


def _outlook(
    config: EngineConfig, plan: Plan, platform: Platform, kv_specs: Sequence[KVSpec]
) -> MemoryOutlook:
    device = platform.open(plan.device, OpenOptions(threads=config.threads))
    try:
        free = device.memory().free
    finally:
        device.close()
    weights, layout, longest, problem = plan.model.parameter_bytes, None, 0, ""
    try:
        room = kv_bytes(plan, free, weights, free - weights)
        layout = layout_for(kv_specs, plan.block_size, room)
        longest = max_tokens_held(layout, plan.max_num_batched_tokens, plan.max_model_len)
    except ConfigError as error:
        problem = str(error)
    return MemoryOutlook(
        free=free,
        weights=weights,
        step=step_bytes(plan),
        graphs=graph_bytes(plan),
        layout=layout,
        longest=longest,
        problem=problem,
    )


def _kernels(choices: Sequence[Choice]) -> str:
    """Each kernel with the problems it takes and, once, why the others do not."""
    groups: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[str]] = {}
    for choice in sorted(choices, key=lambda choice: choice.spec.family):
        key = (choice.spec.family, choice.kernel.name, choice.refused)
        groups.setdefault(key, []).append(_problem(choice.spec))
    families = max((len(family) for family, _, _ in groups), default=0)
    lines = ["kernels"] if groups else ["kernels", "  inside the platform's own executor"]
    for (family, name, refused), problems in groups.items():
        lines.append(f"  {family:{families}}  {name}")
        lines += [f"  {'':{families}}    for {problem}" for problem in problems]
        lines += [f"  {'':{families}}    not {who}: {why}" for who, why in refused]
    return "\n".join(lines)


def _problem(spec: object) -> str:
    """A spec in few words: what it says beside its defaults."""
    if not is_dataclass(spec):
        return str(spec)
    said = []
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value != field.default:
            said.append(f"{field.name}={_problem(value) if is_dataclass(value) else value}")
    return f"{type(spec).__name__}({', '.join(said)})" if said else type(spec).__name__


def _memory(plan: Plan, memory: MemoryOutlook) -> str:
    rows = [
        ("free now", _size(memory.free)),
        ("weights", f"{_size(memory.weights)} as stored"),
        ("a step", f"at most {_size(memory.step)}"),
    ]
    if memory.graphs:
        rows.append(("recorded steps", f"at most {_size(memory.graphs)}"))
    if (layout := memory.layout) is None:
        rows.append(("cache", f"does not fit: {memory.problem}"))
    else:
        blocks = f"{layout.num_blocks} blocks of {layout.block_size} tokens"
        rows += [
            ("cache", f"{_size(memory.cache)}: {blocks}, {_size(layout.block_bytes)} each"),
            ("longest sequence", f"{memory.longest} tokens"),
            ("fits", _fits(plan, memory, layout)),
        ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(["memory", *(f"  {name:{width}}  {value}" for name, value in rows)])


def _fits(plan: Plan, memory: MemoryOutlook, layout: CacheLayout) -> str:
    """How many sequences of some lengths the cache holds at once."""
    lengths = [length for length in _LENGTHS if length < memory.longest] + [memory.longest]
    held = []
    for length in lengths[-3:]:
        needed = sum(blocks_by_group(layout, length, plan.max_num_batched_tokens))
        held.append(f"{(layout.num_blocks - 1) // max(needed, 1)} of {length} tokens")
    return ", or ".join(held)


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
