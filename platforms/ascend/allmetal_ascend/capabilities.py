"""What the Ascend platform does of each feature, and why not."""

from __future__ import annotations

from allmetal.platform.contract import (
    Capability,
    CapabilityTable,
    DeviceInfo,
    Emulated,
    Native,
    Unsupported,
)
from allmetal_ascend import chips
from allmetal_ascend.chips import Chip

_EXPANDED = Emulated("the reference kernel expands weights at every use: slow")
_REFERENCE = Emulated("the reference kernels, in plain torch")


def table(device: DeviceInfo) -> CapabilityTable:
    """Where nobody knows which chip it is, the usual one's."""
    chip = chips.of(device.arch) if device.arch else chips.A2
    common: dict[str, Capability] = {
        "async_scheduling": Native("streams and events"),
        "prefix_caching": Native("block tables"),
        "dtype.float32": Emulated("aclnn's products; attention by the reference, in plain torch"),
        "dtype.float16": Native("aclnn"),
        "kv_dtype.int8": Unsupported("keys and values in int8 need scales, and no kernel has them"),
        "quant.gguf": _EXPANDED,
        "quant.fp8": _EXPANDED,
        "attention.soft_cap": _REFERENCE,
        "attention.sinks": _REFERENCE,
        "mla": Unsupported("allmetal-ascend has no latent attention kernel yet"),
        "collective.all_reduce": Native("HCCL"),
        "collective.all_gather": Native("HCCL"),
        "collective.all_to_all": Unsupported("allmetal-ascend's communicator has none yet"),
    }
    return common | (_server(chip) if chip and chip.fused_attention else _other(chip))


def _server(chip: Chip) -> dict[str, Capability]:
    return {
        "graph_capture": Native("NPUGraph, lengths told to its tasks at every replay"),
        "dtype.bfloat16": Native("aclnn"),
        "kv_dtype.float8_e4m3fn": _no_float8(chip),
        "kv_dtype.float8_e5m2": _no_float8(chip),
        "quant.int8": Native("npu_int8"),
        "quant.w8a8": Native("npu_int8"),
        "attention.sliding_window": Native("npu_attention"),
        "moe": Native("npu_moe"),
    }


def _other(chip: Chip | None) -> dict[str, Capability]:
    which = f"{chip.arch} has" if chip else "nothing is known of this chip, which may have"
    return {
        "graph_capture": Unsupported(f"{which} no recording of streams"),
        "dtype.bfloat16": Unsupported(f"{which} no bfloat16"),
        "kv_dtype.float8_e4m3fn": Unsupported(f"{which} no 8-bit floating point"),
        "kv_dtype.float8_e5m2": Unsupported(f"{which} no 8-bit floating point"),
        "quant.int8": _EXPANDED,
        "quant.w8a8": _EXPANDED,
        "attention.sliding_window": _REFERENCE,
        "moe": _REFERENCE,
    }


def _no_float8(chip: Chip) -> Capability:
    return Unsupported(f"{chip.arch} has no 8-bit floating point")
