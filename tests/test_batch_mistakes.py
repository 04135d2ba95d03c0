"""What goes wrong around a batch while it runs: signals, pipes, disks, rows that are none, files of others.

Each ends in one message and its exit code, no traceback, and nothing lost that was there. Wrong commands whose
answer is always the same stand in tests/errors/cli.md.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sglc.backends.registry import connect, disconnect
from sglc.cli import main
from sglc.cli.batch import listening
from tests.depth import few
from tests.serving import running, serving

pytestmark = pytest.mark.slow

PROGRAM = """
import time
import sglc as sgl

@sgl.function
def ask(s, q):
    s += "Q: " + q + sgl.gen("a", max_tokens=8)

@sgl.function
def fails(s, q):
    s += "Q: " + q + sgl.gen("a", max_tokens=8)
    if q == "r3":
        raise ValueError("not this one")

@sgl.tool
def nap(text):
    time.sleep(60)
    return text

@sgl.function
def sleeps(s, q):
    s += "Q: " + q + sgl.gen("a", max_tokens=8)
    s += nap(s["a"])

@sgl.function
def spins(s, q):
    while True:
        pass

@sgl.function
def number(s, q):
    s += "Q: " + q + sgl.gen("a", max_tokens=8)
    return float("nan")
"""
ROWS = 20
# Python before 3.12 leaves a torn one where the disk is full.
WITHOUT_PYC = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "prog.py").write_text(PROGRAM)
    rules = [{"text": " one two three"}]
    (tmp_path / "script.json").write_text(json.dumps(rules))
    (tmp_path / "slow.json").write_text(json.dumps({"rules": rules, "word_s": 0.05}))
    write_rows([{"q": f"r{n}"} for n in range(ROWS)], tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_rows(rows: Sequence[Any], folder: Path = Path()) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def command(
    *more: str, program: str = "ask", script: str = "script.json", rows: str = "rows.jsonl"
) -> list[str]:
    backend = f"scripted:{script}"
    return ["run", f"prog.py:{program}", "--backend", backend, "--batch", rows, "--seed", "1", *more]


def start(arguments: Sequence[str], **more: Any) -> subprocess.Popen[str]:
    given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen([sys.executable, "-m", "sglc.cli", *arguments], text=True, **given)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code, and what it says, which is no traceback."""
    _, told = process.communicate(timeout=60)
    told = told or ""
    assert "Traceback" not in told, told
    assert "Fatal Python error" not in told, told
    return process.returncode, told


def numbers(path: str = "out.jsonl") -> list[int]:
    text = Path(path).read_text()
    assert not text or text.endswith("\n")
    return [json.loads(line)["index"] for line in text.splitlines()]


def wait_for(path: str, process: subprocess.Popen[str]) -> None:
    """Until something is in a file."""
    while process.poll() is None and not (os.path.exists(path) and os.path.getsize(path)):
        os.sched_yield()


# -- signals ---------------------------------------------------------------------------------------

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def test_ctrl_c_while_the_program_is_imported(folder: Path) -> None:
    (folder / "prog.py").write_text("print('here', flush=True)\nimport time\ntime.sleep(60)\n")
    process = start(command("-o", "out.jsonl"))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "sglc: interrupted\n")
    assert not Path("out.jsonl").exists()


