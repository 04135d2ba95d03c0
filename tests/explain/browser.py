"""A real browser for tests of pages: Debian's Chromium, driven by Playwright's package."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# Nothing that this machine's network would have to answer.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def browser() -> Iterator[Any]:
    """A browser without a window; the test is skipped, with the reason, where there is none."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no `chromium` here: `apt-get install chromium`")
    playwright = pytest.importorskip("playwright.sync_api", reason="the package `playwright` is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield opened
        finally:
            opened.close()
