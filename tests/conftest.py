"""What tests of several folders share.

Nothing here imports torch: a test of the compiler is collected and run without it.
"""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import sglc.passes  # noqa: F401  registers sglc's own
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.passes.base import PASSES
from sglc.runtime.model.registry import prepare
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer, load_tokenizer
from tests.depth import DEPTH
from tests.serving import Server, serving
from tests.small_default import small_default, use_small_default

# Without a CUDA device kernels run in Triton's interpreter. It is asked for where a kernel is defined, so
# before the first import of one, whichever test that is in.
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ["TRITON_INTERPRET"] = "1"

# Several workers, or a model in a process of its own beside the test's: with a thread for every core each, they
# wait for each other more than they compute. torch reads it when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test speaks to a stranger: without the certificates of all the world, which take 20 ms for each client.
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
os.environ.pop("SSL_CERT_FILE", None)  # which would go first

# A shell starts what runs in its background with Ctrl-C ignored, and every process inherits that: no test that
# presses it would see anything.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if DEPTH == "quick":
    use_small_default()

COSTLY = re.compile(r"\bserving\(|\bserver: Server\b|\btransformers\b|\btiny_model\b")
LEFT_OUT = re.compile(r"^pytestmark = .*\bmark\.(kernel|model|browser|slow|nightly)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files of which `make quick` runs nothing are not even imported there."""
    if DEPTH == "quick" and collection_path.name.startswith("test_"):
        return LEFT_OUT.search(collection_path.read_text(encoding="utf-8")) is not None or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """At quick depth there is no real model; and what takes seconds once in a process comes first.

    A worker that has nothing left takes over what another has last. Two would start a server then, and so on.
    """
    costly = {path for path in {item.path for item in items} if COSTLY.search(path.read_text(encoding="utf-8"))}
    items.sort(key=lambda item: item.path not in costly)
    for item in items:
        if DEPTH == "quick" and item.get_closest_marker("model"):
            item.add_marker(pytest.mark.skip(reason="the default model is a small one at quick depth"))


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector does not look through it again, and seldom at all."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def pytest_runtest_logstart(nodeid: str) -> None:
    """What earlier files have left and nobody can free stays as well: a bench looks through the whole heap."""
    file = nodeid.partition("::")[0]
    if file != _FROZEN[-1]:
        gc.collect()
        gc.freeze()
        _FROZEN.append(file)


_FROZEN = [""]  # files before which the heap was


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the embedded default model, fetched once; a small one at quick depth."""
    return small_default() if DEPTH == "quick" else prepare("smollm2")


@pytest.fixture(scope="session")
def small_model(smollm2: Path) -> Path:
    """A model's folder for tests of what is the same with every model; the default model nightly."""
    return smollm2 if DEPTH == "nightly" else small_default()


@pytest.fixture(scope="session")
def default_tokenizer(smollm2: Path) -> LocalTokenizer:
    """The default model's tokenizer, for tests that leave it as it was."""
    return load_tokenizer(smollm2)


@pytest.fixture(scope="session")
def local(smollm2: Path) -> Iterator[LocalBackend]:
    """The back end with the default model, loaded once for the whole test run."""
    backend = LocalBackend(LocalOptions("smollm2"))
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def server(smollm2: Path) -> Iterator[Server]:
    """A server with the default model, for tests that leave it as it was."""
    with serving("--max-rows", "16") as server:
        yield server


@pytest.fixture(autouse=True)
def same_passes() -> Iterator[None]:
    """Passes that a test registers are gone behind it."""
    before = dict(PASSES)
    yield
    PASSES.clear()
    PASSES.update(before)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the expected blocks of the Markdown specs")
