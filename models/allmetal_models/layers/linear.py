"""Linear layers: rows of W shared among ranks (`Linear`) or its channels (`RowLinear`).

Legend: T tokens, C channels in, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from allmetal.platform import mapped_memory
from allmetal.platform.specs import LinearSpec, PackedWeight
from allmetal_models.layers.formats import Rows, Run, fetch, plan_runs
from allmetal_models.layers.scope import Incoming, Scope

_Receiver: TypeAlias = Callable[[Incoming], None]


class Linear:
    """x [T, C] -> y [T, N], the rows of W taken from one or several checkpoint tensors.

    `columns` (start, length): this rank multiplies with those channels of `in_features` only.
    A bias is added once, by the rank that holds the first channels.
    """

    def __init__(
        self,
        rows: Sequence[Rows],
        in_features: int,
        *,
        bias: bool = False,
        columns: tuple[int, int] | None = None,
    ) -> None:
        ctx = rows[0].at.ctx
        runs = plan_runs(
            ctx,
            rows,
            columns[1] if columns else in_features,
            bias=bias,
            whole_rows=columns is None or columns[1] == in_features,
        )
        self._parts = [_Part(run, in_features, bias, columns) for run in runs]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(self._parts) == 1:
            return self._parts[0](x)
        return torch.cat([part(x) for part in self._parts], dim=-1)


class _Part:
    """One product.  Packs its weight as soon as all tensors it is made of have arrived."""

    def __init__(
        self, run: Run, in_features: int, bias: bool, columns: tuple[int, int] | None
    ) -> None:
        self._run, self._columns = run, columns
        ctx = run.rows[0].at.ctx
        out_features = sum(one.kept for one in run.rows)
        self._op = ctx.kernels.bind(
            LinearSpec(
                dtype=ctx.dtype_name,
                in_features=columns[1] if columns else in_features,
                out_features=out_features,
                bias=bias,
                weight=run.format,
            )
        )
        self._weight: PackedWeight = None
        self._bias = torch.empty(out_features, dtype=ctx.dtype, device=ctx.device) if bias else None
        self._arrived: dict[int, Mapping[str, torch.Tensor]] = {}
        for index, one in enumerate(run.rows):
            one.at.want("weight", (one.total, in_features), self._weight_receiver(index))
            if bias:
                one.at.want("bias", (one.total,), self._bias_receiver(index))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._op(x, self._weight, self._bias)

    def _weight_receiver(self, index: int) -> _Receiver:
        def receive(incoming: Incoming) -> None:
            rows = self._run.rows
            self._arrived[index] = fetch(incoming, self._run.format, rows[index], self._columns)
            if len(self._arrived) == len(rows):
                parts = [self._arrived[i] for i in range(len(rows))]
                self._arrived = {}
                self._weight = self._op.pack(_stack(parts))

        return receive

    def _bias_receiver(self, index: int) -> _Receiver:
        rows = self._run.rows
        begin = sum(one.kept for one in rows[:index])

        def receive(incoming: Incoming) -> None:
            assert self._bias is not None
            target = self._bias[begin : begin + rows[index].kept]
            if self._columns and self._columns[0] > 0:
                target.zero_()
                return
            target.copy_(torch.cat([incoming.dense(0, *cut) for cut in rows[index].ranges]))

        return receive


def _stack(parts: Sequence[Mapping[str, torch.Tensor]]) -> Mapping[str, torch.Tensor]:
    if len(parts) == 1:
        return parts[0]
    stacked = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    for tensor in (tensor for part in parts for tensor in part.values()):
        if tensor.device.type == "cpu":  # what still lies in the checkpoint's file was read late
            mapped_memory.give_back(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    return stacked


class RowLinear:
    """x [T, C of this rank] -> y [T, N]: ranks hold their channels of W, and y is their sum."""

    def __init__(
        self, at: Scope, in_features: int, out_features: int, *, bias: bool = False
    ) -> None:
        ctx = at.ctx
        columns = ctx.share(in_features, f"channels of {at.name}") if ctx.tp_size > 1 else None
        rows = Rows(at=at, total=out_features, ranges=((0, out_features),))
        self._linear = Linear([rows], in_features, bias=bias, columns=columns)
        self._sum = ctx.communicator.all_reduce if columns and ctx.communicator else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self._linear(x)
        return y if self._sum is None else self._sum(y)
