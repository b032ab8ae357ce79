"""Memory that nobody has written yet holds NaN, so that a row left out cannot look right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ALLOCATES = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.empty_permuted.default,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)


class PoisonedMemory(TorchDispatchMode):
    """Within it, tensors that torch makes without a value are full of 0xff bytes: NaN in every
    floating point type, -1 in integers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _ALLOCATES:
            poison(out)
        return out


def poison(x: torch.Tensor) -> torch.Tensor:
    """`x` with every byte 0xff; booleans and tensors without values of their own are left alone."""
    if x.numel() and x.device.type != "meta" and x.dtype != torch.bool:
        whole = torch.as_strided(x, (_span(x),), (1,))
        whole.view(torch.uint8).fill_(0xFF)
    return x


def _span(x: torch.Tensor) -> int:
    """Elements from the first to the last."""
    return 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
