"""On a GPU: a checkpoint of 8-bit values and scales is held as it is stored, and computes what the
reference computes with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.request import Request, SamplingParams

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 512, 1024, 8, 2, 64, 300, 3
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}
SCHEMES: dict[str, tuple[dict[str, Any], str]] = {
    "blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "hopper_float8_blocks"),
    "tensors": ({"quant_method": "fp8"}, "hopper_float8"),
}


def write(folder: Path, blocks: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        drawn: torch.Tensor = torch.randn(*shape, generator=generator) / shape[-1] ** 0.5
        return drawn

    tensors = {
        "model.embed_tokens.weight": normal(VOCAB, HIDDEN).bfloat16() * 16,
        "lm_head.weight": normal(VOCAB, HIDDEN).bfloat16() * 2,
        "model.norm.weight": torch.ones(HIDDEN).bfloat16(),
    }
    wide, narrow = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "self_attn.q_proj": (wide, HIDDEN),
        "self_attn.k_proj": (narrow, HIDDEN),
        "self_attn.v_proj": (narrow, HIDDEN),
        "self_attn.o_proj": (HIDDEN, wide),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{norm}.weight"] = torch.ones(HIDDEN).bfloat16()
        for name, (rows, columns) in shapes.items():
            count = (rows // 128, columns // 128) if blocks else (1, 1)
            parts = torch.rand(*count, generator=generator) / 4 + 0.01
            tensors[f"{at}.{name}.weight"] = (normal(rows, columns) * 64).to(torch.float8_e4m3fn)
            scale = parts if blocks else parts.view(())
            tensors[f"{at}.{name}.weight_scale_inv"] = scale / 8
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def logprobs(folder: Path, **options: Any) -> tuple[set[str], torch.Tensor]:
    """The kernels of products, and what they make of a prompt's own tokens."""
    config = EngineConfig(
        model=str(folder), platform="cuda", kv_cache_memory=1 << 24, max_num_seqs=4, **options
    )
    engine = Engine.from_config(config)
    assert engine.plan is not None
    assert engine.plan.quantization == "fp8"
    executor: Any = engine.executor
    kernels = {
        choice.kernel.name
        for choice in executor._rank.kernels.choices
        if choice.spec.family == "linear"
    }
    sampling = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True, prompt_logprobs=0)
    prompt = [(7 * at * at) % VOCAB for at in range(90)]
    engine.add(Request(request_id="r", prompt_token_ids=prompt, sampling=sampling))
    found: list[float] = []
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None, delta.error
            found += [entry.logprobs[0] for entry in delta.prompt_logprobs or () if entry]
    engine.close()
    return kernels, torch.tensor(found)


@pytest.mark.parametrize("kind", SCHEMES)
def test_a_checkpoint_computes_what_the_reference_computes_with_it(
    tmp_path: Path, kind: str
) -> None:
    scheme, kernel = SCHEMES[kind]
    write(tmp_path, kind == "blocks")
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": scheme}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    kernels, found = logprobs(tmp_path)
    assert kernel in kernels
    # No kernel but the reference's: weights are expanded, and activations not rounded.
    kernels, expected = logprobs(tmp_path, kernel={"linear": "reference"}, graph_capture=False)
    assert kernels == {"reference"}
    assert len(found) == len(expected) == 89
    assert expected.std() > 0.5, "the model says something"
    assert (found - expected).abs().mean() < 0.2
