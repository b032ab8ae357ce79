from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

from allmetal.checkpoint.mapped import MappedFile
from allmetal.platform import mapped_memory


def resident(address: int) -> int:
    """KiB of the mapping that holds this address."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        ends = line.split()[0].split("-")
        if len(ends) == 2 and int(ends[0], 16) <= address < int(ends[1], 16):
            return next(int(fact.split()[1]) for fact in lines if fact.startswith("Rss:"))
    raise AssertionError("not mapped")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc/self/smaps")
def test_pages_of_a_file_are_given_back_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 16384)
    file = MappedFile(tmp_path / "file")
    values = np.frombuffer(file.view, np.uint8)
    before = values.sum()
    assert resident(values.ctypes.data) == 4096

    assert mapped_memory.give_back(values.ctypes.data, values.nbytes)

    assert resident(values.ctypes.data) == 0
    assert before == values.sum()


def test_other_memory_is_left_alone() -> None:
    values = np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
    values[:] = 7

    assert not mapped_memory.give_back(values.ctypes.data, values.nbytes)

    assert (values == 7).all()


@pytest.mark.parametrize("closed_first", [True, False])
def test_what_was_a_file_once_is_not_one_for_ever(tmp_path: Path, closed_first: bool) -> None:
    """Else memory that is put there later would be emptied."""
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    file = MappedFile(tmp_path / "file")
    values = np.frombuffer(file.view, np.uint8)
    address = values.ctypes.data
    if closed_first:
        del values
        file.close()
    else:
        file.close()  # while a view of it is in use
        assert mapped_memory.give_back(address, 1 << 20)
        del values
        del file
        gc.collect()

    assert not mapped_memory.give_back(address, 1 << 20)


@pytest.mark.timeout(20)
def test_a_file_may_go_while_pages_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector closes what nobody holds at any moment, the one inside `give_back` included."""
    gone = mapped_memory.note(4096, 4096)
    kept = mapped_memory.note(1 << 40, 4096)

    class Closing(int):
        def __le__(self, other: int) -> bool:
            mapped_memory.forget(gone)
            return False

    monkeypatch.setattr(mapped_memory, "_ranges", {gone, kept, (Closing(1), 2)})
    assert not mapped_memory.give_back(8, 8)
    assert gone not in mapped_memory._ranges
