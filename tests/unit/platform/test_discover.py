"""Platforms are found by entry point, and a broken one stops nobody."""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from allmetal.platform import discover as module
from allmetal.platform.contract import CONTRACT_VERSION, Absent, Broken, DeviceInfo
from allmetal.platform.discover import Denied, Failed, Found, NotInstalled, discover
from allmetal.platform.null import NullPlatform

DEVICE = DeviceInfo(index=0, name="thing", total_memory=1)


@pytest.fixture
def point() -> Iterator[Callable[..., EntryPoint]]:
    """Makes an entry point whose target is a platform that probes as told."""
    stranger = types.ModuleType("a_strangers_platform")
    sys.modules[stranger.__name__] = stranger

    def make(point: str, probe: Callable[[], Any] = lambda: [DEVICE], **changes: Any) -> EntryPoint:
        members = {"name": point, "contract_version": CONTRACT_VERSION, **changes}
        made = type(point, (NullPlatform,), {**members, "probe": lambda _: probe()})
        target = f"Platform{len(vars(stranger))}"
        setattr(stranger, target, made)
        return EntryPoint(point, f"{stranger.__name__}:{target}", module.GROUP)

    yield make
    del sys.modules[stranger.__name__]


@pytest.fixture(autouse=True)
def no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "known_platforms", list)


def states(found: list[Found]) -> dict[str, Any]:
    return {f.name: f.state for f in found}


def test_each_state_a_probe_may_have(point: Callable[..., EntryPoint]) -> None:
    found = discover(
        [
            point("there"),
            point("absent", lambda: Absent("nothing plugged in")),
            point("broken", lambda: Broken("no driver")),
            point("empty", list),
        ]
    )
    assert states(found) == {
        "absent": Absent("nothing plugged in"),
        "broken": Broken("no driver"),
        "empty": Absent("its probe found no device and gave no reason"),
        "there": (DEVICE,),
    }
    assert all(f.platform is not None for f in found)


def raises() -> Any:
    raise OSError("the bus is on fire")


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        (raises, "its probe raised OSError: the bus is on fire"),
        (lambda: sys.exit(3), "its probe raised SystemExit: 3"),
        (lambda: "two", "its probe answered 'two'"),
        (lambda: [DEVICE, None], "its probe answered [DeviceInfo"),
        (lambda: None, "its probe answered None"),
        (lambda: [DEVICE, DEVICE], "its probe numbers its devices [0, 0]"),
    ],
)
def test_a_bad_probe_is_reported_and_stops_nobody(
    point: Callable[..., EntryPoint], probe: Callable[[], Any], why: str
) -> None:
    found = discover([point("bad", probe), point("good")])
    state = states(found)["bad"]
    assert isinstance(state, Failed)
    assert state.reason.startswith(why)
    assert states(found)["good"] == (DEVICE,)
    assert found[0].platform is None


def test_the_traceback_of_a_probe_is_kept(point: Callable[..., EntryPoint]) -> None:
    (found,) = discover([point("bad", raises)])
    assert isinstance(found.state, Failed)
    assert "in raises" in found.state.traceback


def test_a_probe_that_hangs_is_given_up(point: Callable[..., EntryPoint]) -> None:
    over = threading.Event()
    began = time.monotonic()
    found = discover(
        [point("a", over.wait), point("b", over.wait), point("good")], probe_seconds=0.2
    )
    assert time.monotonic() - began < 2
    late = Failed("its probe did not answer within 0.2 s")
    assert states(found) == {"a": late, "b": late, "good": (DEVICE,)}
    over.set()


def test_a_plugin_that_does_not_load_keeps_its_traceback(point: Callable[..., EntryPoint]) -> None:
    found = discover([EntryPoint("gone", "no_such_module:X", module.GROUP), point("good")])
    gone = states(found)["gone"]
    assert isinstance(gone, Failed)
    assert gone.reason == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "Traceback" in gone.traceback
    assert states(found)["good"] == (DEVICE,)


