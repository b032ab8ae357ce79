"""Virtual environments that hold the running one's third parties and nothing of ours.

Third parties are linked in, package and metadata, so that pip finds them installed and resolves
against their versions; what is ours is built and installed.  Making one takes a second.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, timeout: float = 300) -> str:
    """Standard output.  A command that fails fails the test with all that it printed."""
    done = subprocess.run(
        command, cwd=cwd, env=environment(), text=True, capture_output=True, timeout=timeout
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def environment() -> dict[str, str]:
    """The caller's, less what would let the caller's packages through or go to an index."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_"))
    }
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@dataclass(frozen=True, slots=True)
class Venv:
    """A fresh environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def site_packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, *wheels: Path) -> None:
        """As `pip install` does, without an index."""
        pip = (sys.executable, "-m", "pip", "--python", self.python)
        run(*pip, "install", "--quiet", "--no-index", *wheels, cwd=self.folder)

    def install_from_index(self, *requirements: str) -> None:
        """With the caller's settings of pip."""
        pip = (sys.executable, "-m", "pip", "--python", str(self.python))
        subprocess.run([*pip, "install", "--quiet", *requirements], check=True, timeout=300)

    def run(self, *arguments: str | Path) -> str:
        """`python ARGUMENTS` there."""
        return run(self.python, *arguments, cwd=self.folder)

    def allmetal(self, *arguments: str | Path) -> str:
        return run(self.folder / "bin/allmetal", *arguments, cwd=self.folder)

    def refused(self, *arguments: str | Path) -> str:
        """Standard error of an `allmetal` that fails, having written nothing else."""
        done = subprocess.run(
            [self.folder / "bin/allmetal", *arguments],
            cwd=self.folder,
            env=environment(),
            text=True,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode in (1, 2), done
        assert done.stdout == ""
        return done.stderr


def make_venv(folder: Path, *third_parties: str) -> Venv:
    """With these distributions, all they need, and what the core needs."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    venv = Venv(folder)
    needed: dict[str, Distribution] = {}
    for name in (*third_parties, *_requirements("allmetal")):
        _collect(name, needed)
    for found in needed.values():
        _link(found, venv.site_packages)
    return venv


def build_wheel(source: Path, into: Path) -> Path:
    """With the build tools of the running environment."""
    into.mkdir()
    run(
        sys.executable,
        *("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--wheel-dir", into, source),
        cwd=into,
    )
    (wheel,) = into.glob("*.whl")
    return wheel


def _collect(name: str, needed: dict[str, Distribution]) -> None:
    name = canonicalize_name(name)
    if name in needed:
        return
    try:
        needed[name] = distribution(name)
    except PackageNotFoundError:
        return  # pip says so if it is missed
    for other in _requirements(name):
        _collect(other, needed)


@cache
def _requirements(name: str) -> tuple[str, ...]:
    found = map(Requirement, distribution(name).requires or [])
    return tuple(r.name for r in found if not r.marker or r.marker.evaluate({"extra": ""}))


def _link(found: Distribution, site_packages: Path) -> None:
    for name in sorted(set(_top_names(found))):
        target = site_packages / name
        if not target.exists():
            target.symlink_to(Path(str(found.locate_file(name))))


def _top_names(found: Distribution) -> Iterator[str]:
    for path in found.files or []:
        if path.parts[0] not in ("..", "__pycache__"):
            yield path.parts[0]
