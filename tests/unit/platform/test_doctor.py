"""The doctor finds each thing that can be wrong, and says what to type."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from allmetal import __version__
from allmetal.platform.contract import Absent, Broken, DeviceInfo
from allmetal.platform.discover import Denied, Failed, Found, NotInstalled, State, discover
from allmetal.platform.doctor import Finding, examine, healthy, render_findings
from allmetal.platform.environment import Environment, TorchBuild, environment, read_build
from allmetal.platform.hints import HardwareHint, TorchNeed
from allmetal.platform.null import NullPlatform
from allmetal.plugins.manager import Plugin
from allmetal.testing.machine import write_files

HOST = DeviceInfo(index=0, name="host 1", total_memory=1, traits={"kind": "host"})


class Announced:
    """Plugins as they were found."""

    def __init__(
        self,
        *found: Plugin,
        hints: Sequence[HardwareHint] = (),
        needs: Sequence[TorchNeed] = (),
    ) -> None:
        self.found, self.hints, self.needs = found, list(hints), list(needs)

    def models(self) -> dict[str, str]:
        return {}

    def hardware_hints(self) -> list[HardwareHint]:
        return self.hints

    def torch_needs(self) -> list[TorchNeed]:
        return self.needs


def machine(**changes: Any) -> Environment:
    """A Python environment in which all is well, but for the changes."""
    sound: dict[str, Any] = {
        "python": "3.12.1",
        "code": __version__,
        "installed": {"allmetal": [__version__], "torch": ["2.13.0"]},
        "providers": {"torch": ["torch"], "triton": []},
        "torch": TorchBuild(version="2.13.0", built_for={"red": "13.0"}),
    }
    return Environment(**{**sound, **changes})


def findings(
    *states: tuple[str, State], announced: Any = None, python: Environment | None = None
) -> list[Finding]:
    platforms = [
        Found(name=name, origin=f"allmetal-{name} 1.0", state=state, platform=NullPlatform())
        for name, state in states or (("host", (HOST,)),)
    ]
    return examine(platforms, announced or Announced(), python or machine())


def look(*states: tuple[str, State], announced: Any = None) -> dict[str, Finding]:
    return {f.subject: f for f in findings(*states, announced=announced)}


def errors(*states: tuple[str, State], **rest: Any) -> list[Finding]:
    return [f for f in findings(*states, **rest) if f.level == "error"]


def test_a_sound_machine_is_healthy() -> None:
    made = examine([*discover(only={"null"}), Found(name="h", origin="h 1", state=(HOST,))])
    assert healthy(made), render_findings(made)
    subjects = {f.subject: f for f in made}
    assert subjects["allmetal"].message == __version__
    assert subjects["--platform auto"].message == "h"
    assert render_findings(made).endswith("nothing is wrong")
    assert healthy(findings())


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


def test_versions_that_do_not_belong_together_are_named() -> None:
    installed = {
        "allmetal": ["0.0.0"],
        "allmetal-metal": ["0.0.1"],
        "allmetal-same": [__version__],
        "somebody-else": ["7"],
    }
    made = findings(python=machine(installed=installed))
    found = {f.subject: f for f in made if f.level == "warning"}
    assert set(found) == {"allmetal", "allmetal-metal"}
    assert found["allmetal"].hint == "pip install --force-reinstall allmetal"
    assert found["allmetal-metal"].hint == f"pip install allmetal-metal=={__version__}"


def test_no_torch_is_an_error() -> None:
    (found,) = errors(python=machine(torch=None))
    assert found.subject == "torch"
    assert found.hint.startswith('pip install "allmetal[cpu]"')


RED = TorchNeed(platform="red", build="red", install="pip install torch --index-url red")
BLUE = TorchNeed(platform="blue", extension="torch-blue", install="pip install torch-blue")
CARD = DeviceInfo(index=0, name="Red Card", total_memory=1, traits={"kind": "accelerator"})


def test_a_torch_built_for_the_host_alone_is_wrong_for_a_card() -> None:
    host_only = machine(torch=TorchBuild(version="2.13.0+cpu"))
    (found,) = errors(("red", (CARD,)), announced=Announced(needs=[RED]), python=host_only)
    assert found.message == "2.13.0+cpu was built without red, which Red Card needs"
    assert found.hint == "pip install torch --index-url red"
    assert not errors(("red", (CARD,)), announced=Announced(needs=[RED]))


def test_a_card_whose_plugin_cannot_open_it_still_shows_the_wrong_torch() -> None:
    host_only = machine(torch=TorchBuild(version="2.13.0+cpu"))
    hint = HardwareHint(platform="red", seen="a red card at slot 3")
    announced = Announced(needs=[RED], hints=[hint])
    found = errors(("red", Broken("torch does not see it")), announced=announced, python=host_only)
    assert any("which a red card at slot 3 needs" in f.message for f in found)


def test_another_vendors_torch_is_wrong_for_a_card() -> None:
    blue = TorchBuild(version="2.13.0+blue7", built_for={"blue": "7"})
    (found,) = errors(
        ("red", (CARD,)), announced=Announced(needs=[RED]), python=machine(torch=blue)
    )
    assert "was built without red" in found.message


def test_a_card_that_torch_needs_an_extension_for_is_told_which() -> None:
    (found,) = errors(("blue", (CARD,)), announced=Announced(needs=[BLUE]))
    assert found.message == "has no extension torch-blue, which Red Card needs"
    assert found.hint == "pip install torch-blue"
    installed = {"allmetal": [__version__], "torch-blue": ["2.13"]}
    assert not errors(
        ("blue", (CARD,)), announced=Announced(needs=[BLUE]), python=machine(installed=installed)
    )


def test_an_extension_is_found_however_its_wheel_spells_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(
        tmp_path, {"Torch_Blue-2.13.dist-info/METADATA": "Name: Torch_Blue\nVersion: 2.13\n"}
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert environment().installed["torch-blue"] == ["2.13"]


def test_nobody_asks_for_a_torch_of_hardware_that_is_not_here() -> None:
    host_only = machine(torch=TorchBuild(version="2.13.0+cpu"))
    away = ("red", Absent("no card"))
    assert not errors(away, ("host", (HOST,)), announced=Announced(needs=[RED]), python=host_only)


def test_two_vendors_torch_over_each_other() -> None:
    both = {"torch": ["torch", "torch-red"], "triton": ["triton"]}
    installed = {"allmetal": [__version__], "torch": ["2.13.0"], "torch-red": ["2.12.0"]}
    (found,) = errors(python=machine(providers=both, installed=installed))
    assert found.message == "is installed 2 times, over each other, by torch, torch-red"
    assert found.hint == "pip uninstall --yes torch torch-red, then install one"
    twice = {"allmetal": [__version__], "torch": ["2.13.0", "2.12.0"]}
    (found,) = errors(python=machine(installed=twice))
    assert "is installed 2 times" in found.message


def test_extensions_of_two_vendors() -> None:
    backends = {"torch_red": "torch-red", "torch_blue": "torch-blue"}
    (found,) = errors(python=machine(torch_backends=backends))
    assert "torch_red of torch-red, torch_blue of torch-blue" in found.message
    assert found.hint == "pip uninstall torch-red or torch-blue"
    assert not errors(python=machine(torch_backends={"torch_red": "torch-red"}))


def test_a_torch_that_a_platform_does_not_take() -> None:
    wants = {"allmetal-red": ["allmetal==0.1.0", "torch<2.14,>=2.11", "torch-red>=9"]}
    for its in ("2.10.1", "2.14.0+cpu"):
        (found,) = errors(python=machine(requirements=wants, torch=TorchBuild(version=its)))
        assert found.message == f"is {its}, and allmetal-red wants torch<2.14,>=2.11"
        assert found.hint == 'pip install "torch<2.14,>=2.11"'
    for its in ("2.11.0", "2.13.5+cu1"):
        assert not errors(python=machine(requirements=wants, torch=TorchBuild(version=its)))


def test_a_driver_without_its_plugin() -> None:
    hint = HardwareHint(platform="red", seen="a red card at slot 3")
    install = 'pip install "allmetal[red]"'
    for state in ([("red", NotInstalled(install))], []):
        found = errors(("host", (HOST,)), *state, announced=Announced(hints=[hint]))
        hardware, auto = found
        assert hardware.subject == "hardware"
        assert hardware.message == "a red card at slot 3 is here, and no plugin for red"
        assert hardware.hint == install
        assert auto.subject == "--platform auto"


def test_a_plugin_for_another_contract_says_what_to_upgrade() -> None:
    for contract, upgrade in ((7, "allmetal"), (-3, "allmetal-red")):

        class Red(NullPlatform):
            contract_version = contract

        made = discover([Point(Red)])
        (found,) = [f for f in examine(made, Announced(), machine()) if f.subject == "platform red"]
        assert found.level == "error"
        assert f"it keeps contract {contract}" in found.message
        assert found.hint.startswith(f"pip install --upgrade {upgrade}, or leave it out")


class Point:
    """An entry point of a distribution that is not there."""

    name, value = "red", "allmetal_red:Red"

    class dist:
        name, version = "allmetal-red", "1.0"

    def __init__(self, made: type[NullPlatform]) -> None:
        self._made = made

    def load(self) -> type[NullPlatform]:
        return self._made


def test_platforms_between_which_nobody_chose() -> None:
    (found,) = errors(("red", (CARD,)), ("blue", (CARD,)))
    assert found.subject == "--platform auto"
    assert "ambiguous" in found.message
    assert found.hint == "--platform red or --platform blue"


def test_torchs_own_word_on_its_build_is_read(tmp_path: Path) -> None:
    file = tmp_path / "version.py"
    file.write_text(
        "from typing import Optional\n\n__version__ = '2.13.0+red13'\ndebug = False\n"
        "red: Optional[str] = '13.0'\ngit_version = 'abc'\nblue: Optional[str] = None\n"
    )
    assert read_build(file) == TorchBuild(version="2.13.0+red13", built_for={"red": "13.0"})
    assert read_build(tmp_path / "none.py") is None


def test_this_environment_is_read_without_importing_torch() -> None:
    code = (
        "import sys\nfrom allmetal.platform.environment import environment\n"
        "made = environment()\nassert 'torch' not in sys.modules\n"
        "print(made.torch.version, made.providers['torch'])"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert version("torch").split("+")[0] in done.stdout
    assert "['torch']" in done.stdout


def test_findings_are_shown_with_hints_and_tracebacks() -> None:
    some = [
        Finding(level="ok", subject="one", message="fine"),
        Finding(level="error", subject="second", message="bad", hint="mend it", detail="a\nb\n"),
    ]
    assert render_findings(some).splitlines() == [
        "ok       one     fine",
        "error    second  bad",
        "         hint: mend it",
        "         a",
        "         b",
        "",
        "1 error",
    ]
