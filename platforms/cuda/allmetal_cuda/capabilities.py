"""What the CUDA platform does of each feature, and why not."""

from __future__ import annotations

from allmetal.platform.contract import (
    Capability,
    CapabilityTable,
    DeviceInfo,
    Emulated,
    Native,
    Unknown,
    Unsupported,
)

FP8_SINCE = 89
"""Compute capability 8.9 (Ada): the first with instructions for e4m3."""
HOPPER, BLACKWELL = 90, 100


def compute_capability(device: DeviceInfo) -> int | None:
    """90 for "sm_90", None where probing could not tell."""
    digits = device.arch.removeprefix("sm_")
    return int(digits) if digits.isdigit() else None


def table(device: DeviceInfo) -> CapabilityTable:
    expanded = Emulated("the reference kernel expands weights at every use: slow")
    capabilities: dict[str, Capability] = {
        "async_scheduling": Native("streams and events"),
        "graph_capture": Native("CUDA graphs"),
        "prefix_caching": Native("block tables"),
        "sleep": Native("the allocator gives its memory back"),
        "dtype.float32": Native("cuBLAS, Triton"),
        "dtype.bfloat16": Native("cuBLAS, Triton"),
        "dtype.float16": Native("cuBLAS, Triton"),
        "kv_dtype.float8_e4m3fn": _float8(device),
        "kv_dtype.int8": Unsupported("keys and values in int8 need scales, and no kernel has them"),
        "quant.int8": Native("triton_int_linear"),
        "quant.w8a8": Native("triton_int_linear"),
        "quant.gguf": expanded,
        "quant.fp8": _float8_weights(device, expanded),
        "attention.sliding_window": Native("triton_attention"),
        "attention.soft_cap": Native("triton_attention"),
        "attention.sinks": Native("triton_attention"),
        "mla": Unsupported("allmetal-cuda has no latent attention kernel yet"),
        "moe": Native("triton_moe"),
        "collective.all_reduce": Native("NCCL"),
        "collective.all_gather": Native("NCCL"),
        "collective.all_to_all": Unsupported("allmetal-cuda's communicator has none yet"),
    }
    return capabilities


def _float8(device: DeviceInfo) -> Capability:
    capability = compute_capability(device)
    if capability is None:
        return Unknown("the compute capability could not be read without opening the device")
    if capability < FP8_SINCE:
        return Unsupported(f"{device.arch} has no e4m3 instructions; sm_{FP8_SINCE} and later do")
    return Native("triton_attention")


def _float8_weights(device: DeviceInfo, expanded: Capability) -> Capability:
    capability = compute_capability(device)
    if capability is None:
        return Unknown("the compute capability could not be read without opening the device")
    return Native("hopper_float8") if HOPPER <= capability < BLACKWELL else expanded
