"""Plugins are loaded by entry point, and a broken one stops nobody."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from allmetal.parsing import ParserSpec
from allmetal.parsing.family import Plain
from allmetal.platform.hints import HardwareHint
from allmetal.plugins.hookspecs import GROUP, hookimpl
from allmetal.plugins.manager import Plugin, Plugins, load_plugins

HINT = HardwareHint(platform="fast", seen="a fast thing")


@pytest.fixture
def point() -> Iterator[Callable[..., EntryPoint]]:
    made: list[str] = []

    def make(name: str, **hooks: Callable[..., Any]) -> EntryPoint:
        module = types.ModuleType(f"a_strangers_{name}")
        for hook, function in hooks.items():
            setattr(module, hook, hookimpl(function))
        sys.modules[module.__name__] = module
        made.append(module.__name__)
        return EntryPoint(name, module.__name__, GROUP)

    yield make
    for name in made:
        del sys.modules[name]


def named(plugins: Plugins, name: str) -> Plugin:
    (plugin,) = [p for p in plugins.found if p.name == name]
    return plugin


def raises() -> Any:
    raise RuntimeError("no")


def test_what_plugins_announce_is_gathered(point: Callable[..., EntryPoint]) -> None:
    plugins = load_plugins(
        [
            point("a", allmetal_models=lambda: {"x": "m:x"}),
            point("b", allmetal_models=lambda: {"y": "m:y"}),
            point("c", allmetal_hardware_hints=lambda: [HINT]),
        ]
    )
    assert plugins.models() == {"x": "m:x", "y": "m:y"}
    assert plugins.hardware_hints() == [HINT]
    assert [p.problem for p in plugins.found] == ["", "", ""]


@pytest.mark.parametrize("bad", [raises, lambda: {"x": 1}, lambda: "x", lambda: sys.exit(1)])
def test_a_plugin_that_raises_or_answers_nonsense_is_left_out(
    point: Callable[..., EntryPoint], bad: Callable[[], Any]
) -> None:
    plugins = load_plugins(
        [point("bad", allmetal_models=bad), point("good", allmetal_models=lambda: {"y": "m:y"})]
    )
    assert plugins.models() == {"y": "m:y"}
    assert named(plugins, "bad").problem
    assert "Traceback" in named(plugins, "bad").traceback
    assert plugins.models() == {"y": "m:y"}


def test_a_plugin_that_does_not_load_is_reported(point: Callable[..., EntryPoint]) -> None:
    plugins = load_plugins(
        [
            EntryPoint("gone", "no_such_module", GROUP),
            point("good", allmetal_models=lambda: {"y": "m:y"}),
        ]
    )
    assert named(plugins, "gone").problem == "ModuleNotFoundError: No module named 'no_such_module'"
    assert named(plugins, "good").problem == ""


def test_a_hook_that_does_not_exist_is_reported(point: Callable[..., EntryPoint]) -> None:
    plugins = load_plugins(
        [
            point("new", allmetal_of_tomorrow=lambda: 1),
            point("odd", allmetal_models=lambda argument: {}),
            point("good", allmetal_models=lambda: {"y": "m:y"}),
        ]
    )
    assert "allmetal_of_tomorrow" in named(plugins, "new").problem
    assert "argument" in named(plugins, "odd").problem
    assert plugins.models() == {"y": "m:y"}


def test_a_stranger_replaces_a_built_in_model_and_no_other(
    point: Callable[..., EntryPoint],
) -> None:
    plugins = load_plugins(
        [
            point("one", allmetal_models=lambda: {"x": "one:x"}),
            point("two", allmetal_models=lambda: {"x": "two:x", "z": "two:z"}),
            point("core", allmetal_models=lambda: {"x": "core:x", "y": "core:y"}),
        ]
    )
    named(plugins, "core").builtin = True
    plugins.found = tuple(sorted(plugins.found, key=lambda p: not p.builtin))
    assert plugins.models() == {"x": "one:x", "y": "core:y", "z": "two:z"}
    assert named(plugins, "two").problem == "model type 'x' is one's already"


def test_lists_leave_plugins_out(
    point: Callable[..., EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLMETAL_PLUGINS", "a, c")
    monkeypatch.setenv("ALLMETAL_PLATFORMS", "b")
    monkeypatch.setenv("ALLMETAL_PLATFORMS_DENY", "a")
    plugins = load_plugins(
        [point(n, allmetal_models=lambda n=n: {n: f"m:{n}"}) for n in ("a", "b")]  # type: ignore[misc]
    )
    assert plugins.models() == {"a": "m:a"}
    assert named(plugins, "b").problem == "not among ALLMETAL_PLUGINS"


def test_built_ins_come_through_the_public_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLMETAL_PLUGINS", "")
    plugins = load_plugins()
    assert {"builtin", "models"} <= {p.name for p in plugins.found if p.builtin and not p.problem}
    assert "llama" in plugins.models()


def test_parsers_and_providers_are_gathered_and_a_strangers_replace_built_in_ones(
    point: Callable[..., EntryPoint],
) -> None:
    mine, theirs = (ParserSpec(name="p", make=lambda context: Plain(), tools=t) for t in (1, 0))  # type: ignore[arg-type]
    plugins = load_plugins(
        [
            point("odd", allmetal_parsers=lambda: ["p"]),
            point("stranger", allmetal_parsers=lambda: [theirs]),
            point(
                "core",
                allmetal_parsers=lambda: [mine],
                allmetal_structured_providers=lambda: {"x": "m:x"},
            ),
        ]
    )
    named(plugins, "core").builtin = True
    plugins.found = tuple(sorted(plugins.found, key=lambda p: not p.builtin))

    assert plugins.parsers() == {"p": theirs}
    assert plugins.structured_providers() == {"x": "m:x"}
    assert named(plugins, "odd").problem
