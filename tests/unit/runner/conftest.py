"""A tiny model on the reference kernels, and a hand that writes step plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from allmetal.cache.groups import group_layers
from allmetal.executor.contract import SequenceStart, StepOutput, StepPlan
from allmetal.platform import reference
from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    Advice,
    AnyKernel,
    CapabilityTable,
    CommunicatorFactory,
    Device,
    DeviceInfo,
    GraphCapture,
    Memory,
    ModelFacts,
    OpenOptions,
    Probe,
    Streams,
)
from allmetal.platform.kv import CacheLayout
from allmetal.platform.plan import Decision, Plan
from allmetal.platform.select import Kernels, with_reference
from allmetal.platform.specs import DenseWeight
from allmetal.request import SamplingParams
from allmetal.runner.model_runner import ModelRunner
from allmetal_models.context import BuildContext
from allmetal_models.registry import build_model

transformers = pytest.importorskip("transformers")

BLOCK = 4
MAX_LEN = 64
SLOTS = 6


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class HostDevice:
    """The host as a device that computes while it is called."""

    info = DeviceInfo(index=0, name="host", total_memory=1 << 30)
    torch_device = "cpu"
    asynchronous = False
    streams: Streams | None = None
    graphs: GraphCapture | None = None
    communicator: CommunicatorFactory | None = None
    free = 1 << 30

    def memory(self) -> Memory:
        """A MiB less each time, as if something had been loaded meanwhile."""
        self.free -= 1 << 20
        return Memory(self.free, 1 << 30)

    def synchronize(self) -> None: ...

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def versions(self) -> Mapping[str, str]:
        return {}

    def advice(self, model: ModelFacts) -> Advice:
        return Advice()

    def close(self) -> None: ...


@dataclass(frozen=True)
class DictReader:
    """A tensor that is in memory already."""

    name: str
    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def format(self) -> DenseWeight:
        return DenseWeight(dtype=str(self.tensor.dtype).removeprefix("torch."))

    def read(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        if dim is None:
            return self.tensor.clone()
        size = self.tensor.shape[dim] - start if length is None else length
        return self.tensor.narrow(dim, start, size).clone()

    def dequantize(
        self,
        dtype: torch.dtype,
        dim: int | None = None,
        start: int = 0,
        length: int | None = None,
    ) -> torch.Tensor:
        return self.read(dim, start, length).to(dtype)


def plan_for(model_type: str, vocab_size: int) -> Plan:
    facts = ModelFacts(
        model_type=model_type,
        dtype="float32",
        num_layers=1,
        hidden_size=1,
        head_dim=1,
        vocab_size=vocab_size,
        max_model_len=MAX_LEN,
        parameter_bytes=0,
    )
    return Plan(
        platform="host",
        device=HostDevice.info,
        model=facts,
        dtype="float32",
        kv_dtype="float32",
        quantization=None,
        block_size=BLOCK,
        max_model_len=MAX_LEN,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=256,
        kv_cache_memory=None,
        memory_fraction=0.5,
        prefix_caching=False,
        async_scheduling=True,
        graph_sizes=(),
        decisions=(),
    )


@dataclass
class Sequence:
    """What the hand knows of a running sequence."""

    slot: int
    tokens: list[int]  # known ones; the runner's own are appended as they are reported
    num_known: int  # those on the way included
    computed: int = 0
    capacity: int = 0


@dataclass
class Driver:
    """Writes plans the way an engine would, without its policies."""

    runner: ModelRunner
    num_groups: int
    layout: CacheLayout | None = None
    decisions: ListLike[Decision] = ()
    free_blocks: Iterator[int] = field(default_factory=lambda: count(1))
    steps: Iterator[int] = field(default_factory=count)
    sequences: dict[int, Sequence] = field(default_factory=dict)

    def start(
        self, slot: int, prompt: list[int], sampling: SamplingParams | None = None, **more: object
    ) -> SequenceStart:
        self.sequences[slot] = Sequence(slot, list(prompt), len(prompt))
        given: dict[str, object] = {
            "num_prompt_tokens": len(prompt),
            "stop_token_ids": (),
            "seed": 0,
            **more,
        }
        return SequenceStart(
            slot=slot,
            token_ids=list(prompt),
            sampling=sampling or SamplingParams(temperature=0.0),
            **given,  # type: ignore[arg-type]
        )

    def plan(self, counts: Mapping[int, int], *starts: SequenceStart) -> StepPlan:
        """`counts`: slot -> tokens to compute."""
        blocks = []
        samples = []
        computed = []
        for slot, number in counts.items():
            seq = self.sequences[slot]
            computed.append(seq.computed)
            seq.computed += number
            needed = -(-seq.computed // BLOCK)
            if needed > seq.capacity:
                for group in range(self.num_groups):
                    ids = [next(self.free_blocks) for _ in range(needed - seq.capacity)]
                    blocks.append((slot, group, seq.capacity, ids))
                seq.capacity = needed
            samples.append(seq.computed == seq.num_known)
            seq.num_known += samples[-1]
        return StepPlan(
            step_id=next(self.steps),
            starts=list(starts),
            slots=list(counts),
            num_scheduled=list(counts.values()),
            num_computed=computed,
            samples=samples,
            new_blocks=blocks,
            num_tokens=sum(counts.values()),
        )

    def run(self, counts: Mapping[int, int], *starts: SequenceStart) -> StepOutput:
        plan = self.plan(counts, *starts)
        output = self.runner.execute(plan)
        self.note(plan, output)
        return output

    def note(self, plan: StepPlan, output: StepOutput) -> None:
        sampled = [slot for slot, samples in zip(plan.slots, plan.samples, strict=True) if samples]
        for slot, token in zip(sampled, output.token_ids, strict=True):
            self.sequences[slot].tokens.append(token)


def make_driver(
    hf_model: torch.nn.Module,
    device: Device | None = None,
    offered: Mapping[str, ListLike[AnyKernel]] | None = None,
    **planned: Any,
) -> Driver:
    """A runner with the weights of a transformers model, on the host with the reference kernels
    unless told; `planned` changes its plan."""
    device = device or HostDevice()
    config = hf_model.config.to_dict()
    weights = hf_model.state_dict()
    if config["tie_word_embeddings"]:
        weights.pop("lm_head.weight", None)
    readers = {name: DictReader(name, tensor) for name, tensor in weights.items()}
    kernels = Kernels(with_reference(offered or {}, reference.kernels()))
    context = BuildContext(
        kernels=kernels,
        dtype=torch.float32,
        device=torch.device(device.torch_device),
        kv_dtype="float32",
        block_size=BLOCK,
        weight_format=lambda name: readers[name].format,
        quantization=None,
        max_model_len=MAX_LEN,
    )
    model = build_model(config, context)
    model.load_weights(readers.items())
    plan = dataclasses.replace(plan_for(config["model_type"], model.vocab_size), **planned)
    runner = ModelRunner(plan, device, model, kernels)
    layout = CacheLayout(num_blocks=512, block_size=BLOCK, groups=group_layers(model.kv_specs))
    decisions = runner.allocate(layout)
    return Driver(runner, len(layout.groups), layout, decisions)


@pytest.fixture(scope="module")
def llama() -> torch.nn.Module:
    """A random transformers llama of 2 layers."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def driver(llama: torch.nn.Module) -> Driver:
    return make_driver(llama)


