"""What importing costs: the light half of the engine loads no tensor library."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import allmetal.cache
import allmetal.cli
import allmetal.engine

LIGHT = [
    "allmetal",
    "allmetal.cli",
    "allmetal.config",
    "allmetal.errors",
    "allmetal.executor.contract",
    "allmetal.platform.capabilities",
    "allmetal.platform.contract",
    "allmetal.platform.discover",
    "allmetal.platform.plan",
    "allmetal.platform.planner",
    "allmetal.platform.policy",
    "allmetal.platform.select",
    "allmetal.platform.specs",
    "allmetal.request",
    *(f"allmetal.cache.{m.name}" for m in pkgutil.iter_modules(allmetal.cache.__path__)),
    *(f"allmetal.cli.{m.name}" for m in pkgutil.iter_modules(allmetal.cli.__path__)),
    *(f"allmetal.engine.{m.name}" for m in pkgutil.iter_modules(allmetal.engine.__path__)),
]
HEAVY = {"torch", "transformers"}


def loaded_by(*modules: str) -> set[str]:
    """The heavy libraries that a fresh interpreter has after importing these."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    return HEAVY & set(done.stdout.split())


def test_the_light_modules_together_load_no_tensor_library() -> None:
    assert set() == loaded_by(*LIGHT), [m for m in LIGHT if loaded_by(m)]


@pytest.mark.parametrize("module", ["torch", "allmetal.platform.reference"])
def test_a_heavy_library_is_noticed(module: str) -> None:
    assert "torch" in loaded_by(module)
