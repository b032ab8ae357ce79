"""Run the kit with a platform's kernels, interpreted on this host, and write what came of it.

Usage: write_evidence.py PACKAGE CLASS ARCH DEVICE FILE, in an environment with TRITON_INTERPRET=1,
for instance `allmetal_rocm RocmPlatform gfx942 "CDNA 3" FILE`.  The kind of this evidence is
"emulated": kernels and host code are the platform's, the device is not.  Draws of tokens are left
out: interpreted, each test of them takes half a minute, and they are evidence of no feature.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from interpreted import Interpreted

from allmetal.platform.contract import AnyKernel, CapabilityTable, DeviceInfo, Unsupported
from allmetal.testing.evidence import evidence_of, write_evidence
from allmetal.testing.kit import run_kit
from allmetal_triton.interpreter import mend
from allmetal_triton.kernels import kernels

_ABSENT = {
    "dtype.bfloat16": Unsupported("the interpreter computes it wrongly"),
    "kv_dtype.float8_e4m3fn": Unsupported("the kit asks for it with bfloat16"),
    "kv_dtype.float8_e5m2": Unsupported("the kit asks for it with bfloat16"),
    "quant.fp8": Unsupported("the vendor's library is not there"),
    "collective.all_reduce": Unsupported("one host"),
    "collective.all_gather": Unsupported("one host"),
}
_LEVELS = (0, 1)
_LEFT_OUT = ("sampling", "rows_token", "ties_of")
"""Words in the names of tests."""


@dataclass(frozen=True)
class Exact(Interpreted):
    """Without what the interpreter gets wrong."""

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return {**super().capabilities(device), **_ABSENT}

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        target = import_module(f"{type(self.real).__module__.partition('.')[0]}.kernels").target
        here = target(device)
        return kernels(
            replace(
                here,
                num_cores=lambda: 8,
                dtypes=("float32", "float16"),
                cache_dtypes=tuple(d for d in here.cache_dtypes if d != "bfloat16"),
            )
        )


def main() -> int:
    package, name, arch, device, file = sys.argv[1:]
    mend()
    traits = {"evidence": "emulated"}
    info = DeviceInfo(
        index=0,
        name=f"{device}, by Triton's interpreter",
        total_memory=1 << 30,
        arch=arch,
        traits=traits,
    )
    platform: Any = Exact(getattr(import_module(package), name)(), info)
    run = run_kit(
        platform,
        levels=_LEVELS,
        select=" and ".join(f"not {word}" for word in _LEFT_OUT),
        options=("-q", "--show-capture=no", "-W", "ignore"),
    )
    plugin = f"{package.replace('_', '-')} 0.1.0"
    made = evidence_of(run, platform, info, plugin, _LEVELS, left_out="draws of tokens")
    write_evidence(made, Path(file))
    print(made["correctness"]["total"], *run.failed(), sep="\n")
    return 0 if run.green else 1


if __name__ == "__main__":
    sys.exit(main())
