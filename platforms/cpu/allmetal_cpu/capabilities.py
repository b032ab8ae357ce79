"""What the CPU platform does of each feature, and why not."""

from __future__ import annotations

from allmetal.platform.contract import (
    Capability,
    CapabilityTable,
    DeviceInfo,
    Emulated,
    Native,
    Unsupported,
)
from allmetal_cpu.native.find import find
from allmetal_cpu.probe import isa, native_bfloat16


def table(device: DeviceInfo) -> CapabilityTable:
    bf16 = native_bfloat16(device)
    library = find()
    built = not isinstance(library, Unsupported)
    one_rank = Unsupported("allmetal-cpu has no communicator: one process uses all cores")
    # The reference does it elsewhere, as for every platform that says nothing.
    takes_8_bits = built and {"avx512_bf16", "avx512_vnni"} <= isa(device)
    narrow_kv = Unsupported("allmetal-cpu's attention keeps keys and values in the model's dtype")
    capabilities: dict[str, Capability] = {
        "async_scheduling": Native("a worker thread runs the step while the next is prepared"),
        "graph_capture": Native("a decode step is one call of the C++ library")
        if built
        else Unsupported("steps are recorded in the C++ library, which is not built"),
        "prefix_caching": Native("block tables"),
        "dtype.float32": Native("oneDNN"),
        "dtype.bfloat16": Native(bf16)
        if bf16
        else Emulated("widened to float32 instruction by instruction: slower than float32"),
        "dtype.float16": Emulated("widened to float32 in parts: slower than float32"),
        "kv_dtype.float8_e4m3fn": narrow_kv,
        "kv_dtype.int8": narrow_kv,
        "quant.int8": Native("int8 weights"),
        **({"quant.w8a8": Native("AVX-512 VNNI")} if takes_8_bits else {}),
        "quant.gguf": Native("blocks are decoded in registers or the nearest cache")
        if built
        else Emulated("expanded to the model's dtype at load: no memory is saved"),
        "quant.fp8": Unsupported("CPUs have no 8-bit floating point arithmetic"),
        "moe": Native("experts in C++" if built else "experts grouped over the linear kernels"),
        "attention.sliding_window": Native("paged attention"),
        "attention.soft_cap": Native("paged attention"),
        "attention.sinks": Native("paged attention"),
        "collective.all_reduce": one_rank,
        "collective.all_gather": one_rank,
        "collective.all_to_all": one_rank,
        "offload.host": Unsupported("the cache is in host memory already"),
        "sleep": Unsupported("allmetal-cpu cannot give cache memory back while it is open"),
    }
    return capabilities
