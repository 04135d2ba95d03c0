"""A real server for tests: `sglc serve` in a process of its own, on a port that was free."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import descendants
from tests.waiting import HANG_S, until

ROOT = Path(__file__).parent.parent
_READY = re.compile(r"^sglc: serving (.*) at (https?://\S+)$", re.MULTILINE)
_RUNTIME = re.compile(rb"sglc\.runtime\.engine\.worker|tests\.oracle_worker")


@dataclass(frozen=True)
class Server:
    """A server that answers at `url`."""

    url: str
    model: str
    process: subprocess.Popen[bytes]
    log: Path  # its standard error

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and content (of JSON, else text) of an answer. `body`: bytes as they are, else as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"content-type": "application/json", **headers}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                status, content = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                status, content = error.code, error.read().decode()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content

    def info(self) -> dict[str, Any]:
        """How the server stands."""
        status, content = self.ask("GET", "/get_server_info")
        assert status == 200, content
        assert isinstance(content, dict)
        return content

    def idle(self) -> bool:
        """Whether nothing runs, and no request holds a page."""
        info = self.info()
        return (info["running_rows"], info["requests"], info["used_pages"]) == (0, 0, 0)

    def runtime(self) -> int | None:
        """The process of its model, if there is one."""
        return next(iter(descendants(self.process.pid, "sglc.runtime.engine.worker")), None)


@contextmanager
def serving(*options: str, status: int = 0, root: Path = ROOT) -> Iterator[Server]:
    """`sglc serve OPTIONS --port 0`, until the block ends; it must end in good order then, with `status`."""
    with running("sglc.cli", "serve", "--port", "0", *options, status=status, root=root) as server:
        yield server


@contextmanager
def running(*module: str, status: int = 0, root: Path = ROOT) -> Iterator[Server]:
    """`python -m MODULE ...` of the package in `root`, which is a server."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stderr"
        with log.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", *module],
                cwd=root,
                stdout=subprocess.PIPE,
                stderr=err,
                env={**os.environ, "PYTHONPATH": str(root)},
            )
        try:
            until(lambda: process.poll() is not None or _READY.search(log.read_text()) is not None, "not ready")
            ready = _READY.search(log.read_text())
            assert ready is not None, log.read_text()
            yield Server(ready[2], ready[1], process, log)
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=HANG_S)
            assert (process.returncode, out) == (status, b""), log.read_text()
        finally:
            process.kill()
            process.communicate()
