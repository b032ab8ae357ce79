"""The plan: what becomes of a config on a model and a device, decided once, with reasons.

It is frozen, printed at start, served, and stamped into every benchmark's result.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from allmetal.config import Fallback
from allmetal.errors import FallbackError
from allmetal.platform.contract import DeviceInfo, ModelFacts
from allmetal.platform.policy import Policies

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One row of the plan: what was asked ("auto" where nothing was), what it got, and why.

    `by`: user, model, platform or default.  `fallback`: what was asked could not be had;
    `warn`: and the user wants to be told.
    """

    feature: str
    asked: str
    got: str
    by: str
    reason: str = ""
    fallback: bool = False
    warn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUse:
    """A kernel with the problems it takes, in words, and why others were refused."""

    family: str
    kernel: str
    is_reference: bool
    problems: tuple[str, ...]
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every setting resolved.  Sizes are bytes; `kv_cache_memory` None means a share of the rest.

    `quantization` is what linear weights are kept as: the checkpoint's own format, or "int8"
    which dense ones become while loading; None is dense.  `graph_sizes`: batches of the decode
    steps that are recorded, rising; `graph_tokens`: tokens of those with prompts.  `kernels` is
    empty where the platform's own executor computes.  `policies`: for what turns out while loading.
    `static_shapes`: all steps are padded to those sizes, and what is not recorded to powers of two.
    """

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
    tensor_parallel_size: int = 1
    kernels: tuple[KernelUse, ...] = ()
    policies: Policies = field(default_factory=Policies)
    graph_tokens: tuple[int, ...] = ()
    static_shapes: bool = False

    @property
    def warnings(self) -> tuple[Decision, ...]:
        return tuple(row for row in self.decisions if row.warn)

    def amended(self, later: Collection[Decision]) -> Plan:
        """With what was decided after it was made."""
        return replace(self, decisions=(*self.decisions, *later)) if later else self

    def is_wish(self, feature: str) -> bool:
        """Whether the user asked for it."""
        return any(row.feature == feature and row.by == "user" for row in self.decisions)


def fall_back(
    policies: Policies,
    platform: str,
    feature: str,
    *,
    asked: str,
    got: str,
    reason: str,
    hint: str = "",
    row: str = "",
    explicit: bool = False,
    default: Fallback | None = None,
) -> Decision:
    """A row for what cannot be had, or FallbackError where the policy says so.

    `row`: the name it goes by in the plan, if it is not the feature's own.
    """
    row = row or feature
    policy = policies.of(feature, explicit=explicit, option=row, default=default)
    if policy == "error":
        go_on = "without" if got in ("off", "none") else f"with {got}"
        raise FallbackError(
            f"{_wish(row, asked)} cannot be had on {platform}: {reason}",
            hint="; or ".join(filter(None, [hint, f"--fallback {row}=warn to go on {go_on}"])),
        )
    return Decision(
        feature=row,
        asked=asked,
        got=got,
        by="platform",
        reason=reason,
        fallback=explicit or policy == "warn",
        warn=policy == "warn",
    )


def _wish(row: str, asked: str) -> str:
    return row if asked in (AUTO, "on") else f"{row} {asked}"


def name_sizes(sizes: Collection[int], tokens: Collection[int] = ()) -> str:
    """Of graphs, in few words."""
    if not sizes:
        return "off"
    prompts = f", prompts up to {max(tokens)} tokens" if tokens else ""
    return f"{len(sizes)} sizes up to {max(sizes)}{prompts}"
