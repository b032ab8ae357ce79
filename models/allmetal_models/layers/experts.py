"""Routed experts: a router, and many small feed-forward layers of which each token takes some.

Sources: arXiv:1701.06538, arXiv:2101.03961.  Legend: T tokens, C channels, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from allmetal.platform.specs import (
    DenseWeight,
    LinearSpec,
    MoESpec,
    PackedWeight,
    Routing,
    WeightFormat,
)
from allmetal_models.config import DecoderConfig
from allmetal_models.layers.formats import Rows, expert_formats, fetch
from allmetal_models.layers.scope import Incoming, Scope
from allmetal_models.layers.sharding import separate_rows, share_evenly
from allmetal_models.moe_config import MoEConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNames:
    """What the checkpoint calls the three matrices of an expert."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


class Experts:
    """x [T, C] -> the weighted sum of each token's experts [T, C].

    Ranks hold some channels of every expert.  `router_dtype`: what the router is computed in, by
    torch's name; None is the model's.
    """

    def __init__(
        self,
        at: Scope,
        config: DecoderConfig,
        moe: MoEConfig,
        routing: Routing,
        *,
        names: ExpertNames | None = None,
        router_dtype: str | None = None,
    ) -> None:
        ctx, names = at.ctx, names or ExpertNames()
        hidden = config.hidden_size
        self._router = Router(at / "gate", hidden, moe.num_experts, dtype=router_dtype)
        self._correction = _correction(at / "gate", moe.num_experts) if routing.correction else None
        shards = share_evenly(ctx, (names.gate, names.up), moe.intermediate_size)
        start, inner = shards[0].start, shards[0].length
        places = [at / f"experts.{index}" for index in range(moe.num_experts)]
        gate_up = [separate_rows(place, shards) for place in places]
        down = [
            (Rows(at=place / names.down, total=hidden, ranges=((0, hidden),)),) for place in places
        ]
        spec = MoESpec(
            dtype=ctx.dtype_name,
            num_experts=moe.num_experts,
            hidden_size=hidden,
            intermediate_size=inner,
            activation=config.activation,
            routing=routing,
            gate_up=DenseWeight(dtype=ctx.dtype_name),
            down=DenseWeight(dtype=ctx.dtype_name),
        )
        columns = (start, inner) if inner < moe.intermediate_size else None
        spec = expert_formats(ctx, spec, gate_up, down, whole_rows=columns is None)
        self._op = ctx.kernels.bind(spec)
        self._weight: PackedWeight = None
        self._gate_up = _Matrices(spec.gate_up, gate_up, hidden, None, self._arrived)
        self._down = _Matrices(spec.down, down, moe.intermediate_size, columns, self._arrived)
        self._sum = ctx.communicator.all_reduce if columns and ctx.communicator else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self._op(x, self._router(x), self._weight, self._correction)
        return y if self._sum is None else self._sum(y)

    def _arrived(self) -> None:
        if self._gate_up.complete and self._down.complete:
            self._weight = self._op.pack(self._gate_up.take(), self._down.take())


class Router:
    """x [T, C] -> logits [T, E].  Its weight is small and decides much: it stays dense."""

    def __init__(
        self, at: Scope, in_features: int, outputs: int, *, dtype: str | None = None
    ) -> None:
        ctx = at.ctx
        self._dtype = getattr(torch, dtype) if dtype else ctx.dtype
        name = dtype or ctx.dtype_name
        self._op = ctx.kernels.bind(
            LinearSpec(
                dtype=name,
                in_features=in_features,
                out_features=outputs,
                bias=False,
                weight=DenseWeight(dtype=name),
            )
        )
        self._weight: PackedWeight = None
        at.want("weight", (outputs, in_features), self._receive)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._op(x.to(self._dtype), self._weight, None)

    def _receive(self, incoming: Incoming) -> None:
        self._weight = self._op.pack({"weight": incoming.dense().to(self._dtype)})


def _correction(at: Scope, num_experts: int) -> torch.Tensor:
    tensor = torch.empty(num_experts, dtype=torch.float32, device=at.ctx.device)

    def fill(incoming: Incoming) -> None:
        tensor.copy_(incoming.reader.dequantize(torch.float32))

    at.want("e_score_correction_bias", (num_experts,), fill)
    return tensor


class _Matrices:
    """One matrix of every expert, each made of the given rows, gathered while they arrive."""

    def __init__(
        self,
        held: WeightFormat,
        experts: Sequence[tuple[Rows, ...]],
        in_features: int,
        columns: tuple[int, int] | None,
        arrived: Callable[[], None],
    ) -> None:
        self._held, self._columns, self._arrived = held, columns, arrived
        self._num_experts = len(experts)
        self._num_rows = sum(rows.kept for rows in experts[0])
        self._missing = sum(map(len, experts))
        self._tensors: dict[str, torch.Tensor] = {}
        for expert, parts in enumerate(experts):
            begin = 0
            for rows in parts:
                receive = self._receiver(expert, begin, rows)
                rows.at.want("weight", (rows.total, in_features), receive)
                begin += rows.kept

    @property
    def complete(self) -> bool:
        return self._missing == 0

    def take(self) -> Mapping[str, torch.Tensor]:
        """Name -> [E, rows, ...]; nothing of it is kept here."""
        tensors, self._tensors = self._tensors, {}
        return tensors

    def _receiver(self, expert: int, begin: int, rows: Rows) -> Callable[[Incoming], None]:
        def receive(incoming: Incoming) -> None:
            for name, part in fetch(incoming, self._held, rows, self._columns).items():
                if name not in self._tensors:
                    shape = (self._num_experts, self._num_rows, *part.shape[1:])
                    self._tensors[name] = part.new_empty(shape)
                self._tensors[name][expert, begin : begin + rows.kept] = part
            self._missing -= 1
            self._arrived()

        return receive
