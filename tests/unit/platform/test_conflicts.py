"""What a user asks for and a platform cannot do: each conflict is seen before anything is loaded,
says why and what to type, and nothing that was asked for is replaced in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.errors import ConfigError, FallbackError, NoKernelError
from allmetal.platform import resolve as module
from allmetal.platform.contract import (
    AnyKernel,
    CapabilityTable,
    DeviceInfo,
    Native,
    Support,
    Supported,
    Unsupported,
)
from allmetal.platform.discover import Found
from allmetal.platform.null import NullPlatform
from allmetal.platform.reference import kernels as reference
from allmetal.platform.select import Kernels, with_reference
from allmetal.platform.specs import GGUFWeight, LinearSpec
from allmetal.request import Request, SamplingParams
from allmetal.runner.explain import Explanation, explain

CONFIG: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "torch_dtype": "float32",
}
THING = DeviceInfo(index=0, name="thing", total_memory=1 << 30)
MISTRAL = {**CONFIG, "model_type": "mistral", "sliding_window": 8}
Make = Callable[..., Explanation]


@dataclass(frozen=True)
class Picky:
    """The reference's work under another name, for some specs."""

    kernel: AnyKernel
    refuse: Callable[[Any], str | None]
    name: str = "picky"

    def supports(self, spec: Any) -> Support:
        reason = self.refuse(spec)
        return Supported() if reason is None else Unsupported(reason)

    def build(self, spec: Any) -> Any:
        return self.kernel.build(spec)


class Bare(NullPlatform):
    """A descriptor: one device, no word on any feature, no kernel."""

    name = "bare"
    table: ClassVar[CapabilityTable] = {}
    own: ClassVar[Mapping[str, Sequence[AnyKernel]]] = {}

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return self.table

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        return self.own


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    torch.set_num_threads(1)

    def run(hf: Mapping[str, Any], platform: NullPlatform | str = "cpu", **options: Any) -> Any:
        (tmp_path / "config.json").write_text(json.dumps(dict(hf)))
        if isinstance(platform, NullPlatform):
            devices = options.pop("devices", [THING])
            found = [Found(name="bare", origin="bare 1", state=tuple(devices), platform=platform)]
            monkeypatch.setattr(module, "discover", lambda only=None: found)
            platform = "bare"
        act = options.pop("act", explain)
        settings = {"kv_cache_memory": 1 << 20, "threads": 1, **options}
        return act(
            EngineConfig(model=str(tmp_path), load_format="dummy", platform=platform, **settings)
        )

    return run


def row(made: Explanation, feature: str) -> Any:
    (found,) = [r for r in made.plan.decisions if r.feature == feature]
    return found


def test_a_narrow_cache_that_the_platform_lacks(make: Make) -> None:
    with pytest.raises(FallbackError, match=r"float8_e4m3fn cannot be had on cpu: .*keys") as error:
        make(CONFIG, kv_cache_dtype="float8_e4m3fn")
    assert "--kv-cache-dtype auto" in str(error.value.hint)
    made = make(
        CONFIG, kv_cache_dtype="float8_e4m3fn", fallback={"kv_cache_dtype": "warn"}, dtype="float32"
    )
    assert (row(made, "kv_cache_dtype").got, made.plan.kv_dtype) == ("float32", "float32")
    assert any("kv_cache_dtype float8_e4m3fn cannot be had" in note for note in made.notes)
    assert "!  kv_cache_dtype" in made.to_text()


def test_a_narrow_cache_of_which_a_platform_says_nothing_is_the_references_affair(
    make: Make,
) -> None:
    made = make(CONFIG, Bare(), kv_cache_dtype="float8_e4m3fn")
    assert made.plan.kv_dtype == "float8_e4m3fn"
    with pytest.raises(FallbackError, match="the platform does not say"):
        make(CONFIG, Bare(), kv_cache_dtype="int8")


def test_recording_where_nothing_can_be_recorded(make: Make) -> None:
    bare = Bare()
    bare.table = {"graph_capture": Unsupported("it launches nothing")}  # type: ignore[misc]
    with pytest.raises(FallbackError, match="graph_capture cannot be had on bare: it launches"):
        make(CONFIG, bare, graph_capture=True)
    assert row(make(CONFIG, bare), "graph_capture").got == "off"


def test_a_quantisation_the_platform_lacks(make: Make) -> None:
    bare = Bare()
    bare.table = {"quant.int8": Unsupported("its units multiply floats")}  # type: ignore[misc]
    with pytest.raises(FallbackError, match="quantization int8 cannot be had on bare: its units"):
        make(CONFIG, bare, quantization="int8")
    made = make(CONFIG, bare, quantization="int8", fallback={"quant": "allow"})
    assert made.plan.quantization is None


