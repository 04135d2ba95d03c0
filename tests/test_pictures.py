"""Pictures: a file is read each time that a program runs, however it runs; and what is refused, and how."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Rule, ScriptedBackend, by_rules
from sglc.cli import main
from sglc.errors import LegalizeError, SglcError, TraceError

ONE, TWO = b"\x89PNG\r\n\x1a\none", b"\x89PNG\r\n\x1a\ntwo"
FILE = "now.png"


def says() -> ScriptedBackend:
    return ScriptedBackend(by_rules([Rule(name=name, text="well") for name in ("x", "y")]))


def sent(state: Any) -> list[bytes]:
    """The pictures of a run's prompt."""
    parts = [part for turn in state.messages() if isinstance(turn["content"], list) for part in turn["content"]]
    uris = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(uri.partition(",")[2]) for uri in uris]


@sgl.function
def named(s: Any) -> None:
    s += sgl.user("What is " + sgl.image(FILE) + "?")
    s += sgl.assistant(sgl.gen("x"))


@sgl.function
def given(s: Any, picture: Any) -> None:
    s += sgl.user("What is " + sgl.image(picture) + "?")
    s += sgl.assistant(sgl.gen("x"))


@sgl.function
def caller(s: Any, picture: Any) -> None:
    seen = given(picture=picture)
    s += sgl.user(sgl.image(picture) + f"They said {seen['x']}") + sgl.assistant(sgl.gen("y"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mode", ["auto", "plan", "python"])
@pytest.mark.parametrize("program", [named, given, caller], ids=["named", "given", "called"])
def test_a_file_is_read_at_each_run(program: Any, mode: Any, folder: Path) -> None:
    backend = says()
    found = []
    for content in (ONE, TWO, ONE, ONE, TWO):
        (folder / FILE).write_bytes(content)
        arguments = {} if program is named else {"picture": FILE}
        found += sent(program.run(**arguments, backend=backend, mode=mode))
    assert found == [ONE, TWO, ONE, ONE, TWO]


def test_a_relative_path_begins_where_the_process_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("a", ONE), ("b", TWO)):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).write_bytes(content)
    found = []
    for name in "abab":
        monkeypatch.chdir(tmp_path / name)
        found += sent(named.run(backend=says(), mode="plan"))
    assert found == [ONE, TWO, ONE, TWO]


def test_one_plan_serves_every_picture_and_reads_files_when_it_runs(folder: Path) -> None:
    (folder / FILE).write_bytes(ONE)
    backend = says()
    given.compile(backend=backend).save("plan.json")
    plan = sgl.load_plan("plan.json")
    (folder / FILE).write_bytes(TWO)
    data = "data:image/png;base64," + base64.b64encode(ONE).decode("ascii")
    states = plan.run_batch([{"picture": FILE}, {"picture": data}], backend=backend)
    assert [sent(state) for state in states] == [[TWO], [ONE]]
    compiled = named.compile(backend=backend)
    (folder / FILE).write_bytes(ONE)
    assert sent(compiled.run(backend=backend)) == [ONE]
    (state,) = given.run_batch([{"picture": FILE}], backend=backend)
    assert sent(state) == [ONE]
    (folder / FILE).write_bytes(TWO)
    (state,) = given.run_batch([{"picture": FILE}], backend=backend)
    assert sent(state) == [TWO]


def test_a_missing_file_is_an_error_of_the_run_at_its_place(folder: Path) -> None:
    for mode in ("plan", "python"):
        error = given.run("no.png", backend=says(), mode=mode).error()
        assert isinstance(error, TraceError)
        assert error.code == "SGLC118"
        assert error.loc is not None
        assert error.loc.line == given.definition.loc.line + 1
    (folder / "no.png").write_bytes(ONE)
    assert sent(given.run("no.png", backend=says(), mode="plan")) == [ONE]


@sgl.tool
def rewritten(path: str, last: str) -> str:
    Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + last.encode())
    return path


