"""A real gateway for tests: PyPI's `smg`, which `make gateway` has in an environment of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import HANG_S, until

SMG = os.environ.get("SMG", "")  # its program; without one there is nothing to test


@contextmanager
def gateway(workers: Sequence[str], *options: str) -> Iterator[str]:
    """A gateway before servers at these addresses; gives its own."""
    ports = [_free_port(), _free_port()]
    url = f"http://127.0.0.1:{ports[0]}"
    own = ("--host", "127.0.0.1", "--port", str(ports[0]), "--prometheus-port", str(ports[1]))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [SMG, "launch", *own, "--worker-urls", *workers, *options],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
            )
        try:
            until(lambda: process.poll() is not None or _stands(url, len(workers)), "the gateway is not ready")
            assert process.poll() is None, log.read_text()
            yield url
        finally:
            process.kill()
            process.wait(HANG_S)


def workers_of(url: str) -> list[dict[str, Any]]:
    """What a gateway says of its servers."""
    with urllib.request.urlopen(f"{url}/workers", timeout=HANG_S) as answer:
        found: list[dict[str, Any]] = json.load(answer)["workers"]
    return found


def _stands(url: str, workers: int) -> bool:
    """Whether all servers are registered, and one of them answers."""
    body = json.dumps({"model": "smollm2", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
    asked = urllib.request.Request(
        f"{url}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
    )
    try:
        if sum(worker["is_healthy"] for worker in workers_of(url)) < workers:
            return False
        with urllib.request.urlopen(asked, timeout=HANG_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port
