"""What every part of the kit uses: the bench a platform stands on, and how differences are told.

Kernels are held against the reference in float64 on the host, on the same rounded inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NoReturn

import pytest
import torch

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.contract import (
    Absent,
    AnyKernel,
    Broken,
    Device,
    DeviceInfo,
    OpenOptions,
    Platform,
    Spec,
    Supported,
    Unsupported,
)
from allmetal.platform.reference import kernels as reference_kernels
from allmetal.platform.select import with_reference
from allmetal.testing.conformance.draws import draw
from allmetal.testing.conformance.problems import DTYPES
from allmetal.testing.kit import COVERS
from allmetal.testing.poison import PoisonedMemory, poison

TOLERANCE: Mapping[str, float] = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
"""dtype -> largest ||out - expected|| / ||expected|| of a token's row."""
POISON = float("nan")
_PAD = 8
"""Channels of NaN between the rows of a view."""
_TRIES = 40
"""Random problems looked at until one is claimed."""

assert set(TOLERANCE) == set(DTYPES)


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
        taken, reasons = self._ask(spec)
        if not taken:
            _skip(spec.family, reasons)
        return taken

    def drawn(self, family: str) -> tuple[Any, list[AnyKernel]]:
        """A random problem that some kernel of its own takes, and those kernels."""
        reasons: list[str] = []
        for _ in range(_TRIES):
            spec = draw(family, self.generator)
            taken, reasons = self._ask(spec)
            if taken:
                print("drawn", spec)
                return spec, taken
        _skip(family, reasons)

    def taking(self, spec: Spec) -> list[AnyKernel]:
        """Its kernels that take `spec`, if any."""
        return self._ask(spec)[0]

    def _ask(self, spec: Spec) -> tuple[list[AnyKernel], list[str]]:
        """(kernels that take it, why the others do not)."""
        taken, reasons = [], []
        for kernel in self.own.get(spec.family, ()):
            answer = kernel.supports(spec)
            if isinstance(answer, Unsupported):
                reasons.append(f"{kernel.name}: {answer.reason}")
            else:
                taken.append(kernel)
        return taken, reasons

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

    def put_apart(self, x: torch.Tensor) -> torch.Tensor:
        """A copy on the device whose rows lie apart, with NaN between them."""
        flat = x.flatten(1)
        wide = torch.empty(
            flat.shape[0], flat.shape[1] + _PAD, dtype=x.dtype, device=self.device.torch_device
        )
        rows = poison(wide)[:, : flat.shape[1]]
        rows.copy_(flat)
        return rows.unflatten(1, x.shape[1:]) if x.dim() > 2 else rows

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
        """Runs `op` where memory that it is handed for its output holds NaN, and checks that it
        leaves its inputs alone."""
        kept = [(x, x.clone()) for x in inputs if isinstance(x, torch.Tensor)]
        self._leave_nan(inputs)
        with PoisonedMemory():
            result = op(*inputs)
        self.device.synchronize()
        for index, (now, before) in enumerate(kept):
            assert same_bits(now, before), f"input tensor {index} was overwritten"
        return result

    def _leave_nan(self, inputs: Sequence[Any]) -> None:
        """For kernels that do not take their memory from torch: allocators like to reuse what was
        just freed."""
        largest = max((x.numel() for x in inputs if isinstance(x, torch.Tensor)), default=0)
        for size in {largest, largest // 2, 2 * largest} - {0}:
            for dtype in (torch.float32, torch.bfloat16):
                torch.full((size,), POISON, dtype=dtype, device=self.device.torch_device)


class Conformance:
    """Fixtures.  A subclass overrides `platform`; it may override `seed` to see a failure again.

    `level` says what a part of the kit is about: 0 words, 1 kernels and device, 2 whole models,
    3 several devices.
    """

    level: ClassVar[int]

    @pytest.fixture
    def platform(self) -> Platform:
        raise NotImplementedError("override the fixture `platform`")

    @pytest.fixture
    def seed(self) -> int:
        """A fresh one every time, printed when a test fails."""
        return torch.Generator().seed()

    @pytest.fixture
    def options(self) -> OpenOptions:
        """Threads enough to meet each other, and few enough for problems this small."""
        return OpenOptions(threads=2)

    @pytest.fixture
    def device_info(self, platform: Platform) -> DeviceInfo:
        return first_device(platform)

    @pytest.fixture
    def bench(
        self, platform: Platform, device_info: DeviceInfo, options: OpenOptions, seed: int
    ) -> Iterator[Bench]:
        print("seed", seed)
        device = platform.open(device_info, options)
        generator = torch.Generator().manual_seed(seed)
        yield Bench(platform=platform, info=device_info, device=device, generator=generator)
        device.close()


def first_device(platform: Platform) -> DeviceInfo:
    """Absent hardware skips the test with the probe's reason; broken hardware fails it."""
    answer = platform.probe()
    if isinstance(answer, Absent):
        pytest.skip(f"needs a device of {platform.name}: {answer.reason}")
    assert not isinstance(answer, Broken), answer.reason
    return answer[0]


def covers(*features: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test as evidence for features that no spec names."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        setattr(test, COVERS, features)
        return test

    return mark


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
    return _InOneThread(kernel.build(exact))


class _InOneThread:
    """An op whose problems are too small for threads that wait for each other."""

    def __init__(self, op: Any) -> None:
        self._op = op

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)

    def __call__(self, *inputs: Any) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._op(*inputs)
        finally:
            torch.set_num_threads(before)


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


def _skip(family: str, reasons: Sequence[str]) -> NoReturn:
    why = "; ".join(reasons) or "it brings none"
    pytest.skip(f"needs a {family} kernel that takes this spec ({why})")
