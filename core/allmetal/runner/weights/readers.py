"""Tensors of a checkpoint, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from tqdm import tqdm

from allmetal.checkpoint.contract import Checkpoint, TensorInfo
from allmetal.checkpoint.mapped import give_back
from allmetal.platform.specs import DenseWeight, GGUFWeight, WeightFormat
from allmetal.runner.weights.scaled import ScaledReader, scaled_format
from allmetal.runner.weights.stored import StoredReader
from allmetal_models.base import WeightReader


def weight_format(info: TensorInfo) -> WeightFormat:
    """How a stored tensor is described to kernels."""
    if info.scales is not None:
        return scaled_format(info)
    return GGUFWeight(type=info.dtype) if info.is_blocks else DenseWeight(dtype=info.dtype)


def weight_readers(
    checkpoint: Checkpoint, *, progress: bool = False
) -> Iterator[tuple[str, WeightReader]]:
    """Each tensor in the order of the files; `progress` shows a bar of bytes on stderr."""
    total = sum(info.nbytes for info in checkpoint.tensors.values())
    bar = tqdm(
        total=total,
        desc="loading weights",
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        disable=not progress,
        dynamic_ncols=True,
    )
    with bar:
        for name, info in checkpoint.tensors.items():
            data = checkpoint.data(name)
            yield name, _reader(checkpoint, name, info, data)
            give_back(data)
            bar.update(info.nbytes)


def _reader(checkpoint: Checkpoint, name: str, info: TensorInfo, data: memoryview) -> WeightReader:
    values, scales = StoredReader(name, info, data), info.scales
    if scales is None:
        return values
    data = checkpoint.data(scales.name)
    described = TensorInfo(shape=scales.shape, dtype=scales.dtype, nbytes=len(data))
    return ScaledReader(values, info, StoredReader(scales.name, described, data))
