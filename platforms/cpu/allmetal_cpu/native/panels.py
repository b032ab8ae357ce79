"""y = x W^T + b over weights in panels: rows interleaved once, at load, so that memory is read in
order, and products of quantised ones are made in integers.  The layout is the instruction set's
own, and only some have one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from allmetal.platform.specs import DenseWeight, GGUFWeight, IntWeight, LinearSpec, PackedWeight
from allmetal.quant.ggml import NAMES
from allmetal_cpu.native import pages
from allmetal_cpu.native.library import Library, pointer

GROUPS = (128, 64, 32)
"""Channels of a scale of integer weights.  A multiple of one is that one, its scale repeated."""

_GGML_NUMBERS = {name: number for number, name in NAMES.items()}
_MAX_CHANNELS = 1 << 16
_ROWS = 32
"""Of a panel."""


def find_group(size: int) -> int | None:
    """The panels' group for a checkpoint's, 0 for whole rows; None where there is none."""
    return 0 if not size else next((group for group in GROUPS if size % group == 0), None)


def num_bytes(spec: LinearSpec, library: Library) -> int:
    """What the weight takes in panels, 0 where this CPU's kernels have none for it."""
    kind = _kind(spec)
    if kind is None or spec.dtype != "bfloat16" or spec.in_features > _MAX_CHANNELS:
        return 0
    return int(library.long.am_panel_bytes(spec.out_features, spec.in_features, kind))


def _kind(spec: LinearSpec) -> int | None:
    match spec.weight:
        case GGUFWeight(type=ggml_type):
            return _GGML_NUMBERS.get(ggml_type)
        case IntWeight(bits=bits, group_size=size):
            group = find_group(size)
            return None if group is None or bits > 8 else (4 if bits <= 4 else 8) * 1000 + group
        case DenseWeight(dtype="bfloat16"):
            return 16_000
        case _:
            return None


class Panels:
    def __init__(self, spec: LinearSpec, library: Library) -> None:
        kind = _kind(spec)
        assert kind is not None
        self._kind, self._shape = kind, (spec.out_features, spec.in_features)
        self._size = num_bytes(spec, library)
        self._pack = library.long.am_pack_panels
        self._run = library.function("linear_panels", spec.dtype)
        weight = spec.weight
        self._group = weight.group_size if isinstance(weight, IntWeight) else None
        eight = isinstance(weight, IntWeight) and weight.act_dtype == "int8"
        self._rest = (kind, 8 if eight else 16)
        self.form = (3, *self._rest)

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        weight = weights["weight"].contiguous()
        assert weight.shape[0] == self._shape[0]
        panels = torch.empty(self._size, dtype=torch.uint8)
        pages.prefer_large(panels)
        rows, groups = self._scales(weights)
        num_outputs, num_channels = self._shape
        each = self._size // -(-num_outputs // _ROWS)
        for begin, end in pages.parts(weight, _ROWS):
            part = weight[begin:end]
            self._pack(
                panels.data_ptr() + begin // _ROWS * each,
                part.data_ptr(),
                None if groups is None else groups[begin:end].data_ptr(),
                end - begin,
                num_channels,
                self._kind,
            )
            pages.give_back(part)
        return panels, rows

    def _scales(
        self, weights: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """(of whole rows [N], of groups [N, groups]), one or none of the two."""
        if self._group is None:
            return None, None
        scale = weights["scale"].float()
        if not self._group:
            return scale.reshape(-1).contiguous(), None
        times = self._group // (find_group(self._group) or 1)
        return None, scale.repeat_interleave(times, dim=1).contiguous()

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, tuple)
        panels, scale = weight
        x = x.contiguous()
        y = x.new_empty(x.shape[0], self._shape[0])
        self._run(
            y.data_ptr(),
            x.data_ptr(),
            panels.data_ptr(),
            pointer(scale),
            pointer(bias),
            x.shape[0],
            *self._shape,
            *self._rest,
        )
        return y
