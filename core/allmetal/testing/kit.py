"""Run the conformance kit from a program, and keep what came of each test."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from allmetal.platform.contract import DeviceInfo, Platform
from allmetal.platform.features import features_of
from allmetal.platform.specs import FAMILIES

PLATFORM: pytest.StashKey[Platform] = pytest.StashKey()
DEVICE: pytest.StashKey[DeviceInfo] = pytest.StashKey()
LEVELS = (0, 1, 2, 3)
COVERS = "allmetal_covers"
"""The attribute of a test function that names features it is evidence for."""
_FILE = Path(__file__).with_name("installed.py")
_CLASS = "Conformance"

Outcome: TypeAlias = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One test.  `case` is its parameter, `reason` why it failed or was skipped in a line."""

    test: str
    case: str
    level: int
    family: str
    features: tuple[str, ...]
    outcome: Outcome
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KitRun:
    results: tuple[Result, ...]
    seconds: float
    problem: str = ""
    """Why no test was run, if so."""
    is_empty: bool = False
    """There was no test to run."""

    def failed(self) -> list[Result]:
        return [result for result in self.results if result.outcome == "failed"]

    @property
    def green(self) -> bool:
        """Nothing failed, and something was tested."""
        passed = any(result.outcome == "passed" for result in self.results)
        return not self.problem and passed and not self.failed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Every `of`-th test, from `number` on."""

    number: int = 0
    of: int = 1


def run_kit(
    platform: Platform,
    *,
    levels: Collection[int] = LEVELS,
    select: str = "",
    device: DeviceInfo | None = None,
    options: Sequence[str] = ("-q",),
    part: Part = Part(),
) -> KitRun:
    """Every test of `levels` that `select`, an expression of pytest's -k, leaves, and `part` of
    them.  `device`: the first unless another of the probe's is given."""
    recorder = _Recorder(platform, levels, part, device)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "pytest.ini"
        settings.write_text("[pytest]\n")
        # Nothing of the place where the user stands: no settings, conftest or cache of theirs.
        alone = ["-c", str(settings), f"--rootdir={folder}", "--noconftest"]
        alone += ["-p", "no:cacheprovider", "--import-mode=importlib"]
        words = [str(_FILE), *alone, *(["-k", select] if select else []), *options]
        code = pytest.main(words, plugins=[recorder])
    empty = code == pytest.ExitCode.NO_TESTS_COLLECTED
    wrong = code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    return KitRun(
        results=tuple(recorder.results),
        seconds=time.monotonic() - began,
        problem=f"pytest ended with {pytest.ExitCode(code).name}" if wrong else "",
        is_empty=empty,
    )


@dataclass(slots=True)
class _Recorder:
    """A pytest plugin: hands the platform in, keeps the results."""

    platform: Platform
    levels: Collection[int]
    part: Part
    device: DeviceInfo | None = None
    results: list[Result] = field(default_factory=list)
    _about: dict[str, dict[str, Any]] = field(default_factory=dict)
    _spent: dict[str, float] = field(default_factory=dict)

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[PLATFORM] = self.platform
        if self.device is not None:
            config.stash[DEVICE] = self.device

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept: list[pytest.Item] = []
        others: list[pytest.Item] = []
        for item in items:
            about = _about(item)
            self._about[item.nodeid] = about
            (kept if about["level"] in self.levels else others).append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=others)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        # After -k has taken its own, so that the parts are of one size.
        session.items[:] = session.items[self.part.number :: self.part.of]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self._spent[name] = self._spent.get(name, 0.0) + report.duration
        failed = report.failed and report.when != "call"
        if report.when != "call" and not failed and not report.skipped:
            return
        self.results.append(
            Result(
                **self._about[name],
                outcome=_outcome(report),
                reason=_reason(report),
                seconds=round(self._spent[name], 3),
            )
        )


def _about(item: pytest.Item) -> dict[str, Any]:
    """What a test is about: its level, its op family and the features it is evidence for."""
    assert isinstance(item, pytest.Function)
    test = item.originalname
    holders = [base for base in item.cls.__mro__ if test in vars(base)] if item.cls else []
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec else {}
    spec = params.get("spec")
    kind = params.get("kind")
    features = [*getattr(item.function, COVERS, ()), *getattr(kind, "features", ())]
    return {
        "test": test,
        "case": callspec.id if callspec else "",
        "level": min((getattr(base, "level", 0) for base in holders[-1:]), default=0),
        "family": getattr(spec, "family", "") or _family(test),
        "features": (*features, *(features_of(spec) if spec is not None else ())),
    }


def _family(test: str) -> str:
    """Of a test without a spec in its parameters, from its name."""
    words = test.removeprefix("test_")
    return next((f for f in sorted(FAMILIES, key=len, reverse=True) if words.startswith(f)), "")


def _outcome(report: pytest.TestReport) -> Outcome:
    if hasattr(report, "wasxfail"):  # what is known to be wrong is wrong
        return "failed"
    return report.outcome


def _reason(report: pytest.TestReport) -> str:
    if report.passed:
        return ""
    if known := getattr(report, "wasxfail", ""):
        return str(known)
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):
        text = str(longrepr[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(longrepr, "reprcrash", None)
        text = crash.message if crash else str(longrepr)
    return text.splitlines()[0] if text else ""
