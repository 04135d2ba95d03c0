"""Batches of the command line: each result is written when its row ends, and a run that was ended goes on."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sglc.cli import main
from sglc.cli.batch.reorder_buffer import ReorderBuffer
from sglc.cli.program_file import open_function
from sglc.errors import UsageError
from tests.depth import at_depth, few, some_of

PROGRAM = """
import sglc as sgl

@sgl.function
def ask(s, q):
    s += "Q: " + q + sgl.gen("a", max_tokens=64)
    s += "B:" + sgl.gen("b", max_tokens=8)
    return s["a"] + s["b"]

@sgl.function
def once(s, q):
    s += "Q: " + q + sgl.gen("a", max_tokens=64)

@sgl.function
def number(s, q):
    s += "Q: " + q + sgl.gen("a", dtype=dict[str, int])

@sgl.function
def typed(s, n: int, yes: bool, x: float = 0.5):
    s += f"{n + 1} {yes} {x}" + sgl.gen("a", max_tokens=4)
"""
ROWS = 40
SLOW = 7  # the row with a long answer
CUTS = at_depth(quick=6, usual=12, nightly=200)
# Python before 3.12 leaves a torn one where the disk is full.
WITHOUT_PYC = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "prog.py").write_text(PROGRAM)
    rules = [
        {"text": " ".join(["word"] * 40), "prompt": f"Q: r{SLOW}$"},
        {"text": " no", "prompt": "Q: r[369]"},
        {"text": " yes"},
    ]
    (tmp_path / "script.json").write_text(json.dumps({"rules": rules, "word_s": 0.0}))
    (tmp_path / "slow.json").write_text(json.dumps({"rules": rules, "word_s": 0.02}))
    with (tmp_path / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps({"q": f"r{n}"}) + "\n" for n in range(ROWS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*more: str, program: str = "prog.py:ask", script: str = "script.json") -> list[str]:
    return ["run", program, "--backend", f"scripted:{script}", "--batch", "rows.jsonl", "--seed", "1", *more]


def start(arguments: Sequence[str], **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sglc.cli", *arguments], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more,
    )  # fmt: skip


def lines_of(path: str | Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in Path(path).read_bytes().decode().split("\n") if line]
    for one in found:
        del one["timing"]
    return found


def by_row(path: str | Path) -> list[dict[str, Any]]:
    return sorted(lines_of(path), key=lambda one: int(one["index"]))


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < count):
        time.sleep(0.002)


@pytest.mark.slow
def test_results_are_written_as_rows_end(folder: Path) -> None:
    assert main(command("-o", "out.jsonl", script="slow.json")) == 0
    order = [one["index"] for one in lines_of("out.jsonl")]
    assert sorted(order) == list(range(ROWS))
    assert order[-1] == SLOW  # all the others are in the file while it runs


@pytest.mark.slow
def test_results_in_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("-o", "out.jsonl", "--ordered", script="slow.json")) == 0
    assert [one["index"] for one in lines_of("out.jsonl")] == list(range(ROWS))
    assert not Path("out.jsonl.waiting").exists()
    assert main(command("--json", script="slow.json")) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["index"] for one in printed] == list(range(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
def test_a_run_goes_on_wherever_it_was_cut(
    folder: Path, ordered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files as they were at some moment, the last line perhaps torn."""
    more = ["--ordered"] if ordered else []
    assert main(command("-o", "whole.jsonl", *more)) == 0
    whole, manifest = Path("whole.jsonl").read_bytes(), Path("whole.jsonl.manifest").read_bytes()
    lines = whole.splitlines(keepends=True)
    random.seed(1)
    for cut in [0, 1, len(whole) - 1, len(whole), *(random.randrange(len(whole)) for _ in range(CUTS))]:
        Path("out.jsonl").write_bytes(whole[:cut])
        Path("out.jsonl.manifest").write_bytes(manifest)
        done = whole[:cut].count(b"\n")
        if ordered:  # some that have ended wait; the first of them may have been given already
            early = lines[max(done - 1, 0) : done] + random.sample(
                lines[done + 1 :], k=len(lines[done + 1 :]) // 2
            )
            torn = lines[done][:9] if done < ROWS else b""
            Path("out.jsonl.waiting").write_bytes(b"".join(early) + torn)
            done += len(early) - (1 if done else 0)
        capsys.readouterr()
        assert main(command("-o", "out.jsonl", "--resume", *more)) == 0
        assert f"{2 * (ROWS - done)} calls" in capsys.readouterr().err
        assert by_row("out.jsonl") == by_row("whole.jsonl")
        if ordered:
            assert [one["index"] for one in lines_of("out.jsonl")] == list(range(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("concurrency", "ordered"), some_of([(1, False), (5, False), (1, True), (5, True)], 1, 2)
)
def test_a_killed_run_goes_on(folder: Path, ordered: bool, concurrency: int) -> None:
    more = ["--concurrency", str(concurrency), *(["--ordered"] if ordered else [])]
    assert main(command("-o", "whole.jsonl", *more)) == 0
    out = folder / "out.jsonl"
    for count in (0, 3, 11, 30):
        asked = command("-o", "out.jsonl", *more, *(["--resume"] if out.exists() else []), script="slow.json")
        process = start(asked)
        wait_for_lines(out, count, process)
        process.kill()
        process.communicate()
    assert main(command("-o", "out.jsonl", "--resume", *more)) == 0
    assert by_row("out.jsonl") == by_row("whole.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("number", few([signal.SIGINT, signal.SIGTERM], 1))
def test_a_signal_ends_a_batch_in_good_order(folder: Path, number: signal.Signals) -> None:
    process = start(command("-o", "out.jsonl", "--concurrency", "2", script="slow.json"))
    wait_for_lines(folder / "out.jsonl", 5, process)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    done = len(lines_of("out.jsonl"))
    assert f"{ROWS} rows: {done} done, 0 failed, {ROWS - done} left" in told
    assert "sglc: go on with: sglc run prog.py:ask" in told
    assert "--resume" in told
    assert "Traceback" not in told
    assert all(one["error"] is None for one in lines_of("out.jsonl"))
    assert main(command("-o", "out.jsonl", "--resume")) == 0
    assert [one["index"] for one in by_row("out.jsonl")] == list(range(ROWS))


@pytest.mark.slow
def test_another_batch_does_not_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("-o", "out.jsonl", "--max-calls-total", "20")) == 1
    kept = Path("out.jsonl").read_bytes()
    text = Path("prog.py").read_text()
    (folder / "prog.py").write_text(text + "\n# changed\n")
    with (folder / "rows.jsonl").open("a") as rows:
        rows.write('{"q": "one more"}\n')
    again = command("-o", "out.jsonl", "--resume", "--max-tokens", "9", "--arg", "z=1")
    again[again.index("1")] = "2"
    assert main(again) == 2
    told = capsys.readouterr().err
    for part in (
        "`prog.py:ask`",
        "rows have changed",
        "seed was 1 and is 2",
        "`max_tokens` was None",
        "`z` was None",
    ):
        assert part in told or part == "`prog.py:ask`"
    assert "SGLC076" in told
    assert "has changed" in told
    assert Path("out.jsonl").read_bytes() == kept
    (folder / "prog.py").write_text(text)
    assert main(command("-o", "out.jsonl", "--resume", "--force")) == 0
    assert len(by_row("out.jsonl")) == ROWS + 1


@pytest.mark.slow
def test_rows_that_failed_run_again_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = [{"text": " yes", "prompt": "Q: (?!r[24])|B:"}]
    (folder / "script.json").write_text(json.dumps(rules))
    assert main(command("-o", "out.jsonl")) == 1
    told = capsys.readouterr().err
    failed = [one["index"] for one in by_row("out.jsonl") if one["error"]]
    assert failed == [2, 4, *range(20, 30)]
    assert f"{ROWS} rows: {ROWS - 12} done, 12 failed, 0 left" in told
    assert "--resume --retry-failed" in told
    (folder / "script.json").write_text(json.dumps([{"text": " yes"}]))
    assert main(command("-o", "out.jsonl", "--resume")) == 1  # they are kept
    assert " 0 calls" in capsys.readouterr().err
    assert main(command("-o", "out.jsonl", "--resume", "--retry-failed")) == 0
    assert "24 calls" in capsys.readouterr().err
    assert [(one["index"], one["error"]) for one in by_row("out.jsonl")] == [(n, None) for n in range(ROWS)]


@pytest.mark.slow
def test_a_text_that_spells_no_value_fails_its_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = command("-o", "out.jsonl", program="prog.py:number")
    assert main(wrong) == 1
    told = capsys.readouterr().err
    assert f"{ROWS} rows: 0 done, {ROWS} failed" in told
    assert "row 0: error[SGLC410]: what was generated is no `dict[str, int]`" in told
    assert {one["error"]["code"] for one in lines_of("out.jsonl")} == {"SGLC410"}
    assert [one["site"] for one in lines_of("out.jsonl")[0]["failures"]] == ["number.a#0"]
    (folder / "script.json").write_text(json.dumps([{"text": '{"n": 1}'}]))
    assert main([*wrong, "--resume", "--retry-failed"]) == 0
    assert [one["vars"] for one in lines_of("out.jsonl")] == [{"a": {"n": 1}}] * ROWS


def test_what_shows_a_value_reads_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    single = ["run", "prog.py:number", "--backend", "scripted:script.json", "--arg", "q=r"]
    for more, code in ([], 0), (["--json"], 1), (["--outputs", "a"], 1), (["-o", "out.json"], 1):
        assert main([*single, *more]) == code
        assert "error[SGLC410]" in capsys.readouterr().err


def test_what_is_there_is_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Path("rows.jsonl").read_bytes()
    assert main(command("-o", "rows.jsonl")) == 2
    os.symlink("rows.jsonl", "link.jsonl")
    assert main(command("-o", "link.jsonl", "--force")) == 2
    assert Path("rows.jsonl").read_bytes() == rows
    assert main(command("-o", "out.jsonl")) == 0
    kept = Path("out.jsonl").read_bytes()
    assert main(command("-o", "out.jsonl")) == 2
    assert Path("out.jsonl").read_bytes() == kept
    assert [code for code in capsys.readouterr().err.split() if "SGLC0" in code] == [
        "error[SGLC073]:", "error[SGLC073]:", "error[SGLC072]:",
    ]  # fmt: skip
    assert main(command("-o", "out.jsonl", "--force")) == 0
    assert len(lines_of("out.jsonl")) == ROWS


def test_two_runs_do_not_write_one_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl

    with open("out.jsonl", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(command("-o", "out.jsonl")) == 2
    assert "SGLC074" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "size", "full"), [("once", 3000, "out.jsonl"), ("ask", 9000, "out.jsonl.journal")]
)
def test_a_file_that_may_not_grow_keeps_whole_rows(folder: Path, program: str, size: int, full: str) -> None:
    """As a disk that is full, for results or for the journal: the run says how to go on."""

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    run = command("-o", "out.jsonl", "--concurrency", "8", program=f"prog.py:{program}")
    process = start(run, preexec_fn=small, env=WITHOUT_PYC)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"error[SGLC427]: `{full}` cannot be written: File too large" in told
    assert (told.count("error["), "Traceback" in told) == (1, False)
    done = len(lines_of("out.jsonl"))
    assert 0 < done < ROWS
    assert Path("out.jsonl").read_bytes().endswith(b"\n")
    assert f"{done} done" in told
    assert main([*run, "--resume"]) == 0
    assert [one["index"] for one in by_row("out.jsonl")] == list(range(ROWS))


