"""What the TPU platform does of each feature, and why not."""

from __future__ import annotations

from allmetal.platform.contract import (
    Capability,
    CapabilityTable,
    DeviceInfo,
    Emulated,
    Native,
    Unsupported,
)
from allmetal_tpu import pallas

_ALONE = (
    "TorchTPU forms groups from the environment that its own launcher gives each process, and"
    " allmetal starts its ranks itself"
)
_WIDENED = Emulated("xla_linear widens weights where they are multiplied")


def table(device: DeviceInfo) -> CapabilityTable:
    narrow_kv = Emulated("xla_attention widens keys and values where they are read")
    capabilities: dict[str, Capability] = {
        "async_scheduling": Native("the runtime's queue, and its events"),
        "graph_capture": Native("one XLA program a step, through torch.compile"),
        "prefix_caching": Native("block tables"),
        "dtype.float32": Native("XLA, each product in several of bfloat16"),
        "dtype.bfloat16": Native("XLA"),
        "dtype.float16": Emulated("XLA widens it: matrix units take bfloat16"),
        "kv_dtype.float8_e4m3fn": narrow_kv,
        "kv_dtype.float8_e5m2": narrow_kv,
        "kv_dtype.int8": Unsupported("keys and values in int8 need scales, and no kernel has them"),
        "quant.int8": _WIDENED,
        "quant.w8a8": Emulated("xla_linear rounds activations, and multiplies in float32"),
        "quant.gguf": Emulated("the reference kernel expands weights in every step: slow"),
        "quant.fp8": _WIDENED,
        "attention.sliding_window": Native("xla_attention"),
        "attention.soft_cap": Native("xla_attention"),
        "attention.sinks": Native("xla_attention"),
        "mla": Unsupported("allmetal-tpu has no latent attention kernel yet"),
        "moe": Native("xla_moe"),
        "lora": Unsupported("allmetal-tpu has no kernel for adapters"),
        "offload.host": Unsupported("allmetal-tpu moves no blocks to the host"),
        "collective.all_reduce": Unsupported(_ALONE),
        "collective.all_gather": Unsupported(_ALONE),
        "collective.all_to_all": Unsupported(_ALONE),
    }
    return {**capabilities, **pallas.capabilities(device.arch)}
