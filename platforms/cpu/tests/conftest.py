"""What the kernel tests share: the kernels that take a spec, and how near is near enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from allmetal.platform.contract import AnyKernel, Support, Supported, Unsupported
from allmetal_cpu import CpuPlatform
from allmetal_cpu.native import library
from allmetal_cpu.native.kernel import NativeKernel

Accepting = Callable[[Any], list[AnyKernel]]
Near = Callable[..., None]

# Of a value: a unit in the last place of the result.  Of the root mean square of all: the worst of
# many sums in which every term was rounded on the way.
_RELATIVE = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2e-6}
_ABSOLUTE = {torch.bfloat16: 2**-6, torch.float16: 2**-9, torch.float32: 5e-6}


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """Two, so that work is really split, and no more: others run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    library.set_threads(2)
    yield
    torch.set_num_threads(before)
    library.set_threads(before)


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh seed every run, printed by pytest when a test fails."""
    fresh = torch.Generator()
    print("seed", fresh.seed())
    return fresh


INSTRUCTION_SETS = ("avx512_bf16", "avx512", "avx2", "portable")


class _Limited:
    """An op that runs what a CPU with less would."""

    def __init__(self, op: Any, isa: str) -> None:
        self._op = op
        self._isa = isa

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)

    def pack(self, *weights: Any) -> Any:
        with limited_to(self._isa):
            return self._op.pack(*weights)

    def __call__(self, *arguments: Any) -> Any:
        with limited_to(self._isa):
            return self._op(*arguments)


@dataclass(frozen=True, slots=True)
class _OnInstructionSet:
    """A native kernel on one of the instruction sets that this CPU has."""

    kernel: AnyKernel
    isa: str

    @property
    def name(self) -> str:
        return f"{self.kernel.name}[{self.isa}]"

    def supports(self, spec: Any) -> Support:
        with limited_to(self.isa):
            return self.kernel.supports(spec)

    def build(self, spec: Any) -> Any:
        with limited_to(self.isa):
            return _Limited(self.kernel.build(spec), self.isa)


@contextmanager
def limited_to(isa: str) -> Iterator[bool]:
    """Whether the library then runs `isa`."""
    loaded = library.load()
    assert isinstance(loaded, library.Library)
    loaded.long.am_limit_isa(isa.encode())
    try:
        yield loaded.long.am_isa() == isa.encode()
    finally:
        loaded.long.am_limit_isa(None)


def on_each_instruction_set(kernel: AnyKernel) -> list[AnyKernel]:
    if not isinstance(kernel, NativeKernel):
        return [kernel]
    kernels: list[AnyKernel] = []
    for isa in INSTRUCTION_SETS:
        with limited_to(isa) as has_it:
            if has_it:
                kernels.append(_OnInstructionSet(kernel, isa))
    assert kernels
    return kernels


@pytest.fixture
def accepting() -> Accepting:
    """spec -> the platform's kernels that take it, native ones once for each instruction set;
    each refusal must have a reason."""
    platform = CpuPlatform()
    (device,) = platform.probe()  # type: ignore[misc]
    offered = platform.kernels(device)

    def ask(spec: Any) -> list[AnyKernel]:
        taken = []
        for kernel in offered[spec.family]:
            answer = kernel.supports(spec)
            if isinstance(answer, Supported):
                each = on_each_instruction_set(kernel)
                taken.extend(k for k in each if isinstance(k.supports(spec), Supported))
            else:
                assert isinstance(answer, Unsupported)
                assert answer.reason
        return taken

    return ask


@pytest.fixture
def near() -> Near:
    """(actual, expected in float64): raises unless they agree to the precision of actual's type.

    `scale`: size of the terms that were summed, where results may cancel to less.
    """

    def check(actual: torch.Tensor, expected: torch.Tensor, scale: float | None = None) -> None:
        assert actual.shape == expected.shape
        if not expected.numel():
            return
        if scale is None:
            scale = expected.square().mean().sqrt().item()
        torch.testing.assert_close(
            actual.double(),
            expected,
            rtol=_RELATIVE[actual.dtype],
            atol=_ABSOLUTE[actual.dtype] * scale,
        )

    return check
