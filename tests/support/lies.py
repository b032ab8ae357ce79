"""Platforms that are wrong in one way each.  All else is the reference's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from recordable import RecordableAttention
from recorder import Recorded, Recorder

from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    Advice,
    AnyKernel,
    Broken,
    CapabilityTable,
    Device,
    DeviceInfo,
    ModelFacts,
    Native,
    OpenOptions,
    Probe,
    Support,
    Supported,
    Unsupported,
)
from allmetal.platform.null import NullDevice
from allmetal.platform.reference import kernels as reference
from allmetal.testing.reference_platform import ReferencePlatform

Wrap = Callable[[Any, Any], Any]
"""(spec, the right op) -> an op that is wrong."""


@dataclass(frozen=True)
class Wrong:
    """The reference kernel with its ops wrapped, built for another spec, or other answers."""

    kernel: AnyKernel
    wrap: Wrap = lambda spec, op: op
    misread: Callable[[Any], Any] = lambda spec: spec
    answer: Callable[[Any], Support] | None = None
    name: str = "wrong"

    def supports(self, spec: Any) -> Support:
        return self.answer(spec) if self.answer else self.kernel.supports(spec)

    def build(self, spec: Any) -> Any:
        return self.wrap(spec, self.kernel.build(self.misread(spec)))


class Liar(ReferencePlatform):
    """One family is wrong, or the table claims too much."""

    def __init__(
        self, family: str = "", *, table: CapabilityTable | None = None, **wrong: Any
    ) -> None:
        self._table = table or {}
        self._wrong: dict[str, Sequence[AnyKernel]] = {}
        if family:
            (kernel,) = reference()[family]
            self._wrong = {family: (Wrong(kernel, **wrong),)}

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return self._table

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        return {**reference(), **self._wrong}


class Attention:
    """An attention op around another."""

    def __init__(self, op: Any, call: Callable[..., torch.Tensor]) -> None:
        self.kv_layout, self.cache_shape = op.kv_layout, op.cache_shape
        self._op, self._call = op, call

    def __call__(self, *args: Any) -> torch.Tensor:
        return self._call(self._op, *args)


class Linear:
    def __init__(self, op: Any, call: Callable[..., torch.Tensor]) -> None:
        self.pack, self._op, self._call = op.pack, op, call

    def __call__(self, x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
        return self._call(self._op, x, weight, bias)


def attention(call: Callable[..., torch.Tensor]) -> Wrap:
    return lambda spec, op: Attention(op, call)


def linear(call: Callable[..., torch.Tensor]) -> Wrap:
    return lambda spec, op: Linear(op, call)


# ---- wrong in one place --------------------------------------------------------------------


def last_row_of_seven(op: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """A tail that was not thought of."""
    y: torch.Tensor = op(x, *rest)
    if len(x) % 8 == 7:
        y[-1] *= 1.5
    return y


def behind_a_full_block(op: Any, q: torch.Tensor, cache: Any, batch: Any, *rest: Any) -> Any:
    """Sequences that end with the first token of a block see that token twice."""
    out = op(q, cache, batch, *rest)
    size = cache.shape[2]
    for row, length in enumerate(batch.host_seq_lens):
        if length % size == 1 and length > 1:
            out[int(batch.query_start[row + 1]) - 1] *= 1.1
    return out


def leave_last_row(out: torch.Tensor) -> torch.Tensor:
    """As a kernel that takes memory and stops a row early."""
    fresh = torch.empty_like(out)
    fresh[:-1] = out[:-1]
    return fresh


def no_write_of_eleven(spec: Any, op: Any) -> Any:
    """Chunks of one length are lost."""

    def write(qkv: Any, positions: Any, table: Any, cache: Any, slots: Any, *rest: Any) -> Any:
        target = cache.clone() if len(slots) == 11 else cache
        return op(qkv, positions, table, target, slots, *rest)

    return write


def writes_a_neighbour(spec: Any, op: Any) -> Any:
    def write(qkv: Any, positions: Any, table: Any, cache: Any, slots: Any, *rest: Any) -> Any:
        q = op(qkv, positions, table, cache, slots, *rest)
        if len(slots):
            block, offset = divmod(int(slots[0]), spec.block_size)
            page = cache if spec.kv_layout == "nhd" else cache.transpose(2, 3)
            page[block, 0, (offset + 1) % spec.block_size, 0] = 1.0
        return q

    return write


# ---- state that stays ----------------------------------------------------------------------


def grows_louder(spec: Any, op: Any) -> Any:
    """Remembers the largest value it ever saw, and scales by it."""
    largest = 0.0

    def run(x: torch.Tensor, *rest: Any) -> Any:
        nonlocal largest
        y = op(x, *rest)
        if not x.numel():
            return y
        now = float(x.abs().max())
        largest = max(largest, now)
        first = y[0] if isinstance(y, tuple) else y
        scaled = (first * (now / largest) ** 0.1).to(first.dtype)
        return (scaled, y[1]) if isinstance(y, tuple) else scaled

    return run


def first_bias_stays(spec: Any, op: Any) -> Any:
    """What was left in its workspace is added to a part of the next result."""
    workspace: list[torch.Tensor] = []

    def run(inner: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        y: torch.Tensor = inner(x, *rest)
        before = workspace.pop() if workspace else None
        workspace.append(y.clone())
        if before is not None and len(before) and len(y):
            y[:1] += 0.01 * before[:1]
        return y

    return Linear(op, run)


class OneStepForAll:
    """Remembers a step's answer under the batch, whichever layer asks."""

    def __init__(self, spec: Any, op: Any) -> None:
        self.kv_layout, self.cache_shape, self._op = op.kv_layout, op.cache_shape, op

    def __call__(self, q: Any, cache: Any, batch: Any, sinks: Any = None) -> torch.Tensor:
        if "answer" not in batch.memo:
            batch.memo["answer"] = self._op(q, cache, batch, sinks)
        answer: torch.Tensor = batch.memo["answer"]
        return answer.clone()


