"""The features a platform is asked about, and how a capability is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from allmetal.platform.contract import (
    Capability,
    CapabilityTable,
    Emulated,
    Native,
    Unknown,
    Unsupported,
)

FEATURES: Mapping[str, str] = {
    "async_scheduling": "the next step is prepared while this one runs",
    "graph_capture": "a step's launches are recorded once and replayed",
    "prefix_caching": "equal prompt prefixes share cache blocks",
    "dtype.float32": "activations and weights in 32-bit floating point",
    "dtype.bfloat16": "activations and weights in bfloat16",
    "dtype.float16": "activations and weights in IEEE half precision",
    "kv_dtype.float8_e4m3fn": "keys and values kept in 8-bit floating point",
    "kv_dtype.int8": "keys and values kept in 8-bit integers",
    "quant.int8": "8-bit integer weights, computed without expanding them first",
    "quant.gguf": "GGML block formats, computed without expanding them first",
    "quant.fp8": "8-bit floating point weights, computed without expanding them first",
    "attention.sliding_window": "attention limited to the last tokens",
    "attention.soft_cap": "attention scores bounded by tanh",
    "attention.sinks": "a learned logit per head in attention's denominator",
    "mla": "multi-head latent attention",
    "moe": "routed experts",
    "lora": "low-rank adapters",
    "collective.all_reduce": "sums over the ranks of a group",
    "collective.all_gather": "concatenation over the ranks of a group",
    "collective.all_to_all": "exchange between the ranks of a group",
    "offload.host": "cache blocks move to host memory and back",
    "sleep": "device memory is released while idle and taken again",
}


def capability(table: CapabilityTable, feature: str) -> Capability:
    return table.get(feature, Unknown())


def available(answer: Capability) -> bool:
    return isinstance(answer, Native | Emulated)


def describe(answer: Capability) -> str:
    """One line for people."""
    match answer:
        case Native(by=by):
            return f"native: {by}"
        case Emulated(how=how):
            return f"emulated: {how}"
        case Unsupported(reason=reason) | Unknown(reason=reason):
            return reason
        case other:
            assert_never(other)