@sgl.function
def ends_with_one(s: Any, picture: str, branch: bool) -> None:
    s += "a" + sgl.gen("x")
    if branch:
        s = s.fork(1)[0]
    s += "b" + sgl.image(picture)


@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("mode", ["plan", "python"])
def test_a_file_is_read_though_nothing_is_generated_behind_it(mode: Any, branch: bool, folder: Path) -> None:
    error = ends_with_one.run(FILE, branch, backend=says(), mode=mode).error()
    assert isinstance(error, TraceError)
    assert error.code == "SGLC118"
    (folder / FILE).write_bytes(ONE)
    result = ends_with_one.run(FILE, branch, backend=says(), mode=mode)
    assert (result.error(), result.mode) == (None, mode)


def test_a_file_is_as_the_tools_before_it_have_left_it(folder: Path) -> None:
    @sgl.function
    def drawn(s: Any, path: str) -> None:
        rewritten(path, "one")
        s += sgl.user(sgl.image(path)) + sgl.assistant(sgl.gen("x"))

    @sgl.function
    def read(s: Any, path: str) -> None:
        s += sgl.user(sgl.image(path)) + sgl.assistant(sgl.gen("x"))
        rewritten(path, "two")

    @sgl.function
    def again(s: Any, path: str) -> None:
        s += sgl.user(sgl.image(path)) + sgl.assistant(sgl.gen("x"))
        rewritten(path, "two")
        s += sgl.user(sgl.image(path)) + sgl.assistant(sgl.gen("y"))

    for mode in ("auto", "auto", "python"):
        for program, expected in ((drawn, [ONE]), (read, [ONE]), (again, [ONE, TWO])):
            (folder / FILE).write_bytes(ONE)
            assert sent(program.run(FILE, backend=says(), mode=mode)) == expected
    assert "image" in drawn.explain().text() or "picture" in drawn.explain().text()
    read.compile(backend=says())


def test_a_program_catches_that_a_file_is_missing(folder: Path) -> None:
    @sgl.function
    def tried(s: Any, path: str) -> str:
        try:
            s += sgl.user(sgl.image(path))
        except SglcError:
            s += sgl.user("nothing")
            return "none"
        s += sgl.assistant(sgl.gen("x"))
        return "one"

    assert [tried.run("no.png", backend=says()).ret_value for _ in range(3)] == ["none"] * 3


def test_paths_that_only_a_run_knows(folder: Path) -> None:
    (folder / FILE).write_bytes(ONE)

    @sgl.function(fullgraph=True)
    def chosen(s: Any, name: str) -> None:
        s += sgl.user("Which?") + sgl.assistant(sgl.gen("x"))
        s += sgl.user(sgl.image(f"{name}.png") + sgl.image(s["x"])) + sgl.assistant(sgl.gen("y"))

    backend = ScriptedBackend(by_rules([Rule(name="x", text=FILE), Rule(name="y", text="well")]))
    assert sent(chosen.run("now", backend=backend, mode="plan")) == [ONE, ONE]


PATH = PurePath(FILE)
CHANGING = bytearray(ONE)


def test_what_a_program_finds_outside_of_itself(folder: Path) -> None:
    @sgl.function
    def outside(s: Any) -> None:
        s += sgl.user(sgl.image(PATH) + sgl.image(CHANGING)) + sgl.assistant(sgl.gen("x"))

    for content in (ONE, TWO, ONE):
        CHANGING[:] = content
        (folder / FILE).write_bytes(content)
        assert sent(outside.run(backend=says())) == [content, content]


def data_of(picture: Any) -> str:
    return str(picture.data)


# -- what is refused ---------------------------------------------------------------------------------


