"""What tests of several folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglc.runtime.models import prepare


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the embedded default model, fetched into the user's cache once."""
    return prepare("smollm2")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the expected blocks of the Markdown specs")
