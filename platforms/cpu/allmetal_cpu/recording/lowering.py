"""Operators of torch that the library has a function for, which gives the same values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch

import allmetal.quant.lookup  # noqa: F401  (it makes an operator)
from allmetal.platform.contract import Unsupported
from allmetal.quant.ggml import row_columns
from allmetal_cpu.native.function import Function
from allmetal_cpu.native.library import DTYPES, load
from allmetal_cpu.native.linear import NUMBERS

Place: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
_Lowering: TypeAlias = Callable[..., torch.Tensor | None]

_CONVERSIONS = {
    (torch.bfloat16, torch.float32): "widen",
    (torch.float32, torch.bfloat16): "narrow",
}


def lower(
    place: Place, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.Tensor | None:
    """What `func` gives, computed by the library; None where only torch can.  Memory comes from
    `place`."""
    lowering = _LOWERINGS.get(func)
    return None if lowering is None else lowering(place, *args, **kwargs)


@cache
def _function(name: str, dtype: str | None = None) -> Function:
    library = load()
    assert not isinstance(library, Unsupported)
    return library.function(name, dtype)


def _dtype(x: torch.Tensor) -> str | None:
    return _name(x.dtype)


def _name(dtype: torch.dtype) -> str | None:
    name = str(dtype).removeprefix("torch.")
    return name if name in DTYPES else None


def _scaled(place: Place, x: torch.Tensor, by: object, *, out: Any = None) -> torch.Tensor | None:
    dtype = _dtype(x)
    if dtype is None or not isinstance(by, int | float) or not _flat(x, out):
        return None
    y = place(x) if out is None else out
    _function("scale", dtype)(y.data_ptr(), x.data_ptr(), by, x.numel())
    return y


def _added(
    place: Place, x: torch.Tensor, other: object, *, alpha: float = 1
) -> torch.Tensor | None:
    dtype = _dtype(x)
    if dtype is None or alpha != 1 or not isinstance(other, torch.Tensor) or not _flat(x, other):
        return None
    y = place(x)
    _function("add", dtype)(y.data_ptr(), x.data_ptr(), other.data_ptr(), x.numel())
    return y


def _flat(x: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Element by element side by side."""
    if other is not None and (other.shape, other.dtype) != (x.shape, x.dtype):
        return False
    return x.is_contiguous() and (other is None or other.is_contiguous())


def _looked_up(
    place: Place, table: torch.Tensor, ids: torch.Tensor, *rest: object
) -> torch.Tensor | None:
    if ids.dtype != torch.int64 or not ids.is_contiguous() or not table.is_contiguous():
        return None
    y = place(table.new_empty(*ids.shape, table.shape[1]))
    _function("gather_rows")(
        y.data_ptr(),
        table.data_ptr(),
        ids.data_ptr(),
        ids.numel(),
        table.shape[1] * table.element_size(),
    )
    return y


def _selected(
    place: Place, table: torch.Tensor, dim: int, ids: torch.Tensor
) -> torch.Tensor | None:
    return _looked_up(place, table, ids) if dim == 0 and table.dim() == 2 else None


def _decoded(
    place: Place, table: torch.Tensor, rows: torch.Tensor, ggml_type: str, dtype: torch.dtype
) -> torch.Tensor | None:
    number, name = NUMBERS.get(ggml_type), _name(dtype)
    if number is None or name is None or rows.dtype != torch.int64 or not rows.is_contiguous():
        return None
    if not table.is_contiguous():
        return None
    columns = row_columns(ggml_type, table.shape[1])
    y = place(table.new_empty(*rows.shape, columns, dtype=dtype))
    _function("decode_rows", name)(
        y.data_ptr(), table.data_ptr(), rows.data_ptr(), rows.numel(), columns, number
    )
    return y


def _joined(place: Place, parts: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor | None:
    """Side by side."""
    if any(x.dim() != 2 or x.stride(1) != 1 or x.dtype != parts[0].dtype for x in parts):
        return None
    if dim not in (1, -1):
        return None
    y = place(parts[0].new_empty(parts[0].shape[0], sum(x.shape[1] for x in parts)))
    at = 0
    for x in parts:
        _copy_rows(y[:, at : at + x.shape[1]], x)
        at += x.shape[1]
    return y


def _copied(
    place: Place, out: torch.Tensor, x: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor | None:
    if out.shape != x.shape:
        return None
    if out.dtype != x.dtype:
        return _converted(out, x)
    if out.is_contiguous() and x.is_contiguous():
        _copy_rows(out.view(1, -1), x.view(1, -1))
        return out
    return _copy_rows(out, x) if out.dim() == 2 else None


def _cast(
    place: Place, x: torch.Tensor, *, dtype: torch.dtype | None = None, **rest: object
) -> torch.Tensor | None:
    if dtype is None or any(value is not None for value in rest.values()):
        return None
    if not x.is_contiguous() or (x.dtype, dtype) not in _CONVERSIONS:
        return None
    return _converted(place(x.to(dtype)), x)


def _cloned(
    place: Place, x: torch.Tensor, *, memory_format: torch.memory_format | None = None
) -> torch.Tensor | None:
    if memory_format not in (None, torch.contiguous_format):
        return None
    if x.dim() == 1:  # elements at any distance are rows of one
        y = place(x.new_empty(x.shape))
        _copy_rows(y[:, None], x.as_strided((len(x), 1), (x.stride(0), 1)))
        return y
    return _copy_rows(place(x.new_empty(x.shape)), x) if x.dim() == 2 else None


def _converted(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
    if not (x.is_contiguous() and out.is_contiguous()):
        return None
    name = _CONVERSIONS.get((x.dtype, out.dtype))
    if name is None:
        return None
    _function(name, "bfloat16")(out.data_ptr(), x.data_ptr(), x.numel())
    return out


def _copy_rows(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
    """[rows, columns], rows at any distance."""
    if x.stride(1) != 1 or out.stride(1) != 1:
        return None
    size = x.element_size()
    _function("copy_rows")(
        out.data_ptr(),
        x.data_ptr(),
        x.shape[0],
        *(count * size for count in (x.shape[1], out.stride(0), x.stride(0))),
    )
    return out


_aten = torch.ops.aten
_LOWERINGS: Mapping[Any, _Lowering] = {
    _aten.add.Tensor: _added,
    _aten.mul.Tensor: _scaled,
    _aten.mul.out: _scaled,
    _aten.embedding.default: _looked_up,
    _aten.index_select.default: _selected,
    _aten.cat.default: _joined,
    _aten.copy_.default: _copied,
    _aten._to_copy.default: _cast,
    _aten.clone.default: _cloned,
    torch.ops.allmetal.look_up_blocks.default: _decoded,
}
