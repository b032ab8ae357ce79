"""What every part of the kit uses: the bench a platform stands on, and how differences are told.

Kernels are held against the reference in float64 on the host, on the same rounded inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.contract import (
    Absent,
    AnyKernel,
    Broken,
    Device,
    DeviceInfo,
    Platform,
    Spec,
    Supported,
    Unsupported,
)
from allmetal.platform.reference import kernels as reference_kernels
from allmetal.platform.select import with_reference

TOLERANCE: Mapping[str, float] = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
"""dtype -> largest ||out - expected|| / ||expected|| of a token's row."""
DTYPES = tuple(TOLERANCE)
POISON = float("nan")


@dataclass(slots=True, kw_only=True)
class Bench:
    """An opened device with its kernels.  Tensors are made on the host, then moved."""

    platform: Platform
    info: DeviceInfo
    device: Device
    generator: torch.Generator

    @property
    def own(self) -> Mapping[str, Sequence[AnyKernel]]:
        """The platform's own kernels, by family."""
        return self.platform.kernels(self.info)

    @property
    def all(self) -> Mapping[str, Sequence[AnyKernel]]:
        """Its kernels, and the reference as the last resort."""
        return with_reference(self.own, reference_kernels())

    def claiming(self, spec: Spec) -> list[AnyKernel]:
        """Its kernels that take `spec`; skips the test, with their reasons, if none does."""
        reasons, taken = [], []
        for kernel in self.own.get(spec.family, ()):
            answer = kernel.supports(spec)
            if isinstance(answer, Unsupported):
                reasons.append(f"{kernel.name}: {answer.reason}")
            else:
                taken.append(kernel)
        if not taken:
            why = "; ".join(reasons) or "it brings none"
            pytest.skip(f"needs a {spec.family} kernel that takes this spec ({why})")
        return taken

    def normal(self, *shape: int, dtype: str = "float32") -> torch.Tensor:
        """Fresh standard normal values on the host."""
        x = torch.randn(*shape, generator=self.generator, dtype=torch.float32)
        return x.to(torch_dtype(dtype))

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def put(self, x: torch.Tensor) -> torch.Tensor:
        """A copy on the device; the original stays for comparison."""
        moved = x.to(self.device.torch_device)
        return moved.clone() if moved is x else moved

    def put_batch(self, batch: AttentionBatch) -> AttentionBatch:
        return replace(
            batch,
            query_start=self.put(batch.query_start),
            seq_lens=self.put(batch.seq_lens),
            block_table=self.put(batch.block_table),
            slot_mapping=self.put(batch.slot_mapping),
            memo={},
        )

    def get(self, x: torch.Tensor) -> torch.Tensor:
        self.device.synchronize()
        return x.cpu()

    def call(self, op: Callable[..., Any], *inputs: Any) -> Any:
        """Runs `op` where memory it may be handed for its output holds NaN, and checks that it
        leaves its inputs alone."""
        kept = [(x, x.clone()) for x in inputs if isinstance(x, torch.Tensor)]
        self._poison(inputs)
        result = op(*inputs)
        self.device.synchronize()
        for index, (now, before) in enumerate(kept):
            assert same_bits(now, before), f"input tensor {index} was overwritten"
        return result

    def _poison(self, inputs: Sequence[Any]) -> None:
        """Allocators like to reuse what was just freed: leave NaN there, in the inputs' sizes."""
        largest = max((x.numel() for x in inputs if isinstance(x, torch.Tensor)), default=0)
        for size in {largest, largest // 2, 2 * largest} - {0}:
            for dtype in (torch.float32, torch.bfloat16):
                torch.full((size,), POISON, dtype=dtype, device=self.device.torch_device)


class Conformance:
    """Fixtures.  A subclass overrides `platform`."""

    @pytest.fixture
    def platform(self) -> Platform:
        raise NotImplementedError("override the fixture `platform`")

    @pytest.fixture
    def device_info(self, platform: Platform) -> DeviceInfo:
        answer = platform.probe()
        if isinstance(answer, Absent):
            pytest.skip(f"needs a device of {platform.name}: {answer.reason}")
        assert not isinstance(answer, Broken), answer.reason
        return answer[0]

    @pytest.fixture
    def bench(self, platform: Platform, device_info: DeviceInfo) -> Iterator[Bench]:
        """A fresh seed every time, printed when a test fails."""
        generator = torch.Generator()
        print("seed", generator.seed())
        device = platform.open(device_info)
        yield Bench(platform=platform, info=device_info, device=device, generator=generator)
        device.close()


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def expected_op(spec: Any) -> Any:
    """The reference for `spec`, in float64."""
    exact = replace(spec, dtype="float64") if hasattr(spec, "dtype") else spec
    (kernel,) = reference_kernels()[exact.family]
    answer = kernel.supports(exact)
    assert isinstance(answer, Supported), answer
    return kernel.build(exact)


def check(
    out: torch.Tensor, expected: torch.Tensor, dtype: str, *, tolerance: float | None = None
) -> None:
    """Shape, dtype, no NaN, and every row within the tolerance of its dtype."""
    assert out.shape == expected.shape
    assert out.dtype == torch_dtype(dtype)
    if not out.numel():
        return
    bound = TOLERANCE[dtype] if tolerance is None else tolerance
    rows = out.double().flatten(1)
    exact = expected.double().flatten(1)
    assert rows.isfinite().all(), f"not finite in {int((~rows.isfinite()).any(1).sum())} rows"
    size = exact.norm(dim=1)
    # A row whose terms happen to cancel is no smaller problem than the others.
    size = size.clamp_min(max(float(size.mean()) / 2, torch.finfo(torch.float32).tiny))
    error = (rows - exact).norm(dim=1) / size
    worst = int(error.argmax())
    assert error[worst] <= bound, f"row {worst} is off by {float(error[worst]):.2e} of its norm"


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal memory, NaN included."""
    a, b = a.contiguous(), b.contiguous()
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8)) if a.numel() else True


def title(spec: Any) -> str:
    """A test id: the fields that differ from a family's plain case, short."""
    words = []
    for f in fields(spec):
        value = getattr(spec, f.name)
        if value is None or value is False or f.name in _UNSAID:
            continue
        words.append(_word(f.name, value))
    return "-".join(words)


_UNSAID = ("scale", "norm_eps", "eps")


def _word(name: str, value: Any) -> str:
    if value is True:
        return name
    if isinstance(value, str):
        return value
    if hasattr(value, "kind"):
        inner = "-".join(str(getattr(value, f.name)) for f in fields(value))
        return f"{value.kind}-{inner}"
    return f"{''.join(part[0] for part in name.split('_'))}{value}"
