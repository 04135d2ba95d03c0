"""What a tool raises comes back from a recording as what it was, or says that it does not."""

from __future__ import annotations

import errno
import json
import subprocess
import traceback
import urllib.error
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import Loc, RunError, SglcError
from sglc.observe.replay.raised import NotKept, raised_json, raised_of
from sglc.observe.replay.tape import FILE
from tests.test_record import REFUSING, both, echoing


class ServerError(Exception):
    """Its arguments do not make it once more."""

    def __init__(self, status: int, answer: object = None) -> None:
        super().__init__(f"the server said {status}")
        self.status = status
        self.answer = answer


class Slotted(ValueError):
    __slots__ = ("left", "unset")

    def __init__(self, left: int | None) -> None:
        super().__init__("a", left)
        self.left = left


class Wordy(KeyError):
    """What it says is of what is no data."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def __str__(self) -> str:
        return f"got {type(self.answer).__name__}"


def came_back(error: Exception) -> Exception:
    return raised_of(json.loads(json.dumps(raised_json(error))), "f")


def noted(error: Exception) -> Exception:
    error.add_note("in passing")
    return error


WHOLE = [
    ServerError(503),
    Slotted(None),
    Exception("plain"),
    OSError(errno.ENOENT, "no such file", "a.txt"),
    BlockingIOError(errno.EAGAIN, "later", 5),
    json.JSONDecodeError("no value", "{nope", 1),
    UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "bad"),
    subprocess.CalledProcessError(3, ["ls"], "out"),
    ImportError("gone", name="x", path="x.py"),
    SyntaxError("bad", ("f.py", 1, 2, "x x")),
    StopIteration(4),
    KeyError("k"),
    RunError("SGLC405", "it failed", Loc("f.py", 3), note="so", hint="do"),
    noted(ValueError(("a", 1))),
]


@pytest.mark.parametrize("error", WHOLE, ids=lambda error: type(error).__name__)
def test_an_exception_comes_back_as_it_was(error: Exception) -> None:
    again = came_back(error)
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
    assert raised_json(again) == raised_json(error)
    assert traceback.format_exception(again) == traceback.format_exception(error)


def test_exceptions_in_exceptions_come_back() -> None:
    inner = ExceptionGroup("two", [ServerError(503), OSError(errno.ENOENT, "gone", "a.txt")])
    again = came_back(ExceptionGroup("all", [ValueError(1), inner]))
    assert isinstance(again, ExceptionGroup)
    servers, rest = again.split(ServerError)
    assert servers is not None
    assert servers.exceptions[0].exceptions[0].status == 503
    assert rest is not None
    assert rest.exceptions[1].exceptions[0].filename == "a.txt"
    refused: Any = came_back(urllib.error.URLError(ConnectionRefusedError(errno.ECONNREFUSED, "refused")))
    assert isinstance(refused.reason, ConnectionRefusedError)
    loop = ValueError("x")
    loop.me = loop  # type: ignore[attr-defined]
    assert isinstance(came_back(loop), ValueError)


def test_one_whose_class_is_not_there_is_below_the_nearest_that_is() -> None:
    class Local(Slotted):
        more = ""

    error = Local(3)
    error.more = "x"
    again = came_back(error)
    assert isinstance(again, Slotted)
    assert (type(again).__name__, again.left, vars(again)) == ("Local", 3, {"more": "x"})
    assert str(again) == str(error)


def test_what_is_not_kept_of_one_is_told_to_who_looks_at_it() -> None:
    again: Any = came_back(ServerError(503, REFUSING))
    assert type(again) is ServerError
    assert (again.status, str(again)) == (503, "the server said 503")
    assert again.answer is not None
    assert repr(again.answer) == "<Refusing, not recorded>"
    looks: list[Any] = [
        bool,
        str,
        list,
        len,
        hash,
        lambda one: one.text,
        lambda one: one == 1,
        lambda one: one[0],
    ]
    for look in looks:
        with pytest.raises(SglcError, match=r"SGLC424.*`answer` of the `ServerError` that `f` raised"):
            look(again.answer)
    with pytest.raises(SglcError, match="SGLC424"):
        isinstance(again.answer, ServerError)
    assert str(came_back(Wordy(REFUSING))) == "got Refusing"
    assert isinstance(came_back(Wordy(REFUSING)), Wordy)
    assert type(came_back(ValueError(1, REFUSING)).args[1]) is NotKept


def test_those_of_older_recordings_come_back_as_far_as_they_are_known() -> None:
    def older(error: Exception) -> Exception:
        data = raised_json(error)
        return raised_of({key: data[key] for key in ("class", "module", "args")}, "f")

    for error in (KeyError("k"), OSError(2, "x"), StopIteration(4), subprocess.CalledProcessError(3, "ls")):
        assert raised_json(older(error)) == raised_json(error)
    server = older(ServerError(503))
    assert (type(server), str(server)) == (ServerError, "the server said 503")
    with pytest.raises(AttributeError):
        server.status  # type: ignore[attr-defined]  # noqa: B018
    assert isinstance(older(json.JSONDecodeError("m", "d", 1)), json.JSONDecodeError)
    assert isinstance(older(ExceptionGroup("g", [ValueError(1)])), Exception)
    assert type(older(RunError("SGLC405", "x"))).__name__ == "RunError"


@sgl.tool
def fetch(url: str) -> str:
    raise ServerError(503, REFUSING)


@sgl.function
def busy(s: Any, url: str, look: bool) -> Any:
    s += url + sgl.gen("a")
    try:
        fetch(url)
    except ServerError as error:
        try:
            return "busy" if error.status == 503 else "gone", str(error), look and error.answer == 1
        except Exception:
            return "caught"


@pytest.mark.parametrize("mode", ["auto", "python"])
def test_a_replay_and_a_run_that_goes_on_catch_what_the_run_caught(mode: Any, tmp_path: Path) -> None:
    first, again = both(busy, tmp_path, url="u", look=False, mode=mode)
    assert first.ret_value == again.ret_value == ("busy", "the server said 503", False)
    file = tmp_path / FILE
    lines = [line for line in file.read_text().splitlines(True) if json.loads(line).get("is") != "end"]
    file.write_text("".join(lines))
    backend = ScriptedBackend(echoing)
    resumed = busy.run("u", False, backend=backend, record=str(tmp_path), resume=True, mode=mode)
    assert resumed.ret_value == first.ret_value
    assert backend.calls == 0


def test_a_replay_that_looks_at_what_is_not_kept_ends(tmp_path: Path) -> None:
    """The program would catch it."""
    first = busy.run("u", True, backend=ScriptedBackend(echoing), record=str(tmp_path)).sync()
    assert first.ret_value == ("busy", "the server said 503", False)
    error = busy.run("u", True, replay=str(tmp_path)).error()
    assert isinstance(error, SglcError)
    assert error.code == "SGLC424"
