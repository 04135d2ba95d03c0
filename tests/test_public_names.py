"""The public names of `sglc`, written out: a name is added or removed here first, and on purpose."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import sglc
from sglc.cli import main

# sglc's own: few, so that the language fits in one head.
OWN = (
    "Function",
    "Result",
    "SglcError",
    "assistant",
    "describe_tools",
    "function",
    "gen",
    "load_plan",
    "run_together",
    "section",
    "select",
    "set_default_backend",
    "system",
    "user",
)

# For programs that want the whole graph.
STRUCTURED = (
    "call",
    "cond",
    "contains",
    "eq",
    "loop",
    "map",
    "not_",
    "parse_json",
    "pause",
    "pure",
    "run_tools",
    "switch",
    "tool",
)

# SGLang's other spellings of the same language, its back ends and its switches.
SGLANG = (
    "Anthropic",
    "Crusoe",
    "Engine",
    "LiteLLM",
    "OpenAI",
    "Runtime",
    "RuntimeEndpoint",
    "ServerArgs",
    "VertexAI",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "register_chat_template",
    "separate_reasoning",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user_begin",
    "user_end",
    "video",
)


def test_public_names_are_exactly_these() -> None:
    assert sorted(sglc.__all__) == sorted(OWN)
    assert len(OWN) <= 15
    assert sorted(sglc._SGLANG) == sorted(SGLANG)
    assert sorted(sglc._STRUCTURED) == sorted(STRUCTURED)


@pytest.mark.parametrize("name", OWN + STRUCTURED + SGLANG)
def test_every_name_resolves(name: str) -> None:
    found = getattr(sglc, name)
    assert found is not None
    assert not isinstance(found, ModuleType)


def test_type_checkers_know_every_name_from_where_it_is() -> None:
    """What is resolved late is `Any` to a checker that reads no import of it: typos in its arguments pass."""
    imports = ast.walk(ast.parse(Path(sglc.__file__).read_text(encoding="utf-8")))
    found = {
        name.asname: node.module
        for node in imports
        if isinstance(node, ast.ImportFrom) and node.module != "importlib"
        for name in node.names
        if name.asname == name.name  # what a package hands on, to checkers
    }
    assert found == sglc._OWN | sglc._SGLANG | sglc._STRUCTURED


def test_nothing_else_is_public() -> None:
    """In a fresh process, since tests that ran earlier may have resolved lazy names or loaded submodules."""
    code = (
        "import sglc, types\n"
        "names = [n for n in dir(sglc) if not n.startswith('_') and n != 'annotations']\n"
        "print(*(n for n in names if not isinstance(getattr(sglc, n), types.ModuleType)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert [name for name in found if name not in OWN and name != "Any"] == []
    assert [name for name in OWN if name not in found] == []


def test_modules_are_not_exported() -> None:
    assert [name for name in sglc.__all__ if isinstance(getattr(sglc, name), ModuleType)] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(sglc, "no_such" + "_name")


def test_no_module_takes_a_public_name() -> None:
    """`import sglc.x` would put the module where the lazy name was."""
    modules = {path.stem for path in Path(sglc.__file__).parent.iterdir()}
    assert modules & {*STRUCTURED, *SGLANG} == set()


def test_the_command_line_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"sglc {version('sglc')}\n"
