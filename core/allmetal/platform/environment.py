"""The Python environment as its metadata tells it: nothing is imported to find out."""

from __future__ import annotations

import platform as python_platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions, entry_points
from importlib.util import find_spec
from pathlib import Path

from allmetal.plugins.manager import CORE

_WATCHED = ("torch", "triton")
"""Import packages that several distributions bring, each for its own hardware."""
_BACKENDS = "torch.backends"
"""The entry point group by which torch loads extensions for devices it does not know."""
_NOT_BUILDS = ("__version__", "git_version", "debug")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """`built_for`: the toolkits it was built with, by torch's own names -> their versions."""

    version: str
    built_for: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """`installed`: distribution, in lower case with hyphens -> its versions (one, if all is well).
    `providers`: import package -> the distributions that bring it.  `torch_backends`: extension ->
    distribution.  `requirements`: distribution of ours -> what it requires."""

    python: str
    code: str
    installed: Mapping[str, Sequence[str]]
    providers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    torch: TorchBuild | None = None
    torch_backends: Mapping[str, str] = field(default_factory=dict)
    requirements: Mapping[str, Sequence[str]] = field(default_factory=dict)


def environment() -> Environment:
    """Of this process."""
    from allmetal import __version__

    installed: dict[str, list[str]] = {}
    providers: dict[str, list[str]] = {name: [] for name in _WATCHED}
    requirements: dict[str, list[str]] = {}
    for distribution in distributions():
        name = _canonical(distribution.metadata["Name"] or "")
        if name not in installed or distribution.version not in installed[name]:
            installed.setdefault(name, []).append(distribution.version)
        if name.startswith(f"{CORE}-"):
            requirements[name] = list(distribution.requires or ())
        for package in _WATCHED:
            if _brings(distribution, package):
                providers[package].append(name)
    return Environment(
        python=python_platform.python_version(),
        code=__version__,
        installed=installed,
        providers=providers,
        torch=torch_build(),
        torch_backends={
            point.name: point.dist.name if point.dist else point.value
            for point in entry_points(group=_BACKENDS)
        },
        requirements=requirements,
    )


def _canonical(name: str) -> str:
    """As users type it: wheels write underscores into their metadata.  Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _brings(distribution: Distribution, package: str) -> bool:
    """Whether it installs `package`.  The list of a large distribution's files is long: its own
    summary of top-level names is asked first."""
    if names := distribution.read_text("top_level.txt"):
        return package in names.split()
    return any(file.parts[:2] == (package, "__init__.py") for file in distribution.files or ())


def torch_build() -> TorchBuild | None:
    """Of the torch that would be imported; None where there is none."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return read_build(Path(spec.origin).with_name("version.py"))


def read_build(file: Path) -> TorchBuild | None:
    """From torch's version.py, whose lines say `name: Optional[str] = 'value'` or None."""
    try:
        text = file.read_text()
    except OSError:
        return None
    said = dict(re.findall(r"^(\w+)\s*(?::[^=\n]*)?=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE))
    return TorchBuild(
        version=said.get("__version__", ""),
        built_for={name: value for name, value in said.items() if name not in _NOT_BUILDS},
    )


def unmet(requirement: str, version: str) -> bool:
    """Whether `version` lies outside `name>=a,<b`.  What is not understood is met."""
    for operator, wanted in re.findall(r"(>=|<=|==|<|>)\s*([\d.]+)", requirement.split(";")[0]):
        have, bound = _release(version), _release(wanted)
        if not {
            ">=": have >= bound,
            "<=": have <= bound,
            "==": have == bound,
            "<": have < bound,
            ">": have > bound,
        }[operator]:
            return True
    return False


def _release(version: str) -> tuple[int, ...]:
    """2.13.0+x -> (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    return tuple([*numbers, 0, 0, 0][:3])
