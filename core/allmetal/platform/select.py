"""Pick a kernel for a problem, keep the reasons the others were refused, and remember both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never, overload

from allmetal.errors import ConfigError, NoKernelError
from allmetal.platform import specs
from allmetal.platform.contract import (
    REFERENCE_RANK,
    AnyKernel,
    Spec,
    Supported,
    Unsupported,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """`kernel` does `spec`; each of `refused` is (kernel name, reason)."""

    spec: Spec
    kernel: AnyKernel
    rank: int
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def is_reference(self) -> bool:
        """Nothing faster took it."""
        return self.rank >= REFERENCE_RANK


def choose(
    kernels: Sequence[AnyKernel],
    spec: Spec,
    *,
    explicit: str | None = None,
    hint: str | None = None,
) -> Choice:
    """The accepting kernel of the lowest rank; among equals the first offered.

    An `explicit` choice that cannot be had raises with its reason; it is never replaced.
    """
    if explicit is not None:
        return _explicit(kernels, spec, explicit)
    accepted: list[tuple[int, AnyKernel]] = []
    refused: list[tuple[str, str]] = []
    for kernel in kernels:
        match kernel.supports(spec):
            case Supported(rank):
                accepted.append((rank, kernel))
            case Unsupported(reason):
                refused.append((kernel.name, reason))
            case other:
                assert_never(other)
    if not accepted:
        raise NoKernelError(spec.family, spec, refused, hint=hint)
    rank, best = min(accepted, key=lambda pair: pair[0])
    return Choice(spec, best, rank, tuple(refused))


def _explicit(kernels: Sequence[AnyKernel], spec: Spec, name: str) -> Choice:
    named = [kernel for kernel in kernels if kernel.name == name]
    if not named:
        offered = ", ".join(kernel.name for kernel in kernels) or "none"
        raise ConfigError(
            f"no {spec.family} kernel is called {name!r}", hint=f"there are: {offered}"
        )
    answer = named[0].supports(spec)
    if isinstance(answer, Unsupported):
        raise NoKernelError(
            spec.family,
            spec,
            [(name, answer.reason)],
            hint=f"leave --kernel {spec.family}={name} out to let the platform choose",
        )
    return Choice(spec, named[0], answer.rank)


def _weights(spec: Spec) -> Sequence[specs.WeightFormat]:
    match spec:
        case specs.LinearSpec():
            return (spec.weight,)
        case specs.MoESpec():
            return spec.gate_up, spec.down
        case _:
            return ()


class Kernels:
    """Binds ops at construction: asks the platform's kernels, then the reference ones.

    Ops are built once a spec and shared, so they hold no state of a layer.
    """

    def __init__(
        self,
        offered: Mapping[str, Sequence[AnyKernel]],
        *,
        explicit: Mapping[str, str] | None = None,
    ) -> None:
        self._offered = offered
        self._explicit = dict(explicit or {})
        self._choices: dict[Spec, Choice] = {}
        self._ops: dict[Spec, Any] = {}

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Every choice made so far, in the order of asking."""
        return tuple(self._choices.values())

    @property
    def takes_quantised(self) -> bool:
        """Whether something better than the reference took any of the quantised weights so far."""
        return any(
            not choice.is_reference
            for spec, choice in self._choices.items()
            for weight in _weights(spec)
            if not isinstance(weight, specs.DenseWeight)
        )

    def choose(self, spec: Spec) -> Choice:
        if spec not in self._choices:
            self._choices[spec] = choose(
                self._offered.get(spec.family, ()), spec, explicit=self._explicit.get(spec.family)
            )
        return self._choices[spec]

    @overload
    def bind(self, spec: specs.AttentionSpec) -> specs.AttentionOp: ...
    @overload
    def bind(self, spec: specs.AttentionInputSpec) -> specs.AttentionInputOp: ...
    @overload
    def bind(self, spec: specs.EncoderAttentionSpec) -> specs.EncoderAttentionOp: ...
    @overload
    def bind(self, spec: specs.LinearSpec) -> specs.LinearOp: ...
    @overload
    def bind(self, spec: specs.RMSNormSpec) -> specs.RMSNormOp: ...
    @overload
    def bind(self, spec: specs.GatedActivationSpec) -> specs.GatedActivationOp: ...
    @overload
    def bind(self, spec: specs.MoESpec) -> specs.MoEOp: ...
    @overload
    def bind(self, spec: specs.SamplingSpec) -> specs.SamplingOp: ...
    @overload
    def bind(self, spec: specs.DecodeStateSpec) -> specs.DecodeStateOp: ...
    def bind(self, spec: Spec) -> Any:
        """The callable that solves `spec`.  Raises NoKernelError with every refusal."""
        if spec not in self._ops:
            self._ops[spec] = self.choose(spec).kernel.build(spec)
        return self._ops[spec]


def with_reference(
    platform: Mapping[str, Sequence[AnyKernel]], reference: Mapping[str, Sequence[AnyKernel]]
) -> dict[str, tuple[AnyKernel, ...]]:
    """The platform's kernels of each family followed by the reference's."""
    families = dict.fromkeys((*platform, *reference))
    return {f: (*platform.get(f, ()), *reference.get(f, ())) for f in families}
