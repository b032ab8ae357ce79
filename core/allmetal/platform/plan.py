"""The plan: what becomes of a config on a model and a device, decided once, with reasons.

`plan()` is pure: frozen config in, frozen plan out.  Nothing else decides a fallback.
"""

from __future__ import annotations

from dataclasses import dataclass

from allmetal.platform.contract import DeviceInfo, ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One row of the plan: what was asked ("auto" where nothing was), what it got, and why."""

    feature: str
    asked: str
    got: str
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every setting resolved.  Sizes are bytes; `kv_cache_memory` None means a share of the rest."""

    platform: str
    device: DeviceInfo
    model: ModelFacts
    dtype: str
    kv_dtype: str
    quantization: str | None
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_memory: int | None
    memory_fraction: float
    prefix_caching: bool
    async_scheduling: bool
    graph_sizes: tuple[int, ...]
    decisions: tuple[Decision, ...]
