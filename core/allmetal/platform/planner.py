"""Make the plan: a pure function of config, model and what the platform says of a device."""

from __future__ import annotations

from collections.abc import Callable

from allmetal.config import EngineConfig
from allmetal.errors import ConfigError
from allmetal.platform.capabilities import available, capability, describe
from allmetal.platform.contract import Advice, CapabilityTable, DeviceInfo, ModelFacts
from allmetal.platform.kv import DTYPE_BYTES
from allmetal.platform.plan import AUTO, Decision, Plan, fall_back, name_sizes
from allmetal.platform.policy import policies_of
from allmetal.platform.specs import FAMILIES

_DTYPES = ("bfloat16", "float16", "float32")
LONGEST_UNASKED = 1 << 20
"""Tokens.  Some configs name a number that no memory holds, and mean that there is no limit."""


def plan(
    config: EngineConfig,
    model: ModelFacts,
    platform_name: str,
    device: DeviceInfo,
    table: CapabilityTable,
    advice: Advice,
    *,
    num_devices: int = 1,
) -> Plan:
    """Decide everything.  `advice` is applied where the config is silent; the platform has
    `num_devices` from the first one taken on.

    Raises FallbackError for what cannot be had under the policy "error", ConfigError for what no
    platform could fulfil.
    """
    rows = _Rows(config, platform_name, table)
    rows.add("platform", config.platform, platform_name, reason=device.name)
    rows.add("task", config.task, model.task, by="model" if config.task == AUTO else "user")
    dtype = _dtype(rows, model, advice)
    kv_dtype = _kv_dtype(rows, dtype)
    quantization = _quantization(rows, model)
    block_size = rows.number("block_size", config.block_size, advice.block_size)
    max_model_len = _max_model_len(rows, model)
    longest = max_model_len if model.whole_texts else 1
    max_num_seqs, max_num_batched_tokens = _batch(rows, advice, longest)
    memory_fraction = _memory(rows, advice)
    prefix_caching = _prefix_caching(rows, model)
    async_scheduling = rows.switch("async_scheduling", config.async_scheduling)
    most_tokens = min(max_num_batched_tokens, max_num_seqs * max_model_len)
    graph_sizes, graph_tokens = _graphs(rows, model, advice, max_num_seqs, most_tokens)
    static_shapes = _static_shapes(rows, advice, graph_tokens)
    tensor_parallel_size = _tensor_parallel(rows, num_devices)
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
        graph_tokens=graph_tokens,
        static_shapes=static_shapes,
        decisions=tuple(rows.rows),
        tensor_parallel_size=tensor_parallel_size,
        policies=rows.policies,
    )


class _Rows:
    """The decisions so far, and what they are made from."""

    def __init__(self, config: EngineConfig, platform: str, table: CapabilityTable) -> None:
        self.config = config
        self.policies = policies_of(config)
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

    def fall_back(
        self,
        row: str,
        feature: str,
        asked: str,
        got: str,
        *,
        reason: str = "",
        hint: str = "",
        explicit: bool = True,
    ) -> None:
        """What cannot be had: an error or a row, as the policy of `feature` says."""
        self.rows.append(
            fall_back(
                self.policies,
                self.platform,
                feature,
                row=row,
                asked=asked,
                got=got,
                reason=reason or self.describe(feature),
                hint=hint,
                explicit=explicit,
            )
        )

    def number(self, feature: str, asked: int | None, advised: int) -> int:
        got = advised if asked is None else asked
        self.add(feature, asked, got)
        return got

    def switch(self, feature: str, asked: bool | None) -> bool:
        """A feature that is on where it can be had, unless the user says which."""
        if asked is False:
            self.add(feature, "off", "off")
            return False
        wish = "on" if asked else AUTO
        if self.has(feature):
            self.add(feature, wish, "on", reason=self.describe(feature))
            return True
        hint = f"--no-{feature.replace('_', '-')}"
        self.fall_back(feature, feature, wish, "off", hint=hint, explicit=bool(asked))
        return False


def _dtype(rows: _Rows, model: ModelFacts, advice: Advice) -> str:
    asked = rows.config.dtype
    if asked != AUTO and rows.has(f"dtype.{asked}"):
        rows.add("dtype", asked, asked, reason=rows.describe(f"dtype.{asked}"))
        return asked
    got, by, reason = _silent_dtype(rows.has, model, advice)
    if asked != AUTO:
        rows.fall_back("dtype", f"dtype.{asked}", asked, got, hint=f"--dtype {got}")
    elif by == "nobody":
        own, hint = f"dtype.{model.dtype}", f"--dtype {got}"
        rows.fall_back("dtype", own, AUTO, got, reason=reason, hint=hint, explicit=False)
    else:
        rows.add("dtype", asked, got, by=by, reason=reason)
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
            return dtype, "nobody", f"it lacks the checkpoint's {model.dtype}"
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
    rows.fall_back(feature, f"kv_dtype.{asked}", asked, dtype, hint="--kv-cache-dtype auto")
    return dtype