class Pil:
    """Stands for an image of PIL, which is not installed here; its PNG files lack what PIL's lack."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def convert(self, mode: str) -> Pil:
        return Pil(mode)

    def save(self, file: Any, format: str) -> None:
        if self.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
            raise OSError(f"cannot write mode {self.mode} as {format}")
        file.write(ONE + self.mode.encode())


Pil.__module__ = "PIL.Image"


@pytest.mark.parametrize("make", [Pil, lambda mode: pytest.importorskip("PIL.Image").new(mode, (2, 2))])
def test_pil_images_in_modes_that_png_lacks(make: Callable[[str], Any]) -> None:
    for mode in ("CMYK", "YCbCr", "LAB", "HSV", "PA", "RGBa"):
        assert data_of(sgl.image(make(mode))).startswith("data:image/png;base64,iVBORw0KGg")
    for mode in ("F", "I"):  # where white is, only the program knows
        with pytest.raises(TraceError, match="cannot be written as a PNG file") as caught:
            sgl.image(make(mode))
        assert (caught.value.code, caught.value.loc is not None) == ("SGLC118", True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: "a\0b", "cannot be read"),
        (lambda: "/dev/zero", "it is no file"),
        (lambda: base64.b64encode(ONE * 200_000).decode("ascii"), "cannot be read"),
        (lambda: "data:" + "text/plain;" * 200_000 + "base64,", "is no picture"),
    ],
    ids=["nul", "device", "base64", "data"],
)
def test_a_text_that_is_no_picture_is_shown_in_part(make: Callable[[], str], said: str) -> None:
    with pytest.raises(TraceError, match=said) as caught:
        sgl.image(make())
    assert caught.value.code == "SGLC118"
    assert "data:image/png;base64," in caught.value.hint
    assert len(str(caught.value)) < 1_000


def test_schemes_ignore_case() -> None:
    data = base64.b64encode(ONE).decode("ascii")
    assert data_of(sgl.image("HTTPS://example.org/A.png")) == "HTTPS://example.org/A.png"
    assert data_of(sgl.image(f"DATA:Image/PNG;Base64,{data}")) == f"data:image/png;base64,{data}"


@pytest.mark.parametrize("guesses", [None, 32])
def test_a_generation_behind_a_picture_is_not_told_to_guess(guesses: int | None) -> None:
    @sgl.function(num_api_spec_tokens=guesses)
    def behind(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.image(ONE) + sgl.gen("x"))

    with pytest.raises(LegalizeError, match="behind a picture in the same turn") as caught:
        behind.compile(backend="openai:gpt-4o")
    assert caught.value.code == "SGLC317"
    assert "user's turn" in caught.value.hint
    assert "num_api_spec_tokens" not in caught.value.hint


@sgl.function(fullgraph=True)
def behind_tool(s: Any, path: str) -> None:
    rewritten(path, "one")
    s += sgl.user(sgl.image(path)) + sgl.assistant(sgl.gen("x"))


def test_a_graph_break_of_a_picture_says_that_it_is_one() -> None:
    with pytest.raises(TraceError, match="the file of a picture is read behind `rewritten`") as caught:
        behind_tool.compile(backend=says())
    assert caught.value.code == "SGLC150"


# -- what people see ---------------------------------------------------------------------------------

PROGRAM = """
import sglc as sgl


@sgl.function
def see(s, picture):
    s += sgl.user("What is " + sgl.image(picture) + "?") + sgl.assistant(sgl.gen("x"))
"""


def test_the_command_line_shows_a_mark_for_a_picture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "see.py").write_text(PROGRAM)
    (folder / "script.json").write_text(json.dumps([{"name": "x", "text": "well"}]))
    (folder / FILE).write_bytes(ONE * 10_000)
    assert main(["run", "see.py:see", "--arg", f"picture={FILE}", "--backend", "scripted:script.json"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^user: What is <image [0-9a-f]{16}>\?\nassistant: well$", said, re.MULTILINE)
    assert len(said) < 200


def test_text_leaves_pictures_out(folder: Path) -> None:
    (folder / FILE).write_bytes(ONE)
    for mode in ("plan", "python"):
        state = given.run(FILE, backend=says(), mode=mode)
        assert "What is ?" in state.text()
        assert "image" not in state.text()
