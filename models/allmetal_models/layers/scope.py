"""Where a layer sits in the checkpoint's tree of names, and the tensors that are wanted there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

from allmetal.errors import CheckpointError
from allmetal.platform.specs import Float8Weight, GGUFWeight, IntWeight
from allmetal_models.base import ScaleReader, WeightReader
from allmetal_models.context import BuildContext

_Slice: TypeAlias = tuple[int | None, int, int | None]


class Incoming:
    """A tensor on its way in.  What several layers want of it is read and moved once.

    What is given is shared: nobody may write to it.
    """

    def __init__(self, reader: WeightReader, ctx: BuildContext) -> None:
        self.reader = reader
        self._ctx = ctx
        self._given: dict[tuple[str, _Slice], torch.Tensor] = {}

    def dense(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        """The slice as values of the model's dtype, on its device."""
        part = self._slice(dim, start, length)
        return self._once("dense", part, lambda: self.reader.dequantize(self._ctx.dtype, *part))

    def blocks(self, announced: GGUFWeight, start: int, length: int) -> torch.Tensor:
        """Rows as they lie in the file, on the model's device.  CheckpointError if they are of
        another format than the model was built for."""
        if self.reader.format != announced:
            raise CheckpointError(
                f"{self.reader.name} is {self.reader.format}, and was announced as {announced}"
            )
        part = self._slice(0, start, length)
        return self._once("stored", part, lambda: self.reader.read(*part))

    def scaled(self, announced: IntWeight | Float8Weight, *part: int) -> Mapping[str, torch.Tensor]:
        """A slice (dim, start, length) as it is stored, values and scales, on the model's device.
        CheckpointError if it is of another format than the model was built for."""
        reader = self.reader
        if reader.format != announced or not isinstance(reader, ScaleReader):
            raise CheckpointError(
                f"{reader.name} is {reader.format}, and was announced as {announced}"
            )
        cut = self._slice(*part)
        return {
            "weight": self._once("stored", cut, lambda: reader.read(*cut)),
            "scale": self._once("scale", cut, lambda: reader.scale(*cut)),
        }

    def _slice(self, dim: int | None, start: int, length: int | None) -> _Slice:
        whole = dim is not None and (start, length) == (0, self.reader.shape[dim])
        return (None, 0, None) if whole else (dim, start, length)

    def _once(self, form: str, part: _Slice, read: Callable[[], torch.Tensor]) -> torch.Tensor:
        if (form, part) not in self._given:
            self._given[form, part] = read().to(self._ctx.device)
        return self._given[form, part]


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
