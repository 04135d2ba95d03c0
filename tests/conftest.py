"""What tests of several folders share.

Nothing here imports torch: a test of the compiler is collected and run without it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import sglc.passes  # noqa: F401  registers sglc's own
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.passes.base import PASSES
from sglc.runtime.model.registry import prepare

# Without a CUDA device kernels run in Triton's interpreter. It is asked for where a kernel is defined, so
# before the first import of one, whichever test that is in.
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ["TRITON_INTERPRET"] = "1"

# Several workers, or a model in a process of its own beside the test's: with a thread for every core each, they
# wait for each other more than they compute. torch reads it when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what runs in its background with Ctrl-C ignored, and every process inherits that: no test that
# presses it would see anything.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REAL_MODEL = {"smollm2", "local"}  # the fixtures with it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test with the real model is marked as one, before the marks are looked at."""
    for item in items:
        if isinstance(item, pytest.Function) and not REAL_MODEL.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.model)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the embedded default model, fetched into the user's cache once."""
    return prepare("smollm2")


@pytest.fixture(scope="session")
def local() -> Iterator[LocalBackend]:
    """The back end with the default model, loaded once for the whole test run."""
    backend = LocalBackend(LocalOptions("smollm2"))
    yield backend
    backend.close()


@pytest.fixture(autouse=True)
def same_passes() -> Iterator[None]:
    """Passes that a test registers are gone behind it."""
    before = dict(PASSES)
    yield
    PASSES.clear()
    PASSES.update(before)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the expected blocks of the Markdown specs")
