"""The plan: what becomes of a config on a model and a device, decided once, with reasons.

`plan()` is pure: frozen config in, frozen plan out.  Nothing else decides a fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from allmetal.config import EngineConfig, Fallback
from allmetal.errors import ConfigError, FallbackError
from allmetal.platform.capabilities import available, capability, describe
from allmetal.platform.contract import Advice, CapabilityTable, DeviceInfo, ModelFacts
from allmetal.platform.kv import DTYPE_BYTES
from allmetal.platform.specs import FAMILIES

AUTO = "auto"
_DTYPES = ("bfloat16", "float16", "float32")


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
class Plan:
    """Every setting resolved.  Sizes are bytes; `kv_cache_memory` None means a share of the rest.

    `quantization` is what linear weights are kept as: the checkpoint's own format, or "int8"
    which dense ones become while loading; None is dense.  `graph_sizes`: batches of the decode
    steps that are recorded, rising.  `fallback`: the policy, for what turns out while loading.
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
    fallback: Fallback = "warn"

    @property
    def warnings(self) -> tuple[Decision, ...]:
        return tuple(row for row in self.decisions if row.warn)

    def amended(self, later: Collection[Decision]) -> Plan:
        """With what was decided after it was made."""
        return replace(self, decisions=(*self.decisions, *later)) if later else self


def plan(
    config: EngineConfig,
    model: ModelFacts,
    platform_name: str,
    device: DeviceInfo,
    table: CapabilityTable,
    advice: Advice,
) -> Plan:
    """Decide everything.  `advice` is applied where the config is silent.

    Raises FallbackError for a wish that cannot be had under the policy "error", ConfigError for
    one that no platform could fulfil.
    """
    rows = _Rows(config, platform_name, table)
    rows.add("platform", config.platform, platform_name, reason=device.name)
    dtype = _dtype(rows, model, advice)
    kv_dtype = _kv_dtype(rows, dtype)
    quantization = _quantization(rows, model)
    block_size = rows.number("block_size", config.block_size, advice.block_size)
    max_model_len = _max_model_len(rows, model)
    max_num_seqs, max_num_batched_tokens = _batch(rows, advice)
    memory_fraction = _memory(rows, advice)
    prefix_caching = rows.switch("prefix_caching", config.prefix_caching)
    async_scheduling = rows.switch("async_scheduling", config.async_scheduling)
    graph_sizes = _graph_sizes(rows, advice, max_num_seqs)
    _rest(rows)
    return Plan(
        platform=platform_name,
        device=device,
        model=model,
        dtype=dtype,
        kv_dtype=kv_dtype,
        quantization=quantization,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_memory=config.kv_cache_memory,
        memory_fraction=memory_fraction,
        prefix_caching=prefix_caching,
        async_scheduling=async_scheduling,
        graph_sizes=graph_sizes,
        decisions=tuple(rows.rows),
        fallback=config.fallback,
    )


def fall_back(
    policy: Fallback, platform: str, feature: str, asked: str, got: str, reason: str, hint: str
) -> Decision:
    """A wish that cannot be had: a row, or FallbackError where the policy says so."""
    if policy == "error":
        raise FallbackError(f"{feature} {asked} cannot be had on {platform}: {reason}", hint=hint)
    return Decision(
        feature=feature,
        asked=asked,
        got=got,
        by="platform",
        reason=reason,
        fallback=True,
        warn=policy == "warn",
    )


def name_sizes(sizes: Collection[int]) -> str:
    """Of graphs, in few words."""
    return f"{len(sizes)} sizes up to {max(sizes)}" if sizes else "off"


class _Rows:
    """The decisions so far, and what they are made from."""

    def __init__(self, config: EngineConfig, platform: str, table: CapabilityTable) -> None:
        self.config = config
        self.platform = platform
        self.table = table
        self.rows: list[Decision] = []

    def has(self, feature: str) -> bool:
        return available(capability(self.table, feature))

    def describe(self, feature: str) -> str:
        return describe(capability(self.table, feature))

    def add(
        self, feature: str, asked: object, got: object, *, by: str = "", reason: str = ""
    ) -> None:
        asked = AUTO if asked is None else asked
        by = by or ("platform" if asked == AUTO else "user")
        self.rows.append(
            Decision(feature=feature, asked=str(asked), got=str(got), by=by, reason=reason)
        )

    def fall_back(self, feature: str, asked: str, got: str, reason: str, hint: str) -> None:
        """An explicit wish that cannot be had: an error or a row, as the policy says."""
        self.rows.append(
            fall_back(self.config.fallback, self.platform, feature, asked, got, reason, hint)
        )

    def number(self, feature: str, asked: int | None, advised: int) -> int:
        got = advised if asked is None else asked
        self.add(feature, asked, got)
        return got

    def switch(self, feature: str, asked: bool) -> bool:
        """A feature that is on unless said otherwise, so on is not an explicit wish."""
        if not asked:
            self.add(feature, "off", "off")
            return False
        on = self.has(feature)
        self.add(feature, AUTO, "on" if on else "off", reason=self.describe(feature))
        return on


def _dtype(rows: _Rows, model: ModelFacts, advice: Advice) -> str:
    asked = rows.config.dtype
    if asked != AUTO and rows.has(f"dtype.{asked}"):
        rows.add("dtype", asked, asked, reason=rows.describe(f"dtype.{asked}"))
        return asked
    got, by, reason = _silent_dtype(rows.has, model, advice)
    if asked == AUTO:
        rows.add("dtype", asked, got, by=by, reason=reason)
    else:
        why = rows.describe(f"dtype.{asked}")
        rows.fall_back("dtype", asked, got, why, hint=f"--dtype {got}")
    return got