def _quantization(rows: _Rows, model: ModelFacts) -> str | None:
    asked, own, row = rows.config.quantization, model.quantization, "quantization"
    hint = "leave --quantization out"
    if asked is not None and own is not None and asked != own:
        why = f"the checkpoint is {own} already"
        rows.fall_back(row, f"quant.{asked}", asked, own, reason=why, hint=hint)
        return own
    if own is not None:
        if rows.has(f"quant.{own}"):
            rows.add(row, asked, own, by="model", reason=rows.describe(f"quant.{own}"))
        else:
            why = f"expanded by the reference kernels ({rows.describe(f'quant.{own}')})"
            rows.fall_back(row, f"quant.{own}", AUTO, own, reason=why, explicit=False)
        return own
    if asked is None:
        rows.add(row, AUTO, "none", by="model", reason="the checkpoint is dense")
        return None
    if not rows.has(f"quant.{asked}"):
        rows.fall_back(row, f"quant.{asked}", asked, "none", hint=hint)
        return None
    rows.add(row, asked, asked, reason=rows.describe(f"quant.{asked}"))
    return asked


def _max_model_len(rows: _Rows, model: ModelFacts) -> int:
    asked, most = rows.config.max_model_len, model.max_model_len
    if asked is not None and asked > most:
        raise ConfigError(
            f"max_model_len {asked} is more than the model's {most}",
            hint=f"--max-model-len {most} or less",
        )
    got = min(most, LONGEST_UNASKED) if asked is None else asked
    reason = f"of the model's {most}: tables grow with it" if got < most and asked is None else ""
    rows.add("max_model_len", asked, got, by="model" if asked is None else "user", reason=reason)
    return got


def _prefix_caching(rows: _Rows, model: ModelFacts) -> bool:
    if not model.whole_texts:
        return rows.switch("prefix_caching", rows.config.prefix_caching)
    if rows.config.prefix_caching:
        raise ConfigError(
            "prefix_caching cannot be had: this model computes every text as a whole",
            hint="leave --prefix-caching out",
        )
    rows.add("prefix_caching", None, "off", by="model", reason="every text is computed as a whole")
    return False


def _batch(rows: _Rows, advice: Advice, longest: int) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens): a step has room for one token a sequence, and for
    the `longest` piece that must not be cut."""
    asked_seqs, asked_tokens = rows.config.max_num_seqs, rows.config.max_num_batched_tokens
    seqs = advice.max_num_seqs if asked_seqs is None else asked_seqs
    tokens = advice.max_num_batched_tokens if asked_tokens is None else asked_tokens
    why_seqs = why_tokens = ""
    if tokens < longest:
        if asked_tokens is not None:
            raise ConfigError(
                f"max_num_batched_tokens {tokens} has no room for a text of {longest} tokens, "
                "which this model computes as a whole",
                hint=f"--max-model-len {tokens}, or --max-num-batched-tokens {longest}",
            )
        tokens, why_tokens = longest, "the longest text has room"
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


def _graphs(
    rows: _Rows, model: ModelFacts, advice: Advice, most_seqs: int, most_tokens: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The platform's ladders, cut off at the largest step there is."""
    feature, asked = "graph_capture", rows.config.graph_capture
    if model.task != "generate" and not asked:
        why = "what is recorded are decode steps, and texts are not continued"
        rows.add(feature, "off" if asked is False else None, "off", by="model", reason=why)
        return (), ()
    if asked is False or not rows.has(feature):
        rows.switch(feature, asked)
        return (), ()
    sizes = _ladder(advice.graph_sizes, most_seqs, advice)
    reason = rows.describe(feature)
    if not sizes and asked:
        why = "the platform advises no sizes to record"
        rows.fall_back(feature, feature, "on", "off", reason=why, hint="--no-graph-capture")
        return (), ()
    tokens = _ladder(advice.graph_tokens, most_tokens, advice) if sizes else ()
    rows.add(feature, "on" if asked else None, name_sizes(sizes, tokens), reason=reason)
    return sizes, tokens


def _ladder(sizes: tuple[int, ...], most: int, advice: Advice) -> tuple[int, ...]:
    """Cut off at `most`, and where shapes are static carried on to it."""
    last = {most} if sizes and advice.static_shapes else set()
    return tuple(sorted({min(size, most) for size in sizes} | last))


def _static_shapes(rows: _Rows, advice: Advice, tokens: tuple[int, ...]) -> bool:
    """Only recorded steps have few shapes: without them nothing is gained by padding the rest."""
    if not advice.static_shapes:
        return False
    row, why = "static_shapes", "a program is compiled for each shape"
    if not tokens:
        rows.add(row, None, "off", by="platform", reason=f"{why}, and no step is recorded")
        return False
    rows.add(row, None, "on", by="platform", reason=why)
    return True


def _tensor_parallel(rows: _Rows, num_devices: int) -> int:
    """Ranks that share each layer: sums after it, and a gathered vocabulary."""
    asked, row = rows.config.tensor_parallel_size, "tensor_parallel_size"
    if asked == 1:
        return 1
    for feature in ("collective.all_reduce", "collective.all_gather"):
        if not rows.has(feature):
            rows.fall_back(row, feature, str(asked), "1", hint="--tensor-parallel-size 1")
            return 1
    if asked > num_devices:
        raise ConfigError(
            f"{row} {asked} needs as many devices, and {rows.platform} has {num_devices} from the "
            "one taken on",
            hint=f"--tensor-parallel-size {num_devices}",
        )
    rows.add(row, asked, asked, reason=rows.describe("collective.all_reduce"))
    return asked


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
