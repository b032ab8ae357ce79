"""A headless Chromium that the system has; tests without one say what they need."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

_PATIENCE_MS = 60_000
"""The machine may be busy; only what fails waits so long."""
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def browser() -> Iterator[Browser]:
    """While it is open no other code of this thread may run an event loop."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        expect.set_options(timeout=_PATIENCE_MS)
        yield opened
        opened.close()