@pytest.fixture(scope="session")
def driver_of() -> Callable[..., Driver]:
    return make_driver


class HostPlatform:
    """The reference kernels alone, on a device of the test's making."""

    name = "host"
    contract_version = 1

    def __init__(
        self, device: Any, offered: Mapping[str, ListLike[AnyKernel]] | None = None
    ) -> None:
        self.device = device
        self.offered = offered or {}
        self.opened = 0

    def probe(self) -> Probe:
        return [self.device.info]

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        self.opened += 1
        opened: Device = self.device
        return opened

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return {}

    def kernels(self, device: DeviceInfo) -> Mapping[str, ListLike[AnyKernel]]:
        return self.offered


class Unrun:
    """Stands in for the runner where only plans are written."""


@pytest.fixture
def hand() -> Driver:
    """Writes plans for one KV group."""
    return Driver(Unrun(), 1)  # type: ignore[arg-type]


@pytest.fixture
def host_device() -> HostDevice:
    return HostDevice()


@pytest.fixture(scope="session")
def make_plan() -> Callable[[str, int], Plan]:
    return plan_for


@pytest.fixture(scope="module")
def expected(llama: torch.nn.Module) -> Callable[[list[int], int], list[int]]:
    """The prompt and so many greedy tokens of transformers, the whole prefix computed for each."""

    def greedy(prompt: list[int], length: int) -> list[int]:
        tokens = list(prompt)
        with torch.no_grad():
            for _ in range(length):
                tokens.append(int(llama(torch.tensor([tokens])).logits[0, -1].argmax()))
        return tokens

    return greedy


@pytest.fixture(scope="session")
def platform_of() -> type[HostPlatform]:
    return HostPlatform


@pytest.fixture(scope="module")
def folder(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    llama.save_pretrained(path)
    return path
