"""Steps noted while they are computed, and computed again from the notes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.errors import GraphError
from allmetal.platform.contract import Unsupported
from allmetal.platform.specs import DenseWeight, LinearSpec, RMSNormSpec
from allmetal.quant.ggml import BLOCKS
from allmetal.quant.gguf import dequantize
from allmetal.quant.lookup import look_up
from allmetal.testing.conformance.tiny_models import KINDS, save_model
from allmetal_cpu.native import library
from allmetal_cpu.native.linear import LINEAR, NUMBERS
from allmetal_cpu.native.rms_norm import RMS_NORM
from allmetal_cpu.ops.linear import OneDNNLinear
from allmetal_cpu.recording import CpuGraphs, by_hand
from allmetal_cpu.recording.arena import Arena
from allmetal_cpu.recording.graphs import CpuGraph

LOADED = library.load()
pytestmark = pytest.mark.skipif(isinstance(LOADED, Unsupported), reason="needs the C++ library")


def record(run: Callable[[], object], graphs: CpuGraphs | None = None) -> CpuGraph:
    assert isinstance(LOADED, library.Library)
    with torch.inference_mode():
        graph = (graphs or CpuGraphs(LOADED)).capture(run)
    assert isinstance(graph, CpuGraph)
    return graph


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def test_a_step_of_native_kernels_is_one_program() -> None:
    spec = LinearSpec(
        dtype="bfloat16",
        in_features=64,
        out_features=96,
        bias=False,
        weight=DenseWeight(dtype="bfloat16"),
    )
    linear = LINEAR.build(spec)
    norm = RMS_NORM.build(RMSNormSpec(dtype="bfloat16", dim=64, eps=1e-6))
    weight, scale = linear.pack({"weight": normal(96, 64)}), normal(64)
    x, out = normal(3, 64), torch.zeros(3, 96)

    def run() -> None:
        out.copy_(linear(norm(x, scale)[0], weight, None))

    graph = record(run)
    assert graph.by_hand == ()
    assert graph.num_parts == 1
    for factor in (2.0, -1.0):
        x.mul_(factor).add_(0.5)
        run()
        expected = out.clone()
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)


LOWERED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype]] = {
    "scaled": (lambda x: x * 1.7, torch.bfloat16),
    "added": (lambda x: x + x.flip(0).contiguous(), torch.bfloat16),
    "joined": (lambda x: torch.cat([x, x[:, 3:], x], dim=-1), torch.bfloat16),
    "widened": (lambda x: x.float(), torch.bfloat16),
    "narrowed": (lambda x: x.to(torch.bfloat16), torch.float32),
    "cut": (lambda x: x[:, 5:20].contiguous(), torch.float32),
    "column": (lambda x: x[:, 3].contiguous(), torch.float32),
    "selected": (lambda x: x.index_select(0, torch.tensor([4, 1])), torch.float32),
    "looked up": (
        lambda x: torch.nn.functional.embedding(torch.tensor([2, 0, 2]), x),
        torch.bfloat16,
    ),
}


@pytest.mark.parametrize("name", LOWERED)
def test_what_the_library_does_for_torch_gives_the_same_bits(name: str) -> None:
    run, dtype = LOWERED[name]
    x = normal(5, 37, dtype=dtype)
    if dtype == torch.float32:
        x[0, :3] = torch.tensor([float("nan"), float("inf"), 1 + 2**-9])
    made: list[torch.Tensor] = []
    graph = record(lambda: made.append(run(x)))
    x += 1
    expected = run(x)
    graph.replay()
    assert graph.by_hand == (("flip",) if name == "added" else ())
    assert graph.num_parts == len(graph.by_hand) + 1
    assert made[0].dtype == expected.dtype
    assert torch.equal(made[0].nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("ggml_type", NUMBERS)
def test_rows_of_blocks_are_those_of_the_format_to_the_bit(
    ggml_type: str, dtype: torch.dtype
) -> None:
    block = BLOCKS[ggml_type]
    shape = (9, 512 // block.elements * block.nbytes)
    table = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(4)).byte()
    rows = torch.tensor([3, 8, 0])
    made: list[torch.Tensor] = []
    graph = record(lambda: made.append(look_up(table, rows, ggml_type, dtype)))
    rows.copy_(torch.tensor([1, 1, 7]))
    graph.replay()
    assert graph.by_hand == ()
    expected = dequantize(table[rows], ggml_type, dtype)
    assert torch.equal(look_up(table, rows, ggml_type, dtype).nan_to_num(5), expected.nan_to_num(5))
    assert torch.equal(made[0].nan_to_num(5), expected.nan_to_num(5))


def test_what_only_torch_can_do_is_called_again_in_its_place() -> None:
    x, out = normal(4, 8, dtype=torch.float32), torch.zeros(4, 8)

    def run() -> None:
        y = (x * 2).tanh()
        y.clamp_(min=-0.5)
        out.copy_(y.sort(dim=1).values + x)

    graph = record(run)
    assert graph.by_hand == ("tanh", "clamp_", "sort")
    x.neg_()
    graph.replay()
    assert torch.equal(out, (x * 2).tanh().clamp(min=-0.5).sort(dim=1).values + x)


def test_products_of_weights_that_onednn_keeps_are_called_again() -> None:
    """Those have no storage that could be compared with another's."""
    spec = LinearSpec(
        dtype="float32",
        in_features=64,
        out_features=96,
        bias=False,
        weight=DenseWeight(dtype="float32"),
    )
    linear = OneDNNLinear().build(spec)
    weight = linear.pack({"weight": normal(96, 64, dtype=torch.float32)})
    x, out = normal(3, 64, dtype=torch.float32), torch.zeros(3, 96)

    def run() -> None:
        out.copy_(linear(x, weight, None) * 2.0)

    graph = record(run)
    assert graph.by_hand == ("_linear_pointwise",)
    x.neg_()
    run()
    expected = out.clone()
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)


