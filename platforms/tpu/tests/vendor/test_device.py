from __future__ import annotations

import os
import subprocess
import sys

import on_cpu
import pytest
import torch

from allmetal.platform.contract import Device, DeviceInfo
from allmetal_tpu import TpuPlatform


@pytest.fixture(scope="module")
def device(tpu: TpuPlatform, info: DeviceInfo) -> Device:
    return tpu.open(info)


def test_an_opened_device_computes(device: Device) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 40, 40, generator=generator).unbind(0)

    found = (a.to(device.torch_device) @ b.to(device.torch_device)).cpu()

    assert found.device.type == "cpu"
    torch.testing.assert_close(found, a @ b, rtol=1e-5, atol=1e-5)


def test_memory_is_what_the_runtime_says(device: Device) -> None:
    memory = device.memory()

    assert 0 < memory.free <= memory.total


def test_an_event_is_over_when_what_came_before_it_is(device: Device) -> None:
    assert device.streams is not None
    event = device.streams.event()
    x = torch.ones(300, 300, device=device.torch_device)
    y = x @ x
    event.record()
    event.synchronize()
    assert event.query()
    device.synchronize()
    assert y.cpu()[0, 0] == 300


def test_host_memory_is_taken_as_it_is_where_the_runtime_lends_none(device: Device) -> None:
    x = torch.arange(5)

    assert device.pin(x).tolist() == [0, 1, 2, 3, 4]


def test_reports_name_torchtpu(device: Device) -> None:
    assert device.versions()["torch-tpu"].startswith("0.2")


def test_matrix_products_of_float32_are_not_rounded_to_bfloat16(device: Device) -> None:
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_recorded_step_is_one_program_that_a_replay_does_not_compile_again(
    device: Device,
) -> None:
    assert device.graphs is not None
    words = torch.zeros(3, dtype=torch.int64, device=device.torch_device)
    cache = torch.zeros(8, 2, device=device.torch_device)
    made: list[torch.Tensor] = []

    def step() -> None:
        cache.index_copy_(0, words, words[:, None].expand(3, 2).float() + 1)
        made[:] = [cache.sum()]

    with torch.inference_mode():
        words.copy_(torch.tensor([1, 2, 3]))
        graph = device.graphs.capture(step)
        assert cache.cpu()[:4, 0].tolist() == [0, 2, 3, 4]  # it computes while it records
        words.copy_(torch.tensor([5, 6, 7]))
        before = on_cpu.compilations()
        graph.replay()
        assert made[0].item() == 2 * (2 + 3 + 4 + 6 + 7 + 8)
        assert on_cpu.compilations() == before
    assert cache.cpu()[:, 0].tolist() == [0, 2, 3, 4, 0, 6, 7, 8]


def test_two_recorded_steps_of_one_function_are_apart(device: Device) -> None:
    assert device.graphs is not None
    places = {n: torch.zeros(n, device=device.torch_device) for n in range(1, 11)}
    graphs = []
    with torch.inference_mode():
        for n, place in places.items():

            def step(n: int = n, place: torch.Tensor = place) -> None:
                place.add_(n)

            graphs.append(device.graphs.capture(step))
        for graph in graphs:
            graph.replay()
    assert [float(place.cpu()[0]) for place in places.values()] == [2.0 * n for n in places]


OPENS = """
import sys, types
if {libtpu}:
    sys.modules["libtpu"] = types.ModuleType("libtpu")
    sys.modules["libtpu"].configure_library_path = lambda: None
from allmetal.errors import PlatformError
from allmetal.platform.contract import DeviceInfo
from allmetal_tpu import TpuPlatform
try:
    TpuPlatform().open(DeviceInfo(index=0, name="TPU v5e", total_memory=0, arch="v5e"))
except PlatformError as error:
    print(error, "|", error.hint)
"""


@pytest.mark.parametrize(
    ("libtpu", "said"),
    [(True, ["TorchTPU sees no device", "/dev/vfio"]), (False, ["libtpu", "pip install"])],
    ids=["no-device", "no-libtpu"],
)
def test_the_real_torchtpu_says_what_it_lacks_and_does_not_end_the_process(
    libtpu: bool, said: list[str]
) -> None:
    """On this machine, which has no TPU.  libtpu says where it lies, as the shim does here."""
    env = {k: v for k, v in os.environ.items() if libtpu or k != "TPU_LIBRARY_PATH"}
    command = [sys.executable, "-c", OPENS.format(libtpu=libtpu)]

    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)

    assert done.returncode == 0, done.stderr
    for words in ("TPU v5e cannot be used: ", *said):
        assert words in done.stdout