def test_a_plugin_for_another_contract_is_refused_with_what_to_upgrade(
    point: Callable[..., EntryPoint],
) -> None:
    other = f"and this core keeps {CONTRACT_VERSION}: upgrade"
    found = discover(
        [
            point("now", contract_version=CONTRACT_VERSION),
            point("later", contract_version=CONTRACT_VERSION + 1),
            point("older", contract_version=CONTRACT_VERSION - 2),
            point("odd", contract_version="one"),
        ]
    )
    assert states(found) == {
        "now": (DEVICE,),
        "later": Failed(f"it keeps contract {CONTRACT_VERSION + 1}, {other} allmetal"),
        "older": Failed(f"it keeps contract {CONTRACT_VERSION - 2}, {other} the plugin"),
        "odd": Failed(f"it keeps contract one, {other} the plugin"),
    }


def test_an_entry_point_that_makes_no_platform_is_reported(
    point: Callable[..., EntryPoint],
) -> None:
    targets = {"number": "math:floor", "text": "os:getcwd", "hollow": "types:SimpleNamespace"}
    found = discover([EntryPoint(n, t, module.GROUP) for n, t in targets.items()])
    assert all(isinstance(f.state, Failed) and f.platform is None for f in found), found


def test_a_platform_without_a_member_is_reported(point: Callable[..., EntryPoint]) -> None:
    members = {"name": "half", "contract_version": CONTRACT_VERSION, "probe": list}
    sys.modules["a_strangers_platform"].Half = lambda: types.SimpleNamespace(**members)  # type: ignore[attr-defined]
    (half,) = discover([EntryPoint("half", "a_strangers_platform:Half", module.GROUP)])
    assert half.state == Failed(
        f"it says that it keeps contract {CONTRACT_VERSION}, and has no capabilities, kernels, open"
    )


def test_a_name_belongs_to_one_plugin(point: Callable[..., EntryPoint]) -> None:
    first, second = discover([point("same"), point("same")])
    assert first.devices
    assert isinstance(second.state, Failed)
    assert "taken" in second.state.reason
    (lying,) = discover([point("mine", name="theirs")])
    assert isinstance(lying.state, Failed)
    assert "'theirs'" in lying.state.reason


def test_lists_leave_plugins_out(
    point: Callable[..., EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [point("a"), point("b"), point("c")]
    monkeypatch.setenv("ALLMETAL_PLATFORMS", "a,b")
    monkeypatch.setenv("ALLMETAL_PLATFORMS_DENY", "b")
    assert states(discover(points)) == {
        "a": (DEVICE,),
        "b": Denied("denied by ALLMETAL_PLATFORMS_DENY"),
        "c": Denied("not among ALLMETAL_PLATFORMS"),
    }


def test_lists_of_other_plugins_leave_platforms_alone(
    point: Callable[..., EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLMETAL_PLUGINS", "a_parser")
    monkeypatch.setenv("ALLMETAL_PLUGINS_DENY", "a")
    assert states(discover([point("a")])) == {"a": (DEVICE,)}


def test_only_what_is_asked_for_is_loaded(point: Callable[..., EntryPoint]) -> None:
    gone = EntryPoint("gone", "no_such_module:X", module.GROUP)
    assert ["a"] == [f.name for f in discover([point("a"), gone], only={"a"})]


def test_platforms_that_could_be_installed_are_named_by_the_metadata(
    point: Callable[..., EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    requires = [
        "numpy>=1.26",
        "allmetal-cpu==0.1.0; extra == 'cpu'",
        "allmetal-other @ file:///somewhere/other ; extra == 'other'",
        "allmetal[cpu] ; extra == 'demo'",
        "pytest ; extra == 'test'",
    ]
    metadata = types.SimpleNamespace(requires=requires)
    monkeypatch.setattr(module, "distribution", lambda name: metadata)
    found = discover([point("cpu")])
    assert states(found) == {
        "cpu": (DEVICE,),
        "other": NotInstalled('pip install "allmetal[other]"'),
    }


def test_the_installed_metadata_names_this_repositorys_platforms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    assert {"cpu", "cuda", "rocm", "xpu", "tpu", "ascend"} == set(module.known_platforms())
