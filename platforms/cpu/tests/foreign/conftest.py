"""The native kernels of another processor, run by an emulator in place of the loaded library."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from ctypes import c_float, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from allmetal_cpu.native import library

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Processor:
    """`emulator` runs its programs here.  Debian has both: g++-aarch64-linux-gnu and the like, and
    qemu-user-static."""

    compiler: str
    emulator: str

    def build(self, folder: Path) -> list[str]:
        """The command that runs the cases' program.  Skips where the processor cannot be had."""
        for program in (self.compiler, self.emulator):
            if shutil.which(program) is None:
                pytest.skip(f"needs {program}")
        sources = [ROOT / "csrc" / name for name in ("kernels.cc", "pool.cc")]
        target = folder / "run_cases"
        command = [self.compiler, "-std=gnu++17", "-O1", "-static", "-pthread", "-DAM_ISA=portable"]
        command += ["-Wall", "-Wextra", "-Werror", "-ffp-contract=fast", "-fno-math-errno"]
        command += map(str, [*sources, ROOT / "tests/native/run_cases.cc", "-o", target])
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return [self.emulator, str(target)]


PROCESSORS = {
    "aarch64": Processor("aarch64-linux-gnu-g++", "qemu-aarch64-static"),
    "riscv64": Processor("riscv64-linux-gnu-g++", "qemu-riscv64-static"),
    "ppc64le": Processor("powerpc64le-linux-gnu-g++", "qemu-ppc64le-static"),
}


class Foreign:
    """Stands for `library.Library`: its functions take addresses of tensors that are known."""

    isa = "portable"

    def __init__(self, process: subprocess.Popen[bytes], known: dict[int, torch.Tensor]) -> None:
        self._process, self._known = process, known
        # Only instruction sets with integer products repack weights.
        self.long = SimpleNamespace(am_panel_bytes=lambda *_: 0)

    def function(self, name: str, dtype: str) -> Callable[..., None]:
        kinds = library._SIGNATURES[name]

        def run(*arguments: Any) -> None:
            assert len(arguments) == len(kinds)
            given = list(zip(kinds, arguments, strict=True))
            tensors = [
                None if value is None else self._known[value]
                for kind, value in given
                if kind is c_void_p
            ]
            floats = [value for kind, value in given if kind is c_float]
            ints = [value for kind, value in given if kind not in (c_void_p, c_float)]
            self._ask(f"{name}_{library.DTYPES[dtype]}", ints, floats, tensors)

        return run

    def _ask(
        self,
        name: str,
        ints: list[int],
        floats: list[float],
        tensors: list[torch.Tensor | None],
    ) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(struct.pack("<q", len(name)) + name.encode())
        numbers = (len(ints), *ints, len(floats), *floats, len(tensors))
        stdin.write(struct.pack(f"<q{len(ints)}qq{len(floats)}fq", *numbers))
        for tensor in tensors:
            if tensor is None:
                stdin.write(struct.pack("<q", -1))
            else:
                assert tensor.is_contiguous()
                stdin.write(struct.pack("<q", _bytes(tensor).numel()))
                stdin.write(_bytes(tensor).numpy().tobytes())
        stdin.flush()
        for tensor in tensors:
            if tensor is not None and tensor.numel():
                size = _bytes(tensor).numel()
                data = stdout.read(size)
                assert len(data) == size, f"{name} died"
                _bytes(tensor).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


@pytest.fixture(scope="module", params=PROCESSORS)
def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return PROCESSORS[request.param].build(tmp_path_factory.mktemp("foreign"))


@pytest.fixture
def foreign(command: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[library.Library]:
    """The program running, and every tensor known whose address is asked for."""
    known: dict[int, torch.Tensor] = {}
    address = torch.Tensor.data_ptr

    def noted(tensor: torch.Tensor) -> int:
        found = address(tensor)
        known[found] = tensor
        return found

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        monkeypatch.setattr(torch.Tensor, "data_ptr", noted)
        yield cast("library.Library", Foreign(process, known))
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0