def _silent_dtype(
    has: Callable[[str], bool], model: ModelFacts, advice: Advice
) -> tuple[str, str, str]:
    """(dtype, by, reason) where the user asks for none, or for one that is not to be had."""
    if advice.dtype is not None and has(f"dtype.{advice.dtype}"):
        return advice.dtype, "platform", advice.dtype_reason
    if has(f"dtype.{model.dtype}"):
        return model.dtype, "model", "the checkpoint's own"
    for dtype in _DTYPES:
        if has(f"dtype.{dtype}"):
            return dtype, "platform", f"it lacks the checkpoint's {model.dtype}"
    raise ConfigError(f"the platform has none of the dtypes {', '.join(_DTYPES)}")


def _kv_dtype(rows: _Rows, dtype: str) -> str:
    asked, feature = rows.config.kv_cache_dtype, "kv_cache_dtype"
    if asked == AUTO:
        rows.add(feature, AUTO, dtype, by="default", reason="as activations")
        return dtype
    if asked not in DTYPE_BYTES:
        raise ConfigError(
            f"{feature} {asked} is unknown", hint=f"one of auto, {', '.join(DTYPE_BYTES)}"
        )
    if asked == dtype or rows.has(f"kv_dtype.{asked}"):
        reason = "" if asked == dtype else rows.describe(f"kv_dtype.{asked}")
        rows.add(feature, asked, asked, reason=reason)
        return asked
    why = rows.describe(f"kv_dtype.{asked}")
    rows.fall_back(feature, asked, dtype, why, hint="--kv-cache-dtype auto")
    return dtype


def _quantization(rows: _Rows, model: ModelFacts) -> str | None:
    asked, own, feature = rows.config.quantization, model.quantization, "quantization"
    if asked is None or asked == own:
        how = rows.describe(f"quant.{own}") if own else "the checkpoint is dense"
        if own and not rows.has(f"quant.{own}"):
            how = f"expanded by the reference kernels ({how})"
        rows.add(feature, asked, own or "none", by="model", reason=how)
        return own
    hint = "leave --quantization out"
    if own:
        rows.fall_back(feature, asked, own, f"the checkpoint is {own} already", hint)
        return own
    if not rows.has(f"quant.{asked}"):
        rows.fall_back(feature, asked, "none", rows.describe(f"quant.{asked}"), hint)
        return None
    rows.add(feature, asked, asked, reason=rows.describe(f"quant.{asked}"))
    return asked


def _max_model_len(rows: _Rows, model: ModelFacts) -> int:
    asked, most = rows.config.max_model_len, model.max_model_len
    if asked is not None and asked > most:
        raise ConfigError(
            f"max_model_len {asked} is more than the model's {most}",
            hint=f"--max-model-len {most} or less",
        )
    got = most if asked is None else asked
    rows.add("max_model_len", asked, got, by="model" if asked is None else "user")
    return got


def _batch(rows: _Rows, advice: Advice) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens): a step has room for one token a sequence."""
    asked_seqs, asked_tokens = rows.config.max_num_seqs, rows.config.max_num_batched_tokens
    seqs = advice.max_num_seqs if asked_seqs is None else asked_seqs
    tokens = advice.max_num_batched_tokens if asked_tokens is None else asked_tokens
    why_seqs = why_tokens = ""
    if tokens < seqs:
        if asked_seqs is not None and asked_tokens is not None:
            raise ConfigError(
                f"max_num_batched_tokens {tokens} has no room for max_num_seqs {seqs} sequences",
                hint=f"--max-num-seqs {tokens}, or --max-num-batched-tokens {seqs}",
            )
        if asked_seqs is None:
            seqs, why_seqs = tokens, "a step has room for one token a sequence"
        else:
            tokens, why_tokens = seqs, "one token a sequence has room"
    rows.add("max_num_seqs", asked_seqs, seqs, reason=why_seqs)
    rows.add("max_num_batched_tokens", asked_tokens, tokens, reason=why_tokens)
    return seqs, tokens


def _memory(rows: _Rows, advice: Advice) -> float:
    config = rows.config
    fraction = config.memory_fraction or advice.kv_memory_fraction
    if config.kv_cache_memory is not None:
        rows.add("kv_cache_memory", config.kv_cache_memory, config.kv_cache_memory)
    else:
        rows.add("memory_fraction", config.memory_fraction, f"{fraction:g}")
    return fraction


def _graph_sizes(rows: _Rows, advice: Advice, most: int) -> tuple[int, ...]:
    """The platform's ladder, cut off at the largest batch there is."""
    feature = "graph_capture"
    if not rows.config.graph_capture:
        rows.add(feature, "off", "off")
        return ()
    sizes: tuple[int, ...] = ()
    if rows.has(feature):
        sizes = tuple(sorted({min(size, most) for size in advice.graph_sizes}))
    rows.add(feature, AUTO, name_sizes(sizes), reason=rows.describe(feature))
    return sizes


def _rest(rows: _Rows) -> None:
    """Wishes that are taken as they are and answered where they are used."""
    if rows.config.threads is not None:
        rows.add("threads", rows.config.threads, rows.config.threads)
    for family, name in rows.config.kernel.items():
        if family not in FAMILIES:
            raise ConfigError(
                f"no op family is called {family!r}", hint=f"one of {', '.join(FAMILIES)}"
            )
        rows.add(f"kernel.{family}", name, name)
