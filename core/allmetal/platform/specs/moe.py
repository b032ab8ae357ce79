"""Routed experts.

Legend: T tokens, C channels, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from allmetal.platform.specs.elementwise import Activation
from allmetal.platform.specs.linear import PackedWeight, WeightFormat

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which experts a token goes to, and what each counts: from its router logits, in float32.

    Scores are the softmax or sigmoid of the logits.  The `top_k` highest are chosen, of the best
    `top_groups` of `num_groups` equal groups of neighbours, a group being worth its two highest;
    with `correction` a learned bias joins the scores for the choice alone.  The chosen scores,
    over their sum if `renormalize`, times `scale` are the weights.
    """

    top_k: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    correction: bool = False
    num_groups: int = 1
    top_groups: int = 1
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoESpec:
    """y = sum over a token's experts of weight * down(act(gate(x)) * up(x)).

    `gate_up` and `down` say how the experts' weights are stored, as a linear layer's are, with
    the E experts in front of every axis: gate above up [E, 2 * intermediate_size, hidden_size],
    and [E, hidden_size, intermediate_size].
    """

    family: ClassVar[str] = "moe"
    dtype: str
    num_experts: int
    hidden_size: int
    intermediate_size: int
    activation: Activation
    routing: Routing
    gate_up: WeightFormat
    down: WeightFormat


class MoEOp(Protocol):
    """x [T, C], router logits [T, E] of x's dtype or float32 -> y [T, C]."""

    def pack(
        self, gate_up: Mapping[str, torch.Tensor], down: Mapping[str, torch.Tensor]
    ) -> PackedWeight:
        """Checkpoint layout to kernel layout, once at load; may keep or copy the tensors."""
        ...

    def __call__(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        weight: PackedWeight,
        correction: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`correction` [E] float32 is there where the routing says so."""
        ...
