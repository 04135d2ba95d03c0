"""What a tool may have changed is Python's to read, by whatever name the program has it."""

from __future__ import annotations

import textwrap
from itertools import count
from typing import Any

import pytest

from sglc.errors import UsageError
from tests.depth import few, some_of
from tests.notebook import Notebook
from tests.source_fuzz.answers import HashBackend
from tests.source_fuzz.canon import canon, globals_of

_NUMBERS = count()
_HEAD = """
import dataclasses

LOG = []
W = ["x", "y"]
D = {"k": "v"}

@dataclasses.dataclass
class Point:
    x: int = 1

class C: pass

P = Point()
c = C()
c.w = ["q"]

def made():
    said, kept_behind_tools = "a", ("b", 1)
    def change():
        nonlocal said
        said += "!"
    def get_said():
        return said
    def get_kept():
        return kept_behind_tools[0]
    return change, get_said, get_kept

change, get_said, get_kept = made()

@sgl.tool
def find(x: str) -> str:
    change()
    LOG.append(x)
    W.append(x)
    D[x] = x
    P.x += 1
    c.w.append(x)
    return x + "1"

@sgl.tool
def put(a) -> str:
    a.append("z")
    return "put"

@sgl.tool
def fetch():
    return {"t": "x", "n": [1]}

@sgl.tool
def spoil(a):
    a["t"] = "changed"

@sgl.tool
def names() -> list[str]:
    return ["b", "a"]

@sgl.tool
def order(a):
    a.sort()
"""

# Bodies, in which `find('a')` changes all that is outside; what they end with comes behind it.
CHANGED = {
    "length": "w = W\ns += find('a')\ns += str(len(w))",
    "joined": "w = W\ns += find('a')\ns += ','.join(w)",
    "loop": "w = W\ns += find('a')\nfor e in w:\n    s += e",
    "tool in a loop": "n = 0\nfor e in W:\n    s += find(e)\n    n += 1\n    if n > 4:\n        break",
    "numbered": "for i, e in enumerate(W):\n    s += find(e)\n    if i > 3:\n        break",
    "in": "w = W\ns += find('a')\ns += 'in' if 'a' in w else 'out'",
    "shown": "p = P\ns += find('a')\ns += f'{p}'",
    "compared": "p = P\ns += find('a')\ns += 'same' if p == Point() else 'other'",
    "operand": "s += str(W + [find('a')])",
    "argument": "def f(a, b):\n    return str(len(a)) + b\ns += f(W, find('a'))",
    "compared with": "s += 'same' if W == ['x', 'y', find('a')[0]] else 'other'",
    "items": "d = D\ns += find('a')\nfor k, v in d.items():\n    s += k + v",
    "get": "d = D\ns += find('a')\ns += d.get('a', 'none')",
    "sorted": "w = W\ns += find('a')\ns += str(sorted(w))",
    "unpacked": "w = W\ns += find('a')\na, *b = w\ns += str(b)",
    "starred": "w = W\ns += find('a')\ndef f(*a):\n    return str(len(a))\ns += f(*w)",
    "in a list": "w = [W]\ns += find('a')\ns += str(w)",
    "closure": "w = W\ndef f():\n    return str(len(w))\ns += find('a')\ns += f()",
    "variable that is stored": "s += get_said()\ns += find('a')\ns += get_said()",
    "default": "def f(w=W):\n    return str(len(w))\ns += find('a')\ns += f()",
    "attribute": "w = c.w\ns += find('a')\ns += str(len(w))",
    "iterator": "w = iter(W)\ns += find('a')\ns += str(list(w))",
    "generator": "w = (e for e in W)\ns += find('a')\ns += str(list(w))",
    "mapped": "w = map(str.upper, W)\ns += find('a')\ns += str(list(w))",
    "view": "w = D.keys()\ns += find('a')\ns += str(list(w))",
    "method": "w = W.count\ns += find('x')\ns += str(w('x'))",
    "returned": "w = W\ns += find('a')\nr = w",
    "stored": "s['w'] = W\ns += find('a')",
    "list of its own": "w = ['1']\ns += put(w)\ns += str(len(w))",
    "in a dict of its own": "w = ['1']\nd = {'w': w}\ns += put(d['w'])\ns += str(d)",
    "stored list of its own": "w = ['1']\ns['w'] = w\ns += put(w)",
    "what a tool gave": "w = fetch()\nspoil(w)\ns += w['t']",
    "list that a tool gave": "w = names()\norder(w)\ns += ','.join(w)",
    "returned, what a tool gave": "w = fetch()\nspoil(w)\nr = w",
    "given": "s += put(W)",
    "given in a list": "s += put([W])",
    "argument's": "s += put(a)\ns += str(len(a))",
    "argument, returned": "s += put(a)\nr = a",
}  # fmt: skip
# These are whole plans: what they read behind a tool it cannot change.
WHOLE = {
    "variable that is not stored": "s += find('a')\ns += get_kept()",
    "copied before": "d = dict(D)\ns += find('a')\ns += d.get('a', 'none')",
    "part of what a tool gave": "w = fetch()\nt = w['t']\nspoil(w)\ns += t",
    "text that was given": "w = fetch()\nt = w['t']\ns += find(t)\ns += t",
    "loop before": "for e in W:\n    s += e\ns += find('a')",
    "list of its own, given": "w = ['1']\ns += put(w)",
    "other list": "w = ['1']\ns += find('a')\ns += str(len(w))",
}


