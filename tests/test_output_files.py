"""Files that commands write: looked at before the work, whole or as they were, and never one that is read."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from sglc.bench import result
from sglc.cli import bench, main
from sglc.observe.whole_file import write_whole

PROGRAM = """
import sglc as sgl

@sgl.function
def ask(s, q="hi"):
    s += q + sgl.gen("a", max_tokens=4)
"""
SCRIPT = "scripted:script.json"
RUN = ["run", "prog.py", "--backend", SCRIPT]
WRITES = {
    "compile": (["compile", "prog.py", "--target", SCRIPT], "-o"),
    "explain": (["explain", "prog.py", "--target", SCRIPT], "--html"),
    "trace": (RUN, "--trace"),
    "bench": (["bench", "host"], "-o"),
}
SHOWS = [
    RUN, [*RUN, "--json"], [*RUN, "--stream"], WRITES["compile"][0], WRITES["explain"][0], ["backends"],
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "_runner", lambda arguments: lambda options: None)
    for name in ("table", "to_json"):
        monkeypatch.setattr(result, name, lambda result: "what was measured")
    Path("prog.py").write_text(PROGRAM)
    Path("script.json").write_text('[{"text": " yes"}]')
    Path("rows.jsonl").write_text('{"q": "a"}\n')
    return tmp_path


def test_what_fails_leaves_the_file_that_was_there() -> None:
    command = ["compile", "prog.py", "--target", SCRIPT, "-o", "plan.json"]
    assert main(command) == 0
    before = Path("plan.json").read_bytes()
    assert before
    assert main([*command, "--passes", "nosuch"]) == 2
    assert main(["compile", "prog.py", "--target", "scripted:none.json", "-o", "plan.json"]) == 2
    assert Path("plan.json").read_bytes() == before


@pytest.mark.parametrize(
    "command",
    [
        ["compile", "prog.py", "--target", SCRIPT, "-o", "prog.py"],
        ["compile", "prog.py:ask", "--target", SCRIPT, "-o", "./prog.py"],
        ["compile", "prog.py", "--target", SCRIPT, "-o", "script.json"],
        ["explain", "prog.py", "--target", SCRIPT, "--html", "prog.py"],
        ["explain", "prog.py", "--target", SCRIPT, "--batch", "rows.jsonl", "--html", "rows.jsonl"],
        [*RUN, "--trace", "prog.py"],
        [*RUN, "--trace", "script.json"],
        [*RUN, "--batch", "rows.jsonl", "--trace", "rows.jsonl"],
        [*RUN, "-o", "out.json", "--trace", "out.json"],
        [*RUN, "--batch", "rows.jsonl", "-o", "out.jsonl", "--trace", "out.jsonl.manifest"],
        [*RUN, "--batch", "rows.jsonl", "-o", "out.jsonl", "--trace", "out.jsonl.waiting"],
        [*RUN, "-o", "script.json", "--force"],
        ["bench", "offline", "--model", "script.json", "-o", "script.json"],
        ["bench", "offline", "--model", "local:.", "-o", "prog.py"],
    ],
    ids=" ".join,
)
def test_no_file_of_the_same_command_is_written_over(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(command) == 2
    assert "error[SGLC073]" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("name", WRITES)
def test_what_cannot_be_written_is_said_before_the_work(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, option = WRITES[name]
    for path in (".", "none/x", "prog.py/x", ""):
        assert main([*command, option, path]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"`{path}` cannot be written" in err or name == "trace" or not path
        code = "SGLC010" if not path else "SGLC057" if name == "trace" else "SGLC009"
        assert err.startswith(f"error[{code}]")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main([*command, option, "x"]) == 2
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["compile", "explain", "bench"])
def test_a_disk_that_is_full(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, option = WRITES[name]
    assert main([*command, option, "/dev/full"]) == 1
    out, err = capsys.readouterr()
    assert "error[SGLC427]: `/dev/full` cannot be written: No space left on device" in err
    assert out or name == "compile"  # what was measured is shown


@pytest.mark.parametrize("name", WRITES)
def test_links_stay_and_pipes_are_written_to(name: str, folder: Path) -> None:
    command, option = WRITES[name]
    os.symlink("real", "link")
    Path("real").touch(mode=0o600)
    assert main([*command, option, "link"]) == 0
    assert Path("link").is_symlink()
    assert Path("real").stat().st_size
    assert stat.S_IMODE(Path("real").stat().st_mode) == 0o600
    os.symlink("later", "dangling")
    assert main([*command, option, "dangling"]) == 0
    assert Path("later").stat().st_size
    os.mkfifo("pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()))
    reader.start()
    assert main([*command, option, "pipe"]) == 0
    reader.join()
    assert read[0]
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_file_that_cannot_be_put_in_place_leaves_nothing(folder: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        write_whole("x" * 300, "text")
    with pytest.raises(UnicodeEncodeError):
        write_whole("rows.jsonl", "\ud800")
    assert json.loads(Path("rows.jsonl").read_text()) == {"q": "a"}
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_file_with_two_names_keeps_them() -> None:
    os.link("script.json", "also.json")
    write_whole("also.json", "new")
    assert Path("script.json").read_text() == "new"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_owner_stays_theirs() -> None:
    os.chown("script.json", 1234, -1)
    write_whole("script.json", "new")
    assert (os.stat("script.json").st_uid, Path("script.json").read_text()) == (1234, "new")


def test_a_file_that_is_mounted_is_written_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    Path("plan.json").write_text("a longer text that was there")
    monkeypatch.setattr(os, "replace", replace)
    before = {path.name for path in folder.iterdir()}
    write_whole("plan.json", "new")
    assert Path("plan.json").read_text() == "new"
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("command", SHOWS, ids=" ".join)
def test_a_stdout_on_a_disk_that_is_full(
    command: list[str], buffered: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = io.FileIO("/dev/full", "w")
    with io.TextIOWrapper(io.BufferedWriter(full) if buffered else full, write_through=not buffered) as out:
        monkeypatch.setattr("sys.stdout", out)
        assert main(command) == 1
    gc.collect()  # no result says that nobody has read its error
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("sglc: 1 run")]
    assert lines == ["error[SGLC427]: `stdout` cannot be written: No space left on device"]


@pytest.mark.parametrize("command", SHOWS, ids=" ".join)
def test_a_stdout_that_nobody_reads(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert main(command) == 0
    gc.collect()
    assert "error" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["explain", "bench"])
def test_a_file_is_written_though_nobody_reads_stdout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command, option = WRITES[name]
    read, write = os.pipe()
    os.close(read)
    with io.TextIOWrapper(
        io.FileIO(write, "w"), write_through=True
    ) as out:  # as where more is printed than fits
        monkeypatch.setattr("sys.stdout", out)
        assert main([*command, option, "written"]) == 0
    assert Path("written").stat().st_size


@pytest.mark.parametrize("command", [WRITES["compile"][0], WRITES["explain"][0]], ids=["compile", "explain"])
def test_json_on_a_terminal_that_knows_few_characters(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("prog.py").write_text(PROGRAM.replace("s += q", "s += 'é ☃ 🂡'"))
    shown = []
    for encoding in ("ascii", "latin-1", "utf-8"):
        written = io.BytesIO()
        with io.TextIOWrapper(written, encoding) as out:
            monkeypatch.setattr("sys.stdout", out)
            assert main([*command, "--emit", "json"]) == 0
            shown.append(json.loads(written.getvalue().decode(encoding)))
    assert shown[0] == shown[1] == shown[2]
    assert "é ☃ 🂡" in str(shown[0])
