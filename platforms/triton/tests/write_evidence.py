"""Run the kit with a platform's kernels, interpreted on this host, and write what came of it.

Usage: write_evidence.py PACKAGE CLASS ARCH DEVICE FILE [LEVEL ...], in an environment with
TRITON_INTERPRET=1, for instance `allmetal_rocm RocmPlatform gfx942 "CDNA 3" FILE 1`.  The kind of
this evidence is "emulated": arithmetic and host code are the platform's, the device is not.
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

_WRONG = Unsupported("the interpreter computes bfloat16 wrongly")


@dataclass(frozen=True)
class Exact(Interpreted):
    """Without what the interpreter gets wrong."""

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        alone = {name: Unsupported("one host") for name in super().capabilities(device)}
        alone = {n: a for n, a in alone.items() if n.startswith("collective.")}
        return {**super().capabilities(device), "dtype.bfloat16": _WRONG, **alone}

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
    package, name, arch, device, file, *levels = sys.argv[1:]
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
    chosen = [int(level) for level in levels] or [0, 1]
    run = run_kit(platform, levels=chosen)
    made = evidence_of(run, platform, info, f"{package.replace('_', '-')} 0.1.0", chosen)
    write_evidence(made, Path(file))
    print(made["correctness"]["total"], *run.failed(), sep="\n")
    return 0 if run.green else 1


if __name__ == "__main__":
    sys.exit(main())
