"""The doctor finds each thing that can be wrong, and says what to type."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import pytest

from allmetal import __version__
from allmetal.platform import doctor
from allmetal.platform.contract import Absent, Broken, DeviceInfo
from allmetal.platform.discover import Denied, Failed, Found, NotInstalled, State, discover
from allmetal.platform.doctor import Finding, examine, healthy, render_findings
from allmetal.platform.hints import HardwareHint
from allmetal.platform.null import NullPlatform
from allmetal.plugins.manager import Plugin

HOST = DeviceInfo(index=0, name="host 1", total_memory=1, traits={"kind": "host"})


class Announced:
    """Plugins as they were found."""

    def __init__(self, *found: Plugin, hints: Sequence[HardwareHint] = ()) -> None:
        self.found, self.hints = found, list(hints)

    def models(self) -> dict[str, str]:
        return {}

    def hardware_hints(self) -> list[HardwareHint]:
        return self.hints


def look(*states: tuple[str, State], announced: Any = None) -> dict[str, Finding]:
    platforms = [
        Found(name=name, origin=f"{name} 1.0", state=state, platform=NullPlatform())
        for name, state in states
    ]
    return {f.subject: f for f in examine(platforms, announced or Announced())}


def test_a_sound_machine_is_healthy() -> None:
    findings = examine([*discover(only={"null"}), Found(name="h", origin="h 1", state=(HOST,))])
    assert healthy(findings), render_findings(findings)
    subjects = {f.subject: f for f in findings}
    assert subjects["allmetal"].message == __version__
    assert subjects["--platform auto"].message == "h"


def test_each_platforms_state_is_a_finding() -> None:
    found = look(
        ("host", (HOST,)),
        ("bad", Failed("ImportError: libx", "Traceback:\n  deep down")),
        ("shut", Broken("no driver")),
        ("away", Absent("none")),
        ("left", Denied("denied by X")),
        ("other", NotInstalled("pip install other")),
    )
    assert found["platform host"].level == "ok"
    bad = found["platform bad"]
    assert (bad.level, bad.detail) == ("error", "Traceback:\n  deep down")
    assert "ImportError: libx" in bad.message
    assert bad.hint.endswith("ALLMETAL_PLATFORMS_DENY=bad")
    assert (found["platform shut"].level, found["platform shut"].message) == ("error", "no driver")
    assert found["platform away"].level == found["platform left"].level == "note"
    assert found["platform other"].hint == "pip install other"


def test_hardware_without_a_plugin_is_an_error_with_what_to_install() -> None:
    hint = HardwareHint(platform="other", seen="a fast thing at slot 3")
    found = look(
        ("host", (HOST,)),
        ("other", NotInstalled('pip install "allmetal[other]"')),
        announced=Announced(hints=[hint]),
    )
    auto = found["--platform auto"]
    assert auto.level == "error"
    assert 'a fast thing at slot 3: pip install "allmetal[other]"' in auto.message
    assert not healthy(list(found.values()))


def test_a_broken_plugin_shows_its_traceback_and_a_denied_one_is_a_note() -> None:
    plugins = Announced(
        Plugin(name="a", origin="a 1", builtin=False, problem="TypeError: no", traceback="Trace"),
        Plugin(name="b", origin="b 1", builtin=False, problem="denied by X"),
        Plugin(name="c", origin="c 1", builtin=False, module=types),
    )
    found = look(("host", (HOST,)), announced=plugins)
    assert (found["plugin a"].level, found["plugin a"].detail) == ("error", "Trace")
    assert found["plugin b"].level == "note"
    assert found["plugin c"].level == "ok"


def test_versions_that_do_not_belong_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [
        types.SimpleNamespace(name="allmetal-metal", version="0.0.1"),
        types.SimpleNamespace(name="allmetal-same", version=__version__),
        types.SimpleNamespace(name="somebody-else", version="7"),
    ]
    monkeypatch.setattr(doctor, "distributions", lambda: others)
    found = look(("host", (HOST,)))
    assert found["allmetal-metal"].level == "warning"
    assert found["allmetal-metal"].hint == f"pip install allmetal-metal=={__version__}"
    assert "allmetal-same" not in found
    assert "somebody-else" not in found
    monkeypatch.setattr(doctor, "version", lambda name: "0.0.0")
    assert look(("host", (HOST,)))["allmetal"].level == "warning"


def test_no_torch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    found = look(("host", (HOST,)))
    assert found["torch"].level == "error"
    assert found["torch"].hint.startswith('pip install "allmetal[cpu]"')


def test_findings_are_shown_with_hints_and_tracebacks() -> None:
    findings = [
        Finding(level="ok", subject="one", message="fine"),
        Finding(level="error", subject="second", message="bad", hint="mend it", detail="a\nb\n"),
    ]
    assert render_findings(findings).splitlines() == [
        "ok       one     fine",
        "error    second  bad",
        "         hint: mend it",
        "         a",
        "         b",
    ]
