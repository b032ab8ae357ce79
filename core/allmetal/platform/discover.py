"""Find platforms by entry point, without letting a broken one stop the others."""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from typing import Any, TypeAlias

from allmetal.platform.adapters import adapt, remedy
from allmetal.platform.contract import Absent, Broken, DeviceInfo, Platform, Probe, Unsupported
from allmetal.plugins.manager import CORE, denied

GROUP = "allmetal.platforms"
PROBE_SECONDS = 20.0
"""A probe that takes longer is given up."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The plugin itself is at fault: it does not load, keep the contract, or answer in time.
    `hint` is what to type, where that is known."""

    reason: str
    traceback: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Denied:
    """The user's lists leave it out."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotInstalled:
    """Known by name only.  `install` is what to type."""

    install: str


State: TypeAlias = tuple[DeviceInfo, ...] | Absent | Broken | Failed | Denied | NotInstalled


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A platform by the name of its entry point.  `platform` is None unless it loaded."""

    name: str
    origin: str
    state: State
    platform: Platform | None = None

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Empty unless there are devices to use."""
        return self.state if isinstance(self.state, tuple) else ()

    @property
    def kind(self) -> str:
        """ "accelerator" or "host"; anything else is never chosen automatically."""
        return kind_of(self.devices[0]) if self.devices else ""


def kind_of(device: DeviceInfo) -> str:
    return device.traits.get("kind", "accelerator")


def discover(
    points: Iterable[EntryPoint] | None = None,
    *,
    only: Collection[str] | None = None,
    probe_seconds: float = PROBE_SECONDS,
) -> list[Found]:
    """Every platform that is installed, then those that could be, each with its state.

    `only` leaves the others unloaded.  All probes run at once.
    """
    if points is None:
        points = entry_points(group=GROUP)
    wanted = sorted((p for p in points if only is None or p.name in only), key=lambda p: p.name)
    loaded = [_load(point) for point in wanted]
    loaded = [_unique(found, loaded[:i]) for i, found in enumerate(loaded)]
    probed = _probe_all(loaded, probe_seconds)
    names = {found.name for found in probed}
    return probed + [
        Found(name=name, origin="", state=NotInstalled(install_command(name)))
        for name in known_platforms()
        if name not in names and (only is None or name in only)
    ]


def known_platforms() -> list[str]:
    """Platforms the core's own metadata names: each extra that pulls `allmetal-<extra>`."""
    try:
        requires = distribution(CORE).requires or []
    except PackageNotFoundError:
        return []
    pattern = re.compile(CORE + r"-([\w-]+).*extra\s*==\s*[\"']([\w-]+)[\"']", re.DOTALL)
    matches = (pattern.match(requirement) for requirement in requires)
    return sorted(m[1] for m in matches if m and m[1] == m[2])


def install_command(name: str) -> str:
    return f'pip install "{CORE}[{name}]"'


def _load(point: EntryPoint) -> Found:
    dist = point.dist
    origin = f"{dist.name} {dist.version}" if dist else point.value

    def found(state: State, platform: Platform | None = None) -> Found:
        return Found(name=point.name, origin=origin, state=state, platform=platform)

    if reason := denied("platforms", point.name, builtin=dist is not None and dist.name == CORE):
        return found(Denied(reason))
    try:
        made = point.load()()
        platform = adapt(made)
        name = "" if isinstance(platform, Unsupported) else platform.name
    except (Exception, SystemExit) as error:  # a stranger's import may do anything
        return found(Failed(f"{type(error).__name__}: {error}", traceback.format_exc()))
    if isinstance(platform, Unsupported):
        hint = remedy(made.contract_version, dist.name, CORE) if dist else ""
        return found(Failed(platform.reason, hint=hint))
    if name != point.name:
        return found(Failed(f"it calls itself {name!r} and its entry point {point.name!r}"))
    return found((), platform)


def _unique(found: Found, before: Sequence[Found]) -> Found:
    first = next((f for f in before if f.name == found.name), None)
    if first is None:
        return found
    taken = Failed(f"the name is taken by {first.origin}: uninstall one of them")
    return Found(name=found.name, origin=found.origin, state=taken)


def _probe_all(loaded: Sequence[Found], seconds: float) -> list[Found]:
    """Each probe in a daemon thread, which a hanging one cannot keep the process alive with."""
    answers: dict[int, State] = {}

    def work(index: int, platform: Platform) -> None:
        try:
            answers[index] = _checked(platform.probe())
        except BaseException as error:  # it was promised not to raise
            reason = f"its probe raised {type(error).__name__}: {error}"
            answers[index] = Failed(reason, traceback.format_exc())

    threads = [
        (index, threading.Thread(target=work, args=(index, found.platform), daemon=True))
        for index, found in enumerate(loaded)
        if found.platform is not None
    ]
    for _, thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    late = Failed(f"its probe did not answer within {seconds:g} s")
    probed = list(loaded)
    for index, thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        found, state = loaded[index], answers.get(index, late)
        platform = None if isinstance(state, Failed) else found.platform
        probed[index] = Found(name=found.name, origin=found.origin, state=state, platform=platform)
    return probed


def _checked(answer: Probe | Any) -> State:
    """A stranger's answer, or Failed where it is none."""
    if isinstance(answer, Absent | Broken):
        return answer
    if not isinstance(answer, list | tuple) or not all(isinstance(d, DeviceInfo) for d in answer):
        return Failed(f"its probe answered {answer!r}")
    if not answer:
        return Absent("its probe found no device and gave no reason")
    indices = [device.index for device in answer]
    if indices != list(range(len(indices))):
        return Failed(f"its probe numbers its devices {indices}")
    return tuple(answer)
