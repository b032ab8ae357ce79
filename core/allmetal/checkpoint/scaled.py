"""Put quantised tensors and their scales together, so that each is one tensor to whoever reads it.

Names: `X.weight` beside `X.weight_scale_inv` (DeepSeek's word for what values are multiplied with)
or `X.weight_scale`.  Scales of activations and of keys and values stand for rounding that is done
here with scales of its own, or not at all: they are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from allmetal.checkpoint.contract import Scales, TensorInfo
from allmetal.errors import CheckpointError
from allmetal.quant.scheme import Scheme, scheme_of

_ENDINGS = ("_scale_inv", "_scale")
_LEFT_OUT = re.compile(r"\.(input_scale|output_scale|[kvq]_scale|prob_scale)$")
_KINDS = {"float8_e4m3fn": "float", "float8_e5m2": "float", "int8": "int"}


def with_scales(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> Mapping[str, TensorInfo]:
    """`tensors` with the scales of each in its description, and not by themselves.

    Raises ModelError for schemes that are not read, CheckpointError for scales that do not fit.
    """
    scheme = scheme_of(config)
    if scheme is None:
        return tensors
    joined: dict[str, TensorInfo] = {}
    used: set[str] = set()
    for name, info in tensors.items():
        if _KINDS.get(info.dtype) == scheme.kind and len(info.shape) == 2:
            scales = _scales(scheme, name, info, tensors)
            used.add(scales.name)
            info = replace(info, scales=scales)
        joined[name] = info
    return {
        name: info
        for name, info in joined.items()
        if name not in used and not _LEFT_OUT.search(name)
    }


def _scales(
    scheme: Scheme, name: str, info: TensorInfo, tensors: Mapping[str, TensorInfo]
) -> Scales:
    found = next((name + ending for ending in _ENDINGS if name + ending in tensors), None)
    if found is None:
        raise CheckpointError(
            f"{name} is stored in {info.dtype}, and there is no {name}{_ENDINGS[-1]}",
            hint="the checkpoint is not complete: fetch it again",
        )
    rows, columns = info.shape
    stored, block = tensors[found].shape, scheme.block
    expected: list[tuple[int, ...]] = [(rows, 1), (rows,), (1, 1), (1,), ()]
    if block is not None:
        expected = [(-(-rows // block[0]), -(-columns // block[1]))]
    if stored not in expected:
        raise CheckpointError(
            f"{found} is {list(stored)}, expected {list(expected[0])}: {name} is"
            f" {list(info.shape)}, with a scale for " + (f"{block}" if block else "a row"),
            hint="is config.json the one that was saved with these weights?",
        )
    return Scales(
        name=found,
        shape=stored,
        dtype=tensors[found].dtype,
        block=block,
        rounds_activations=scheme.act_bits is not None,
    )
