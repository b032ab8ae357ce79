"""What the kernel tests share.  Without a GPU the kernels run in Triton's interpreter, on the host
and slowly: sizes are small, and bfloat16, which it computes wrongly, is left to a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    # Read when a kernel is defined, so it must be there before any is imported.
    os.environ["TRITON_INTERPRET"] = "1"

Near = Callable[[torch.Tensor, torch.Tensor], None]

# Of a value, and of the root mean square of all: half a unit in the last place of the result,
# and what sums of rounded inputs differ by.
_RELATIVE = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2e-6}
_ABSOLUTE = {torch.bfloat16: 2**-7, torch.float16: 2**-9, torch.float32: 1e-5}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dtype" in metafunc.fixturenames:
        dtypes = ["float32", "float16", *(["bfloat16"] if ON_GPU else [])]
        metafunc.parametrize("dtype", dtypes)


@pytest.fixture(autouse=True, scope="session")
def _mended_interpreter() -> None:
    if not ON_GPU and find_spec("triton") is not None:
        from allmetal_triton.interpreter import mend

        mend()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if ON_GPU else "cpu")


@pytest.fixture
def target() -> Any:
    """The GPU, or one small enough that small tests have parts, windows and padding."""
    module = pytest.importorskip("allmetal_triton.target", reason="needs triton")
    if not ON_GPU:
        return module.Target(num_cores=lambda: 8, shared_memory=101_376)
    facts = torch.cuda.get_device_properties(0)
    new = torch.cuda.get_device_capability() >= (9, 0)
    return module.Target(
        num_cores=lambda: facts.multi_processor_count,
        shared_memory=facts.shared_memory_per_block_optin,
        dot_rows=64 if new and facts.major < 12 else 16,
    )


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh seed every run, printed by pytest when a test fails."""
    fresh = torch.Generator()
    print("seed", fresh.seed())
    return fresh


@pytest.fixture
def near() -> Near:
    """(actual, expected in float64): raises unless they agree to the precision of actual's type."""

    def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
        assert actual.shape == expected.shape
        if not expected.numel():
            return
        scale = expected.square().mean().sqrt().item()
        torch.testing.assert_close(
            actual.double().cpu(),
            expected.cpu(),
            rtol=_RELATIVE[actual.dtype],
            atol=_ABSOLUTE[actual.dtype] * scale,
        )

    return check


_ONE_CASE = (
    "one case of each test is run where kernels are interpreted; name platforms/triton for all"
)
_IN_FULL = ("test_conformance.py", "test_every_kernel_compiles_and_spills_next_to_nothing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU, and unless this folder is named: one case of each test, from the middle."""
    if ON_GPU or any("triton" in argument for argument in config.args):
        return
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.path.parent == Path(__file__).parent:
            name = getattr(item, "originalname", item.name)
            cases.setdefault((item.path, name), []).append(item)
    for (path, name), group in cases.items():
        kept = None if {path.name, name} & {*_IN_FULL} else group[len(group) // 2]
        for item in group:
            if item is not kept:
                item.add_marker(pytest.mark.skip(reason=_ONE_CASE))