def ran(body: str, mode: str) -> tuple[list[Any], list[str]]:
    """What three calls show, one behind the other, and what ran."""
    program = "@sgl.function\ndef program(s, a):\n    r = None\n{}\n    s += sgl.gen('g')\n    return r"
    book = Notebook(f"behind_{next(_NUMBERS)}", _HEAD, program.format(textwrap.indent(body, "    ")))
    made, modes = [], []
    for _ in range(3):
        given = ["1"]
        result = book.module.program.run(a=given, backend=HashBackend(), seed=1, mode=mode)
        error = result.error()
        shown = (
            repr(error) if error else [result.text(), canon(result.ret_value), canon(dict(result.variables))]
        )
        made.append([shown, given])
        modes.append(result.mode)
    made.append(str(globals_of(book.module)).replace(book.module.__name__, "module"))
    return made, modes


@pytest.mark.slow
@pytest.mark.parametrize("name", few(CHANGED, 12))
def test_behind_a_tool_python_reads(name: str) -> None:
    expected, _ = ran(CHANGED[name], "python")
    assert ran(CHANGED[name], "auto")[0] == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", some_of(list(CHANGED), 6, 16))
def test_in_a_rare_arm_too(name: str) -> None:
    """Where what is read stands in an arm that some runs come to."""
    lines = CHANGED[name].split("\n")
    body = "\n".join([*lines[:-1], "s += sgl.select('c', choices=['often', 'rare'])",
                      "if s['c'] == 'rare':", f"    {lines[-1].strip()}"])  # fmt: skip
    if lines[-1].startswith(" "):
        pytest.skip("a block cannot be parted")
    for seed in range(2):
        body = body.replace("'c'", f"'c{seed}'")  # another answer
        assert ran(body, "auto")[0] == ran(body, "python")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", few(WHOLE, 3))
def test_what_a_tool_cannot_change_is_the_plan_s(name: str) -> None:
    expected, _ = ran(WHOLE[name], "python")
    found, modes = ran(WHOLE[name], "auto")
    assert found == expected
    assert modes[0] == "plan"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plan", "auto"])
def test_a_tool_of_a_called_program_counts(mode: str) -> None:
    """What it stores was read before the call; the program that called would go on as Python behind it."""
    head = """
MARK, LOG = 'a', []

@sgl.tool
def mark() -> str:
    global MARK
    MARK = 'b'
    return 't'

@sgl.function
def inner(s):
    s += mark() + sgl.gen('i')
"""
    program = """
@sgl.function
def program(s):
    s += MARK + sgl.gen('g')
    s += inner.run()['i']
    if s['g'] != 'what is never said':
        LOG.append('x')
    s += sgl.gen('h')
"""

    def said(mode: str) -> str:
        book = Notebook(f"behind_{next(_NUMBERS)}", head, program)
        return str(book.module.program.run(backend=HashBackend(), seed=1, mode=mode).text())

    expected = said("python")
    assert expected.startswith("a")
    if mode == "plan":
        with pytest.raises(UsageError, match="`mark` may change `MARK`"):
            said(mode)
    else:
        assert said(mode) == expected