@pytest.mark.slow
def test_nobody_reads_stdout(folder: Path) -> None:
    """However late the reader closes: the rows are more than fit into the pipe and its buffer."""
    (folder / "script.json").write_text(json.dumps([{"text": " word" * 400}]))
    process = start(command("--json"), pipesize=4096)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        told = process.stderr.read()
    assert process.wait(timeout=60) == 1
    assert "SGLC428" in told
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii(folder: Path) -> None:
    (folder / "script.json").write_text(json.dumps([{"text": " caf\u00e9 \ud83d\ude00"}]))
    for form in ([], ["--json"]):
        process = start(command(*form), env={**os.environ, "PYTHONIOENCODING": "ascii"})
        said, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
        assert said.isascii()
        if form:
            assert json.loads(said.splitlines()[0])["vars"]["a"] == " caf\u00e9 \U0001f600"


# -- the journal -----------------------------------------------------------------------------------

TOOLS = """
import sglc as sgl

@sgl.tool
def send(q: str) -> str:
    with open("sent.txt", "a") as file:
        file.write(q + "\\n")
    return "ok"

@sgl.function
def ask(s, q):
    s += "Q: " + q + sgl.gen("a", max_tokens=8)
    s += send(q) + sgl.gen("b", max_tokens=64)

@sgl.function
def approved(s, q):
    s += "Q: " + q + sgl.gen("a", max_tokens=8)
    s += "A person says " + str(sgl.pause("approve", "Send it?", text=s["a"]))
"""


