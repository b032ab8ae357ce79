"""Which platform to run on, from what was found.  Nothing is silently replaced by the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from allmetal.errors import AllmetalError, ConfigError, PlatformError
from allmetal.platform.contract import Absent, Broken, DeviceInfo
from allmetal.platform.discover import (
    Denied,
    Failed,
    Found,
    NotInstalled,
    install_command,
)
from allmetal.platform.hints import HardwareHint


def select_platform(
    asked: str, found: Sequence[Found], hints: Sequence[HardwareHint] = ()
) -> Found:
    """The platform called `asked`; for "auto" the one accelerator with a device, else the host.

    Raises ConfigError when the choice is ambiguous or the name unknown, PlatformError when the
    platform cannot be used, or when the host would stand in for hardware whose platform does not
    work: hardware that was seen, or that of a broken plugin, which cannot be asked.
    """
    if asked != "auto":
        return _named(asked, found)
    accelerators = [f for f in found if f.kind == "accelerator"]
    if len(accelerators) > 1:
        raise _ambiguous(accelerators)
    if accelerators:
        return accelerators[0]
    hosts = [f for f in found if f.kind == "host"]
    if wrong := troubles(found, hints):
        raise _not_the_host("hardware was seen that cannot be used", wrong, hosts)
    broken = [f"{f.name}: {why_not(f)}" for f in found if isinstance(f.state, Failed)]
    if broken:
        what = "a platform is installed and broken, and its hardware may be here"
        raise _not_the_host(what, broken, hosts)
    if len(hosts) > 1:
        raise _ambiguous(hosts)
    if not hosts:
        raise _nothing(found)
    return hosts[0]


def select_device(found: Found, index: int) -> DeviceInfo:
    if not 0 <= index < len(found.devices):
        there = ", ".join(f"{d.index} ({d.name})" for d in found.devices)
        raise ConfigError(
            f"{found.name} has no device {index}", hint=f"--device is one of: {there}"
        )
    return found.devices[index]


def troubles(found: Sequence[Found], hints: Sequence[HardwareHint] = ()) -> list[str]:
    """Hardware that was seen and has no working platform, one line each, with what to do."""
    states = {f.name: f.state for f in found}
    lines = [f"{f.name}: {f.state.reason}" for f in found if isinstance(f.state, Broken)]
    for hint in hints:
        name = hint.platform
        match states.get(name):
            case NotInstalled(install):
                lines.append(f"{hint.seen}: {install}")
            case Failed(reason):
                lines.append(f"{hint.seen}, but the plugin {name} is broken: {reason}")
            case None:
                lines.append(f"{hint.seen}: {install_command(name)}")
            case Absent() | Broken() | Denied() | tuple():
                # The plugin knows better, has spoken already, or the user wants to do without.
                continue
            case other:
                assert_never(other)
    return lines


def why_not(found: Found) -> str:
    """Why a platform cannot be used; "" if it can."""
    match found.state:
        case tuple():
            return ""
        case NotInstalled():
            return "it is not installed"
        case Failed(reason):
            return f"its plugin ({found.origin}) is broken: {reason}"
        case Absent(reason) | Broken(reason) | Denied(reason):
            return reason
        case other:
            assert_never(other)


def _named(name: str, found: Sequence[Found]) -> Found:
    named = next((f for f in found if f.name == name), None)
    if named is None:
        raise ConfigError(
            f"no platform is called {name!r}",
            hint=f"there are: {', '.join(dict.fromkeys(f.name for f in found)) or 'none'}",
        )
    if reason := why_not(named):
        raise PlatformError(f"platform {name} cannot be used: {reason}", hint=_remedy(named))
    return named


def _remedy(found: Found) -> str | None:
    match found.state:
        case NotInstalled(install):
            return install
        case Failed():
            return "allmetal doctor shows its traceback"
        case Absent():
            return f"allmetal matrix --platform {found.name} says what it would do with a device"
        case _:
            return None


def _not_the_host(what: str, wrong: Sequence[str], hosts: Sequence[Found]) -> AllmetalError:
    lines = "".join(f"\n  {line}" for line in wrong)
    hint = f"mend it, or say --platform {hosts[0].name}" if hosts else None
    return PlatformError(f"{what}:{lines}", hint=hint)


def _ambiguous(candidates: Sequence[Found]) -> AllmetalError:
    names = [f.name for f in candidates]
    what = ", ".join(f"{f.name} ({f.devices[0].name})" for f in candidates)
    return ConfigError(
        f"the platform is ambiguous: {what} all have devices",
        hint=" or ".join(f"--platform {name}" for name in names),
    )


def _nothing(found: Sequence[Found]) -> AllmetalError:
    lines = "".join(f"\n  {f.name}: {why_not(f)}" for f in found if not f.devices)
    installs = [f.state.install for f in found if isinstance(f.state, NotInstalled)]
    return PlatformError(
        f"no platform has a device here{lines}",
        hint=" or ".join(installs) if installs else None,
    )