@SIGNALS
def test_a_signal_while_stdin_gives_no_row(folder: Path, number: signal.Signals) -> None:
    """The thread that waits for a line is not waited for when Python ends."""
    process = start(command("-o", "out.jsonl", rows="-"), stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write('{"q": "r0"}\n')
    process.stdin.flush()
    wait_for("out.jsonl", process)
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number  # stdin is open
    _, told = ended(process)
    assert "1 rows: 1 done, 0 failed, others left" in told
    assert numbers() == [0]


@pytest.mark.parametrize("program", ["sleeps", "spins"])
def test_a_signal_while_python_does_not_come_back(folder: Path, program: str) -> None:
    process = start(command("-o", "out.jsonl", program=program))
    wait_for("out.jsonl.manifest", process)
    process.send_signal(signal.SIGTERM)
    code, told = ended(process)
    assert code in (143, -signal.SIGTERM)  # it came before the first row began
    assert code < 0 or f"0 done, 0 failed, {ROWS} left" in told


@SIGNALS
def test_a_second_signal_ends_a_batch_at_once(folder: Path, number: signal.Signals) -> None:
    """The first one waits for the writing, which waits for who reads the pipe."""
    os.mkfifo("out.fifo")
    write_rows([{"q": "x" * 80_000}] * 40)  # the first one is more than the pipe takes
    process = start(command("-o", "out.fifo"))
    reader = os.open("out.fifo", os.O_RDONLY)
    os.read(reader, 1)
    while process.poll() is None:  # two that come together are one
        process.send_signal(number)
        time.sleep(0.05)
    code, told = ended(process)
    assert code in (128 + number, -number)  # a third one may have come
    assert told == "sglc: interrupted\n"
    os.close(reader)


# -- pipes, disks and closed streams ---------------------------------------------------------------


def test_who_reads_a_named_pipe_goes(folder: Path) -> None:
    os.mkfifo("out.fifo")
    process = start(command("-o", "out.fifo", "--concurrency", "1", script="slow.json"))
    with open("out.fifo") as reader:
        assert json.loads(reader.readline())["error"] is None
    code, told = ended(process)
    assert code == 1
    assert "error[SGLC427]: `out.fifo` cannot be written: Broken pipe" in told
    assert "--resume" not in told  # nothing is kept there


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_stdout_that_takes_nothing(folder: Path, form: list[str]) -> None:
    with open("/dev/full", "w") as full:
        code, told = ended(start(command(*form), stdout=full))
    assert code == 1
    assert "error[SGLC427]: `stdout` cannot be written: No space left on device" in told


@pytest.mark.parametrize("progress", ["bar", "json"])
def test_stderr_that_nobody_reads(folder: Path, progress: str) -> None:
    """Rows run on, and what failed shows in the exit code."""
    reading, writing = os.pipe()
    process = start(command("-o", "out.jsonl", "--progress", progress, program="fails"), stderr=writing)
    os.close(writing)
    os.close(reading)
    assert ended(process) == (1, "")
    assert sorted(numbers()) == list(range(ROWS))


def test_streams_that_are_closed(folder: Path) -> None:
    """No file gets the number of one of them, and what is printed goes into none."""

    def close_all() -> None:
        os.closerange(0, 3)

    process = start(command("-o", "out.jsonl", program="fails"), preexec_fn=close_all, stdout=None, stderr=None)
    assert process.wait(timeout=60) == 1
    assert sorted(numbers()) == list(range(ROWS))


@pytest.mark.parametrize("most", few([100, 3000], 1))
def test_a_disk_that_is_full_while_results_wait(folder: Path, most: int) -> None:
    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    more = ["-o", "out.jsonl", "--ordered"]
    code, told = ended(start(command(*more, script="slow.json"), preexec_fn=small, env=WITHOUT_PYC))
    assert code == (2 if most == 100 else 1)
    assert any(known in told for known in (["SGLC009"] if most == 100 else ["SGLC427", "SGLC423"]))
    kept = sum(len(numbers(name)) for name in ("out.jsonl", "out.jsonl.waiting") if os.path.exists(name))
    assert f"{kept} done" in told or not kept
    assert main(command(*more, "--resume")) == 0
    assert numbers() == list(range(ROWS))


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{}\n", "error[SGLC011]: `ask`: missing a required argument: `q`"),
        (b'{"q": "a", "z": 1}\n', "error[SGLC011]: `ask`: got an unexpected keyword argument `z`"),
        (b'{"q":\n', "error[SGLC008]: this is no JSON: Expecting value\n --> stdin:3:6"),
        (b'{"q": "\xff"}\n', "error[SGLC008]: this is no UTF-8: invalid start byte\n --> stdin:3:8"),
        (b"[" * 100_000 + b"\n", "error[SGLC008]: this is no JSON: it is nested too deeply\n --> stdin:3"),
        (b'{"q": ' + b"1" * 5_000 + b"}\n", "error[SGLC008]: this is no JSON: a number is too long"),
        (b'{"q": "a", "q": "b"}\n', "[SGLC008]: two values of an object are called `q`\n --> stdin:3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ordered", [False, True])
def test_a_row_that_is_none_behind_others(
    folder: Path, line: bytes, said: str, ordered: bool, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As it comes only when they run: their results are there, and the command that goes on is told."""
    (folder / "rows").write_bytes(b'{"q": "r0"}\n{"q": "r1"}\n' + line + b'{"q": "r3"}\n')
    monkeypatch.setattr(sys, "argv", ["sglc"])  # which is told, too
    with open("rows") as rows:
        monkeypatch.setattr(sys, "stdin", rows)
        assert main(command("-o", "out.jsonl", *(["--ordered"] if ordered else []), rows="-")) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told) < 2_000  # not the whole line
    assert "sglc: mend the rows, and go on with: sglc" in told
    assert sorted(numbers()) == [0, 1]


def test_a_row_of_a_file_has_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.jsonl").write_text('\n{"q": "a"}\n\n{}\n')
    assert main(command("-o", "out.jsonl")) == 2
    assert "note: rows.jsonl:4: row 1 of the batch; its arguments are: q" in capsys.readouterr().err
    Path("rows.csv").write_text('q\n"a\nb"\nc\n')
    assert main(command("-o", "out.jsonl", rows="rows.csv")) == 0
    Path("rows.csv").write_text('z\n"a\nb"\nc\n')
    assert main(command("-o", "other.jsonl", rows="rows.csv")) == 2
    assert "note: rows.csv:3: row 0 of the batch" in capsys.readouterr().err


def test_cells_of_csv(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One may be longer than Python's own limit; what is no UTF-8 has its place."""
    long = "word " * 40_000
    Path("rows.csv").write_text(f"q\n{long}\n")
    assert main(command("--json", rows="rows.csv")) == 0
    assert long in json.loads(capsys.readouterr().out)["text"]
    Path("rows.csv").write_bytes(b"q\nok\ncaf\xe9\n")
    assert main(command(rows="rows.csv")) == 2
    assert " --> rows.csv:3:4" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.csv"])
def test_rows_that_are_compressed(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(name).write_bytes(gzip.compress(b'{"q": "a"}\n'))
    assert main(command(rows=name)) == 2
    assert f"error[SGLC008]: `{name}` is compressed" in capsys.readouterr().err


def test_half_of_a_pair_in_rows_and_answers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows([{"q": "\ud800"}])
    (folder / "script.json").write_text(json.dumps([{"text": " \udfff"}]))
    assert main(command()) == 0
    assert "\\ud800" in capsys.readouterr().out
    assert main(command("-o", "out.jsonl")) == 0
    assert json.loads(Path("out.jsonl").read_text())["text"] == "Q: \ud800 \udfff"
    write_rows([{"q": "a"}])
    assert main(command("-o", "nan.jsonl", program="number")) == 0
    assert json.loads(Path("nan.jsonl").read_text())["value"] is None


def test_rows_from_a_named_pipe(folder: Path) -> None:
    os.mkfifo("rows.fifo")  # no file whose rows are looked at first
    process = subprocess.Popen(["sh", "-c", 'echo \'{"q": "r0"}\' > rows.fifo'])
    assert main(command("-o", "out.jsonl", rows="rows.fifo")) == 0
    process.wait()
    assert numbers() == [0]


def test_a_mode_that_no_row_can_have(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which shows when the first row is to begin."""
    text = (folder / "prog.py").read_text()
    (folder / "prog.py").write_text(text + "\n@sgl.function\ndef reads(s, q):\n    s += q + open(q).read()\n")
    write_rows([{"q": "prog.py"}])
    assert main(command("-o", "out.jsonl", "--mode", "plan", program="reads")) == 2
    assert "error[SGLC058]" in capsys.readouterr().err
    assert numbers() == []


# -- what is there ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        ["--arg", "z=1"], ["--mode", "python", "--replay", "nowhere"], ["--batch", "other.jsonl"],
        ["--backend", "http://127.0.0.1:1"], ["--backend", "scripted:nowhere.json"],
    ],
)  # fmt: skip
def test_force_drops_nothing_before_the_run_may_begin(folder: Path, wrong: list[str]) -> None:
    assert main(command("-o", "out.jsonl")) == 0
    before = Path("out.jsonl").read_bytes(), Path("out.jsonl.manifest").read_bytes()
    Path("other.jsonl").write_text('{"q": "a"}\n{"p": "b"}\n')
    assert main(command("-o", "out.jsonl", "--force", *wrong)) in (1, 2)
    assert (Path("out.jsonl").read_bytes(), Path("out.jsonl.manifest").read_bytes()) == before


@pytest.mark.parametrize(
    ("text", "code"), [("my notes", 2), ('{"index": 3, "te', 0), ('{"ind', 0), ("\0\0\0", 0)]
)
def test_a_last_line_without_an_end(folder: Path, text: str, code: int) -> None:
    """That of a result is cut off, and no other one."""
    Path("out.jsonl").write_text(text)
    assert main(command("-o", "out.jsonl", "--resume")) == code
    if code:
        assert Path("out.jsonl").read_text() == text
    else:
        assert sorted(numbers()) == list(range(ROWS))


def test_failed_rows_stay_when_the_run_may_not_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows([{"q": "r3"}, {"q": "r3"}])
    assert main(command("-o", "out.jsonl", program="fails")) == 1
    before = Path("out.jsonl").read_bytes()
    again = command("-o", "out.jsonl", "--resume", "--retry-failed", "--max-tokens", "3", program="fails")
    assert main(again) == 2  # although no row has a result that counts
    assert "SGLC076" in capsys.readouterr().err
    assert Path("out.jsonl").read_bytes() == before


def test_a_link_to_results_stays_one(folder: Path) -> None:
    Path("real.jsonl").touch(mode=0o600)
    os.symlink("real.jsonl", "out.jsonl")
    assert main(command("-o", "out.jsonl", program="fails")) == 1
    again = command("-o", "out.jsonl", "--resume", "--retry-failed", program="fails")
    assert main(again) == 1
    assert Path("out.jsonl").is_symlink()
    assert sorted(numbers("real.jsonl")) == list(range(ROWS))
    assert Path("real.jsonl").stat().st_mode & 0o777 == 0o600


def test_results_and_a_trace_in_one_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("-o", "out.json", "--trace", "./out.json")) == 2
    assert "error[SGLC073]: `out.json` is another file of this run" in capsys.readouterr().err


def test_a_lost_manifest(folder: Path) -> None:
    assert main(command("-o", "out.jsonl")) == 0
    kept = Path("out.jsonl").read_bytes().splitlines(keepends=True)[:7]
    Path("out.jsonl").write_bytes(b"".join(kept))
    Path("out.jsonl.manifest").unlink()
    assert main(command("-o", "out.jsonl", "--resume")) == 2
    assert main(command("-o", "out.jsonl", "--resume", "--force")) == 0
    assert Path("out.jsonl").read_bytes().splitlines(keepends=True)[:7] == kept
    assert sorted(numbers()) == list(range(ROWS))


def test_results_stay_in_order_when_failed_rows_run_again(folder: Path) -> None:
    (folder / "script.json").write_text(json.dumps([{"text": " yes", "prompt": "Q: r(?!3|12)"}]))
    assert main(command("-o", "out.jsonl", "--ordered")) == 1
    kept = Path("out.jsonl").read_text().splitlines()
    (folder / "script.json").write_text(json.dumps([{"text": " yes"}]))
    assert main(command("-o", "out.jsonl", "--ordered", "--resume", "--retry-failed")) == 0
    assert numbers() == list(range(ROWS))
    now = Path("out.jsonl").read_text().splitlines()
    assert [n for n in range(ROWS) if now[n] != kept[n]] == [3, 12]
    assert not Path("out.jsonl.waiting").exists()


@pytest.mark.parametrize("first", [[], ["--ordered"]])
def test_an_order_may_be_asked_for_later_and_no_more(
    folder: Path, first: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command("-o", "whole.jsonl")) == 0
    lines = {
        json.loads(line)["index"]: line for line in Path("whole.jsonl").read_text().splitlines(keepends=True)
    }
    given, waits = ([0, 1, 2], [7, 5]) if first else ([0, 9, 1, 5, 2], [])
    Path("out.jsonl").write_text("".join(lines[n] for n in given))
    if waits:
        Path("out.jsonl.waiting").write_text("".join(lines[n] for n in waits))
    Path("out.jsonl.manifest").write_bytes(Path("whole.jsonl.manifest").read_bytes())
    capsys.readouterr()
    assert main(command("-o", "out.jsonl", "--resume", *([] if first else ["--ordered"]))) == 0
    assert f" {ROWS - 5} calls" in capsys.readouterr().err
    assert sorted(numbers()) == list(range(ROWS))
    if not first:
        assert numbers() == list(range(ROWS))
    assert not Path("out.jsonl.waiting").exists()


def test_a_result_that_waits_and_cannot_be_given_waits_on(tmp_path: Path) -> None:
    from sglc.cli.batch.reorder_buffer import ReorderBuffer
    from sglc.errors import RunError

    def takes_one(text: bytes) -> None:
        if text != b"0\n":
            raise RunError("SGLC427", "no space")

    buffer = ReorderBuffer(takes_one, str(tmp_path / "w"))
    buffer.put(1, b"1\n")
    with pytest.raises(RunError):
        buffer.put(0, b"0\n")
    buffer.close()
    assert (tmp_path / "w").read_bytes() == b"1\n"


@pytest.mark.parametrize("order", [[], ["--ordered"]])
def test_a_program_that_goes_into_another_folder(
    folder: Path, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "import os\nimport sglc as sgl\n\n@sgl.function\ndef goes(s, q):\n    s += q\n    os.chdir('/')\n"
    (folder / "prog.py").write_text(body)
    assert main(command("-o", "out.jsonl", *order, program="goes")) == 0
    monkeypatch.chdir(folder)
    assert sorted(numbers()) == list(range(ROWS))
    assert not Path("out.jsonl.waiting").exists()


def test_a_row_that_fails_says_which(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("-o", "out.jsonl", program="fails")) == 1
    told = capsys.readouterr().err
    assert "row 3: error[SGLC401]: `ValueError` in `fails`: not this one\n --> prog.py:13:9" in told
    assert "--resume --retry-failed" in told
    assert sorted(numbers()) == list(range(ROWS))


def test_a_server_that_is_gone_leaves_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They fail one after the other, and each after all its attempts: the batch ends, and none has failed."""
    monkeypatch.setattr(listening, "GONE_S", 1.0)
    served = ("--model", f"scripted:{folder / 'script.json'}")
    try:
        with serving(*served) as server:
            connect(server.url).start()  # it was there when the batch began
            run = ["run", "prog.py:ask", "--batch", "rows.jsonl", "--backend", server.url, "-o", "out.jsonl"]
        monkeypatch.setattr(sys, "argv", ["sglc", *run])
        assert main(run) == 1
        told = capsys.readouterr().err
        assert f"{ROWS} rows: 0 done, 0 failed, {ROWS} left" in told
        assert f"error[SGLC435]: the server at `{server.url}` has gone" in told
        assert told.endswith("--resume --retry-failed\n")
        port = server.url.rpartition(":")[2]
        with running("sglc.cli", "serve", *served, "--port", port):
            assert main([*run, "--resume", "--retry-failed"]) == 0
        assert sorted(numbers()) == list(range(ROWS))
    finally:
        disconnect()
