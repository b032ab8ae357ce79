"""What the TPU platform does of each feature, and why not."""

from __future__ import annotations

from allmetal.platform.contract import (
    Capability,
    CapabilityTable,
    DeviceInfo,
    Native,
    Unsupported,
)

_ALONE = (
    "TorchTPU forms groups from the environment that its own launcher gives each process, and"
    " allmetal starts its ranks itself"
)


def table(device: DeviceInfo) -> CapabilityTable:
    capabilities: dict[str, Capability] = {
        "kv_dtype.int8": Unsupported("keys and values in int8 need scales, and no kernel has them"),
        "mla": Unsupported("allmetal-tpu has no latent attention kernel yet"),
        "lora": Unsupported("allmetal-tpu has no kernel for adapters"),
        "collective.all_reduce": Unsupported(_ALONE),
        "collective.all_gather": Unsupported(_ALONE),
        "collective.all_to_all": Unsupported(_ALONE),
        "graph_capture": Native("one XLA program a step, through torch.compile"),
    }
    return capabilities
