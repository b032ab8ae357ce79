"""Every way to install allmetal that the README offers, done for real in fresh environments."""

from __future__ import annotations

import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from allmetal import __version__

from .conftest import PLATFORMS, Environment, wheel_metadata

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(900)]

WHERE = "import allmetal, allmetal_cpu; print(allmetal.__file__, allmetal_cpu.__file__, sep='\\n')"
DISCOVER = """
from allmetal.platform.discover import discover
for found in discover():
    if found.devices and found.kind != "pretend":
        print(found.name, found.origin, found.kind, len(found.devices))
"""


def assert_allmetal_runs_with_cpu(fresh: Environment) -> None:
    assert f"allmetal {__version__}" == fresh.allmetal("--version")
    assert f"cpu allmetal-cpu {__version__} host 1" == fresh.python(DISCOVER)


def test_an_editable_checkout_with_the_cpu_extra(fresh: Environment, checkout: Path) -> None:
    fresh.install("-e", ".[cpu]", cwd=checkout)

    core, cpu = fresh.python(WHERE).splitlines()
    assert Path(core).is_relative_to(checkout)
    assert Path(cpu).is_relative_to(fresh.folder)  # the extra's folder is built and copied
    assert_allmetal_runs_with_cpu(fresh)


def test_an_editable_checkout_with_an_editable_platform(fresh: Environment, checkout: Path) -> None:
    fresh.install("-e", ".", "-e", "platforms/cpu", cwd=checkout)

    core, cpu = fresh.python(WHERE).splitlines()
    assert Path(core).is_relative_to(checkout)
    assert Path(cpu).is_relative_to(checkout)
    assert_allmetal_runs_with_cpu(fresh)


def test_wheels_from_an_index(fresh: Environment, house: Path, tmp_path: Path) -> None:
    only_wheels = ("--only-binary", ":all:", "--find-links", house)

    fresh.install(*only_wheels, "allmetal[cpu]", cwd=tmp_path, index=False)

    core, cpu = fresh.python(WHERE).splitlines()
    assert Path(core).is_relative_to(fresh.folder)
    assert Path(cpu).is_relative_to(fresh.folder)
    assert_allmetal_runs_with_cpu(fresh)


def test_every_extra_can_be_resolved_from_an_index(
    fresh: Environment, house: Path, tmp_path: Path
) -> None:
    extras = ",".join(sorted(set(PLATFORMS) - {"triton"}))

    fresh.install(
        "--dry-run", "--find-links", house, f"allmetal[{extras}]", cwd=tmp_path, index=False
    )


def test_sdists_from_an_index(fresh: Environment, house: Path, tmp_path: Path) -> None:
    ours_from_source = ("--no-binary", "allmetal,allmetal-cpu", "--find-links", house)

    fresh.install(*ours_from_source, "allmetal[cpu]", cwd=tmp_path, index=False)

    assert_allmetal_runs_with_cpu(fresh)


def test_every_distribution_builds_as_sdist_and_wheel(house: Path) -> None:
    version = re.escape(__version__)
    wheels = {p.name.split("-")[0] for p in house.glob(f"allmetal*-{__version__}-py3-none-*.whl")}
    sdists = {
        match[1]
        for path in house.glob("allmetal*.tar.gz")
        if (match := re.fullmatch(rf"(\w+)-{version}\.tar\.gz", path.name))
    }

    assert {"allmetal", *(f"allmetal_{name}" for name in PLATFORMS)} == wheels == sdists


def test_only_the_cpu_platform_is_compiled_and_its_wheel_serves_every_python(house: Path) -> None:
    compiled = {p.name.split("-")[0]: p for p in house.glob("allmetal*.whl") if "any" not in p.name}

    assert compiled.keys() == {"allmetal_cpu"}
    libraries = [
        name
        for name in zipfile.ZipFile(compiled["allmetal_cpu"]).namelist()
        if name.endswith((".so", ".dylib"))
    ]
    assert len(libraries) == 1
    assert "-py3-none-" in compiled["allmetal_cpu"].name


def test_what_is_published_names_platforms_by_version_and_no_folder(house: Path) -> None:
    required = wheel_metadata(next(house.glob("allmetal-*.whl"))).get_all("Requires-Dist") or []

    for name in set(PLATFORMS) - {"triton"}:
        assert f"allmetal-{name}=={__version__}; extra == '{name}'" in required
    assert not [text for text in required if "file:" in text]


def test_the_core_wheel_is_pure_typed_and_pins_no_tensor_library(house: Path) -> None:
    wheel = next(house.glob("allmetal-*.whl"))
    names = zipfile.ZipFile(wheel).namelist()

    assert {"allmetal/py.typed", "allmetal_models/py.typed", "allmetal_plugins/py.typed"} <= {
        *names
    }
    assert not [n for n in names if n.endswith((".so", ".pyc")) or n.startswith("tests/")]
    required = wheel_metadata(wheel).get_all("Requires-Dist") or []
    assert not [r for r in required if "torch" in r and "extra ==" not in r]


def test_an_sdist_holds_no_stray_files(house: Path) -> None:
    with tarfile.open(next(house.glob("allmetal-*.tar.gz"))) as archive:
        names = [name.split("/")[1:] for name in archive.getnames()]
    tops = {name[0] for name in names}

    assert {"core", "models", "plugins", "pyproject.toml", "LICENSE", "README.md"} <= tops
    assert tops <= {
        *("core", "models", "plugins", "pyproject.toml", "LICENSE", "README.md"),
        *("CHANGELOG.md", "build_backend.py", "hatch_build.py", "PKG-INFO", ".gitignore", "docs"),
    }
    # What the kit found goes into the wheel; the other pages stay at home.
    assert {tuple(name[:2]) for name in names if name[0] == "docs"} == {("docs", "evidence")}