def test_python_that_declares_itself_is_called_again() -> None:
    x, out = torch.tensor([3.0, 1.0]), torch.zeros(2)

    def branch(x: torch.Tensor) -> torch.Tensor:
        return x * 10 if x.tolist()[0] > 2 else x * 100

    graph = record(lambda: out.copy_(by_hand(lambda: branch(x), "branch")))
    assert graph.by_hand == ("branch",)
    x.copy_(torch.tensor([1.0, 2.0]))
    graph.replay()
    assert out.tolist() == [100.0, 200.0]
    assert by_hand(lambda: branch(x), "branch").tolist() == [100.0, 200.0]


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).all()),
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "equal": lambda x: torch.equal(x, x),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_values_read_on_the_host_are_refused(read: Callable[[torch.Tensor], object]) -> None:
    x = torch.ones(4)
    with pytest.raises(GraphError, match="reads values on the host"):
        record(lambda: read(x))
    assert x.tolist() == [1.0] * 4  # nothing is in the way any more


def test_graphs_share_memory_but_for_what_is_still_held() -> None:
    assert isinstance(LOADED, library.Library)
    graphs = CpuGraphs(LOADED)
    x = normal(64, 256)
    held: list[torch.Tensor] = []

    def run() -> None:
        y = x
        for _ in range(50):
            y = y * 1.01
        held.append(y)

    first, second = record(run, graphs), record(run, graphs)
    assert held[0].data_ptr() != held[1].data_ptr()
    assert graphs.num_bytes <= 5 << 20, "a region is free when its last tensor is gone"
    first.replay()
    expected = held[0].clone()
    x.neg_()
    second.replay()
    assert torch.equal(held[0], expected)
    assert torch.equal(held[1], -expected)


def test_a_region_is_not_taken_again_while_a_view_of_it_lives() -> None:
    arena = Arena()
    x = arena.like(torch.empty(8, 8))
    part = x[2:4]
    del x
    others = [arena.like(torch.empty(8, 8)) for _ in range(3)]
    places = {other.data_ptr() + 64 * i for other in others for i in range(4)}
    assert part.data_ptr() not in places
    address = others[0].data_ptr()
    del others[0]
    assert arena.like(torch.empty(8, 8)).data_ptr() == address
    assert arena.like(torch.empty(2, 3).t()).stride() == (1, 3)


MIXTURE = {
    "model_type": "qwen3_moe",
    "vocab_size": 200,
    "hidden_size": 128,
    "head_dim": 64,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "max_position_embeddings": 512,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


@pytest.mark.parametrize("name", ["dense", "biases", "window-and-full", "mixture"])
def test_a_step_of_a_whole_model_is_one_program(name: str, tmp_path: Path) -> None:
    """What falls back to torch still gives the right tokens, and only shows here."""
    if name == "mixture":
        (tmp_path / "config.json").write_text(json.dumps(MIXTURE))
    else:
        save_model(next(kind for kind in KINDS if kind.name == name), tmp_path)
    config = EngineConfig(
        model=str(tmp_path),
        platform="cpu",
        dtype="bfloat16",
        max_model_len=64,
        kv_cache_memory=1 << 24,
        load_format="dummy" if name == "mixture" else "auto",
    )
    engine = Engine.from_config(config)
    graphs = engine.executor._runner._graphs.decode  # type: ignore[attr-defined]
    graph = graphs._steps.launches[1].graph
    engine.close()
    assert graph.by_hand == ()
    assert graph.num_parts == 1


def test_recording_imports_no_compiler() -> None:
    """It takes most of a second, and the first token waits for it."""
    program = (
        "import sys, torch\n"
        "from allmetal_cpu.native import library\n"
        "from allmetal_cpu.recording import CpuGraphs\n"
        "x = torch.ones(3)\n"
        "CpuGraphs(library.load()).capture(lambda: (x * 2).tanh())\n"
        "print([name for name in sys.modules if name.startswith(('torch._dynamo', 'sympy'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
