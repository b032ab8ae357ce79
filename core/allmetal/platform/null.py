"""A platform that does everything but compute: for testing and timing what is around kernels.

It is never chosen automatically.  Its kernels take every spec and answer zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allmetal.platform.capabilities import FEATURES
from allmetal.platform.contract import (
    CONTRACT_VERSION,
    DEFAULT_OPTIONS,
    Advice,
    AnyKernel,
    Capability,
    CapabilityTable,
    Device,
    DeviceInfo,
    Memory,
    ModelFacts,
    Native,
    OpenOptions,
    Probe,
    Support,
    Supported,
    Unsupported,
)

if TYPE_CHECKING:
    import torch

    from allmetal.platform import specs

_MEMORY = 1 << 30
_NATIVE = ("async_scheduling", "prefix_caching", "dtype.", "quant.", "attention.")


class NullPlatform:
    """One pretend device."""

    name = "null"
    contract_version = CONTRACT_VERSION

    def probe(self) -> Probe:
        traits = {"kind": "pretend"}
        return [DeviceInfo(index=0, name="nothing", total_memory=_MEMORY, traits=traits)]

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        return NullDevice(device)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        def answer(feature: str) -> Capability:
            if feature.startswith(_NATIVE):
                return Native("zeros")
            return Unsupported("the null platform computes nothing")

        return {feature: answer(feature) for feature in FEATURES}

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        return {family: (NullKernel(make),) for family, make in _OPS.items()}


@dataclass(frozen=True, slots=True)
class NullDevice:
    """Takes its memory from the host's, through torch."""

    info: DeviceInfo
    torch_device: str = "cpu"
    asynchronous: bool = False
    streams: None = None
    graphs: None = None
    communicator: None = None

    def memory(self) -> Memory:
        return Memory(free=_MEMORY, total=_MEMORY)

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def versions(self) -> Mapping[str, str]:
        return {}

    def advice(self, model: ModelFacts) -> Advice:
        return Advice()

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class NullKernel:
    make: Callable[[Any], Any]
    name: str = "null"

    def supports(self, spec: Any) -> Support:
        return Supported()

    def build(self, spec: Any) -> Any:
        return self.make(spec)


@dataclass(frozen=True, slots=True)
class _Attention:
    spec: specs.AttentionSpec
    kv_layout: str = "nhd"

    def cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        s = self.spec
        return (num_blocks, 2, s.block_size, s.num_kv_heads, s.head_dim)

    def __call__(self, q: torch.Tensor, *_: object) -> torch.Tensor:
        return q.new_zeros(q.shape)


@dataclass(frozen=True, slots=True)
class _Linear:
    spec: specs.LinearSpec

    def pack(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Weights are let go."""

    def __call__(self, x: torch.Tensor, weight: object, bias: object) -> torch.Tensor:
        return x.new_zeros(x.shape[0], self.spec.out_features)


@dataclass(frozen=True, slots=True)
class _MoE:
    spec: specs.MoESpec

    def pack(self, gate_up: object, down: object) -> None:
        """Weights are let go."""

    def __call__(self, x: torch.Tensor, *_: object) -> torch.Tensor:
        return x.new_zeros(x.shape)


def _attention_input(spec: specs.AttentionInputSpec) -> Callable[..., torch.Tensor]:
    return lambda qkv, *_: qkv.new_zeros(qkv.shape[0], spec.num_heads, spec.head_dim)


def _encoder_attention(spec: specs.EncoderAttentionSpec) -> Callable[..., torch.Tensor]:
    return lambda q, *_: q.new_zeros(q.shape)


def _rms_norm(spec: specs.RMSNormSpec) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    return lambda x, *_: (x.new_zeros(x.shape), x)


def _gated_activation(spec: specs.GatedActivationSpec) -> Callable[..., torch.Tensor]:
    return lambda x: x.new_zeros(x.shape[0], spec.dim)


def _sampling(spec: specs.SamplingSpec) -> Callable[..., torch.Tensor]:
    return lambda logits, *_: logits.new_zeros(logits.shape[0]).long()


@dataclass(frozen=True, slots=True)
class _DecodeState:
    spec: specs.DecodeStateSpec

    def read(
        self, words: torch.Tensor, tokens: torch.Tensor, tables: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        rows, (groups, _, width) = words.shape[1], tables.shape
        none = words.new_zeros(rows)
        return (
            none,
            none,
            none.int(),
            tables.new_zeros(groups, rows, width),
            words.new_zeros(groups, rows),
        )

    def write(
        self,
        words: torch.Tensor,
        tokens: torch.Tensor,
        token_ids: torch.Tensor,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return token_ids


_OPS: Mapping[str, Callable[[Any], Any]] = {
    "attention": _Attention,
    "attention_input": _attention_input,
    "decode_state": _DecodeState,
    "encoder_attention": _encoder_attention,
    "linear": _Linear,
    "moe": _MoE,
    "rms_norm": _rms_norm,
    "gated_activation": _gated_activation,
    "sampling": _sampling,
}
