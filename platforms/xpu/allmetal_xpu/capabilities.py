"""What the XPU platform does of each feature, and why not."""

from __future__ import annotations

from allmetal.platform.contract import (
    Capability,
    CapabilityTable,
    DeviceInfo,
    Emulated,
    Native,
    Unsupported,
)


def table(device: DeviceInfo) -> CapabilityTable:
    expanded = Emulated("the reference kernel expands weights at every use: slow")
    narrow = Unsupported("allmetal-xpu's attention keeps keys and values in 16 or 32 bits")
    capabilities: dict[str, Capability] = {
        "async_scheduling": Native("streams and events"),
        "graph_capture": Native("SYCL graphs"),
        "prefix_caching": Native("block tables"),
        "sleep": Native("the allocator gives its memory back"),
        "dtype.float32": Native("oneDNN, Triton"),
        "dtype.bfloat16": Native("oneDNN, Triton"),
        "dtype.float16": Native("oneDNN, Triton"),
        "kv_dtype.float8_e4m3fn": narrow,
        "kv_dtype.float8_e5m2": narrow,
        "kv_dtype.int8": narrow,
        "quant.int8": Native("triton_int_linear"),
        "quant.w8a8": Native("triton_int_linear"),
        "quant.gguf": expanded,
        "attention.sliding_window": Native("triton_attention"),
        "attention.soft_cap": Native("triton_attention"),
        "attention.sinks": Native("triton_attention"),
        "mla": Unsupported("allmetal-xpu has no latent attention kernel yet"),
        "moe": Native("triton_moe"),
        "collective.all_reduce": Native("oneCCL"),
        "collective.all_gather": Native("oneCCL"),
        "collective.all_to_all": Unsupported("allmetal-xpu's communicator has none yet"),
    }
    return capabilities
