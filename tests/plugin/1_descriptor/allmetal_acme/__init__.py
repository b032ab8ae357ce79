"""allmetal on Acme's accelerators: a descriptor, and every kernel is the core's reference."""

from __future__ import annotations

from allmetal.platform.contract import Advice, DeviceInfo, Emulated, Memory, Native

MEMORY = 8 << 30


class AcmeDevice:
    torch_device, asynchronous = "cpu", False
    streams = graphs = communicator = None

    def __init__(self, info):
        self.info = info

    def memory(self):
        return Memory(free=MEMORY, total=MEMORY)

    def synchronize(self): ...
    def close(self): ...
    def pin(self, x):
        return x

    def versions(self):
        return {"firmware": "1.0"}

    def advice(self, model):
        return Advice(dtype="float32", dtype_reason="the only type Acme One computes in")


class AcmePlatform:
    name, contract_version = "acme", 1

    def probe(self):
        return [DeviceInfo(index=0, name="Acme One", total_memory=MEMORY)]

    def open(self, device, options=None):
        return AcmeDevice(device)

    def capabilities(self, device):
        return {"dtype.float32": Emulated("reference kernels"), "prefix_caching": Native("blocks")}

    def kernels(self, device):
        return {}
