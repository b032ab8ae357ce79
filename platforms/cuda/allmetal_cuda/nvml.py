"""What the driver's management library tells of GPUs without opening one.

Source: NVML API reference, NVIDIA.  Every answer is optional: a sandbox may hide the library, and
probing never raises.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_LENGTH = 96
_PCI_ADDRESS = 32


class _Memory(ctypes.Structure):
    """nvmlMemory_t"""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t"""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * _PCI_ADDRESS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`address` as sysfs writes it; `capability` is CUDA's (9, 0); memory in bytes."""

    name: str
    address: str
    capability: tuple[int, int]
    total_memory: int


def gpus() -> list[Gpu]:
    """The GPUs this process may see, by PCI address; none where the library cannot be asked."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        if library.nvmlInit_v2():
            return []
    except (OSError, AttributeError):
        return []
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        found = [_gpu(library, index) for index in range(count.value)]
    except AttributeError:  # a library older than these functions
        return []
    finally:
        library.nvmlShutdown()
    return sorted((gpu for gpu in found if gpu is not None), key=lambda gpu: gpu.address)


def _gpu(library: ctypes.CDLL, index: int) -> Gpu | None:
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return None
    name = ctypes.create_string_buffer(_TEXT_LENGTH)
    pci, memory = _Pci(), _Memory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    asked: list[tuple[Callable[..., int], tuple[object, ...]]] = [
        (library.nvmlDeviceGetName, (name, _TEXT_LENGTH)),
        (library.nvmlDeviceGetPciInfo_v3, (ctypes.byref(pci),)),
        (library.nvmlDeviceGetMemoryInfo, (ctypes.byref(memory),)),
        (
            library.nvmlDeviceGetCudaComputeCapability,
            (ctypes.byref(major), ctypes.byref(minor)),
        ),
    ]
    if any(function(handle, *arguments) for function, arguments in asked):
        return None
    return Gpu(
        name=name.value.decode(errors="replace"),
        address=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        capability=(major.value, minor.value),
        total_memory=memory.total,
    )
