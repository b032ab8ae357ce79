"""One way from config and checkpoint to platform and plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allmetal.checkpoint import open_checkpoint
from allmetal.config import EngineConfig
from allmetal.errors import ConfigError, PlatformError
from allmetal.platform import resolve as module
from allmetal.platform.contract import DeviceInfo
from allmetal.platform.discover import Failed, Found
from allmetal.platform.hints import HardwareHint
from allmetal.platform.null import NullDevice, NullPlatform
from allmetal.platform.resolve import Resolved, platform_named, resolve

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 99,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}

THING = DeviceInfo(index=0, name="thing", total_memory=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def run(folder: Path, **changes: object) -> Resolved:
    config = EngineConfig(model=str(folder), load_format="dummy", **changes)  # type: ignore[arg-type]
    return resolve(config, open_checkpoint(config))


def test_a_named_platform_is_planned_for(folder: Path) -> None:
    resolved = run(folder, platform="null", max_num_seqs=3)
    assert isinstance(resolved.platform, NullPlatform)
    assert resolved.device_info.name == "nothing"
    made = resolved.plan
    assert (made.platform, made.dtype, made.max_num_seqs) == ("null", "float32", 3)
    assert (made.model.model_type, made.max_model_len) == ("llama", 128)
    assert isinstance(platform_named(made.platform), NullPlatform)
    with pytest.raises(ConfigError, match="null has no device 1"):
        run(folder, platform="null", device=1)


def test_wishes_that_fell_back_and_broken_plugins_are_noted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Found(name="null", origin="", state=(THING,), platform=NullPlatform()),
        Found(name="bad", origin="bad 1", state=Failed("ouch")),
    ]
    monkeypatch.setattr(module, "discover", lambda only=None: found)
    resolved = run(folder, kv_cache_dtype="int8", fallback={"kv_cache_dtype": "warn"})
    assert resolved.notes == (
        "bad: its plugin (bad 1) is broken: ouch",
        "kv_cache_dtype int8 cannot be had, float32 is used: the null platform computes nothing",
    )


def test_a_platform_that_is_named_is_the_only_one_that_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[object] = []
    real: Any = module.discover  # type: ignore[attr-defined]

    def discover(only: set[str] | None = None) -> list[Found]:
        loaded.append(only)
        found: list[Found] = real(only=only)
        return found

    monkeypatch.setattr(module, "discover", discover)
    run(folder, platform="null")
    assert loaded == [{"null"}]
    with pytest.raises(ConfigError, match="no platform is called 'nul'") as error:
        run(folder, platform="nul")
    assert "null" in (error.value.hint or "")


class Nonsense(NullPlatform):
    def __init__(self, **answers: object) -> None:
        for name, answer in answers.items():
            setattr(self, name, lambda *_, answer=answer: answer)


class Device(NullDevice):
    def advice(self, model: object) -> Any:
        return "go fast"


def raises(*_: object) -> None:
    raise OSError("the firmware is gone")


@pytest.mark.parametrize(
    ("platform", "says"),
    [
        (Nonsense(capabilities=None), r"platform odd \(odd 1\) answered None"),
        (Nonsense(open=Device(THING)), "answered 'go fast'"),
        (Nonsense(open=None), "raised AttributeError: 'NoneType' object"),
    ],
)
def test_a_platform_that_answers_nonsense_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, platform: NullPlatform, says: str
) -> None:
    found = [Found(name="odd", origin="odd 1", state=(THING,), platform=platform)]
    monkeypatch.setattr(module, "discover", lambda only=None: found)
    with pytest.raises(PlatformError, match=says):
        run(folder)


def test_what_a_platform_raises_is_named_and_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Nonsense()
    platform.open = raises  # type: ignore[method-assign,assignment]
    found = [Found(name="odd", origin="odd 1", state=(THING,), platform=platform)]
    monkeypatch.setattr(module, "discover", lambda only=None: found)
    with pytest.raises(PlatformError, match="raised OSError: the firmware is gone") as error:
        run(folder)
    assert isinstance(error.value.__cause__, OSError)


def test_hints_count_where_the_choice_is_automatic(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = DeviceInfo(index=0, name="host", total_memory=1, traits={"kind": "host"})
    found = [Found(name="null", origin="", state=(host,), platform=NullPlatform())]
    monkeypatch.setattr(module, "discover", lambda only=None: found)

    class Plugins:
        def hardware_hints(self) -> list[HardwareHint]:
            return [HardwareHint(platform="fast", seen="a fast thing")]

    monkeypatch.setattr(module, "plugins", Plugins)
    with pytest.raises(PlatformError, match="a fast thing"):
        run(folder)
    assert run(folder, platform="null").notes == ()
