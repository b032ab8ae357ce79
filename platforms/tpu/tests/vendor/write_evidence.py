"""Run the kit on TorchTPU over XLA's CPU client and write what came of it, for docs/evidence.

.vendors/tpu/bin/python platforms/tpu/tests/vendor/write_evidence.py FILE [LEVEL ...]
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import on_cpu

on_cpu.start()

from allmetal.platform.contract import Absent, Broken  # noqa: E402
from allmetal.testing.evidence import evidence_of, write_evidence  # noqa: E402
from allmetal.testing.kit import run_kit  # noqa: E402
from allmetal_tpu import TpuPlatform  # noqa: E402


def main(file: Path, levels: list[int]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        packages = {"torch": "2.13.0", "torch-tpu": "0.2.0", "libtpu": "0.0.52"}
        platform = TpuPlatform(on_cpu.machine(Path(folder)), packages, by_hand=False)
        found = platform.probe()
        assert not isinstance(found, Absent | Broken)
        device = replace(
            found[0],
            name="XLA's CPU client under TorchTPU",
            driver="",
            traits={**found[0].traits, "evidence": "emulated"},
        )
        quiet = ("-q", "--show-capture=no", "-W", "ignore")
        run = run_kit(platform, levels=levels, device=device, options=quiet)
        made = evidence_of(run, platform, device, "allmetal-tpu 0.1.0", levels)
    write_evidence(made, file)
    print(made["correctness"]["total"], *run.failed(), sep="\n")
    return 0 if run.green else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [int(level) for level in sys.argv[2:]] or [0, 1, 2]))