@pytest.mark.slow
def test_tools_of_rows_that_were_cut_are_not_called_again(folder: Path) -> None:
    (folder / "prog.py").write_text(TOOLS)
    slow = [{"text": " ".join(["word"] * 20), "name": "b"}, {"text": " yes"}]
    (folder / "slow.json").write_text(json.dumps({"rules": slow, "word_s": 0.01}))
    (folder / "script.json").write_text(json.dumps(slow))
    out = folder / "out.jsonl"
    counts = some_of(range(ROWS), 1, 3)
    for count in counts:
        more = ["--resume"] if out.exists() else []
        process = start(command("-o", "out.jsonl", "--concurrency", "3", *more, script="slow.json"))
        wait_for_lines(out, count, process)
        process.kill()
        process.communicate()
    assert main(command("-o", "out.jsonl", "--resume", "--redo", "send")) == 0
    assert [one["index"] for one in by_row("out.jsonl")] == list(range(ROWS))
    sent = (folder / "sent.txt").read_text().splitlines()
    assert {f"r{n}" for n in range(ROWS)} == set(sent)
    assert len(sent) <= ROWS + 3 * len(counts)  # but for those in doubt: begun when the process was killed
    assert not Path("out.jsonl.journal").exists()


@pytest.mark.slow
def test_rows_of_one_call_leave_no_journal(folder: Path) -> None:
    for index, (program, keeps) in enumerate((("once", False), ("typed", False), ("ask", True))):
        rows = [{"q": "r0", "n": 1, "yes": True}, {"q": "r1", "n": 2, "yes": True}]
        names = ("n", "yes") if program == "typed" else ("q",)
        rows = [{name: row[name] for name in names} for row in rows]
        Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        out = f"{index}.jsonl"
        assert main(command("-o", out, "--max-calls-total", "1", program=f"prog.py:{program}")) == 1
        assert Path(f"{out}.journal/recording.jsonl").exists() == keeps, program


