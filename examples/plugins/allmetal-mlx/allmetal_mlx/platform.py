"""The mlx platform: one GPU that shares the host's memory, or MLX's CPU back end elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.config import EngineConfig
from allmetal.executor.contract import Executor
from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    AnyKernel,
    Capability,
    CapabilityTable,
    Device,
    DeviceInfo,
    Emulated,
    Native,
    OpenOptions,
    Probe,
    Unsupported,
)
from allmetal.platform.plan import Plan
from allmetal_mlx.probe import probe


class MlxPlatform:
    """Runs the families it has a model of by itself, and lends its kernels to the others."""

    name = "mlx"
    contract_version = 1

    def probe(self) -> Probe:
        return probe()

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        from allmetal_mlx.device import MlxDevice

        return MlxDevice(device)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        one = Unsupported("MLX drives one device a process here")
        narrow = Unsupported("keys and values are kept in the model's dtype")
        table: dict[str, Capability] = {
            "async_scheduling": Native("a worker thread runs the step while the next is prepared"),
            "graph_capture": Unsupported("MLX keeps no launches: it evaluates lazily instead"),
            "prefix_caching": Native("block tables"),
            "dtype.float32": Native("mlx matmul"),
            "dtype.bfloat16": Native("mlx matmul"),
            "dtype.float16": Native("mlx matmul"),
            "kv_dtype.float8_e4m3fn": narrow,
            "kv_dtype.int8": narrow,
            "quant.int8": Native("mlx quantized_matmul"),
            "quant.gguf": Emulated("expanded to the model's dtype at load: no memory is saved"),
            "attention.sliding_window": Native("mlx attention"),
            "attention.soft_cap": Native("mlx attention"),
            "attention.sinks": Unsupported("not written yet"),
            "collective.all_reduce": one,
            "collective.all_gather": one,
            "collective.all_to_all": one,
        }
        return table

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        from allmetal_mlx.kernels import KERNELS

        return KERNELS

    def executor(self, config: EngineConfig, plan: Plan) -> Executor | Unsupported:
        """Of its own for the families in `models.py`; the others run on torch's tensors with the
        kernels above, which cross into MLX and back."""
        if config.kernel:
            return Unsupported("kernels were chosen by name, and an executor of its own has none")
        from allmetal_mlx.models import FAMILIES

        if plan.model.model_type not in FAMILIES:
            known = ", ".join(FAMILIES)
            return Unsupported(f"MLX models are written for {known}; kernels cross the bridge")
        if plan.kv_dtype != plan.dtype:
            return Unsupported(f"keys and values are kept in {plan.dtype}, not {plan.kv_dtype}")
        from allmetal_mlx.executor import MlxExecutor

        return MlxExecutor(config, plan)
