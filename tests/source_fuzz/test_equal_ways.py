"""Small programs that ran unequally once, every way there is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.depth import some_of
from tests.source_fuzz.child import Child
from tests.source_fuzz.module import Module
from tests.source_fuzz.runner import Fuzzer, shown

pytestmark = pytest.mark.slow

_HEAD = "import collections\nimport dataclasses\nimport enum\n\nimport sglc as sgl\n\n\n"
_ROWS = """

def rows():
    return [{"a": "alpha"}, {"a": "Beta two"}]
"""
_INNER = """
@sgl.function
def inner(s, topic):
    s += f"About {topic}: " + sgl.gen("idea")
    s += sgl.gen("more")
    return s["idea"]


@sgl.function
def program(s, a):
    s += sgl.gen("g")
    made = inner(s["g"])
    s += made["idea"]
"""
_COLOR = """
class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@sgl.function
def program(s, a):
    s += a + sgl.gen("e", dtype=Color)
    if s["e"] is Color.RED:
        s += " and " + sgl.gen("other", dtype=Color)
    return s["e"]
"""
_POINT = """
@dataclasses.dataclass
class Point:
    x: int
    label: str


Pair = collections.namedtuple("Pair", ["left", "right"])


@sgl.function
def program(s, a):
    s += a + sgl.gen("p", dtype=Point)
    s["kept"] = Pair(s["p"].x, Point(3, a))
    return s["p"], s["kept"]
"""
_TAKE = """
LOG = []


@sgl.tool
def take(thing) -> str:
    LOG.append(thing)
    return type(thing).__name__


@sgl.function
def program(s, a):
    s += sgl.gen("g")
    s += take((a, 1)) + take({"t": ((s["g"], 2.5), [None])}) + take([True])
"""
_OBJECTS = """
LOG = []


@sgl.tool
def keep(thing) -> str:
    LOG.append(thing)
    thing["more"] = len(LOG)
    return str(thing)


@sgl.function
def program(s, a):
    s += a + sgl.gen("g")
    for fork in s.fork(2):
        fork += keep({1: s["g"]}) + sgl.gen("h")
"""
_STORED = """
@sgl.function
def program(s, a):
    s["first"] = [1, (2, a)]
    s += sgl.gen("g")
    s["second"] = {"k": [s["g"]]}
    s["first"].append(s["g"])
    s += sgl.gen("h")
    s["third"] = s["g"]
"""
_ARMS = """
@sgl.function
def program(s, a):
    s += a + sgl.select("way", choices=["left", "right"])
    if s["way"] == "left":
        s += sgl.gen("l", n=2) + sgl.gen("g")
    else:
        s += sgl.gen("g")
    for word in ("x", "y"):
        s += word + sgl.gen("g")
    s += sgl.gen("last")
"""
_ENDS = """
@sgl.function
def program(s, a):
    s += a + sgl.select("way", choices=["left", "right"])
    made = sgl.gen("g")
    if s["way"] == "left":
        s += made
        if s["g"] == "no":
            raise ValueError("never")
    s += sgl.gen("h")
"""
_TEXT = """
@sgl.function
def program(s, a):
    s += sgl.user(a) + sgl.assistant(sgl.gen("g"))
    before = s.text()
    forks = s.fork(2)
    for fork in forks:
        fork += sgl.gen("t")
    return before, forks[1].text(), len(s.text())
"""
_ASKED = """
@sgl.function
def program(s, a):
    s += a + sgl.gen("g")
    n = 0
    while (word := s["g"]) and n < 7:
        n += 1
        if "yes" in word and not word.startswith(" "):
            s += "again "
    return n
"""
_JOINED = """
@sgl.function
def program(s, a):
    forks = s.fork(2)
    for fork in forks:
        fork += a + sgl.gen("first")
        fork["kept"] = fork["first"] + "!"
        fork["pair"] = (1, [fork["first"], (a, {2: None})])
        fork += sgl.gen("last")
    return forks.join()
"""
_TYPED_BRANCHES = """
class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@sgl.function
def program(s, a):
    s += a + sgl.select("way", choices=["left", "right"])
    forks = s.fork(2)
    forks[0] += sgl.gen("color", dtype=Color)
    forks[1] += sgl.gen("numbers", dtype=list[int])
    if s["way"] == "left":
        inner = forks[1].fork(2)
        inner += sgl.gen("only", dtype=Color)
        inner.join()
    joined = s.join(forks)
    s += sgl.gen("two", dtype=Color, n=2)
    return joined["color"][0] is Color.RED
"""
_MATCHED = """
@sgl.function
def program(s, a):
    s += a + sgl.gen("g")
    match s["g"]:
        case [first, *rest]:
            return first
        case {"k": value}:
            return value
        case int(number):
            return number
        case str(text):
            return text + "!"
"""
_PROGRAMS = {
    "called": _INNER, "typed": _COLOR, "objects": _POINT, "given to tools": _TAKE, "stored": _STORED,
    "equal objects": _OBJECTS, "arms": _ARMS, "ends": _ENDS, "whole text": _TEXT, "asked again": _ASKED,
    "matched": _MATCHED, "joined": _JOINED, "typed branches": _TYPED_BRANCHES,
}  # fmt: skip


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Child() as child:
        yield child


@pytest.mark.parametrize("name", some_of(list(_PROGRAMS), 2, 7))
def test_the_program_is_whole_and_runs_equally_every_way(name: str, child: Child, tmp_path: Path) -> None:
    module = Module(f"equal_{name.replace(' ', '_')}", _HEAD + _PROGRAMS[name].lstrip() + _ROWS, {}, False)
    report = Fuzzer(tmp_path, child).report(module)
    assert not report.failed, report.failed
    assert report.whole, report.why_not
    assert not report.differences, shown(module, report.differences[0])


def test_what_an_argument_has_is_asked_of_what_it_is(tmp_path: Path) -> None:
    body = """
        @sgl.function
        def program(s, a):
            s += a.get("k") + sgl.gen("g")


        def rows():
            return [{"a": {"k": "v"}}, {"a": {"k": "w"}}]
    """
    module = Module("equal_argument", _HEAD + textwrap.dedent(body).lstrip(), {}, False)
    report = Fuzzer(tmp_path, None).report(module)
    assert not report.failed, report.failed
    assert report.whole
    assert not report.differences, shown(module, report.differences[0])
