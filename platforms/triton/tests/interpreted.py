"""Generate with a platform's kernels on a machine without its device: Triton interprets them.

Usage: interpreted.py PACKAGE CLASS ARCH, in an environment with TRITON_INTERPRET=1.  Prints where
the engine's tokens leave the reference's, as JSON.  Tensors are the host's, in float32, since the
interpreter rounds narrower ones wrongly; every op family that has a kernel is computed by it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch

from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    Advice,
    AnyKernel,
    CapabilityTable,
    Device,
    DeviceInfo,
    ModelFacts,
    OpenOptions,
    Platform,
    Probe,
    Unsupported,
)
from allmetal.platform.null import NullDevice
from allmetal.testing.conformance.engines import expected, random_prompt, serve
from allmetal.testing.conformance.tiny_models import KINDS
from allmetal_triton.interpreter import mend
from allmetal_triton.kernels import kernels

NUM_TOKENS = 6


class Host(NullDevice):
    """The host's memory for the device's."""

    def advice(self, model: ModelFacts) -> Advice:
        return Advice(
            dtype="float32",
            dtype_reason="the interpreter rounds narrower ones wrongly",
            max_num_batched_tokens=64,
        )


@dataclass(frozen=True)
class Interpreted:
    """A platform whose kernels run here, and whose device does not."""

    real: Platform
    info: DeviceInfo
    contract_version: int = 1

    @property
    def name(self) -> str:
        return self.real.name

    def probe(self) -> Probe:
        return [self.info]

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        return Host(device)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        here = Unsupported("the host records no launches")
        return {**self.real.capabilities(device), "graph_capture": here}

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        """For the platform's target, but that its cores need not be counted on a device."""
        target = import_module(f"{type(self.real).__module__.partition('.')[0]}.kernels").target
        return kernels(replace(target(device), num_cores=lambda: 8))


def main() -> None:
    package, name, arch = sys.argv[1:]
    mend()
    torch.set_num_threads(1)
    info = DeviceInfo(index=0, name="interpreted", total_memory=1 << 30, arch=arch)
    platform: Any = Interpreted(getattr(import_module(package), name)(), info)
    said = {}
    for kind in KINDS:
        if kind.name not in ("dense", "window-and-full"):
            continue
        prompts = [random_prompt(length, seed) for seed, length in enumerate((37, 5))]
        served = serve(
            kind,
            platform,
            info,
            [prompts],
            num_tokens=NUM_TOKENS,
            dtype="float32",
            kernel={family: own[0].name for family, own in platform.kernels(info).items()},
        )
        said[kind.name] = [
            expected(kind, "float32", prompt, NUM_TOKENS).leaves(tokens, 1e-4)
            for prompt, tokens in zip(prompts, served.tokens, strict=True)
        ]
    print(json.dumps(said))


if __name__ == "__main__":
    main()
