"""The access log never holds a request up: neither does whoever reads it, nor whoever has stopped reading."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from sglc.serve import log_lines
from sglc.serve.log_lines import LogLines
from tests.serve_fuzz.faults import changed_copy
from tests.serving import serving
from tests.waiting import HANG_S, until

LINE = "x" * 1000


@pytest.mark.parametrize("blocking", [True, False])  # pipes of Node's and asyncio's are not
def test_what_does_not_fit_is_left_out_and_counted(blocking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, blocking)
    monkeypatch.setattr(log_lines, "_STDERR", writer)
    lines = LogLines(most=5)
    for _ in range(1000):  # a pipe holds 64 KiB
        lines.put(LINE)
    text = b""
    while b"dropped" not in text:
        text += os.read(reader, 1 << 16)
    lines.flush()
    lines.put("the last one")
    while b"the last one" not in text:
        text += os.read(reader, 1 << 16)
    lines.flush()
    os.close(reader)
    lines.put("to nobody")
    lines.flush()
    os.close(writer)
    told = re.findall(rb"(?m)^sglc: (\d+) lines of the access log were dropped$", text)
    assert 1 <= len(told) <= 2
    assert text.count(LINE.encode()) + sum(map(int, told)) == 1000


@pytest.mark.slow
def test_a_server_whose_standard_error_nobody_reads_answers_and_ends(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"text": "word"}]))
    command = (sys.executable, "-m", "sglc.cli", "serve", "--model", f"scripted:{script}", "--port", "0")
    process = subprocess.Popen((*command, "--access-log"), stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        ready = process.stderr.readline().decode()
        with httpx2.Client(base_url=ready.split()[-1], timeout=HANG_S) as client:
            for _ in range(400):  # 200 bytes each
                assert client.get("/health", headers={"x-request-id": "r" * 128}).status_code == 200
        process.terminate()
        assert process.wait(HANG_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_bug_in_the_log_says_which_request_met_it(tmp_path: Path) -> None:
    bugs = (
        ("serve/app.py", 'return as_json({"object": "list", "data": [model]})', "1 / 0"),
        ("serve/app.py", "_check_logprobs(service, body.logprobs is not None)", "1 / 0"),
    )
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"text": "word"}]))
    with serving("--model", f"scripted:{script}", root=changed_copy(bugs, tmp_path)) as server:
        asked = (("GET", "/v1/models", None), ("POST", "/v1/completions", {"prompt": "a"}))
        for number, (method, path, body) in enumerate(asked):
            status, content = server.ask(method, path, body, **{"x-request-id": f"number-{number}"})
            assert (status, content["error"]["code"]) == (500, "internal_error")
        told = r"ZeroDivisionError: .*\n.*in the request (.*)\n"
        until(lambda: re.findall(told, server.log.read_text()) == ["number-0", "number-1"])
