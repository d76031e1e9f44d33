"""Headless Chromium for tests of pages: skipped, with a reason, where it is not installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: no page is tried in a browser")


def dump(page: Path, profile: Path) -> str:
    """The page's document after it has loaded."""
    flags = [*FLAGS, "--headless", "--virtual-time-budget=2000", "--timeout=20000", f"--user-data-dir={profile}"]
    command = [CHROMIUM, *flags, "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@contextmanager
def chromium(*flags: str) -> Iterator[Any]:
    """A browser of playwright, driving the system's Chromium, with further flags."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()
