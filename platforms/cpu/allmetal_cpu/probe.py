"""Describe the host's CPU: name, instruction sets, cores and memory this process may use."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from allmetal.platform import sysfs
from allmetal.platform.contract import DeviceInfo
from allmetal_cpu import limits

_INTERESTING = (
    # x86
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"),
    # Arm
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "sme"),
    # POWER, RISC-V
    *("mma", "v"),
)


def probe(root: Path, cpus: frozenset[int] | None = None) -> DeviceInfo:
    """The host as one device.  `cpus` are those the process may run on, for tests."""
    facts = _cpuinfo(root)
    flags = frozenset((facts.get("flags") or facts.get("Features") or facts.get("isa", "")).split())
    if cpus is None:
        cpus = limits.allowed_cpus()
    return DeviceInfo(
        index=0,
        name=facts.get("model name") or facts.get("cpu") or f"{platform.machine()} CPU",
        total_memory=limits.memory(root).total,
        arch=platform.machine(),
        driver=platform.release(),
        traits={
            "kind": "host",
            "cores": str(limits.num_cores(root, cpus)),
            "isa": " ".join(flag for flag in _INTERESTING if flag in flags),
        },
    )


def isa(device: DeviceInfo) -> frozenset[str]:
    """The instruction sets the probe saw, by Linux's names."""
    return frozenset(device.traits.get("isa", "").split())


def native_bfloat16(device: DeviceInfo) -> str | None:
    """The instruction set that multiplies bfloat16, or None."""
    return next((name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in isa(device)), None)


def _cpuinfo(root: Path) -> Mapping[str, str]:
    """The first processor's entries of /proc/cpuinfo; empty where there is none."""
    facts: dict[str, str] = {}
    for line in (sysfs.text(root / "proc/cpuinfo") or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            facts.setdefault(name.strip(), value.strip())
    return facts
