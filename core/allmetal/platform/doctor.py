"""What is missing or broken on this machine, as findings with something to type."""

from __future__ import annotations

import platform as python_platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from typing import Literal, TypeAlias

from allmetal.errors import AllmetalError
from allmetal.platform.contract import Absent, Broken
from allmetal.platform.discover import Denied, Failed, Found, NotInstalled, discover
from allmetal.platform.hints import HardwareHint
from allmetal.platform.pick import select_platform, troubles, why_not
from allmetal.plugins.manager import CORE, Plugins, plugins

Level: TypeAlias = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`subject` is what was looked at, `detail` a traceback where there is one."""

    level: Level
    subject: str
    message: str
    hint: str = ""
    detail: str = ""


def examine(
    found: Sequence[Found] | None = None, announced: Plugins | None = None
) -> list[Finding]:
    """Look at everything; the worst does not hide the rest."""
    found = discover() if found is None else found
    announced = plugins() if announced is None else announced
    hints = announced.hardware_hints()
    announced.models()  # asks, so that a plugin that raises is found out
    return [
        *_versions(),
        *_torch(),
        *(_platform(f) for f in found),
        *_plugins(announced),
        *_choice(found, hints),
    ]


def render_findings(findings: Sequence[Finding]) -> str:
    """One line each, hints and tracebacks below."""
    width = max((len(f.subject) for f in findings), default=0)
    lines = []
    for f in findings:
        lines.append(f"{f.level:7}  {f.subject:{width}}  {f.message}".rstrip())
        lines += [f"{'':9}hint: {f.hint}"] * bool(f.hint)
        lines += [f"{'':9}{line}" for line in f.detail.rstrip().splitlines()]
    return "\n".join(lines)


def healthy(findings: Sequence[Finding]) -> bool:
    return all(f.level != "error" for f in findings)


def _versions() -> Iterator[Finding]:
    """allmetal's own distributions belong together; so do code and metadata."""
    from allmetal import __version__

    yield Finding(level="ok", subject="python", message=python_platform.python_version())
    try:
        core = version(CORE)
    except PackageNotFoundError:
        core = ""
    if core != __version__:
        yield Finding(
            level="warning",
            subject=CORE,
            message=f"the code is {__version__}, its metadata says {core or 'nothing'}",
            hint=f"pip install --force-reinstall {CORE}",
        )
    else:
        yield Finding(level="ok", subject=CORE, message=core)
    names = {d.name: d.version for d in distributions() if (d.name or "").startswith(f"{CORE}-")}
    for name, its in sorted(names.items()):
        if its != __version__:
            yield Finding(
                level="warning",
                subject=name,
                message=f"is {its}, and {CORE} is {__version__}: they belong together",
                hint=f"pip install {name}=={__version__}",
            )


def _torch() -> Iterator[Finding]:
    if find_spec("torch") is None:
        yield Finding(
            level="error",
            subject="torch",
            message="is not installed, and every platform computes with it",
            hint=f'pip install "{CORE}[cpu]", or the extra of your hardware',
        )
    else:
        yield Finding(level="ok", subject="torch", message=version("torch"))


def _platform(found: Found) -> Finding:
    subject, reason = f"platform {found.name}", why_not(found)
    match found.state:
        case tuple():
            names = ", ".join(d.name for d in found.devices)
            return Finding(level="ok", subject=subject, message=f"{found.origin}: {names}")
        case Failed(traceback=trace):
            hint = f"reinstall it, or leave it out: ALLMETAL_PLATFORMS_DENY={found.name}"
            return Finding(level="error", subject=subject, message=reason, hint=hint, detail=trace)
        case Broken():
            return Finding(level="error", subject=subject, message=reason)
        case NotInstalled(install):
            return Finding(level="note", subject=subject, message=reason, hint=install)
        case Absent() | Denied():
            return Finding(level="note", subject=subject, message=reason)


def _plugins(announced: Plugins) -> Iterator[Finding]:
    for plugin in announced.found:
        subject = f"plugin {plugin.name}"
        if not plugin.problem:
            yield Finding(level="ok", subject=subject, message=plugin.origin)
            continue
        left_out = plugin.module is None
        yield Finding(
            level="error" if left_out and plugin.traceback else "note",
            subject=subject,
            message=f"{plugin.origin}: {plugin.problem}",
            detail=plugin.traceback,
        )


def _choice(found: Sequence[Found], hints: Sequence[HardwareHint]) -> Iterator[Finding]:
    """What --platform auto comes to, and hardware it would leave idle."""
    subject = "--platform auto"
    try:
        chosen = select_platform("auto", found, hints)
    except AllmetalError as error:
        yield Finding(level="error", subject=subject, message=error.message, hint=error.hint or "")
        return
    yield Finding(level="ok", subject=subject, message=chosen.name)
    for trouble in troubles(found, hints):
        yield Finding(level="warning", subject=subject, message=f"leaves idle: {trouble}")
