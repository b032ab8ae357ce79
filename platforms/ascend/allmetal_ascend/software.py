"""What an NPU is driven with, found without importing or opening any of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from allmetal.platform import sysfs

RUNTIME = "libascendcl.so"
"""CANN's library that torch_npu is linked to."""
OLDEST_CANN = (8, 5)
"""The oldest that a torch_npu for torch 2.11 or later works with.  Source: torch_npu's table."""
_TOOLKITS = ("usr/local/Ascend/ascend-toolkit", "usr/local/Ascend/cann")
_VERSION_FILES = ("ascend_toolkit_install.info", "version.cfg", "version.info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """Versions of what is installed into this Python, "" for what is not.  `folders`: where the
    dynamic loader looks first, below the root."""

    torch: str = ""
    torch_npu: str = ""
    folders: Sequence[str] = ()


def installed() -> Packages:
    return Packages(
        torch=_version("torch"),
        torch_npu=_version("torch_npu"),
        folders=sysfs.loader_folders(),
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def what_is_missing(root: Path, packages: Packages) -> str | None:
    """Why the driver that is there cannot be used, with what to do; None where it can be."""
    return _torch(packages) or _toolkit(root, packages)


def _torch(packages: Packages) -> str | None:
    torch, extension = packages.torch, packages.torch_npu
    wanted = ".".join(torch.split("+")[0].split(".")[:2]) or "2.13"
    install = f'pip install "torch-npu=={wanted}.*"'
    if not torch:
        return f'torch is not installed: pip install "torch=={wanted}.*", then {install}'
    if not extension:
        return f"torch_npu is not installed beside torch {torch}: {install}"
    if extension.split(".")[:2] != torch.split(".")[:2]:
        return f"torch_npu {extension} is not for torch {torch}: {install}"
    return None


def _toolkit(root: Path, packages: Packages) -> str | None:
    folders = [f for f in packages.folders if (root / f / RUNTIME).exists()]
    if not folders and not sysfs.has_library(root, RUNTIME):
        for toolkit in _TOOLKITS:
            if (root / toolkit / "latest/lib64" / RUNTIME).exists():
                return (
                    f"CANN is installed and not in the loader's path, so torch_npu cannot be "
                    f"loaded: source /{toolkit}/set_env.sh"
                )
        return (
            f"no CANN toolkit (no {RUNTIME} on LD_LIBRARY_PATH or in /usr/local/Ascend): install "
            f"CANN {OLDEST_CANN[0]}.{OLDEST_CANN[1]} or later with the kernels for this chip, and "
            "source its set_env.sh"
        )
    found = cann_version(root, folders)
    if found and _release(found) < OLDEST_CANN:
        return (
            f"CANN {found} is too old for torch_npu {packages.torch_npu}: install CANN "
            f"{OLDEST_CANN[0]}.{OLDEST_CANN[1]} or later"
        )
    return None


def cann_version(root: Path, folders: Sequence[str]) -> str:
    """Of the toolkit that one of the loader's folders belongs to; "" if no file says so."""
    toolkits = [Path(folder).parent for folder in folders]
    toolkits += [Path(toolkit) / "latest" for toolkit in _TOOLKITS]
    for toolkit in toolkits:
        inner = sorted((root / toolkit).glob("*-linux"))
        for folder in (root / toolkit, *inner):
            for name in _VERSION_FILES:
                said = sysfs.text(folder / name) or ""
                if match := re.search(r"^[Vv]ersion=\[?\"?([\w.]+)", said, re.MULTILINE):
                    return match[1]
    return ""


def _release(found: str) -> tuple[int, int]:
    """8.0.RC3 -> (8, 0)."""
    numbers = [int(n) for n in re.findall(r"\d+", found)[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else OLDEST_CANN
