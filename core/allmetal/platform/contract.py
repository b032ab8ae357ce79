"""Seam 2: the whole of what the core may ask of a platform.

Nothing in this file imports torch or anything of ours, and nothing outside a platform may name
one.  A platform offers devices, says what each can do, and brings kernels by op family; what it
lacks, the reference kernels do.  Every optional part of a device is `X | None`.

Tensors are `torch.Tensor` for a type checker and never touched here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import torch

CONTRACT_VERSION = 1
REFERENCE_RANK = 1000


# ---- answers -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Supported:
    """Yes.  Among several the lowest rank wins; reference kernels answer REFERENCE_RANK."""

    rank: int = 0


@dataclass(frozen=True, slots=True)
class Unsupported:
    """No, and why: the reason is shown to the user verbatim."""

    reason: str


Support: TypeAlias = Supported | Unsupported


@dataclass(frozen=True, slots=True)
class Native:
    """The device does it; `by` names the kernel or service."""

    by: str
    bounds: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Emulated:
    """It works, by other means than the device's own; `how` says which and what it costs."""

    how: str
    bounds: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing was said.  Counts as unsupported."""

    reason: str = "the platform does not say"


Capability: TypeAlias = Native | Emulated | Unsupported | Unknown


# ---- devices -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device as probing sees it, before any context is opened.  Sizes are bytes, 0
    where only the opened device tells."""

    index: int
    name: str
    total_memory: int
    arch: str = ""
    driver: str = ""
    traits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no such hardware here (or no driver): not an error."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """There is hardware, and it cannot be used: the reason says what to mend."""

    reason: str


Probe: TypeAlias = Sequence[DeviceInfo] | Absent | Broken


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes the process may still take, and bytes the device has."""

    free: int
    total: int


Task: TypeAlias = Literal["generate", "embed", "classify"]
"""Continue a text, make a vector of it, or score labels for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a platform may know of a model when it advises; sizes of one rank, in bytes."""

    model_type: str
    dtype: str
    num_layers: int
    hidden_size: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    parameter_bytes: int
    quantization: str | None = None
    task: Task = "generate"
    whole_texts: bool = False
    """All of a text must be computed in one step, and nothing of it is found in the cache."""
    labels: tuple[str, ...] = ()
    """What a model that classifies chooses from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A platform's preferences, as data.  The planner applies them where the user is silent.

    `graph_sizes`: sequences of the decode steps to record.  `graph_tokens`: tokens of the steps
    with prompts to record: as far as launching a step takes longer than computing it.

    `static_shapes`: a program is compiled for every shape of a tensor.  Then no step is left to be
    launched by hand: the ladders are carried on to the largest step, and whatever else of a step
    changes its length is padded to powers of two.
    """

    dtype: str | None = None
    dtype_reason: str = ""
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    kv_memory_fraction: float = 0.9
    graph_sizes: tuple[int, ...] = ()
    graph_tokens: tuple[int, ...] = ()
    static_shapes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """What the user asks of a device when it is opened; None leaves it to the platform."""

    threads: int | None = None


DEFAULT_OPTIONS = OpenOptions()


class Event(Protocol):
    def record(self) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool: ...


class Stream(Protocol):
    def use(self) -> AbstractContextManager[None]: ...
    def wait(self, event: Event) -> None: ...


class Streams(Protocol):
    def stream(self) -> Stream: ...
    def event(self) -> Event: ...


class Graph(Protocol):
    """A recorded sequence of launches over fixed memory."""

    def replay(self) -> None:
        """Launch it all again, behind what was launched before; never waits."""
        ...


class GraphCapture(Protocol):
    """Records launches.  All graphs of one GraphCapture share the memory they take for what they
    make: a replay overwrites what the one before has left, unless a tensor made while recording is
    still held."""

    @property
    def computes(self) -> bool:
        """Whether recording runs what it records, for little more than a step's time.  Then a
        step may be recorded when it first comes."""
        ...

    def capture(self, run: Callable[[], object]) -> Graph:
        """Call `run` once, recording what it launches and, unless it `computes`, running none of
        it.

        There `run` was called before with the same shapes, so nothing is left to be compiled.
        Whatever is raised, here or by `run`, leaves the device as it was, but for what `run` did
        where it computes.
        """
        ...


class Communicator(Protocol):
    """Collectives of one rank's group, on this device's tensors."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor: ...
    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor: ...
    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor: ...
    def close(self) -> None: ...


class CommunicatorFactory(Protocol):
    def __call__(self, *, rank: int, size: int, address: str) -> Communicator: ...


class Device(Protocol):
    """An opened device.  `asynchronous`: work goes on after a call returns."""

    @property
    def info(self) -> DeviceInfo: ...
    @property
    def torch_device(self) -> str: ...
    @property
    def asynchronous(self) -> bool: ...
    @property
    def streams(self) -> Streams | None: ...
    @property
    def graphs(self) -> GraphCapture | None: ...
    @property
    def communicator(self) -> CommunicatorFactory | None: ...
    def memory(self) -> Memory: ...
    def synchronize(self) -> None: ...
    def pin(self, x: torch.Tensor) -> torch.Tensor:
        """Host memory from which copies to the device are fast; may return `x` itself."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Driver and library versions, for reports."""
        ...

    def advice(self, model: ModelFacts) -> Advice: ...
    def close(self) -> None: ...


# ---- kernels -------------------------------------------------------------------------------


class Spec(Hashable, Protocol):
    """A problem, complete enough to accept or refuse: a frozen dataclass of `platform.specs`."""

    family: ClassVar[str]


SpecT = TypeVar("SpecT", contravariant=True)
OpT = TypeVar("OpT", covariant=True)


class Kernel(Protocol[SpecT, OpT]):
    """One implementation of an op family.

    `supports` is pure and cheap (no device is touched); `build` runs once at load, and what it
    returns is called every step.
    """

    @property
    def name(self) -> str: ...
    def supports(self, spec: SpecT) -> Support: ...
    def build(self, spec: SpecT) -> OpT: ...


AnyKernel: TypeAlias = Kernel[Any, Any]
CapabilityTable: TypeAlias = Mapping[str, Capability]


class Platform(Protocol):
    """What an entry point of the group `allmetal.platforms` returns when called."""

    @property
    def name(self) -> str: ...
    @property
    def contract_version(self) -> int: ...
    def probe(self) -> Probe:
        """Cheap: opens no device context and never raises."""
        ...

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device: ...
    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        """Feature id -> capability; what is left out is `Unknown`."""
        ...

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        """Op family -> kernels, in the platform's own order of preference."""
        ...
