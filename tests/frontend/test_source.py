"""The source of a function: found, and told from one that its code was not compiled from."""

from __future__ import annotations
import __future__

import ast
import gc
import json
import linecache
import textwrap
import weakref
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from sglc.backends.scripted import ScriptedBackend
from sglc.errors import Loc, UsageError
from sglc.frontend import locate
from sglc.frontend import source as source_module
from sglc.frontend.source import source_of
from tests.frontend.programs import body_source, from_file


class Owner:
    __secret = "secret"

    def method(self, text: str, *, more: str = "m") -> str:
        return f"{text} {self.__secret} {more}"

    def parent(self) -> Any:
        return super().__init__

    @staticmethod
    def recursive(number: int) -> int:
        return 1 if number == 0 else Owner.recursive(number - 1) + 1


def nested() -> FunctionType:
    word = "bound later"

    def inner(text: str) -> str:
        return f"{text} {word} {[word for _ in text]}"

    return inner  # type: ignore[return-value]


@pytest.mark.parametrize(
    "function", [Owner.method, Owner.parent, Owner.recursive, nested(), from_file, textwrap.dedent, json.dumps]
)
def test_a_source_gives_its_code_again(function: FunctionType) -> None:
    source = source_of(function.__code__)
    assert source.definition.name == function.__name__
    assert source.matches


@pytest.mark.parametrize("apart", [False, True])
def test_a_cell_of_a_notebook_is_the_source_of_its_functions(apart: bool) -> None:
    """It is compiled at once, or statement by statement; it may await, and another cell was of the future."""
    text = "import json\nasync def later(): ...\nnow = await later()\ndef shown(s):\n    return json.dumps(s)\n"
    name = f"<cell {apart}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    tree = ast.parse(text)
    parts = [ast.Module([node], []) for node in tree.body] if apart else [tree]
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | __future__.annotations.compiler_flag
    codes = [code for part in parts for code in compile(part, name, "exec", flags, dont_inherit=True).co_consts]
    found = {code.co_name: source_of(code) for code in codes if isinstance(code, CodeType)}
    assert list(found) == ["later", "shown"]
    assert all(source.matches for source in found.values())


def test_a_file_that_changed_is_no_source(tmp_path: Path) -> None:
    program = from_file(tmp_path, body_source('s += "a"\ns += gen("x")'))
    assert source_of(program.definition.code).matches
    (tmp_path / "program.py").write_text(body_source('s += "b"\ns += gen("x")'))
    assert not source_of(program.definition.code).matches
    backend = ScriptedBackend(lambda asked: "<x>")
    assert "graph break at" in program.explain(backend).text()
    assert program.run("", backend=backend).text() == "a<x>"


_BODY = body_source('s += "a"\ns += gen("x")')


@pytest.mark.parametrize("now", ["# moved\n" * 9 + _BODY, "def other(): ...\n"])
def test_a_function_that_is_elsewhere_now_has_changed(now: str, tmp_path: Path) -> None:
    program = from_file(tmp_path, _BODY)
    (tmp_path / "program.py").write_text(now)
    backend = ScriptedBackend(lambda asked: "<x>")
    assert "it has changed since it was imported" in program.run("", backend=backend).why_python
    with pytest.raises(UsageError, match="it has changed since it was imported") as refused:
        program.run("", backend=backend, mode="plan")
    assert "-->" not in str(refused.value), "a line that is not the program's is shown"


def test_what_is_no_plain_function_has_no_source() -> None:
    made: dict[str, Any] = {}
    exec("def generated(s):\n    return s", made)
    with pytest.raises(OSError, match="source"):
        source_of(made["generated"].__code__)
    with pytest.raises(SyntaxError):
        source_of((lambda s: s).__code__)


@pytest.mark.parametrize("function", [textwrap.dedent, json.dumps, from_file])
def test_a_function_at_the_top_of_its_file_is_read_alone(
    function: FunctionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = source_of(function.__code__)
    monkeypatch.setattr("sglc.frontend.source._of_its_lines", lambda *_: None)
    whole = source_of(function.__code__)
    assert alone.definition is not whole.definition
    assert ast.dump(alone.definition, include_attributes=True) == ast.dump(
        whole.definition, include_attributes=True
    )


@pytest.mark.parametrize("definition", [
    "def f(s, json):\n    return json.dumps(s)\n",
    "def f(s):\n    return [json.dumps(s) for json in s]\n",
    "def f(s):\n    json = s\n    return lambda: json.dumps(s)\n",
    "def f(s):\n    return lambda: re.escape(s) + f.json\n",
])  # fmt: skip
def test_calls_of_what_has_the_name_of_an_import_are_compiled_with_it(
    definition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler asks the file for the name alone, whatever it is in the function."""
    file = tmp_path / "named.py"
    file.write_text(f"import os.path as other, json\nfrom sys import path\nimport re\n{definition}")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec", dont_inherit=True), names)
    monkeypatch.delattr("sglc.frontend.source._of_its_file")
    assert source_of(names["f"].__code__).matches


@pytest.mark.parametrize("body", [
    '    """Text\nat the edge."""\n    return s\n',
    '    return (\ns\n)  # at the edge\n',
    "    if s:\n        return s\n# a remark\n    pass\n",
    '    """\nimport nothing of this\n    """\n    pass\n',
    "    return s; s = 1\n",
])  # fmt: skip
def test_strange_layouts_are_read_as_python_reads_them(body: str, tmp_path: Path) -> None:
    path = tmp_path / "strange.py"
    path.write_text(
        f"from json import (\n    dumps,\n)\n\n@staticmethod\ndef f(s):\n{body}\nx = 1\n\ndef f2(): ...\n"
    )
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    source = source_of(names["f"].__func__.__code__)
    assert source.matches
    (made,) = [node for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == "f"]
    assert ast.dump(source.definition, include_attributes=True) == ast.dump(made, include_attributes=True)


def test_what_is_nested_is_compiled_with_its_own_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with the imports of its file, which say how calls are compiled; not with all that the file has."""
    file = tmp_path / "nested.py"
    others = "".join(f"def other_{number}(x):\n    return x + {number}\n" for number in range(50))
    file.write_text(
        f"import json\n{others}class Holder:\n    def own(self, x):\n        return json.dumps(x)\n"
    )
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec", dont_inherit=True), names)
    made: list[int] = []
    original = source_module._codes

    def counted(statements: list[ast.stmt], *rest: Any) -> Any:
        made.append(len(statements))
        return original(statements, *rest)

    monkeypatch.setattr(source_module, "_codes", counted)
    assert source_of(names["Holder"].own.__code__).matches
    assert made == [2]


def test_where_code_stands_is_known_of_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody makes functions for ever, as a notebook does."""
    monkeypatch.setattr(locate, "_CODES", {})
    monkeypatch.setattr(locate, "_MOST_CODES", 3)
    alive: list[weakref.ref[CodeType]] = []
    for number in range(8):
        names: dict[str, Any] = {"here": locate.here}
        exec(compile(f"def f():\n    return here(), {number}", "made.py", "exec"), names)
        assert names["f"]()[0] == Loc("made.py", 2, 12, 18)
        alive.append(weakref.ref(names["f"].__code__))
        del names
    gc.collect()
    assert sum(one() is not None for one in alive) <= 3
    assert len(locate._CODES) == 3
