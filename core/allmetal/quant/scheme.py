"""What a config says of weights that are stored as 8-bit values and scales.

Read are the `quantization_config` of transformers' own "fp8" (DeepSeek's and Qwen's files),
"fbgemm_fp8", and "compressed-tensors" with 8-bit weights.  Which tensors are quantised, their
names and types tell; the config tells how scales are shared, and what activations were rounded to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allmetal.errors import ModelError

_HINT = "take the unquantised checkpoint, or a GGUF file"
_FORMATS = ("float-quantized", "int-quantized", "naive-quantized")
"""compressed-tensors' names for values of 8 bits that are stored one a byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """`kind`: of the values, "float" or "int".  `block` (rows, columns): of the values that share a
    scale, None for rows or tensors that do; `act_bits`: 8 where activations are rounded too."""

    kind: str
    block: tuple[int, int] | None = None
    act_bits: int | None = 8


def scheme_of(config: Mapping[str, Any]) -> Scheme | None:
    """None for a checkpoint that is not quantised.  Raises ModelError for what is not read."""
    said = config.get("quantization_config") or {}
    method = said.get("quant_method")
    if not method:
        return None
    if method == "fp8":
        return Scheme(kind="float", block=_block(said.get("weight_block_size")))
    if method == "fbgemm_fp8":
        return Scheme(kind="float")
    if method == "compressed-tensors":
        return _compressed(said)
    raise ModelError(f"this checkpoint is quantised by {method!r}, which is not read", hint=_HINT)


def _compressed(said: Mapping[str, Any]) -> Scheme:
    kind = said.get("format")
    if kind not in _FORMATS:
        raise ModelError(
            f"this checkpoint is compressed-tensors in the format {kind!r}; read are"
            f" {', '.join(_FORMATS)}",
            hint=_HINT,
        )
    sparse = (said.get("sparsity_config") or {}).get("format", "dense")
    if sparse != "dense":
        raise ModelError(f"this checkpoint is compressed to {sparse!r}, not read", hint=_HINT)
    found = {_scheme(group) for group in (said.get("config_groups") or {}).values()}
    if len(found) != 1:
        raise ModelError(
            f"this checkpoint has weights of {len(found)} schemes; one is read", hint=_HINT
        )
    return found.pop()


def _scheme(group: Mapping[str, Any]) -> Scheme:
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    kind, bits, strategy = (weights.get(key) for key in ("type", "num_bits", "strategy"))
    if bits != 8 or kind not in ("float", "int") or not weights.get("symmetric", True):
        shifted = "" if weights.get("symmetric", True) else ", not symmetric"
        raise ModelError(f"weights of {bits} bits ({kind}{shifted}) are not read", hint=_HINT)
    if strategy not in ("tensor", "channel", "block"):
        raise ModelError(f"weights with a scale for each {strategy} are not read", hint=_HINT)
    if kind == "int" and strategy == "block":
        raise ModelError("integer weights with a scale for each block are not read", hint=_HINT)
    if inputs is not None and (inputs.get("num_bits"), inputs.get("type")) != (8, kind):
        raise ModelError(
            f"weights of 8 bits ({kind}) with activations of {inputs.get('num_bits')} bits"
            f" ({inputs.get('type')}) are not read",
            hint=_HINT,
        )
    block = _block(weights.get("block_structure")) if strategy == "block" else None
    return Scheme(kind=kind, block=block, act_bits=None if inputs is None else 8)


def _block(said: Sequence[int] | None) -> tuple[int, int] | None:
    if said is None:
        return None
    if len(said) != 2 or not all(isinstance(size, int) and size > 0 for size in said):
        raise ModelError(f"blocks of weights are two sizes, not {said!r}")
    return said[0], said[1]
