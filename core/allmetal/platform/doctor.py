"""What is missing or broken on this machine, as findings with something to type."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from allmetal.errors import AllmetalError
from allmetal.platform.contract import Absent, Broken
from allmetal.platform.discover import (
    Denied,
    Failed,
    Found,
    NotInstalled,
    discover,
    install_command,
)
from allmetal.platform.environment import Environment, TorchBuild, environment, unmet
from allmetal.platform.hints import HardwareHint, TorchNeed
from allmetal.platform.pick import select_platform, troubles, why_not
from allmetal.plugins.manager import CORE, Plugins, plugins

Level: TypeAlias = Literal["ok", "note", "warning", "error"]
_BAD: tuple[Level, ...] = ("error", "warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`subject` is what was looked at, `detail` a traceback where there is one."""

    level: Level
    subject: str
    message: str
    hint: str = ""
    detail: str = ""


def examine(
    found: Sequence[Found] | None = None,
    announced: Plugins | None = None,
    python: Environment | None = None,
) -> list[Finding]:
    """Look at everything; the worst does not hide the rest."""
    found = discover() if found is None else found
    announced = plugins() if announced is None else announced
    python = environment() if python is None else python
    hints = announced.hardware_hints()
    announced.models()  # asks, so that a plugin that raises is found out
    return [
        *_versions(python),
        *_torch(python),
        *_built_for(python, found, hints, announced.torch_needs()),
        *(_platform(f) for f in found),
        *_hardware(found, hints),
        *_plugins(announced),
        *_choice(found, hints),
    ]


def render_findings(findings: Sequence[Finding]) -> str:
    """One line each, hints and tracebacks below."""
    width = max((len(f.subject) for f in findings), default=0)
    lines: list[str] = []
    for f in findings:
        lines.append(f"{f.level:7}  {f.subject:{width}}  {f.message}".rstrip())
        lines += [f"{'':9}hint: {f.hint}"] * bool(f.hint)
        lines += [f"{'':9}{line}" for line in f.detail.rstrip().splitlines()]
    counts = Counter(f.level for f in findings)
    said = [f"{n} {level}{'s' * (n > 1)}" for level in _BAD if (n := counts[level])]
    return "\n".join([*lines, "", ", ".join(said) or "nothing is wrong"])


def healthy(findings: Sequence[Finding]) -> bool:
    return all(f.level != "error" for f in findings)


def _versions(python: Environment) -> Iterator[Finding]:
    """allmetal's own distributions belong together; so do code and metadata."""
    yield Finding(level="ok", subject="python", message=python.python)
    core = ", ".join(python.installed.get(CORE, ()))
    if core == python.code:
        yield Finding(level="ok", subject=CORE, message=core)
    else:
        yield Finding(
            level="warning",
            subject=CORE,
            message=f"the code is {python.code}, its metadata says {core or 'nothing'}",
            hint=f"pip install --force-reinstall {CORE}",
        )
    for name, versions in sorted(python.installed.items()):
        its = ", ".join(versions)
        if name.startswith(f"{CORE}-") and its != python.code:
            yield Finding(
                level="warning",
                subject=name,
                message=f"is {its}, and {CORE} is {python.code}: they belong together",
                hint=f"pip install {name}=={python.code}",
            )


def _torch(python: Environment) -> Iterator[Finding]:
    """There is one, of a version that the platforms take, and nobody else's lies over it."""
    if python.torch is None:
        yield Finding(
            level="error",
            subject="torch",
            message="is not installed, and every platform computes with it",
            hint=f'pip install "{CORE}[cpu]", or the extra of your hardware',
        )
        return
    build = ", ".join(f"{name} {version}" for name, version in python.torch.built_for.items())
    built = f"{python.torch.version}, built for {build or 'the host alone'}"
    yield Finding(level="ok", subject="torch", message=built)
    for package, owners in python.providers.items():
        versions = [v for owner in owners for v in python.installed.get(owner, ("?",))]
        if len(versions) > 1:
            both = ", ".join(dict.fromkeys(owners))
            yield Finding(
                level="error",
                subject=package,
                message=f"is installed {len(versions)} times, over each other, by {both}",
                hint=f"pip uninstall --yes {' '.join(dict.fromkeys(owners))}, then install one",
            )
    if len(python.torch_backends) > 1:
        names = ", ".join(f"{name} of {d}" for name, d in python.torch_backends.items())
        yield Finding(
            level="error",
            subject="torch",
            message=f"loads extensions of several vendors, of which one may break another: {names}",
            hint=f"pip uninstall {' or '.join(dict.fromkeys(python.torch_backends.values()))}",
        )
    yield from _unmet(python, python.torch)


def _unmet(python: Environment, torch: TorchBuild) -> Iterator[Finding]:
    for name, requirements in python.requirements.items():
        for requirement in requirements:
            if re.match(r"torch\b(?!-)", requirement) and unmet(requirement, torch.version):
                yield Finding(
                    level="error",
                    subject="torch",
                    message=f"is {torch.version}, and {name} wants {requirement}",
                    hint=f'pip install "{requirement}"',
                )


def _built_for(
    python: Environment,
    found: Sequence[Found],
    hints: Sequence[HardwareHint],
    needs: Sequence[TorchNeed],
) -> Iterator[Finding]:
    """Hardware is here that this torch was not built for."""
    seen = {hint.platform: hint.seen for hint in hints}
    seen |= {f.name: f.devices[0].name for f in found if f.devices}
    installed = {f.name for f in found if not isinstance(f.state, NotInstalled)}
    for need in needs:
        if need.platform not in seen or need.platform not in installed or python.torch is None:
            continue
        lacks = ""
        if need.build and need.build not in python.torch.built_for:
            lacks = f"{python.torch.version} was built without {need.build}"
        elif need.extension and need.extension not in python.installed:
            lacks = f"has no extension {need.extension}"
        if lacks:
            yield Finding(
                level="error",
                subject="torch",
                message=f"{lacks}, which {seen[need.platform]} needs",
                hint=need.install,
            )


def _platform(found: Found) -> Finding:
    subject, reason = f"platform {found.name}", why_not(found)
    match found.state:
        case tuple():
            names = ", ".join(d.name for d in found.devices)
            return Finding(level="ok", subject=subject, message=f"{found.origin}: {names}")
        case Failed(traceback=trace, hint=remedy):
            leave = f"leave it out: ALLMETAL_PLATFORMS_DENY={found.name}"
            hint = f"{remedy or 'reinstall it'}, or {leave}"
            return Finding(level="error", subject=subject, message=reason, hint=hint, detail=trace)
        case Broken():
            return Finding(level="error", subject=subject, message=reason)
        case NotInstalled(install):
            return Finding(level="note", subject=subject, message=reason, hint=install)
        case Absent() | Denied():
            return Finding(level="note", subject=subject, message=reason)


def _hardware(found: Sequence[Found], hints: Sequence[HardwareHint]) -> Iterator[Finding]:
    """A device that can be seen, and no plugin that drives it."""
    states = {f.name: f.state for f in found}
    for hint in hints:
        state = states.get(hint.platform)
        if state is None or isinstance(state, NotInstalled):
            yield Finding(
                level="error",
                subject="hardware",
                message=f"{hint.seen} is here, and no plugin for {hint.platform}",
                hint=state.install if state else install_command(hint.platform),
            )


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
