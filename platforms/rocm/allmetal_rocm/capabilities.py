"""What the ROCm platform does of each feature, and why not."""

from __future__ import annotations

from allmetal.platform.contract import (
    Capability,
    CapabilityTable,
    DeviceInfo,
    Emulated,
    Native,
    Unsupported,
)
from allmetal_rocm.aiter import package
from allmetal_rocm.arch import ARCHS, plain


def table(device: DeviceInfo) -> CapabilityTable:
    expanded = Emulated("the reference kernel expands weights at every use: slow")
    capabilities: dict[str, Capability] = {
        "async_scheduling": Native("streams and events"),
        "graph_capture": Native("HIP graphs"),
        "prefix_caching": Native("block tables"),
        "sleep": Native("the allocator gives its memory back"),
        "dtype.float32": Native("hipBLAS, Triton"),
        "dtype.bfloat16": Native("hipBLAS, Triton"),
        "dtype.float16": Native("hipBLAS, Triton"),
        "kv_dtype.float8_e4m3fn": _float8(device),
        "kv_dtype.float8_e5m2": _float8(device),
        "kv_dtype.int8": Unsupported("keys and values in int8 need scales, and no kernel has them"),
        "quant.int8": Native("triton_int_linear"),
        "quant.w8a8": _int8(device),
        "quant.gguf": expanded,
        "quant.fp8": _float8_weights(device, expanded),
        "attention.sliding_window": Native("triton_attention"),
        "attention.soft_cap": Native("triton_attention"),
        "attention.sinks": Native("triton_attention"),
        "mla": Unsupported("allmetal-rocm has no latent attention kernel yet"),
        "moe": Native("triton_moe"),
        "collective.all_reduce": Native("RCCL"),
        "collective.all_gather": Native("RCCL"),
        "collective.all_to_all": Unsupported("allmetal-rocm's communicator has none yet"),
    }
    return capabilities


def _int8(device: DeviceInfo) -> Capability:
    here = package.refuse(plain(device.arch), "bfloat16") is None
    return Native("aiter_int8" if here else "triton_int_linear")


def _float8_weights(device: DeviceInfo, expanded: Capability) -> Capability:
    arch = ARCHS.get(plain(device.arch))
    if arch is None:
        return Emulated("the reference kernels; CDNA 3, CDNA 4 and RDNA 4 have hipblaslt_float8")
    return Native("hipblaslt_float8") if arch.float8 else expanded


def _float8(device: DeviceInfo) -> Capability:
    """By what the compiler makes of it: instructions that turn 8 bits into more, or many others."""
    arch = ARCHS.get(plain(device.arch))
    if arch is None:
        return Emulated("triton_attention; only CDNA 3 and 4 widen them with instructions")
    if arch.float8 == "fnuz":
        return Native("triton_attention; the codes are OCP's, and read as half of what they mean")
    if arch.family == "CDNA 4":
        return Native("triton_attention")
    return Emulated("triton_attention, which widens them with integer instructions")
