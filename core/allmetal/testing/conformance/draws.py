"""Problems drawn at random, wider than a list of cases would be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import torch

from allmetal.platform.reference.kernel import LAYOUTS
from allmetal.platform.specs import (
    Activation,
    AttentionInputSpec,
    AttentionSpec,
    DenseWeight,
    EncoderAttentionSpec,
    Float8Weight,
    GatedActivationSpec,
    GGUFWeight,
    IntWeight,
    LinearSpec,
    MoESpec,
    RMSNormSpec,
    Routing,
    WeightFormat,
)
from allmetal.testing.conformance.problems import DTYPES, GGML_TYPES, NARROW

T = TypeVar("T")
_HEAD_DIMS = (16, 24, 32, 40, 64, 72, 80, 96, 104, 112, 128, 144, 160, 192, 224, 256)
_BLOCK_SIZES = (4, 8, 16, 16, 32, 64, 128)


class _Dice:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def between(self, low: int, high: int) -> int:
        """An integer of low .. high, both included."""
        return int(torch.randint(low, high + 1, (), generator=self._generator))

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.between(0, len(choices) - 1)]

    def chance(self, percent: int) -> bool:
        return self.between(1, 100) <= percent


def draw(family: str, generator: torch.Generator) -> Any:
    """A spec of `family`."""
    return _DRAWS[family](_Dice(generator))


def draw_lengths(generator: torch.Generator, longest: int) -> tuple[list[int], list[int]]:
    """(new tokens, tokens in the cache) of one to six sequences: decoding, starting or between."""
    dice = _Dice(generator)
    seq_lens = [dice.between(1, longest) for _ in range(dice.between(1, 6))]
    query_lens = [dice.one_of((1, n, dice.between(1, n))) for n in seq_lens]
    return query_lens, seq_lens


def draw_num_tokens(generator: torch.Generator) -> int:
    return _Dice(generator).between(1, 70)


def _heads(dice: _Dice) -> dict[str, int]:
    num_kv_heads, group = dice.between(1, 4), dice.between(1, 8)
    return {
        "num_heads": group * num_kv_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": dice.one_of(_HEAD_DIMS),
        "block_size": dice.one_of(_BLOCK_SIZES),
    }


def _kv_dtype(dice: _Dice, dtype: str) -> str:
    return dice.one_of(NARROW) if dice.chance(15) else dtype


def _attention(dice: _Dice) -> AttentionSpec:
    dtype, heads = dice.one_of(DTYPES), _heads(dice)
    return AttentionSpec(
        dtype=dtype,
        kv_dtype=_kv_dtype(dice, dtype),
        **heads,
        scale=heads["head_dim"] ** -0.5 * dice.one_of((0.7, 1.0, 1.3)),
        window=dice.between(1, 100) if dice.chance(40) else None,
        soft_cap=dice.between(2, 50) / 2 if dice.chance(30) else None,
        sinks=dice.chance(20),
    )


def _attention_input(dice: _Dice) -> AttentionInputSpec:
    dtype, heads = dice.one_of(DTYPES), _heads(dice)
    return AttentionInputSpec(
        dtype=dtype,
        kv_dtype=_kv_dtype(dice, dtype),
        **heads,
        kv_layout=dice.one_of(LAYOUTS),
        rotary_dim=dice.one_of((0, heads["head_dim"], 2 * dice.between(1, heads["head_dim"] // 2))),
        interleaved=dice.chance(30),
        qk_norm=dice.one_of(("none", "none", "head", "full")),
        norm_eps=dice.one_of((1e-6, 1e-5)),
        norm_offset=dice.one_of((0.0, 1.0)),
    )


def _encoder_attention(dice: _Dice) -> EncoderAttentionSpec:
    heads = _heads(dice)
    del heads["block_size"]
    return EncoderAttentionSpec(
        dtype=dice.one_of(DTYPES),
        **heads,
        scale=heads["head_dim"] ** -0.5 * dice.one_of((0.7, 1.0, 1.3)),
        window=dice.between(1, 60) if dice.chance(30) else None,
    )


def _linear(dice: _Dice) -> LinearSpec:
    dtype = dice.one_of(DTYPES)
    in_features, weight = dice.between(1, 300), _weight(dice, dtype)
    if dice.chance(15):
        act = dice.one_of((None, "float8_e4m3fn"))
        block = dice.one_of((None, None, (128, 128)))
        in_features, weight = 16 * dice.between(1, 20), Float8Weight(act_dtype=act, block=block)
    if isinstance(weight, GGUFWeight):
        in_features = 256 * dice.between(1, 2)
    elif isinstance(weight, IntWeight):
        in_features = (weight.group_size or 1) * dice.between(1, 8)
    return LinearSpec(
        dtype=dtype,
        in_features=in_features,
        out_features=dice.between(1, 300),
        bias=dice.chance(30),
        weight=weight,
    )


def _weight(dice: _Dice, dtype: str) -> WeightFormat:
    match dice.between(0, 3):
        case 0:
            return IntWeight(
                bits=dice.one_of((8, 8, 8, 4)),
                group_size=dice.one_of((0, 0, 32, 64, 128)),
                act_dtype=dice.one_of((None, "int8")),
            )
        case 1:
            return GGUFWeight(type=dice.one_of(GGML_TYPES))
        case _:
            return DenseWeight(dtype=dtype)


def _moe(dice: _Dice) -> MoESpec:
    dtype, groups = dice.one_of(DTYPES), dice.one_of((1, 1, 2, 4))
    num_experts, top_groups = groups * dice.between(2, 12), dice.between(1, groups)
    weight = _weight(dice, dtype)
    unit = 32 if isinstance(weight, DenseWeight) else 256
    return MoESpec(
        dtype=dtype,
        num_experts=num_experts,
        hidden_size=unit * dice.between(1, 256 // unit) + dice.between(0, 31) * (unit == 32),
        intermediate_size=unit * dice.between(1, 256 // unit),
        activation=dice.one_of(get_args(Activation)),
        routing=Routing(
            top_k=dice.between(1, num_experts // groups * top_groups),
            scoring=dice.one_of(("softmax", "sigmoid")),
            renormalize=dice.chance(60),
            correction=dice.chance(30),
            num_groups=groups,
            top_groups=top_groups,
            scale=dice.one_of((1.0, 2.5)),
        ),
        gate_up=weight,
        down=weight,
    )


def _norm(dice: _Dice) -> RMSNormSpec:
    return RMSNormSpec(
        dtype=dice.one_of(DTYPES),
        dim=dice.between(1, 3000),
        eps=dice.one_of((1e-6, 1e-5)),
        offset=dice.one_of((0.0, 1.0)),
        residual=dice.chance(50),
        cast_before_weight=dice.chance(50),
    )


def _activation(dice: _Dice) -> GatedActivationSpec:
    return GatedActivationSpec(
        dtype=dice.one_of(DTYPES),
        dim=dice.between(1, 1500),
        activation=dice.one_of(get_args(Activation)),
    )


_DRAWS: Mapping[str, Callable[[_Dice], Any]] = {
    "attention": _attention,
    "attention_input": _attention_input,
    "encoder_attention": _encoder_attention,
    "linear": _linear,
    "moe": _moe,
    "rms_norm": _norm,
    "gated_activation": _activation,
}
