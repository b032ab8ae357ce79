"""How the device's memory will be laid out, before anything is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from allmetal.cache.groups import blocks_by_group, layout_for, max_tokens_held
from allmetal.config import EngineConfig
from allmetal.errors import ConfigError
from allmetal.platform.contract import OpenOptions, Platform
from allmetal.platform.kv import CacheLayout, KVSpec
from allmetal.platform.plan import Plan
from allmetal.runner.foretell import Foretold
from allmetal.runner.memory import graph_bytes, kv_bytes, step_bytes

_LENGTHS = (1024, 4096, 16384, 65536)
_BAR = 24
"""Characters of a bar that stands for all that is free."""


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


def outlook(
    config: EngineConfig, plan: Plan, platform: Platform, foretold: Foretold
) -> MemoryOutlook:
    """Opens the device, asks what is free, and closes it."""
    device = platform.open(plan.device, OpenOptions(threads=config.threads))
    try:
        free = device.memory().free
    finally:
        device.close()
    weights, layout, longest, problem = foretold.weight_bytes, None, 0, ""
    try:
        room = kv_bytes(plan, free, weights, free - weights)
        layout = layout_for(foretold.kv_specs, plan.block_size, room)
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


def render_outlook(plan: Plan, memory: MemoryOutlook, kv_specs: Sequence[KVSpec]) -> str:
    """A row for each part with its size, its share of what is free as a bar, and what it holds."""
    parts = [
        ("weights", memory.weights, _kept(plan, memory)),
        ("a step", memory.step, f"at most, for {plan.max_num_batched_tokens} tokens"),
    ]
    if memory.graphs:
        parts.append(("recorded steps", memory.graphs, f"at most, for {_sizes(plan)}"))
    if layout := memory.layout:
        blocks = f"{layout.num_blocks} blocks of {layout.block_size} tokens"
        parts.append(("cache", memory.cache, f"{blocks}, {size(layout.block_bytes)} each"))
    taken = sum(num_bytes for _, num_bytes, _ in parts)
    parts.append(("left over", max(0, memory.free - taken), "for others"))
    width = max(len(name) for name, _, _ in parts)
    lines = [f"memory: {size(memory.free)} are free"]
    lines += [
        f"  {name:{width}}  {size(num_bytes):>10}  {_bar(num_bytes, memory.free)}  {note}".rstrip()
        for name, num_bytes, note in parts
    ]
    if layout is None:
        why = memory.problem.replace("\n", f"\n  {'':{width}}  ")
        return "\n".join([*lines, f"  {'cache':{width}}  does not fit: {why}"])
    return "\n".join(
        [
            *lines,
            f"  {'layers':{width}}  {_layers(kv_specs)}",
            f"  {'holds':{width}}  {_fits(plan, memory, layout)}",
            f"  {'longest':{width}}  {memory.longest} tokens in a sequence",
        ]
    )


def size(num_bytes: int) -> str:
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(amount) < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def _kept(plan: Plan, memory: MemoryOutlook) -> str:
    stored = plan.model.parameter_bytes
    kind = plan.quantization or plan.dtype
    return f"{kind}, as stored" if memory.weights == stored else f"{kind}; stored: {size(stored)}"


def _sizes(plan: Plan) -> str:
    return f"{len(plan.graph_sizes)} sizes up to {max(plan.graph_sizes)} sequences"


def _bar(num_bytes: int, free: int) -> str:
    filled = min(_BAR, round(_BAR * num_bytes / free)) if free else 0
    return "█" * filled + "·" * (_BAR - filled)


def _layers(kv_specs: Sequence[KVSpec]) -> str:
    """What of each kind there is, and what a token of it takes."""
    return ", ".join(
        f"{count} of {_kind(spec)} ({size(spec.bytes_per_token)} a token)"
        for spec, count in Counter(kv_specs).items()
    )


def _kind(spec: KVSpec) -> str:
    return "every token" if spec.window is None else f"the last {spec.window} tokens"


def _fits(plan: Plan, memory: MemoryOutlook, layout: CacheLayout) -> str:
    """How many sequences of some lengths the cache holds at once."""
    lengths = [length for length in _LENGTHS if length < memory.longest] + [memory.longest]
    held = []
    for length in lengths[-3:]:
        needed = sum(blocks_by_group(layout, length, plan.max_num_batched_tokens))
        held.append(f"{(layout.num_blocks - 1) // max(needed, 1)} of {length} tokens")
    return f"{', or '.join(held)}; at most {plan.max_num_seqs} run at once"