@pytest.mark.slow
def test_calls_of_rows_that_were_cut_are_not_made_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program without tools: its second call fails, and the first one is not asked for any more."""
    Path("rows.jsonl").write_text('{"q": "r0"}\n{"q": "r1"}\n')
    first = [{"text": " one", "name": "a"}]
    (folder / "script.json").write_text(json.dumps(first))
    assert main(command("-o", "out.jsonl")) == 1
    (folder / "script.json").write_text(json.dumps([{"text": " two", "name": "b"}]))
    journal = Path("out.jsonl.journal/recording.jsonl")
    held = journal.read_text()
    assert '"hash": "' in held
    assert '"prompt": "' not in held
    with pytest.raises(UsageError, match="the journal of a batch"):
        open_function("prog.py:ask").run(q="r0", replay="out.jsonl.journal")
    assert main(command("-o", "out.jsonl", "--resume", "--retry-failed")) == 0
    assert [one["text"] for one in by_row("out.jsonl")] == ["Q: r0 oneB: two", "Q: r1 oneB: two"]
    assert not journal.exists()
    # With other options, of which the journal has but a digest.
    (folder / "script.json").write_text(json.dumps(first))
    assert main(command("-o", "more.jsonl")) == 1
    source = folder / "prog.py"
    source.write_text(source.read_text().replace('"a", max_tokens=64', '"a", max_tokens=6'))  # another size
    capsys.readouterr()
    assert main(command("-o", "more.jsonl", "--resume", "--retry-failed", "--force")) == 1
    assert "SGLC420" in capsys.readouterr().err


@pytest.mark.slow
def test_a_batch_that_was_cut_is_gone_on_with_or_dropped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if it had no result yet, or somebody took those away."""
    Path("rows.jsonl").write_text('{"q": "r0"}\n')
    (folder / "script.json").write_text(json.dumps([{"text": " one", "name": "a"}]))
    assert main(command("-o", "out.jsonl")) == 1
    Path("out.jsonl").unlink()
    held = Path("out.jsonl.journal/recording.jsonl").read_bytes()
    capsys.readouterr()
    assert main(command("-o", "out.jsonl")) == 2
    told = capsys.readouterr().err
    assert "SGLC050" in told
    assert "`--resume`, or drop it: `--force`" in told
    assert Path("out.jsonl.journal/recording.jsonl").read_bytes() == held
    (folder / "script.json").write_text(json.dumps([{"text": " two"}]))
    assert main(command("-o", "out.jsonl", "--resume", "--retry-failed")) == 0
    assert [one["text"] for one in by_row("out.jsonl")] == ["Q: r0 oneB: two"]
    (folder / "script.json").write_text(json.dumps([{"text": " one", "name": "a"}]))
    assert main(command("-o", "more.jsonl")) == 1
    (folder / "script.json").write_text(json.dumps([{"text": " two"}]))
    assert main(command("-o", "more.jsonl", "--force")) == 0
    assert [one["text"] for one in by_row("more.jsonl")] == ["Q: r0 twoB: two"]


