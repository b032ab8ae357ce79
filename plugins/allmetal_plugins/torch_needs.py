"""Which torch drives which platform, for the doctor.

PyPI's torch for Linux on x86 is the CUDA build; the other builds have an index of their own.
"""

from __future__ import annotations

from allmetal.platform.hints import TorchNeed
from allmetal.plugins.hookspecs import hookimpl

_INDEX = "https://download.pytorch.org/whl"
_NUMBERS = "X.Y of your ROCm, see https://pytorch.org/get-started/locally"


@hookimpl
def allmetal_torch_needs() -> list[TorchNeed]:
    return [
        TorchNeed(platform="cuda", build="cuda", install="pip install --force-reinstall torch"),
        TorchNeed(platform="rocm", build="hip", install=_from_index("rocmX.Y") + f" ({_NUMBERS})"),
        TorchNeed(platform="xpu", build="xpu", install=_from_index("xpu")),
        TorchNeed(platform="ascend", extension="torch-npu", install="pip install torch-npu"),
        TorchNeed(platform="tpu", extension="torch-tpu", install="pip install torch-tpu libtpu"),
    ]


def _from_index(name: str) -> str:
    return f"pip install --force-reinstall torch --index-url {_INDEX}/{name}"
