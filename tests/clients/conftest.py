"""The servers that `make clients` has started, for cases in environments without sglc."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    """A server of the default model, in float32."""
    return os.environ["CLIENTS_URL"]


@pytest.fixture(scope="session")
def scripted_url() -> str:
    """A server of the answers in script.py, under the same name."""
    return os.environ["CLIENTS_SCRIPTED_URL"]


@pytest.fixture(scope="session")
def model_folder() -> str:
    """Where the default model's files are."""
    return os.environ["CLIENTS_MODEL_FOLDER"]
