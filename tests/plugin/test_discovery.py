"""What is found in an environment, and that nothing broken there puts a user on the host.

The plugins are real to the core: modules and metadata in a fresh environment's site-packages.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from venvs import Venv, make_venv

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(300)]

DESCRIPTOR = Path(__file__).parent / "1_descriptor/allmetal_acme/__init__.py"
RAISES = "raise ImportError('libfast.so.3: cannot open shared object file')"
HANGS = """
import time
from allmetal.platform.null import NullPlatform
class Fast(NullPlatform):
    name = "fast"
    def probe(self):
        time.sleep(600)
"""
NONSENSE = "def Fast(): return {'name': 'fast', 'contract_version': 1}"
LATER = """
from allmetal.platform.null import NullPlatform
class Fast(NullPlatform):
    name, contract_version = "fast", 99
"""
PROBES_NONSENSE = """
from allmetal.platform.null import NullPlatform
class Fast(NullPlatform):
    name = "fast"
    def probe(self):
        return 1
"""
DRIVERLESS = """
from allmetal.platform.contract import Broken
from allmetal.platform.null import NullPlatform
class Fast(NullPlatform):
    name = "fast"
    def probe(self):
        return Broken("there is a Fast 9, and its driver is not loaded")
"""

Plant = Callable[..., None]


@pytest.fixture(scope="module")
def venv(core_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    made = make_venv(tmp_path_factory.mktemp("discovery") / "venv", "torch")
    made.install(core_wheel)
    return made


@pytest.fixture
def plant(venv: Venv) -> Iterator[Plant]:
    """Leaves a plugin in the environment as pip would."""
    planted: list[Path] = []

    def install(name: str, source: str, target: str = "Fast") -> None:
        module = f"allmetal_{name}"
        code = venv.site_packages / f"{module}.py"
        metadata = venv.site_packages / f"{module}-1.0.dist-info"
        metadata.mkdir()
        code.write_text(source)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: allmetal-{name}\nVersion: 1.0\n"
        )
        (metadata / "entry_points.txt").write_text(
            f"[allmetal.platforms]\n{name} = {module}:{target}\n"
        )
        planted.extend([code, metadata])

    yield install
    for path in planted:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@pytest.fixture
def host(plant: Plant) -> None:
    """A working host platform, to which nobody shall be put unasked."""
    descriptor = DESCRIPTOR.read_text().replace('"acme"', '"host"')
    traits = 'total_memory=MEMORY, traits={"kind": "host"})'
    plant("host", descriptor.replace("total_memory=MEMORY)", traits), "AcmePlatform")


def completion(venv: Venv, model: Path, *flags: str) -> str:
    text = venv.allmetal(
        *("run", model, "Once", "--raw", "--quiet", "--max-tokens", "4", "--ignore-eos"),
        *("--kv-cache-memory", "1MiB", *flags),
    )
    return text.removesuffix("\n")


def refusal(venv: Venv, model: Path, *flags: str) -> str:
    return venv.refused("run", model, "Once", "--raw", *flags)


BROKEN = [
    pytest.param(RAISES, "libfast.so.3: cannot open shared object file", id="raises at import"),
    pytest.param(NONSENSE, "fast: its plugin (allmetal-fast 1.0) is broken", id="is nonsense"),
    pytest.param(LATER, "it keeps contract 99, and this core keeps", id="is of another contract"),
    pytest.param(PROBES_NONSENSE, "its probe answered 1", id="answers nonsense"),
    pytest.param(HANGS, "its probe did not answer within 20 s", id="hangs"),
    pytest.param(DRIVERLESS, "there is a Fast 9, and its driver is not loaded", id="has no driver"),
]


@pytest.mark.parametrize(("source", "says"), BROKEN)
@pytest.mark.usefixtures("host")
def test_a_broken_accelerator_is_an_error_and_the_host_does_not_stand_in(
    venv: Venv, plant: Plant, tiny_llama: Path, source: str, says: str
) -> None:
    plant("fast", source)

    began = time.monotonic()
    error = refusal(venv, tiny_llama)

    assert says in error
    assert "hint: mend it, or say --platform host" in error
    assert "Traceback" not in error
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("source", [RAISES, HANGS], ids=["raises", "hangs"])
@pytest.mark.usefixtures("host")
def test_the_host_runs_when_it_is_asked_for_and_nobody_else_is_waited_for(
    venv: Venv, plant: Plant, tiny_llama: Path, source: str
) -> None:
    plant("fast", source)

    began = time.monotonic()

    assert completion(venv, tiny_llama, "--platform", "host")
    assert time.monotonic() - began < 19


@pytest.mark.usefixtures("host")
def test_the_doctor_shows_the_traceback(venv: Venv, plant: Plant) -> None:
    plant("fast", RAISES)

    done = json.loads(venv.run("-c", EXAMINE))

    (finding,) = [f for f in done if f["subject"] == "platform fast"]
    assert "error" == finding["level"]
    assert "allmetal_fast.py" in finding["detail"]
    assert finding["hint"].endswith("ALLMETAL_PLATFORMS_DENY=fast")


EXAMINE = """
import json
from dataclasses import asdict
from allmetal.platform.doctor import examine
print(json.dumps([asdict(f) for f in examine()]))
"""


@pytest.mark.usefixtures("host")
def test_two_accelerators_are_ambiguous_until_one_is_named(
    venv: Venv, plant: Plant, tiny_llama: Path
) -> None:
    for name in ("one", "two"):
        plant(name, DESCRIPTOR.read_text().replace('"acme"', f'"{name}"'), "AcmePlatform")

    error = refusal(venv, tiny_llama)

    assert "the platform is ambiguous: one (Acme One), two (Acme One) all have devices" in error
    assert "hint: --platform one or --platform two" in error
    assert completion(venv, tiny_llama, "--platform", "two")


@pytest.mark.usefixtures("host")
def test_lists_say_which_platforms_there_are(
    venv: Venv, plant: Plant, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("fast", RAISES)
    monkeypatch.setenv("ALLMETAL_PLATFORMS_DENY", "fast")
    assert completion(venv, tiny_llama)

    monkeypatch.setenv("ALLMETAL_PLATFORMS_DENY", "fast,host")
    assert "host: denied by ALLMETAL_PLATFORMS_DENY" in refusal(venv, tiny_llama)
    assert "denied by ALLMETAL_PLATFORMS_DENY" in refusal(venv, tiny_llama, "--platform", "host")

    monkeypatch.delenv("ALLMETAL_PLATFORMS_DENY")
    monkeypatch.setenv("ALLMETAL_PLUGINS", "a_parser")  # the list of another group
    assert "libfast.so.3" in refusal(venv, tiny_llama)

    monkeypatch.setenv("ALLMETAL_PLATFORMS", "host")
    assert completion(venv, tiny_llama)
