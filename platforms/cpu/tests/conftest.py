"""What the kernel tests share: the kernels that take a spec, and how near is near enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from allmetal.platform.contract import AnyKernel, Supported, Unsupported
from allmetal_cpu import CpuPlatform

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
    yield
    torch.set_num_threads(before)


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh seed every run, printed by pytest when a test fails."""
    fresh = torch.Generator()
    print("seed", fresh.seed())
    return fresh


@pytest.fixture
def accepting() -> Accepting:
    """spec -> the platform's kernels that take it; each refusal must have a reason."""
    platform = CpuPlatform()
    (device,) = platform.probe()  # type: ignore[misc]
    offered = platform.kernels(device)

    def ask(spec: Any) -> list[AnyKernel]:
        taken = []
        for kernel in offered[spec.family]:
            answer = kernel.supports(spec)
            if isinstance(answer, Supported):
                taken.append(kernel)
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
