"""Evidence of the kind "compiled": which of the usual problems a compiler takes for devices that
are not here.  It says nothing of what they compute there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import triton
import usual
from interpreted import Interpreted

from allmetal.platform.contract import AnyKernel, DeviceInfo, Platform
from allmetal.platform.features import features_of
from allmetal.testing.conformance.base import title
from allmetal.testing.evidence import evidence_of, write_evidence
from allmetal.testing.kit import KitRun, Outcome, Result


def compile_each(
    arch: str,
    offered: Mapping[str, Sequence[AnyKernel]],
    compiling: Callable[[], AbstractContextManager[object]],
) -> list[Result]:
    """A result for each problem: passed if all its kernels compile, skipped if none takes it.
    Within `compiling` launches compile for `arch`."""
    results = []
    for spec in usual.EVERYTHING:
        began = time.monotonic()
        try:
            with compiling():
                reason = usual.launch(spec, offered)
            outcome: Outcome = "skipped" if reason else "passed"
        except Exception as error:  # a compiler's, of any class
            first = (str(error).strip().splitlines() or [""])[0]
            outcome, reason = "failed", f"{type(error).__name__}: {first}"
        results.append(
            Result(
                test="compiles",
                case=f"{arch}-{spec.family}-{title(spec)}",
                level=1,
                family=spec.family,
                features=features_of(spec),
                outcome=outcome,
                reason=reason,
                seconds=round(time.monotonic() - began, 3),
            )
        )
    return results


def write(
    platform: Platform, plugin: str, arch: str, name: str, results: Sequence[Result], file: Path
) -> int:
    """`arch`: the one whose capabilities are kept beside.  The exit status: 1 if any failed."""
    info = DeviceInfo(
        index=0, name=name, total_memory=0, arch=arch, traits={"evidence": "compiled"}
    )
    run = KitRun(results=tuple(results), seconds=sum(result.seconds for result in results))
    made = evidence_of(run, Interpreted(platform, info), info, plugin, levels=[])
    made["versions"]["triton"] = triton.__version__  # a vendor's own hides the one installed below
    write_evidence(made, file)
    print(made["correctness"]["total"], *run.failed(), sep="\n")
    return 0 if run.green else 1
