"""In which format a weight is held: as stored where a kernel computes with it, else dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import torch

from allmetal.errors import NoKernelError
from allmetal.platform.specs import (
    DenseWeight,
    Float8Weight,
    GGUFWeight,
    IntWeight,
    LinearSpec,
    MoESpec,
    WeightFormat,
)
from allmetal_models.context import BuildContext
from allmetal_models.layers.scope import Incoming, Scope

INT8 = IntWeight(bits=8, group_size=0)
"""What quantising while loading makes: one scale a row, activations left as they are."""
W8A8 = IntWeight(bits=8, group_size=0, act_dtype="int8")
"""And with activations rounded while running: twice the products, for some precision."""
FLOAT8 = Float8Weight(act_dtype="float8_e4m3fn")
"""The same in floating point, for units that multiply it: activations are rounded too."""
_WHILE_LOADING: Mapping[str, WeightFormat] = {
    "int8": INT8,
    "w8a8": W8A8,
    "fp8": FLOAT8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A checkpoint's weight [total, C] and the rows (start, length) of it that this rank keeps."""

    at: Scope
    total: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def kept(self) -> int:
        return sum(length for _, length in self.ranges)

    @property
    def tensor(self) -> str:
        return f"{self.at.name}.weight"


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent rows held in one format: they are multiplied in one go."""

    format: WeightFormat
    rows: tuple[Rows, ...]


def plan_runs(
    ctx: BuildContext, rows: Sequence[Rows], in_features: int, *, bias: bool, whole_rows: bool
) -> tuple[Run, ...]:
    """Groups neighbours of equal format, then decides how each group is held.

    `whole_rows`: the rank keeps all channels.  GGML blocks cannot be cut along channels.
    """
    stored = _merge([Run(stored_format(ctx, one.tensor), (one,)) for one in rows])
    held = []
    for run in stored:
        spec = LinearSpec(
            dtype=ctx.dtype_name,
            in_features=in_features,
            out_features=sum(one.kept for one in run.rows),
            bias=bias,
            weight=run.format,
        )
        whole_blocks = whole_rows and _whole_blocks(run)
        held.append(
            Run(_held(ctx, spec, whole_rows=whole_rows, whole_blocks=whole_blocks), run.rows)
        )
    return _merge(held)


def expert_formats(
    ctx: BuildContext,
    spec: MoESpec,
    gate_up: Sequence[Sequence[Rows]],
    down: Sequence[Sequence[Rows]],
    *,
    whole_rows: bool,
) -> MoESpec:
    """`spec` with the formats its experts are held in: one for all gates and ups, one for all
    downs.  `whole_rows`: the rank keeps all channels of the downs."""
    stored = replace(spec, gate_up=_common_format(ctx, gate_up), down=_common_format(ctx, down))
    kept = not isinstance(stored.down, GGUFWeight) or whole_rows
    blocks = any(_block(weight) is not None for weight in (stored.gate_up, stored.down))
    if kept and not blocks and _has_kernel(ctx, stored):
        return stored
    return replace(stored, gate_up=_expanded(ctx, stored.gate_up), down=_expanded(ctx, stored.down))


def _common_format(ctx: BuildContext, experts: Sequence[Sequence[Rows]]) -> WeightFormat:
    first, *others = {stored_format(ctx, rows.tensor) for parts in experts for rows in parts}
    if others or isinstance(first, DenseWeight):
        return _expanded(ctx, DenseWeight(dtype=ctx.dtype_name))
    return first


def is_stored(ctx: BuildContext, tensor: str) -> bool:
    """Whether the checkpoint has a tensor of this name."""
    try:
        ctx.weight_format(tensor)
    except KeyError:
        return False
    return True


def stored_format(ctx: BuildContext, tensor: str) -> WeightFormat:
    """How the checkpoint holds a tensor."""
    try:
        return ctx.weight_format(tensor)
    except KeyError:  # Not in the checkpoint: loading will say so, with all that are missing.
        return DenseWeight(dtype=ctx.dtype_name)


def _held(
    ctx: BuildContext, spec: LinearSpec, *, whole_rows: bool, whole_blocks: bool
) -> WeightFormat:
    match spec.weight:
        case GGUFWeight() if whole_rows and _has_kernel(ctx, spec):
            return spec.weight
        case Float8Weight(block=(_, _)) if not whole_blocks:
            return _expanded(ctx, spec.weight)
        case IntWeight() | Float8Weight() if _has_kernel(ctx, spec):
            return spec.weight
        case _:
            return _expanded(ctx, spec.weight)


def _expanded(ctx: BuildContext, stored: WeightFormat) -> WeightFormat:
    """How a weight is held that no kernel takes as it is stored."""
    match stored:
        case DenseWeight() | GGUFWeight() | IntWeight() | Float8Weight():
            # The plan has settled that the platform does it, if only by the reference kernel.
            dense = DenseWeight(dtype=ctx.dtype_name)
            return _WHILE_LOADING.get(ctx.quantization or "", dense)
        case other:
            assert_never(other)


def _block(weight: WeightFormat) -> tuple[int, int] | None:
    return weight.block if isinstance(weight, Float8Weight) else None


def _whole_blocks(run: Run) -> bool:
    """Whether the rows that are kept, one below the other, are whole blocks of values that share a
    scale; the last of a single cut may be part of one."""
    block = _block(run.format)
    cuts = [cut for one in run.rows for cut in one.ranges]
    return block is None or all(
        start % block[0] == 0 and (length % block[0] == 0 or len(cuts) == 1)
        for start, length in cuts
    )


def _has_kernel(ctx: BuildContext, spec: LinearSpec | MoESpec) -> bool:
    """Whether something better than the reference computes with the weight as it is stored."""
    try:
        return not ctx.kernels.choose(spec).is_reference
    except NoKernelError:  # Also where the user named a kernel that takes dense weights only.
        return False


def _merge(runs: Sequence[Run]) -> tuple[Run, ...]:
    merged: list[Run] = []
    for run in runs:
        if merged and merged[-1].format == run.format:
            merged[-1] = Run(run.format, merged[-1].rows + run.rows)
        else:
            merged.append(run)
    return tuple(merged)


def fetch(
    incoming: Incoming, held: WeightFormat, rows: Rows, columns: tuple[int, int] | None
) -> Mapping[str, torch.Tensor]:
    """The rank's part of one weight, as a kernel's `pack` wants it.

    `columns` (start, length) cuts channels instead of rows.
    """
    match held:
        case DenseWeight():
            return {"weight": _dense(incoming, rows, columns)}
        case IntWeight() | Float8Weight() if incoming.reader.format == held:
            return _scaled(incoming, held, rows, columns)
        case IntWeight():
            from allmetal.quant.int8 import quantize

            return quantize(_dense(incoming, rows, columns), held.group_size)
        case Float8Weight():
            from allmetal.quant.float8 import quantize as to_float8

            return to_float8(_dense(incoming, rows, columns), getattr(torch, held.dtype))
        case GGUFWeight():
            return {"weight": _join([incoming.blocks(held, *cut) for cut in rows.ranges])}
        case other:
            assert_never(other)


def _dense(incoming: Incoming, rows: Rows, columns: tuple[int, int] | None) -> torch.Tensor:
    if columns is not None:
        return incoming.dense(1, *columns)
    return _join([incoming.dense(0, start, length) for start, length in rows.ranges])


def _scaled(
    incoming: Incoming,
    held: IntWeight | Float8Weight,
    rows: Rows,
    columns: tuple[int, int] | None,
) -> Mapping[str, torch.Tensor]:
    if columns is not None:
        return incoming.scaled(held, 1, *columns)
    parts = [incoming.scaled(held, 0, *cut) for cut in rows.ranges]
    return {name: _join([part[name] for part in parts]) for name in parts[0]}


def _join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
