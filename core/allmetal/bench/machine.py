"""The machine that measures, and the software on it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from allmetal import __version__

_TOLD = ("torch", "numpy", "triton", "tokenizers")
_CPU_INFO = Path("/proc/cpuinfo")


def machine(command: Sequence[str]) -> dict[str, object]:
    """Taken before measuring: the machine's load is part of it."""
    return {
        "command": list(command),
        "commit": commit(),
        "system": platform.platform(),
        "processor": processor(),
        "python": platform.python_version(),
        "versions": versions(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg() if hasattr(os, "getloadavg") else None,
    }


def processor() -> str:
    """The host's, as its maker calls it."""
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def versions() -> dict[str, str]:
    """Of our distributions and of the libraries that compute."""
    found = {"allmetal": __version__}
    for distribution in distributions():
        name = distribution.metadata["Name"] or ""
        if name in _TOLD or name.startswith("allmetal"):
            found[name] = distribution.version
    return dict(sorted(found.items()))


def commit() -> str | None:
    """Of the checkout this code lies in, with "+" if it was changed; None outside of one."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        # Only a checkout of ours has this file under version control.
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        return head + ("+" if _git(here, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