@pytest.mark.slow
def test_rows_wait_for_a_person(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "prog.py").write_text(TOOLS)
    (folder / "rows.jsonl").write_text('{"q": "r0"}\n{"q": "r1"}\n')
    assert main(command("-o", "out.jsonl", program="prog.py:approved")) == 1
    assert "SGLC413" in capsys.readouterr().err
    again = command("-o", "out.jsonl", "--resume", program="prog.py:approved")
    assert main([*again, "--answer", '0:approve="yes"']) == 1
    assert "2 rows: 1 done, 1 failed" in capsys.readouterr().err
    assert main([*again, "--answer", '1:approve="no"']) == 0
    told = capsys.readouterr().err
    assert [one["text"].partition("says ")[2] for one in by_row("out.jsonl")] == ["yes", "no"], told


# -- budgets ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_ends_when_its_budget_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("-o", "out.jsonl", "--max-calls-total", "21")) == 1
    assert len(lines_of("out.jsonl")) == 10
    assert "40 rows: 10 done, 0 failed, 30 left, 20 calls" in capsys.readouterr().err
    assert main(command("-o", "out.jsonl", "--resume", "--max-cost", "0.0001", "--price", "1,2")) == 1
    told = capsys.readouterr().err
    more = len(lines_of("out.jsonl")) - 10
    assert 1 < more < 30, told
    assert main(command("-o", "out.jsonl", "--resume", "--max-tokens-total", "1000000")) == 0
    assert [one["index"] for one in by_row("out.jsonl")] == list(range(ROWS))


@pytest.mark.slow
def test_a_batch_ends_at_its_deadline(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["-o", "out.jsonl", "--concurrency", "1", "--deadline", "0.5"]
    assert main(command(*more, script="slow.json")) == 1
    done = len(lines_of("out.jsonl"))
    assert done < ROWS
    assert f"{ROWS - done} left" in capsys.readouterr().err
    assert main(command("-o", "out.jsonl", "--resume")) == 0


def test_programs_are_told_how_a_batch_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = [{"text": " yes", "prompt": "Q: (?!r[24])|B:"}]
    (folder / "script.json").write_text(json.dumps(rules))
    assert main(command("-o", "out.jsonl", "--progress", "json", "--price", "1000,2000")) == 1
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    made = sum(one["usage"]["completion"] for one in lines_of("out.jsonl"))
    read = sum(one["usage"]["prompt"] for one in lines_of("out.jsonl"))
    last = lines[-1]
    assert [last[name] for name in ("rows", "total", "failed", "tokens")] == [ROWS, ROWS, 12, made]
    assert last["cost"] == pytest.approx((1000 * read + 2000 * made) / 1e6)
    assert last["left_s"] == 0.0


@pytest.mark.slow
def test_people_see_a_bar_on_a_terminal(folder: Path) -> None:
    """A real one: what the other end of a pseudo-terminal reads."""
    master, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (40, 120))
    process = subprocess.Popen(
        [sys.executable, "-m", "sglc.cli", *command("-o", "out.jsonl")], stderr=terminal,
        env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    os.close(terminal)
    told = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        told += piece
    os.close(master)
    assert process.wait(timeout=60) == 0
    shown = told.decode()
    assert f"{ROWS}/{ROWS}" in shown
    assert "tok/s" in shown
    assert "cached" in shown
    assert "Traceback" not in shown


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_in_other_forms(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"n": 1, "yes": True, "x": 1.5}, {"n": -2, "yes": False, "x": 0.25}]
    Path("t.jsonl").write_text("\ufeff" + "\r\n\n".join(json.dumps(row) for row in rows))
    Path("t.csv").write_text("n,yes,x\r\n1,true,1.5\n-2,False,0.25\n")
    Path("t.tsv").write_text("n\tyes\tx\n1\tTRUE\t1.5\n-2\tfalse\t.25\n")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "t.parquet")
    shown = set()
    for name in ("t.jsonl", "t.csv", "t.tsv", "t.parquet"):
        asked = command("--json", program="prog.py:typed")
        asked[asked.index("rows.jsonl")] = name
        assert main(asked) == 0
        shown.add(tuple(json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()))
    assert shown == {("2 True 1.5 yes", "-1 False 0.25 yes")}


