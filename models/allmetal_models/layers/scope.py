"""Where a layer sits in the checkpoint's tree of names, and the tensors that are wanted there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from allmetal_models.base import WeightReader
from allmetal_models.context import BuildContext


class Incoming:
    """A tensor on its way in.  What several layers want of it is read and moved once."""

    def __init__(self, reader: WeightReader, ctx: BuildContext) -> None:
        self.reader = reader
        self._ctx = ctx
        self._dense: dict[tuple[int | None, int, int | None], torch.Tensor] = {}

    def dense(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        """The slice in the model's dtype, on its device.  Not to be written to."""
        if dim is not None and (start, length) == (0, self.reader.shape[dim]):
            dim, start, length = None, 0, None
        key = (dim, start, length)
        if key not in self._dense:
            found = self.reader.dequantize(self._ctx.dtype, dim, start, length)
            self._dense[key] = found.to(self._ctx.device)
        return self._dense[key]

    def stored(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        """The slice as it lies in the file, on the model's device."""
        return self.reader.read(dim, start, length).to(self._ctx.device)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One layer's wish: a tensor of this logical shape, and what to do when it arrives."""

    shape: tuple[int, ...]
    receive: Callable[[Incoming], None]


class Scope:
    """`scope / "self_attn"` is the place below; all places of a model share one table."""

    def __init__(self, ctx: BuildContext) -> None:
        self.ctx = ctx
        self.name = ""
        self.wanted: dict[str, list[Wanted]] = {}

    def __truediv__(self, child: str) -> Scope:
        below = Scope(self.ctx)
        below.name = f"{self.name}.{child}" if self.name else child
        below.wanted = self.wanted
        return below

    def want(self, leaf: str, shape: tuple[int, ...], receive: Callable[[Incoming], None]) -> None:
        """Asks for the tensor called `leaf` here.  Several layers may ask for the same one."""
        self.wanted.setdefault(f"{self.name}.{leaf}", []).append(Wanted(shape, receive))

    def parameter(self, leaf: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A small dense tensor that every rank holds whole, filled when it arrives."""
        tensor = torch.empty(shape, dtype=self.ctx.dtype, device=self.ctx.device)

        def fill(incoming: Incoming) -> None:
            tensor.copy_(incoming.dense())

        self.want(leaf, shape, fill)
        return tensor
