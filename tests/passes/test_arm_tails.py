"""What follows a branch that generates is part of its arms: one segment, and not two."""

from __future__ import annotations

from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.ir.core import Program, fresh_ids
from sglc.ir.plan.segment import GenNode, Segment, SelectNode
from sglc.ir.text.printer import from_text, to_text
from sglc.ir.verify.verify import verify
from sglc.passes.lowering.arm_tails import _MOST_COPIES, with_arm_tails


def program(ops: str, params: str = "", returns: str = "t2") -> Program:
    body = "".join(f"    {line}\n" for line in ops.strip().splitlines())
    made = from_text(f"def f({params}):\n    s0 = root()\n{body}    return {returns}\n", "f.sglir")
    verify(made)
    return made


def moved(ops: str, params: str = "", returns: str = "t2") -> str:
    """The ops with what follows branches in their arms, verified, as text."""
    source = program(ops, params, returns)
    made = with_arm_tails(source, {}, fresh_ids(source))
    verify(made)
    (_, text) = to_text(made).split("s0 = root()\n")
    return "\n".join(line.removeprefix("    ") for line in text.splitlines()[:-1])


BRANCH = """
s1, t0 = gen(s0, 'q')
b0 = eq(t0, 'yes')
s4 = cond(b0):
    s2 = append(s1, ' since')
    s3, t1 = gen(s2, 'why')
    yield s3
else:
    yield s1
"""


def test_what_follows_is_in_each_arm() -> None:
    assert (
        moved(BRANCH + "s5 = append(s4, 'B:')\ns6, t2 = gen(s5, 'b')\n", returns="t2")
        == """\
s1, t0 = gen(s0, 'q')
b0 = eq(t0, 'yes')
t4 = cond(b0):
    s2 = append(s1, ' since')
    s3, t1 = gen(s2, 'why')
    s4 = append(s3, 'B:')
    s5, t2 = gen(s4, 'b')
    yield t2
else:
    s6 = append(s1, 'B:')
    s7, t3 = gen(s6, 'b')
    yield t3"""
    )


AGAIN = """
b1 = eq(t2, 'no')
s8 = cond(b1):
    s6, t3 = gen(s5, 'c')
    yield s6
else:
    yield s5
s9, t4 = gen(s8, 'd')
"""
LONG = "".join(f"s{n + 1} = append(s{n}, 'a')\n" for n in range(4, 4 + _MOST_COPIES // 2))
STAYING = {
    "no arm generates": (
        BRANCH.replace("s3, t1 = gen(s2, 'why')", "s3 = append(s2, '.')"),
        "s6, t2 = gen(s4, 'b')",
    ),
    "nothing is asked for behind it": (BRANCH, "s5 = append(s4, 'end')\nt2 = format((t0, 'x'))"),
    "a tool may take longer than the arm": (
        "t9 = tool('f', ('a',))" + BRANCH,
        "s5 = append(s4, t9)\ns6, t2 = gen(s5, 'b')",
    ),
    "a tool is called before": (BRANCH, "t9 = tool('f', ('a',))\ns6, t2 = gen(s4, 'b')"),
    "another variable comes before": (BRANCH, "s9 = root()\ns5, t9 = gen(s9, 'v')\ns6, t2 = gen(s4, 'b')"),
    "there are too many ops": (BRANCH, f"{LONG}s300, t2 = gen(s{4 + _MOST_COPIES // 2}, 'b')"),
}


def test_that_ends_at_the_next_decision() -> None:
    found = moved(f"{BRANCH}s5, t2 = gen(s4, 'b'){AGAIN}", returns="t4")
    assert found.count("'b')") == found.count("'d')") == 2
    assert found.count("'c')") == 1
    assert found.index("'d')") > found.rindex(" = eq(")


@pytest.mark.parametrize("why", STAYING)
def test_what_stays_behind(why: str) -> None:
    before, behind = STAYING[why]
    source = program(before + behind)
    assert with_arm_tails(source, {}, fresh_ids(source)) is source


def test_an_arm_that_ordinary_python_goes_on_from_gets_nothing() -> None:
    branch = BRANCH.replace("yield s1", "host_call('a break')\n    yield")
    found = moved(f"{branch}s5, t2 = gen(s4, 'b')")
    assert found.count("'b')") == 1
    assert "host_call" in found.splitlines()[-2]


def test_arguments_and_what_is_made_of_them_are_there() -> None:
    found = moved(BRANCH + "t8 = format((' of ', a))\ns5 = append(s4, t8)\ns6, t2 = gen(s5, 'b')", "a")
    assert found.count("'b')") == 2


class Counting(ScriptedBackend):
    """`asked`: the names of the generations of each segment that has some."""

    def __init__(self) -> None:
        super().__init__(lambda asked: asked.choices[0] if asked.choices else "fine")
        self.asked: list[tuple[str, ...]] = []

    def submit(self, segment: Segment, *, streams: bool = True) -> Any:
        names = tuple([node.site.name for node in segment.nodes if isinstance(node, GenNode | SelectNode)])
        self.asked += [names] if names else []
        return super().submit(segment, streams=streams)


@sgl.function
def questions(s: Any, about: str) -> None:
    s += f"About {about}.\n"
    for i in range(5):
        s += f"{i}:" + sgl.select(f"q{i}", choices=["yes", "no"])
        if s[f"q{i}"] == "yes":
            s += " since" + sgl.gen(f"why{i}", max_tokens=3)
        else:
            s += "."
    s += "All in all:" + sgl.gen("all", max_tokens=3)


def test_a_plan_asks_as_seldom_as_python_does() -> None:
    asked = {}
    for mode in ("plan", "python"):
        backend = Counting()
        result = questions.run(about="it", backend=backend, mode=mode, seed=1)
        assert result.error() is None
        asked[mode] = backend.asked, result.text(), dict(result.variables)
    assert asked["plan"] == asked["python"]
    assert asked["plan"][0] == [("q0",), *((f"why{i}", f"q{i + 1}") for i in range(4)), ("why4", "all")]
