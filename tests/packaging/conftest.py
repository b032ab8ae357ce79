"""Fresh environments, a fresh checkout and a wheel house, each made once a session.

What is real here: pip, virtual environments, builds and every dependency but one. torch is not
installed again, which would cost hundreds of megabytes an environment; the running one is linked
in, package and metadata, so that pip finds it installed and resolves against its version and its
dependencies as usual.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PLATFORMS = sorted(path.parent.name for path in ROOT.glob("platforms/*/pyproject.toml"))


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Standard output.  A command that fails fails the test with all that it printed."""
    done = subprocess.run(command, cwd=cwd, env=env, text=True, capture_output=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def environment() -> dict[str, str]:
    """The caller's, less what would let the caller's packages through."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}


def offline() -> dict[str, str]:
    """The same without any of pip's settings: no index, no mirror, no local folder of wheels."""
    kept = {k: v for k, v in environment().items() if not k.startswith("PIP_")}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment of its own, in which only torch was there before."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def install(self, *arguments: str | Path, cwd: Path, index: bool = True) -> None:
        flags = () if index else ("--no-index",)
        run(
            self.bin / "python",
            *("-m", "pip", "install", "--quiet", "--no-compile", *flags, *arguments),
            cwd=cwd,
            env=environment() if index else offline(),
        )

    def python(self, code: str) -> str:
        return run(self.bin / "python", "-c", code, cwd=self.folder, env=environment()).strip()

    def allmetal(self, *arguments: str) -> str:
        return run(self.bin / "allmetal", *arguments, cwd=self.folder, env=environment()).strip()


def link_torch(site_packages: Path) -> None:
    torch = distribution("torch")
    names = {path.parts[0] for path in torch.files or [] if path.parts[0] != ".."}
    for name in sorted(names):
        (site_packages / name).symlink_to(Path(str(torch.locate_file(name))))


@pytest.fixture
def fresh(tmp_path: Path) -> Environment:
    folder = tmp_path / "venv"
    run(sys.executable, "-m", "venv", folder, cwd=tmp_path, env=environment())
    link_torch(next(folder.glob("lib/python*/site-packages")))
    return Environment(folder)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a clone would hold if the work tree were committed as it is."""
    listed = run(
        "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT
    ).split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():  # a deleted file is still listed
            (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "clone" / name)
    return tmp_path / "clone"


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of everything that `allmetal[cpu]` and its building need, torch aside."""
    folder = tmp_path_factory.mktemp("house")
    for source in (ROOT, *(ROOT / "platforms" / name for name in PLATFORMS)):
        # hatchling is in the running environment; anything else is fetched for the build alone.
        quicker = ["--no-isolation"] if builders(source) == ["hatchling"] else []
        run(
            sys.executable,
            *("-m", "build", *quicker, "--outdir", folder, source),
            cwd=folder,
            env=environment(),
        )
    run(
        sys.executable,
        *("-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", folder),
        *third_parties(folder),
        cwd=folder,
        env=environment(),
    )
    return folder


def third_parties(house: Path) -> list[str]:
    """Requirements of our core wheel and of torch, and what builds our sdists."""
    ours = wheel_metadata(next(house.glob("allmetal-*.whl"))).get_all("Requires-Dist") or []
    found = map(Requirement, [*ours, *(requires("torch") or [])])
    plain = [r for r in found if not r.marker or r.marker.evaluate({"extra": ""})]
    tools = [name for name in ("cmake", "ninja") if shutil.which(name) is None]
    built = [*build_requires(ROOT), *build_requires(ROOT / "platforms/cpu"), *tools]
    return [*(f"{r.name}{r.specifier}" for r in plain), *built]


def build_requires(source: Path) -> list[str]:
    listed: list[str] = tomllib.loads((source / "pyproject.toml").read_text())["build-system"][
        "requires"
    ]
    return listed


def builders(source: Path) -> list[str]:
    return [Requirement(text).name for text in build_requires(source)]


def wheel_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))
