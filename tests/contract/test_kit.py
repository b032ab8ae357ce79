"""The conformance kit finds what it is there to find: each platform here is wrong in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from allmetal.platform.contract import (
    AnyKernel,
    Broken,
    DeviceInfo,
    Native,
    Probe,
    Support,
    Supported,
    Unsupported,
)
from allmetal.platform.null import NullPlatform
from allmetal.platform.reference import kernels as reference
from allmetal.testing.conformance import Bench, PlatformConformance, problems
from allmetal.testing.conformance.contract import weakened
from allmetal.testing.conformance.engines import expected, random_prompt
from allmetal.testing.conformance.model import NUM_TOKENS, TIE
from allmetal.testing.conformance.tiny_models import KINDS, Kind

KIT = PlatformConformance()
Wrap = Callable[[Any, Any], Any]
"""(spec, the reference op) -> an op that is wrong."""


@dataclass(frozen=True)
class Wrong:
    """The reference kernel with its ops wrapped, or built for another spec."""

    kernel: AnyKernel
    wrap: Wrap = lambda spec, op: op
    misread: Callable[[Any], Any] = lambda spec: spec
    name: str = "wrong"

    def supports(self, spec: Any) -> Support:
        return self.kernel.supports(spec)

    def build(self, spec: Any) -> Any:
        return self.wrap(spec, self.kernel.build(self.misread(spec)))


class WrongPlatform(NullPlatform):
    def __init__(self, family: str, **wrong: Any) -> None:
        (kernel,) = reference()[family]
        self.wrong = {family: (Wrong(kernel, **wrong),)}

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        return {**reference(), **self.wrong}


def bench_of(platform: Any) -> Bench:
    (info,) = platform.probe()
    generator = torch.Generator()
    generator.seed()
    return Bench(platform=platform, info=info, device=platform.open(info), generator=generator)


def spec_where(specs: Sequence[Any], **fields: Any) -> Any:
    return next(s for s in specs if all(getattr(s, k) == v for k, v in fields.items()))


class _Attention:
    """An attention op around another."""

    def __init__(self, op: Any, call: Callable[..., torch.Tensor]) -> None:
        self.kv_layout, self.cache_shape = op.kv_layout, op.cache_shape
        self._op, self._call = op, call

    def __call__(self, *args: Any) -> torch.Tensor:
        return self._call(self._op, *args)


def whole_blocks(op: Any, q: Any, cache: Any, batch: Any, sinks: Any) -> torch.Tensor:
    """Weights of 0 for what is beyond the sequence, times what lies there: NaN spreads."""
    return op(q, cache, batch, sinks) + 0 * cache[batch.block_table.long()].sum()


def skips_last_row(op: Any, q: Any, *rest: Any) -> torch.Tensor:
    out = op(q, *rest)
    if len(out) > 1:
        out[-1] = torch.empty_like(out[-1]).fill_(float("nan"))
    return out


ATTENTION_PLAIN = spec_where(problems.ATTENTION, dtype="float32", window=None)
ATTENTION_WRONGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ignores the window": (
        spec_where(problems.ATTENTION, window=24),
        {"misread": lambda s: replace(s, window=None)},
    ),
    "counts the window from the token before": (
        spec_where(problems.ATTENTION, window=24),
        {"misread": lambda s: replace(s, window=s.window + 1)},
    ),
    "ignores the soft cap": (
        spec_where(problems.ATTENTION, soft_cap=5.0),
        {"misread": lambda s: replace(s, soft_cap=None)},
    ),
    "scales by one": (ATTENTION_PLAIN, {"misread": lambda s: replace(s, scale=1.0)}),
    "reads beyond the sequence": (
        ATTENTION_PLAIN,
        {"wrap": lambda s, op: _Attention(op, whole_blocks)},
    ),
    "leaves a row unwritten": (
        ATTENTION_PLAIN,
        {"wrap": lambda s, op: _Attention(op, skips_last_row)},
    ),
    "rounds in float16": (
        ATTENTION_PLAIN,
        {"wrap": lambda s, op: _Attention(op, lambda op, *a: op(*a).half().float())},
    ),
    "overwrites its query": (
        ATTENTION_PLAIN,
        {"wrap": lambda s, op: _Attention(op, lambda op, q, *a: q.copy_(op(q, *a)))},
    ),
}


@pytest.mark.parametrize(("spec", "wrong"), ATTENTION_WRONGS.values(), ids=list(ATTENTION_WRONGS))
def test_wrong_attention_is_found(spec: Any, wrong: dict[str, Any]) -> None:
    KIT.test_attention_is_what_it_claims(bench_of(WrongPlatform("attention")), spec)
    with pytest.raises(AssertionError):
        KIT.test_attention_is_what_it_claims(bench_of(WrongPlatform("attention", **wrong)), spec)


def test_reading_blocks_before_the_window_is_found() -> None:
    spec = spec_where(problems.ATTENTION, window=24)
    wide = {"misread": lambda s: replace(s, window=None)}
    with pytest.raises(AssertionError):
        KIT.test_blocks_before_the_window_may_be_given_away(
            bench_of(WrongPlatform("attention", **wide)), spec
        )


INPUT_PLAIN = problems.ATTENTION_INPUT[0]


def writes_one_more(spec: Any, op: Any) -> Any:
    def write(qkv: Any, positions: Any, table: Any, cache: Any, slots: Any, *rest: Any) -> Any:
        q = op(qkv, positions, table, cache, slots, *rest)
        if len(slots) == 0:
            cache[0, 0, 0] = 1.0
        return q

    return write


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"interleaved": True}, {"misread": lambda s: replace(s, interleaved=False)}),
        ({"qk_norm": "head"}, {"misread": lambda s: replace(s, norm_offset=1.0)}),
        ({"rotary_dim": 32}, {"misread": lambda s: replace(s, rotary_dim=0)}),
        ({}, {"wrap": writes_one_more}),
        (
            {},
            {"wrap": lambda s, op: lambda *a: op(*a).transpose(0, 1).contiguous().transpose(0, 1)},
        ),
    ],
)
def test_wrong_attention_input_is_found(changes: dict[str, Any], wrong: dict[str, Any]) -> None:
    spec = replace(INPUT_PLAIN, **changes)
    KIT.test_attention_input_is_what_it_claims(bench_of(WrongPlatform("attention_input")), spec)
    bad = bench_of(WrongPlatform("attention_input", **wrong))
    with pytest.raises(AssertionError):
        KIT.test_attention_input_is_what_it_claims(bad, spec)


def test_a_wrong_norm_is_found() -> None:
    spec = spec_where(problems.RMS_NORM, residual=True, offset=1.0, dtype="bfloat16")
    for wrong in (
        {"misread": lambda s: replace(s, offset=0.0)},
        {"misread": lambda s: replace(s, eps=1.0)},
        {"wrap": lambda s, op: lambda x, w, r: (op(x, w, r)[0], x)},
        {"wrap": lambda s, op: lambda x, w, r: (op(x, w, r)[0], r.add_(x))},
    ):
        with pytest.raises(AssertionError):
            KIT.test_rms_norm_is_what_it_claims(bench_of(WrongPlatform("rms_norm", **wrong)), spec)


def test_a_wrong_activation_is_found() -> None:
    spec = spec_where(problems.GATED_ACTIVATION, activation="gelu")
    for activation in ("gelu_tanh", "silu"):
        wrong = {"misread": lambda s, a=activation: replace(s, activation=a)}
        platform = WrongPlatform("gated_activation", **wrong)
        with pytest.raises(AssertionError):
            KIT.test_gated_activation_is_what_it_claims(bench_of(platform), spec)


class _Linear:
    def __init__(self, op: Any, call: Callable[..., torch.Tensor]) -> None:
        self.pack, self._op, self._call = op.pack, op, call

    def __call__(self, x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
        return self._call(self._op, x, weight, bias)


@pytest.mark.parametrize(
    "call",
    [
        lambda op, x, w, b: op(x.half().float(), w, b),
        lambda op, x, w, b: op(x, w, torch.zeros_like(b)),
        lambda op, x, w, b: op(x, w, b).double(),
        lambda op, x, w, b: op(x.abs(), w, b),
    ],
)
def test_a_wrong_product_is_found(call: Callable[..., torch.Tensor]) -> None:
    spec = spec_where(problems.LINEAR, dtype="float32", bias=True)
    KIT.test_linear_is_what_it_claims(bench_of(WrongPlatform("linear")), spec)
    platform = WrongPlatform("linear", wrap=lambda s, op: _Linear(op, call))
    with pytest.raises(AssertionError):
        KIT.test_linear_is_what_it_claims(bench_of(platform), spec)


def unfiltered(op: Any, logits: Any, t: Any, k: Any, p: Any, m: Any, u: Any) -> torch.Tensor:
    return op(logits, t, k, None, m, u)


def by_batch(op: Any, logits: Any, t: Any, k: Any, p: Any, m: Any, u: Any) -> torch.Tensor:
    return op(logits, t, k, p, m, None if u is None else (u + 0.1 * len(u)) % 1)


@pytest.mark.parametrize("call", [unfiltered, by_batch])
def test_a_wrong_draw_is_found(call: Callable[..., torch.Tensor]) -> None:
    spec = problems.SAMPLING[1]
    platform = WrongPlatform("sampling", wrap=lambda s, op: lambda *a: call(op, *a))
    with pytest.raises(AssertionError):
        KIT.test_sampling_draws_what_the_reference_draws(bench_of(platform), spec)
    KIT.test_sampling_draws_what_the_reference_draws(bench_of(WrongPlatform("sampling")), spec)


def test_a_row_that_feels_its_neighbours_is_found() -> None:
    platform = WrongPlatform("sampling", wrap=lambda s, op: lambda *a: by_batch(op, *a))
    with pytest.raises(AssertionError):
        KIT.test_a_rows_token_does_not_depend_on_its_neighbours(
            bench_of(platform), problems.SAMPLING[1]
        )


def test_ties_that_are_cut_are_found() -> None:
    def cut(op: Any, logits: Any, *rest: Any) -> torch.Tensor:
        falling = torch.arange(logits.shape[1], 0.0, -1) * 1e-3
        return op(logits + falling, *rest)

    platform = WrongPlatform("sampling", wrap=lambda s, op: lambda *a: cut(op, *a))
    with pytest.raises(AssertionError):
        KIT.test_ties_of_the_last_token_kept_stay(bench_of(platform))


class _DecodeState:
    """A decode_state op around another."""

    def __init__(self, op: Any, words: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.op, self.words = op, words

    def read(self, words: torch.Tensor, *state: torch.Tensor) -> Any:
        return self.op.read(self.words(words), *state)

    def write(self, words: torch.Tensor, *more: torch.Tensor) -> Any:
        return self.op.write(self.words(words), *more)


class _Unchecked(_DecodeState):
    def __init__(self, op: Any) -> None:
        super().__init__(op, lambda words: words)

    def write(self, words: torch.Tensor, *more: Any) -> Any:
        return self.op.write(words, *more[:2])


def test_tokens_that_are_not_checked_are_found() -> None:
    platform = WrongPlatform("decode_state", wrap=lambda s, op: _Unchecked(op))
    with pytest.raises(AssertionError):
        KIT.test_decode_state_is_what_it_claims(
            bench_of(platform), problems.DECODE_STATE[1], (2, 9, 64)
        )


def forgets_blocks(words: torch.Tensor) -> torch.Tensor:
    return torch.cat([words[:2], torch.zeros_like(words[2:])])


def one_late(words: torch.Tensor) -> torch.Tensor:
    return torch.cat([words[:1], (words[1:2] - 1).clamp(min=1), words[2:]])


@pytest.mark.parametrize("words", [forgets_blocks, one_late])
def test_wrong_reading_of_the_state_is_found(words: Callable[..., torch.Tensor]) -> None:
    spec, shape = problems.DECODE_STATE[1], (2, 9, 64)
    platform = WrongPlatform("decode_state", wrap=lambda s, op: _DecodeState(op, words))
    with pytest.raises(AssertionError):
        KIT.test_decode_state_is_what_it_claims(bench_of(platform), spec, shape)
    KIT.test_decode_state_is_what_it_claims(bench_of(WrongPlatform("decode_state")), spec, shape)


class _Silent:
    name = "silent"

    def supports(self, spec: Any) -> Support:
        return Unsupported(" ")

    def build(self, spec: Any) -> Any:
        raise AssertionError


class _Fickle(_Silent):
    def __init__(self) -> None:
        self.asked = 0

    def supports(self, spec: Any) -> Support:
        self.asked += 1
        return Supported() if self.asked % 2 else Unsupported("not twice")


def test_refusals_without_a_reason_and_changing_answers_are_found() -> None:
    for kernel in (_Silent(), _Fickle()):
        platform = NullPlatform()
        platform.kernels = lambda device, k=kernel: {"rms_norm": (k,)}  # type: ignore[method-assign, misc]
        (info,) = platform.probe()  # type: ignore[misc]
        with pytest.raises(AssertionError):
            KIT.test_its_kernels_answer_every_spec_and_refuse_with_a_reason(platform, info)


def test_features_that_are_unknown_or_claimed_in_vain_are_found() -> None:
    platform = NullPlatform()
    (info,) = platform.probe()  # type: ignore[misc]
    platform.capabilities = lambda device: {"flying": Native("wings")}  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="flying"):
        KIT.test_its_capabilities_are_known_features_with_a_word_on_each(platform, info)
    platform.capabilities = lambda device: {"attention.sinks": Native("x")}  # type: ignore[method-assign]
    platform.kernels = lambda device: {}  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match=r"attention\.sinks"):
        KIT.test_what_it_calls_native_one_of_its_kernels_takes(platform, info)


def test_a_kernel_nobody_has_is_a_skip_with_the_reasons() -> None:
    platform = NullPlatform()
    platform.kernels = lambda device: {"rms_norm": (_Silent(),)}  # type: ignore[method-assign]
    with pytest.raises(pytest.skip.Exception, match="silent: "):
        bench_of(platform).claiming(problems.RMS_NORM[0])


def test_broken_hardware_fails_and_is_not_skipped() -> None:
    class NoDriver(NullPlatform):
        def probe(self) -> Probe:
            return Broken("no driver")

    fixture = vars(PlatformConformance.__mro__[-2])["device_info"]
    with pytest.raises(AssertionError, match="no driver"):
        fixture.__wrapped__(KIT, NoDriver())


def test_a_weakened_test_is_found_unless_it_says_why() -> None:
    class Weak(PlatformConformance):
        def test_attention_is_what_it_claims(self) -> None:  # type: ignore[override]
            pass

        @pytest.mark.xfail(reason="")
        def test_rms_norm_is_what_it_claims(self) -> None:  # type: ignore[override]
            pass

        test_it_keeps_this_contract = None  # type: ignore[assignment]

        @pytest.mark.xfail(reason="issue 17: sums in float16")
        def test_linear_is_what_it_claims(self) -> None:  # type: ignore[override]
            pass

        def test_of_my_own(self) -> None:
            pass

    assert weakened(Weak) == [
        "test_attention_is_what_it_claims",
        "test_it_keeps_this_contract",
        "test_rms_norm_is_what_it_claims",
    ]
    assert weakened(PlatformConformance) == []


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_tiny_models_say_many_things_and_are_sure_of_them(kind: Kind) -> None:
    """A model that repeats itself would hide a wrong layer; one that wavers would find one."""
    outputs = [
        expected(kind, "float32", random_prompt(length, seed), NUM_TOKENS)
        for seed, length in enumerate((41, 5))
    ]

    assert len({token for output in outputs for token in output.tokens}) >= 10
    assert min(margin for output in outputs for margin in output.margins) > 5 * TIE["float32"]