def test_a_format_that_no_kernel_takes_names_each_with_its_reason() -> None:
    from allmetal_cpu import CpuPlatform

    platform = CpuPlatform()
    (info,) = platform.probe()  # type: ignore[misc]
    kernels = Kernels(with_reference(platform.kernels(info), reference()))
    spec = LinearSpec(
        dtype="float32",
        in_features=256,
        out_features=8,
        bias=False,
        weight=GGUFWeight(type="IQ1_S"),
    )
    with pytest.raises(NoKernelError, match="no linear kernel accepts") as error:
        kernels.choose(spec)
    refused = dict(error.value.refused)
    assert set(refused) >= {"native", "onednn", "reference"}
    assert all(reason.strip() for reason in refused.values())
    assert "no formula for GGML type IQ1_S" in refused["reference"]


def test_a_head_dim_that_a_kernel_refuses_goes_to_the_next_and_is_said(make: Make) -> None:
    def refuse(spec: Any) -> str | None:
        return None if spec.head_dim % 32 == 0 else "head_dim must be a multiple of 32"

    bare = Bare()
    (attention,) = reference()["attention"]
    bare.own = {"attention": (Picky(attention, refuse),)}  # type: ignore[misc]
    odd = {**CONFIG, "head_dim": 20}
    made = make(odd, bare)
    attention_row = row(made, "kernel.attention")
    assert (attention_row.got, attention_row.warn) == ("reference", True)
    assert attention_row.reason == "picky: head_dim must be a multiple of 32"
    assert "not picky: head_dim must be a multiple of 32" in made.to_text()
    assert row(make({**CONFIG, "head_dim": 32}, bare), "kernel.attention").got == "picky"
    with pytest.raises(NoKernelError, match="picky: head_dim must be a multiple of 32"):
        make(odd, bare, kernel={"attention": "picky"})
    for strict in ({"strict": True}, {"fallback": {"kernel.attention": "error"}}):
        with pytest.raises(FallbackError, match="head_dim must be a multiple of 32") as error:
            make(odd, bare, **strict)
        assert "--fallback kernel.attention=warn" in str(error.value.hint)


def test_a_real_kernel_refuses_a_head_dim_with_its_reason(make: Make) -> None:
    wide = {**CONFIG, "head_dim": 320}
    with pytest.raises(NoKernelError, match="native: head_dim must be at most 256, not 320"):
        make(wide, kernel={"attention": "native"})
    assert row(make(wide), "kernel.attention").got == "torch_paged"


def test_a_window_on_a_bare_platform_is_computed_by_the_reference(make: Make) -> None:
    made = make(MISTRAL, Bare())
    window = row(made, "attention.sliding_window")
    assert (window.got, window.by) == ("reference", "model")
    kernels = row(made, "kernel")
    assert (kernels.got, kernels.warn) == ("reference", True)
    assert "brings no kernels" in kernels.reason
    with pytest.raises(FallbackError, match="brings no kernels"):
        make(MISTRAL, Bare(), strict=True)

    def tokens(config: EngineConfig) -> list[int]:
        engine = Engine.from_config(config)
        greedy = SamplingParams(temperature=0.0, max_tokens=12)
        engine.add(Request(request_id="r", prompt_token_ids=[*range(3, 30)], sampling=greedy))
        found: list[int] = []
        while engine.has_work:
            for delta in engine.step():
                assert delta.error is None
                found += delta.token_ids
        engine.close()
        return found

    served = make(MISTRAL, Bare(), act=tokens, dtype="float32")
    assert len(served) == 12
    assert served == make(MISTRAL, Bare(), act=tokens, dtype="float32", max_num_batched_tokens=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    family: ClassVar[str] = "mla"
    latent_dim: int


def test_layers_that_nobody_computes_are_refused_with_the_family_and_all_reasons() -> None:
    with pytest.raises(NoKernelError, match="no mla kernel accepts") as error:
        Kernels(with_reference(Bare().own, reference())).choose(LatentSpec(latent_dim=512))
    assert "none offered" in error.value.message
    picky = Picky(reference()["linear"][0], lambda spec: "latent_dim must be 256")
    with pytest.raises(NoKernelError, match="picky: latent_dim must be 256"):
        Kernels({"mla": (picky,)}).choose(LatentSpec(latent_dim=512))


def test_several_devices_without_collectives(make: Make) -> None:
    with pytest.raises(FallbackError, match="tensor_parallel_size 2 cannot be had on cpu: ") as e:
        make(CONFIG, tensor_parallel_size=2)
    assert "--tensor-parallel-size 1" in str(e.value.hint)
    bare = Bare()
    rings = {f"collective.{op}": Native("rings") for op in ("all_reduce", "all_gather")}
    bare.table = rings  # type: ignore[misc]
    with pytest.raises(ConfigError, match="needs as many devices, and bare has 1"):
        make(CONFIG, bare, tensor_parallel_size=2)
    two = [DeviceInfo(index=i, name="thing", total_memory=1 << 30) for i in range(2)]
    with pytest.raises(ConfigError, match="the core runs a model on one device"):
        make(CONFIG, bare, tensor_parallel_size=2, devices=two, act=Engine.from_config)
