from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import pytest

from allmetal.cli import sampling
from allmetal.cli.options import add_options, given, parse_bytes
from allmetal.config import EngineConfig, ServerConfig, option
from allmetal.errors import ConfigError
from allmetal.request import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """One field of each kind."""

    name: str | None = option(None, "a name", group="words")
    mode: Literal["fast", "slow"] = option("fast", "a mode", group="words")
    kind: str | None = option(None, "a kind", choices=("a", "b"), group="words")
    count: int = option(3, "100% of a count", group="numbers")
    share: float | None = option(None, "a share", group="numbers")
    host_memory: int | None = option(None, "a size", group="numbers")
    flag: bool = option(True, "a flag", group="flags")
    table: Mapping[str, str] = option({}, "a table", metavar="K=V", group="flags")
    bias: Mapping[int, float] = option({}, "a bias", group="flags")
    words: tuple[str, ...] = option((), "words", group="flags")
    ids: tuple[int, ...] | None = option(None, "ids", group="flags")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    add_options(made, Toy)
    return made


def parse(*words: str) -> Toy:
    return Toy(**given(parser().parse_args(words), Toy))


def test_nothing_typed_leaves_every_default_to_the_dataclass() -> None:
    assert given(parser().parse_args([]), Toy) == {}
    assert Toy() == parse()


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--name", "x"], "name", "x"),
        (["--mode", "slow"], "mode", "slow"),
        (["--kind", "b"], "kind", "b"),
        (["--count", "-4"], "count", -4),
        (["--share", "0.5"], "share", 0.5),
        (["--host-memory", "2GiB"], "host_memory", 2 << 30),
        (["--no-flag"], "flag", False),
        (["--flag"], "flag", True),
        (["--table", "a=b", "--table", "c=d=e"], "table", {"a": "b", "c": "d=e"}),
        (["--bias", "7=-1.5"], "bias", {7: -1.5}),
        (["--words", "a b", "--words", "c"], "words", ("a b", "c")),
        (["--ids", "1", "--ids", "2"], "ids", (1, 2)),
    ],
)
def test_a_flag_sets_its_field_to_a_value_of_its_type(
    words: list[str], field: str, value: object
) -> None:
    assert given(parser().parse_args(words), Toy) == {field: value}


@pytest.mark.parametrize(
    "words",
    [
        ["--mode", "other"],
        ["--kind", "c"],
        ["--count", "1.5"],
        ["--table", "a"],
        ["--table", "=b"],
        ["--bias", "x=1"],
        ["--host-memory", "lots"],
        ["--nam", "x", "--unknown"],
    ],
)
def test_what_does_not_fit_is_refused(words: list[str]) -> None:
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser().parse_args(words)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("2GiB", 2 << 30),
        ("2 gib", 2 << 30),
        ("512MB", 512_000_000),
        ("1.5k", 1500),
        ("3Ti", 3 << 40),
        ("10B", 10),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert size == parse_bytes(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1", "2QiB", "2iB", "1e9", "0x10"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_bytes(text)


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("config", [EngineConfig, ServerConfig])
def test_every_option_of_a_config_has_a_flag_with_its_doc(config: type) -> None:
    made = argparse.ArgumentParser()
    add_options(made, config)
    help_text = flat(made.format_help())

    for field in fields(config):
        assert field.metadata["doc"], field.name
        assert "--" + field.name.replace("_", "-") in help_text
        assert flat(field.metadata["doc"]) in help_text


def test_help_shows_defaults_as_they_are_typed() -> None:
    text = flat(parser().format_help())

    assert "100% of a count (default: 3)" in text
    assert "a flag (default: on)" in text
    assert "a share a" not in text.replace("a share --", "")
    assert "(default: None)" not in text


def test_every_sampling_parameter_is_a_flag_or_left_out_for_a_reason() -> None:
    names = {field.name for field in fields(SamplingParams)}

    assert names == sampling.DOCS.keys() | sampling.SKIPPED
    assert not sampling.DOCS.keys() & sampling.SKIPPED


def test_what_is_typed_beats_what_the_models_makers_recommend() -> None:
    made = argparse.ArgumentParser()
    sampling.add_sampling_options(made, max_tokens=9)
    args = made.parse_args(["--top-k", "3", "--stop", "END"])

    params = sampling.sampling_from(args, {"top_k": 64, "top_p": 0.95}, max_tokens=9)

    assert SamplingParams(top_k=3, top_p=0.95, max_tokens=9, stop=("END",)) == params


def test_fallback_is_for_all_or_for_one_feature() -> None:
    made = argparse.ArgumentParser()
    add_options(made, EngineConfig, skip=("model",))

    words = ["--fallback", "allow", "--fallback", "kv_cache_dtype=warn", "--strict"]
    config = EngineConfig(model="m", **given(made.parse_args(words), EngineConfig))

    assert config.fallback == {"*": "allow", "kv_cache_dtype": "warn"}
    assert config.strict
    assert EngineConfig(model="m", fallback="error").fallback == "error"
    with pytest.raises(ConfigError, match="'maybe' is no fallback policy"):
        EngineConfig(model="m", **given(made.parse_args(["--fallback", "moe=maybe"]), EngineConfig))