def test_only_line_feeds_end_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "a\u2028b\u0085c\u000bd"
    (folder / "rows.jsonl").write_text(json.dumps({"q": text}, ensure_ascii=False) + "\n")
    (folder / "script.json").write_text(json.dumps([{"text": f" {text}"}]))
    assert main(command("--json")) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed)["vars"]["a"] == f" {text}"


@pytest.mark.slow
def test_rows_from_stdin(folder: Path) -> None:
    asked = command("-o", "out.jsonl")
    asked[asked.index("rows.jsonl")] = "-"
    for more in ([], ["--resume"]):
        done = subprocess.run(
            [sys.executable, "-m", "sglc.cli", *asked, *more], input=Path("rows.jsonl").read_text(), text=True,
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert "0 calls" in done.stderr
    assert len(by_row("out.jsonl")) == ROWS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("r.jsonl", b'{"q": "a"}\n{"q": NaN}\n', "r.jsonl:2:7"),
        ("r.jsonl", b'{"q": "a"}\n{"q": "\xff"}\n', "r.jsonl:2:8"),
        ("r.jsonl", b'{"q": "a"}\n["q"]\n', "r.jsonl:2"),
        ("r.jsonl", b'{"q": "a"}\n{"q": \n', "r.jsonl:2:6"),
        ("r.csv", b"q,q\n1,2\n", "r.csv:1"),
        ("r.csv", b"q\n1\n1,2\n", "r.csv:3"),
        ("r.csv", b'q\n"1\n', "r.csv:"),
        ("r.parquet", b"PAR2", "r.parquet:1"),
    ],
)
def test_rows_that_are_none(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, place: str
) -> None:
    Path(name).write_bytes(content)
    asked = command("-o", "out.jsonl")
    asked[asked.index("rows.jsonl")] = name
    assert main(asked) == 2
    told = capsys.readouterr().err
    assert "SGLC008" in told
    assert place in told
    assert not Path("out.jsonl").exists()


# -- the buffer ------------------------------------------------------------------------------------


def test_the_reorder_buffer_gives_each_text_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglc.cli.batch.reorder_buffer._COMPACTED", 2000)
    for seed in range(at_depth(quick=5, usual=10, nightly=200)):
        draw = random.Random(seed)
        skipped = {n for n in range(300) if draw.random() < 0.1}
        numbers = [n for n in range(300) if n not in skipped]
        reach = draw.choice([1, 10, 300])
        arrives = sorted(numbers, key=lambda n: n + draw.random() * reach)
        given: list[bytes] = []
        buffer = ReorderBuffer(given.append, str(tmp_path / "w") if seed % 2 else None, skipped)
        largest = 0
        for number in arrives:
            buffer.put(number, f"{number}{'x' * draw.randrange(50)}\n".encode())
            largest = max(largest, buffer._end)
        buffer.close()
        assert [int(text.split(b"x")[0]) for text in given] == numbers
        assert largest <= 2000 + 55 + 55 * min(reach, 300) * 2
        assert not (tmp_path / "w").exists()