# ---- words ---------------------------------------------------------------------------------


def claims_sinks_takes_none() -> Liar:
    def answer(spec: Any) -> Support:
        return Unsupported("no sinks") if spec.sinks else Supported()

    return Liar("attention", table={"attention.sinks": Native("fast attention")}, answer=answer)


def silent_refusal() -> Liar:
    return Liar(
        "rms_norm", answer=lambda spec: Supported() if spec.dim == 64 else Unsupported("  ")
    )


def fickle() -> Liar:
    asked = [0]

    def answer(spec: Any) -> Support:
        asked[0] += 1
        return Supported() if asked[0] % 2 else Unsupported("not twice")

    return Liar("gated_activation", answer=answer)


class NoDriver(ReferencePlatform):
    def probe(self) -> Probe:
        return Broken("the driver is gone")


# ---- recorded steps ------------------------------------------------------------------------


class Recording(ReferencePlatform):
    """A host whose device records steps."""

    def __init__(self, recorder: Callable[[], Recorder] = Recorder) -> None:
        self._recorder = recorder

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        kinds = ("graph_capture", "attention.sliding_window", "attention.soft_cap")
        return {kind: Native("operators, written down") for kind in kinds}

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        return {**reference(), "attention": (RecordableAttention(),)}

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        return RecordingDevice(device, graphs=self._recorder())  # type: ignore[arg-type, return-value]


@dataclass(frozen=True)
class RecordingDevice(NullDevice):
    def advice(self, model: ModelFacts) -> Advice:
        return replace(super().advice(model), graph_sizes=(1, 2, 4))


@dataclass
class Stale(Recorded):
    """From the second time on, nothing runs."""

    def replay(self) -> None:
        self.owner.replays += 1
        if self.owner.replays == 1:
            for launch in self.launches:
                launch.again()


class StaleRecorder(Recorder):
    def capture(self, run: Callable[[], object]) -> Recorded:
        made = super().capture(run)
        return Stale(made.owner, made.launches)
