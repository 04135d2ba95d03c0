"""Programs and plans that go to another process."""

from __future__ import annotations

import copy
import importlib
import linecache
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import UsageError

SOURCE = """\
import enum

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend


@sgl.tool
def shout(text: str) -> str:
    return text.upper()


@sgl.function
def asked(s, q, n=1):
    s += "Q: " + q + " A:" + sgl.gen("a")
    return shout(s["a"]) * n


class Kind(enum.Enum):
    GOOD = "<>"


@sgl.function
def typed(s, q, n=1):
    s += sgl.gen("kind", dtype=Kind)
    return s["kind"]


class Group:
    @sgl.function
    def inner(s):
        s += sgl.gen("a")
"""

CHILD = """\
import pickle, sys
from sglc.backends.scripted import ScriptedBackend

made = pickle.load(sys.stdin.buffer)
backend = ScriptedBackend(lambda asked: f"<{asked.prompt}>")
arguments = {"q": "why?"} if made.__class__.__name__ == "Function" else {"q": "why?", "n": 2}
result = made.run(**arguments, backend=backend)
print(result.ret_value, type(made).__name__, result.mode)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    name = f"of_{tmp_path.name}"  # a declared function has its name for good
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(name)
    sys.modules.pop(name, None)


def elsewhere(item: object, folder: Path) -> str:
    """What another process says that is given a pickled program."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n" + CHILD],
        input=pickle.dumps(item), capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout.decode().strip()


@pytest.mark.slow
def test_functions_bound_functions_and_plans_run_in_another_process(module: Any, tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda asked: "x")
    answer = "<Q: WHY? A:>"
    assert elsewhere(module.asked, tmp_path) == f"{answer} Function plan"
    assert elsewhere(module.asked.bind(n=2), tmp_path) == f"{answer}{answer} Function plan"
    compiled = module.asked.compile(backend, args={"q": "x", "n": 2})
    assert elsewhere(compiled, tmp_path) == f"{answer}{answer} LoadedPlan plan"
    plan = pickle.loads(pickle.dumps(compiled))
    assert elsewhere(plan, tmp_path) == f"{answer}{answer} LoadedPlan plan"
    module.typed.compile(backend, args={"q": "x", "n": 2}).save(tmp_path / "plan.json")
    assert elsewhere(sgl.load_plan(tmp_path / "plan.json"), tmp_path) == "Kind.GOOD LoadedPlan plan"


@pytest.mark.slow
def test_here_a_reference_is_the_program_itself(module: Any) -> None:
    assert pickle.loads(pickle.dumps(module.asked)) is module.asked
    assert pickle.loads(pickle.dumps(module.Group.inner)) is module.Group.inner


@pytest.mark.slow
def test_another_source_is_refused(module: Any, tmp_path: Path) -> None:
    data = pickle.dumps(module.asked)
    (tmp_path / f"{module.__name__}.py").write_text(SOURCE.replace("Q: ", "Question: "))
    sys.modules.pop(module.__name__)
    linecache.clearcache()
    with pytest.raises(UsageError, match=r"SGLC059.*is another program here"):
        pickle.loads(data)


def test_a_program_without_a_name_says_so() -> None:
    @sgl.function
    def local(s: Any) -> None:
        s += "a"

    with pytest.raises(pickle.PicklingError, match="top of a module"):
        pickle.dumps(local)


@pytest.mark.slow
def test_a_declared_function_goes_by_reference(module: Any) -> None:
    assert pickle.loads(pickle.dumps(module.shout)) is module.shout
    bound = pickle.loads(pickle.dumps(module.asked.bind(q=module.shout)))
    assert bound.bound == {"q": module.shout}


def test_a_copy_is_itself_as_of_a_function() -> None:
    @sgl.tool
    def shouted(text: str) -> str:
        return text.upper()

    @sgl.function
    def local(s: Any, q: str) -> None:
        s += q + sgl.gen("a")

    compiled = local.compile(ScriptedBackend(lambda _: "x"))
    for item in (shouted, local, local.bind(q=["a"]), compiled):
        assert copy.copy(item) is item
        assert copy.deepcopy({"item": item})["item"] is item
    assert copy.deepcopy(compiled).run("z").text() == "zx"


def test_arguments_of_a_plan_that_are_no_dict_are_refused() -> None:
    @sgl.function
    def local(s: Any, q: str) -> None:
        s += q + sgl.gen("a")

    plan = pickle.loads(pickle.dumps(local.compile(ScriptedBackend(lambda _: "x"))))
    for given in ("z", "", ["z"]):
        with pytest.raises(UsageError, match=r"SGLC017.*are a dict, not `"):
            plan.run(given)


def test_a_result_that_cannot_go_there_says_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    @sgl.function
    def asks(s: Any) -> None:
        s += "Q:" + sgl.gen("a")

    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    result = asks.run(backend=ScriptedBackend(lambda _: "yes")).sync()
    for refuses in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied: take .*`dict\(result.variables\)`"):
            refuses(result)
    assert not ignored
    assert pickle.loads(pickle.dumps((dict(result.variables), result.text()))) == ({"a": "yes"}, "Q:yes")
