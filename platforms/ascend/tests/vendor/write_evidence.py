"""Run the kit on the emulated device and write what came of it, for docs/evidence.

.vendors/ascend/bin/python platforms/ascend/tests/vendor/write_evidence.py FILE [LEVEL ...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import standin_cann

standin_cann.load()

from machine import EmulatedAscend  # noqa: E402
from standin_cann.emulator import emulated  # noqa: E402

from allmetal.platform.contract import Absent, Broken  # noqa: E402
from allmetal.testing.evidence import evidence_of, write_evidence  # noqa: E402
from allmetal.testing.kit import run_kit  # noqa: E402


def main(file: Path, levels: list[int]) -> int:
    platform = EmulatedAscend()
    found = platform.probe()
    assert not isinstance(found, Absent | Broken)
    with emulated():
        run = run_kit(platform, levels=levels)
        made = evidence_of(run, platform, found[0], "allmetal-ascend 0.1.0", levels)
    stood_in = {"driver": "a stand-in", "cann": "a stand-in"}
    made["versions"] |= stood_in
    made["device"] |= {"driver": "a stand-in", "traits": made["device"]["traits"] | stood_in}
    write_evidence(made, file)
    print(made["correctness"]["total"], *run.failed(), sep="\n")
    return 0 if run.green else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [int(level) for level in sys.argv[2:]] or [0, 1, 2]))
