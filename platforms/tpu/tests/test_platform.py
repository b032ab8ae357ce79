from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from allmetal.errors import PlatformError
from allmetal.platform.capabilities import FEATURES
from allmetal.platform.contract import DeviceInfo, ModelFacts
from allmetal_tpu import TpuPlatform
from allmetal_tpu.advice import advise

V5E = DeviceInfo(index=0, name="TPU v5e", total_memory=16 << 30, arch="v5e")
MODEL = ModelFacts(
    model_type="llama",
    dtype="bfloat16",
    num_layers=2,
    hidden_size=64,
    head_dim=16,
    vocab_size=1000,
    max_model_len=4096,
    parameter_bytes=1 << 20,
)


@pytest.mark.skipif(
    importlib.util.find_spec("torch_tpu") is not None, reason="needs a machine without torch-tpu"
)
def test_without_torchtpu_a_device_is_not_opened_and_the_hint_says_what_to_install() -> None:
    with pytest.raises(
        PlatformError, match=r"TPU v5e cannot be used: .*(libtpu|torch_tpu)"
    ) as error:
        TpuPlatform().open(V5E)
    assert "pip install torch-tpu libtpu" in (error.value.hint or "")


def test_every_capability_is_a_known_feature() -> None:
    assert set(TpuPlatform().capabilities(V5E)) <= set(FEATURES)


def test_advice_is_bfloat16_and_says_why_where_the_model_is_not() -> None:
    assert advise(V5E, MODEL).dtype == "bfloat16"
    assert advise(V5E, MODEL).dtype_reason == "matrix units multiply it"
    assert "several passes" in advise(V5E, replace(MODEL, dtype="float32")).dtype_reason


def test_the_ladders_rise_to_the_largest_step() -> None:
    for memory in (16 << 30, 95 << 30):
        advice = advise(replace(V5E, total_memory=memory), MODEL)
        assert list(advice.graph_sizes) == sorted(set(advice.graph_sizes))
        assert max(advice.graph_sizes) == advice.max_num_seqs
        assert max(advice.graph_tokens) == advice.max_num_batched_tokens
