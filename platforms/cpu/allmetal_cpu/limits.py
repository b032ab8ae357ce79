"""What this process may use of the machine: cores and memory, within affinity and cgroups.

Source: the kernel's admin guide, cgroup-v2 (cpu.max, memory.max) and cgroup-v1 (cpu.cfs_*,
memory.limit_in_bytes).  Every function takes the file system's root and answers without raising.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from allmetal.platform import sysfs
from allmetal.platform.contract import Memory

_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of a page that fits."""


def num_cores(root: Path, cpus: frozenset[int]) -> int:
    """Physical cores among `cpus`, at most the CPU time the cgroup grants, at least 1.

    The second thread of a core is not counted: it shares the vector units and the path to memory.
    """
    topology = root / "sys/devices/system/cpu"
    cores = {
        sysfs.text(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus
    }
    quota = cpu_quota(root)
    granted = len(cores) if quota is None else min(len(cores), math.ceil(quota))
    return max(1, granted)


def allowed_cpus() -> frozenset[int]:
    """CPUs the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cpu_quota(root: Path) -> float | None:
    """CPU seconds a second the tightest enclosing cgroup grants, or None for no limit."""
    quotas = []
    for folder in _folders(root, "cpu"):
        if words := (sysfs.text(folder / "cpu.max") or "").split():
            if words[0] != "max":
                quotas.append(int(words[0]) / int(words[1]))
            continue
        quota = sysfs.number(folder / "cpu.cfs_quota_us")
        period = sysfs.number(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory(root: Path) -> Memory:
    """Bytes free and in all, whichever is tighter: the machine or an enclosing cgroup."""
    facts = _meminfo(root)
    total = facts.get("MemTotal", 0)
    free = facts.get("MemAvailable", facts.get("MemFree", 0))
    for limit, used in _memory_limits(root):
        total = min(total, limit) if total else limit
        free = min(free, max(0, limit - used))
    return Memory(free=free, total=total)


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that cannot be reclaimed) of each enclosing cgroup that has a limit."""
    for folder in _folders(root, "memory"):
        v2 = (folder / "memory.max").exists()
        limit = sysfs.number(folder / ("memory.max" if v2 else "memory.limit_in_bytes"))
        used = sysfs.number(folder / ("memory.current" if v2 else "memory.usage_in_bytes"))
        if limit is None or used is None or limit >= _UNLIMITED:
            continue
        # Files read once and not needed again count as used, and go when memory is asked for.
        cached = _fields(folder / "memory.stat").get(
            "inactive_file" if v2 else "total_inactive_file", 0
        )
        yield limit, max(0, used - cached)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The controller's folders from this process's cgroup up, those that can be seen."""
    mount = root / "sys/fs/cgroup"
    for line in (sysfs.text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base = mount
        elif controller in controllers.split(","):
            # Mounted together, they need not have a link each.
            each, together = mount / controller, mount / controllers
            base = each if each.is_dir() or not together.is_dir() else together
        else:
            continue
        # In a container the path may be the host's, and only the mount's root is visible.
        folder = base / path.lstrip("/")
        while folder != base and base in folder.parents:
            if folder.is_dir():
                yield folder
            folder = folder.parent
        yield base


def _meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    facts = {}
    for line in (sysfs.text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            facts[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return facts


def _fields(path: Path) -> dict[str, int]:
    """A file of `name number` lines."""
    pairs = (line.split() for line in (sysfs.text(path) or "").splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}
