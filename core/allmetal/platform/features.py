"""The feature registry: everything a platform is asked about, with what it means to do without.

A feature is asked for by a user's option, by a model's layers, or by nobody in particular.  Where
a platform is silent (`Unknown`), what the core and the reference kernels do on any device counts:
so a platform of a few lines can serve, and gets faster feature by feature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from allmetal.config import Fallback
from allmetal.platform.contract import Emulated, Spec
from allmetal.platform.specs import (
    AttentionSpec,
    DenseWeight,
    Float8Weight,
    GGUFWeight,
    IntWeight,
    LinearSpec,
    MoESpec,
    WeightFormat,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """`option`: the setting that asks for it, where one does.  `without`: what happens where it
    cannot be had.  `fallback`: the policy where the user has said none.  `everywhere`: what any
    platform has that does not say otherwise."""

    group: str
    doc: str
    without: str
    option: str = ""
    fallback: Fallback = "warn"
    everywhere: Emulated | None = None


_REFERENCE = Emulated("the reference kernels, in plain torch")
_EXPANDED = Emulated("the reference kernels, which expand the weights in every step")
_NOTHING = "models and options that need it are refused"


def _dtype(doc: str) -> Feature:
    return Feature(
        group="numbers",
        doc=doc,
        option="dtype",
        without="another dtype is computed in",
        everywhere=_REFERENCE,
    )


def _kv_dtype(doc: str, *, reference: bool) -> Feature:
    return Feature(
        group="numbers",
        doc=doc,
        option="kv_cache_dtype",
        without="keys and values are kept in the type of activations",
        everywhere=_REFERENCE if reference else None,
    )


def _quant(doc: str, *, reference: bool, without: str = "") -> Feature:
    return Feature(
        group="weights",
        doc=doc,
        option="quantization",
        without=without or "the reference kernels expand the weights in every step",
        everywhere=_EXPANDED if reference else None,
    )


def _attention(doc: str) -> Feature:
    return Feature(
        group="layers",
        doc=doc,
        without="the reference kernels compute such layers",
        everywhere=_REFERENCE,
    )


def _layer(doc: str) -> Feature:
    return Feature(group="layers", doc=doc, without=_NOTHING, fallback="error")


def _collective(doc: str) -> Feature:
    return Feature(
        group="several devices",
        doc=doc,
        option="tensor_parallel_size",
        without="a model runs on one device",
        fallback="error",
    )


REGISTRY: Mapping[str, Feature] = {
    "async_scheduling": Feature(
        group="engine",
        doc="the next step is prepared while this one runs",
        option="async_scheduling",
        without="the device waits for the host between steps",
        fallback="allow",
        everywhere=Emulated("a worker thread runs the steps"),
    ),
    "graph_capture": Feature(
        group="engine",
        doc="a step's launches are recorded once and replayed",
        option="graph_capture",
        without="every step launches its kernels one by one",
        fallback="allow",
    ),
    "prefix_caching": Feature(
        group="engine",
        doc="equal prompt prefixes share cache blocks",
        option="prefix_caching",
        without="every prompt is computed from its beginning",
        fallback="allow",
        everywhere=Emulated("the core's block tables, which any paged attention can read"),
    ),
    "offload.host": Feature(
        group="engine",
        doc="cache blocks move to host memory and back",
        without="a preempted sequence is computed again",
        fallback="allow",
    ),
    "sleep": Feature(
        group="engine",
        doc="device memory is released while idle and taken again",
        without="memory is held until the engine closes",
        fallback="allow",
    ),
    "dtype.float32": _dtype("activations and weights in 32-bit floating point"),
    "dtype.bfloat16": _dtype("activations and weights in bfloat16"),
    "dtype.float16": _dtype("activations and weights in IEEE half precision"),
    "kv_dtype.float8_e4m3fn": _kv_dtype(
        "keys and values kept in 8-bit floating point, 3 bits of it fraction", reference=True
    ),
    "kv_dtype.float8_e5m2": _kv_dtype(
        "keys and values kept in 8-bit floating point, 2 bits of it fraction", reference=True
    ),
    "kv_dtype.int8": _kv_dtype("keys and values kept in 8-bit integers", reference=False),
    "quant.int8": _quant(
        "8-bit integer weights, computed without expanding them first", reference=True
    ),
    "quant.w8a8": _quant(
        "8-bit integer weights, and activations rounded to 8 bits a token", reference=True
    ),
    "quant.gguf": _quant(
        "GGML block formats, computed without expanding them first", reference=True
    ),
    "quant.fp8": _quant(
        "8-bit floating point weights, computed without expanding them first", reference=True
    ),
    "attention.sliding_window": _attention("attention limited to the last tokens"),
    "attention.soft_cap": _attention("attention scores bounded by tanh"),
    "attention.sinks": _attention("a learned logit per head in attention's denominator"),
    "mla": _layer("multi-head latent attention"),
    "moe": Feature(
        group="layers",
        doc="routed experts",
        without="the reference kernels send every token through every expert",
        everywhere=_REFERENCE,
    ),
    "lora": _layer("low-rank adapters"),
    "collective.all_reduce": _collective("sums over the ranks of a group"),
    "collective.all_gather": _collective("concatenation over the ranks of a group"),
    "collective.all_to_all": _collective("exchange between the ranks of a group"),
}
"""Feature id -> what it is.  A dot separates a kind from its member."""


def features_of(spec: Spec) -> tuple[str, ...]:
    """The registered features that a problem is about."""
    about: list[str] = []
    if dtype := getattr(spec, "dtype", ""):
        about.append(f"dtype.{dtype}")
    kv_dtype = getattr(spec, "kv_dtype", dtype)
    if kv_dtype != dtype:
        about.append(f"kv_dtype.{kv_dtype}")
    match spec:
        case AttentionSpec():
            about += ["attention.sliding_window"] * (spec.window is not None)
            about += ["attention.soft_cap"] * (spec.soft_cap is not None)
            about += ["attention.sinks"] * spec.sinks
        case LinearSpec():
            about += _quantised(spec.weight)
        case MoESpec():
            about += ["moe", *_quantised(spec.gate_up), *_quantised(spec.down)]
        case _:
            pass
    return tuple(feature for feature in dict.fromkeys(about) if feature in REGISTRY)


def _quantised(weight: WeightFormat) -> Sequence[str]:
    match weight:
        case GGUFWeight():
            return ("quant.gguf",)
        case IntWeight(bits=8, act_dtype="int8"):
            return ("quant.w8a8",)
        case IntWeight(bits=bits):
            return (f"quant.int{bits}",)
        case Float8Weight():
            return ("quant.fp8",)
        case DenseWeight() | _:
            return ()
