"""The gated feed-forward layer.  Source: Shazeer, arXiv:2002.05202."""

from __future__ import annotations

import torch

from allmetal.platform.specs import GatedActivationSpec
from allmetal_models.config import DecoderConfig
from allmetal_models.layers.linear import Linear, RowLinear
from allmetal_models.layers.scope import Scope
from allmetal_models.layers.sharding import fused_rows, separate_rows, share_evenly


class GatedMLP:
    """x [T, C] -> down(act(gate(x)) * up(x)) [T, C].

    `fused`: the name of the one tensor that holds gate and up in the checkpoint.  `inner`: the
    channels between, where they are not the config's.
    """

    def __init__(
        self,
        at: Scope,
        config: DecoderConfig,
        *,
        bias: bool = False,
        fused: str | None = None,
        inner: int | None = None,
    ) -> None:
        ctx, inner = at.ctx, inner or config.intermediate_size
        shards = share_evenly(ctx, ("gate_proj", "up_proj"), inner)
        rows = separate_rows(at, shards) if fused is None else fused_rows(at / fused, shards)
        self.gate_up = Linear(rows, config.hidden_size, bias=bias)
        self.down = RowLinear(at / "down_proj", inner, config.hidden_size, bias=bias)
        self._activate = ctx.kernels.bind(
            GatedActivationSpec(
                dtype=ctx.dtype_name, dim=shards[0].length, activation=config.activation
            )
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self._activate(self.gate_up(x)))
