from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from allmetal.platform.contract import Memory
from allmetal.testing.machine import write_files
from allmetal_cpu import limits

GIB = 1 << 30
MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {9 * GIB // 1024} kB\n"
ALL = frozenset(range(8))


def with_threads_of(root: Path, siblings: list[str]) -> None:
    write_files(
        root,
        {
            f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": f"{text}\n"
            for i, text in enumerate(siblings)
        },
    )


def test_two_threads_of_a_core_count_once(tmp_path: Path) -> None:
    with_threads_of(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)
    assert limits.num_cores(tmp_path, ALL) == 4


def test_affinity_bounds_the_cores(tmp_path: Path) -> None:
    with_threads_of(tmp_path, [str(i) for i in range(8)])
    assert limits.num_cores(tmp_path, frozenset({1, 6, 7})) == 3


def test_a_machine_without_topology_counts_cpus(tmp_path: Path) -> None:
    assert limits.num_cores(tmp_path, ALL) == 8


def test_a_cgroup_v2_quota_bounds_the_cores_and_is_rounded_up(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
        },
    )
    assert limits.cpu_quota(tmp_path) == 2.5
    assert limits.num_cores(tmp_path, ALL) == 3


def test_a_cgroup_v1_quota_bounds_the_cores(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert limits.num_cores(tmp_path, ALL) == 2


def test_controllers_that_are_mounted_together_need_no_link_each(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert limits.num_cores(tmp_path, ALL) == 2


def test_less_than_a_core_is_one_thread(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "20000 100000\n"})
    assert limits.num_cores(tmp_path, ALL) == 1


@pytest.mark.parametrize("quota", ["max 100000\n", ""])
def test_fewer_cpus_than_the_machine_has_are_all_that_count(tmp_path: Path, quota: str) -> None:
    """A container's set of CPUs: the machine's others are seen in /sys, and not in the affinity."""
    with_threads_of(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)
    write_files(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota})
    assert limits.num_cores(tmp_path, frozenset({1, 5, 6})) == 2


PINNED = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch
from allmetal.platform.contract import OpenOptions
from allmetal_cpu import CpuPlatform
platform = CpuPlatform()
(info,) = platform.probe()
device = platform.open(info, OpenOptions(threads=None))
print(info.traits["cores"], device.threads, torch.get_num_threads())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs os.sched_setaffinity")
def test_a_process_pinned_to_one_cpu_computes_with_one_thread() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PINNED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "1", "1"]


def test_without_cgroups_memory_is_the_machines(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/meminfo": MEMINFO})
    assert limits.memory(tmp_path) == Memory(free=9 * GIB, total=16 * GIB)


def test_memory_of_a_cgroup_v2_counts_reclaimable_files_as_free(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/box\n",
            "sys/fs/cgroup/box/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/box/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/box/memory.stat": f"anon 5\ninactive_file {2 * GIB}\n",
        },
    )
    assert limits.memory(tmp_path) == Memory(free=3 * GIB, total=4 * GIB)


def test_memory_of_a_cgroup_v1_whose_path_is_not_visible_is_that_of_the_mount(
    tmp_path: Path,
) -> None:
    write_files(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "9:memory:/docker/1234\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        },
    )
    assert limits.memory(tmp_path) == Memory(free=GIB, total=2 * GIB)


@pytest.mark.parametrize("limit", ["max", str((1 << 63) - 4096)])
def test_no_limit_is_no_limit(tmp_path: Path, limit: str) -> None:
    write_files(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "9:memory:/\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": limit,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
            "sys/fs/cgroup/memory.max": limit,
            "sys/fs/cgroup/memory.current": "1",
        },
    )
    assert limits.memory(tmp_path).total == 16 * GIB


def test_a_machine_that_tells_nothing_has_one_core_and_no_memory(tmp_path: Path) -> None:
    assert limits.num_cores(tmp_path, frozenset()) == 1
    assert limits.memory(tmp_path) == Memory(free=0, total=0)
