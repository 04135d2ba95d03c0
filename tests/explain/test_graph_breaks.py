"""What explain says of a program's parts: its graph breaks, its blocks and arms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.explain.explanation import explained_program
from sglc.explain.render.summary import table
from sglc.ir.text.printer import from_text
from tests.frontend.programs import body_source, from_file
from tests.oracle_backend import OracleBackend


def test_each_graph_break_says_where_why_and_what_would_remove_it(tmp_path: Path) -> None:
    body = """
        s += q + select("x", choices=["a", "b"])
        if s["x"] == "a":
            s += json.dumps([s["x"]])
            s += str(open("/nowhere"))
        else:
            note.seen = s["x"]
        s += gen("y")
    """
    program = from_file(tmp_path, body_source(body))
    explanation = program.explain(OracleBackend())
    first = program.definition.code.co_firstlineno
    lines = explanation.text().replace(str(tmp_path), ".").splitlines()
    begin = next(number for number, line in enumerate(lines) if "graph break" in line)
    assert lines[begin : begin + 4] == [
        f"  graph break at ./program.py:{first + 5}:18: `open(...)` is ordinary Python",
        "    declare it with `@sglc.tool`, or with `@sglc.pure` if all it does is compute",
        f"  graph break at ./program.py:{first + 7}:9: `.seen = ...` of a `function` runs code of its own",
        "    make the container inside the program, or change it in a function declared with `@sglc.tool`",
    ]
    said = [(place["loc"], place["reason"]) for place in explanation.to_json()["breaks"]]
    assert said == [(str(place.loc), place.reason) for place in program.compile(OracleBackend()).breaks]


def test_a_program_without_graph_breaks_says_nothing_of_them(tmp_path: Path) -> None:
    explanation = from_file(tmp_path, body_source('s += q + gen("x")\ns += s["x"]')).explain(OracleBackend())
    assert "graph break" not in explanation.text()
    assert explanation.to_json()["breaks"] == []


ADVICE = {
    "best = sorted(s.fork(2), key=lambda f: int(s['n']))": "arrange texts, numbers or tuples of them instead",
    "s += str(list(words()))": "have it return a list",
    "called(s)": "call a function, or a method by its name",
    "s.fork(int(s['n']))": "take it from an argument, or write constants",
    "s += gen('k', stop=[s['n']])": "take it from an argument, or write constants",
    "s += gen('k', dtype=int, retries=2)": "leave it out: take a form that every whole text has",
    "s += str(dict(**json.loads(s['n']), k=1))": "write out what is wanted",
}


@pytest.mark.parametrize("line", ADVICE)
def test_what_would_remove_a_break_can_be_done(line: str, tmp_path: Path) -> None:
    more = """
def words():
    yield "a"

class Called:
    def __call__(self, s):
        s += "a"

called = Called()
"""
    source = body_source(f's += q + gen("n", regex="[0-9]")\n{line}')
    (place,) = from_file(tmp_path, source + more).compile(OracleBackend()).breaks
    assert place.hint.startswith(ADVICE[line])
    assert "keys" not in place.reason
    assert "Called(...)" not in place.reason


def test_a_break_that_every_run_has_is_told_though_a_default_is_no_text(tmp_path: Path) -> None:
    body = """
        s += q + gen("n", regex="[0-9]")
        marks = {key: int(s["n"]) for key in dims}
        s += max(marks, key=marks.get)
    """
    source = body_source(body).replace("(s, q", "(s, q, dims=('a', 'b')")
    program = from_file(tmp_path, source)
    backend = ScriptedBackend(lambda asked: "3")
    why = program.run(backend=backend, q="Q").why_python
    for given in ({}, {"q": "Q"}, {"q": "Q", "dims": ("c", "d")}):
        explanation = program.explain(backend, **given)
        (place,) = explanation.breaks
        assert why == f"{place.reason} ({place.loc})"
        assert "compile for its value" not in place.hint  # the generation would not be known by that
        assert explanation.forecast.counts.calls.low == 1


@sgl.function
def takes_more(s: Any, q: str, *extra: str, **named: str) -> None:
    s += q + "".join(extra) + "".join(named.values()) + sgl.gen("x")


def test_what_it_is_explained_with_is_all_that_it_gets() -> None:
    backend = ScriptedBackend(lambda asked: "3")
    assert takes_more.run("Q", backend=backend).mode == "plan"
    assert [each.reason for each in takes_more.explain(backend).breaks] == [
        "`*extra: 'str'` has no fixed number of arguments"
    ]
    for given in ({"q": "Q"}, {"q": "Q", "more": "M"}):
        explanation = takes_more.explain(backend, **given)
        assert (explanation.breaks, explanation.forecast.counts.calls.low) == ((), 1)


def test_a_program_in_text_form_names_its_breaks_too() -> None:
    program = from_text(
        "def f():\n    s0 = root()\n    host_call('`look(...)` is ordinary Python')\n    return\n", "f.sglir"
    )
    (place,) = explained_program(program, OracleBackend().target).breaks
    assert (str(place.loc), place.reason) == ("f.sglir:3:5", "`look(...)` is ordinary Python")


def test_explain_shows_regions_and_the_arms_of_a_select() -> None:
    program = from_text(
        """
def f(q):
    s0 = root()
    s1 = append(s0, q)
    s2, t0 = select(s1, 'act', ('Search', 'Look', 'Finish'))
    s6, t4 = switch(t0):
        case 'Search':
            s3, t1 = gen(s2, 'found', max_tokens=4)
            yield s3, t1
        case 'Look':
            host_call('`look(...)` is ordinary Python')
            yield
        case 'Finish':
            yield s2, t0
    return t4
""",
        "f.sglir",
    )
    assert list(table(program)) == [
        "wave  op               site                       new          from",
        "1     select           f.act#0                    2 of 3 arms  f.sglir:5:5",
        "2     switch                                                   f.sglir:6:5",
        "        case 'Search'",
        "          gen          f.found#0                  <=4          f.sglir:8:13",
        "        case 'Look'",
        "          python       ordinary Python from here               f.sglir:11:13",
        "        case 'Finish'",
    ]


def test_explain_shows_what_runs_in_loops() -> None:
    program = from_text(
        """
def f(q):
    s0 = root()
    s2, t2 = loop((s0, q), 3) as s1, t0:
        s3 = append(s1, t0)
        s4, t1 = gen(s3, 'draft', max_tokens=4)
        b0 = in_('done', t1)
        s5, t3 = cond(b0):
            s6, t4 = select(s4, 'sure', ('yes', 'no'))
            yield s6, t4
        else:
            yield s4, t1
        t5 = tool('m.look', (t3,))
        yield b0, s5, t5
    return t2
""",
        "f.sglir",
    )
    assert list(table(program)) == [
        "wave  op            site             new     from",
        "1     loop          at most 3 times          f.sglir:4:5",
        "        gen         f.draft#0        <=4     f.sglir:6:9",
        "        cond                                 f.sglir:8:9",
        "          then",
        "            select  f.sure#0         1 of 2  f.sglir:9:13",
        "          else",
        "        tool        m.look                   f.sglir:13:9",
    ]


def test_counts_have_no_bound_where_ordinary_python_goes_on(tmp_path: Path) -> None:
    asked = 's += user("Hi")\n{0}s += sgl.assistant(gen("y", max_tokens=4, backend="openai:gpt-4o-mini"))'
    first = 's += sgl.assistant(gen("x", max_tokens=4)) + user("So?")\n'
    for before, calls in (("", 0), (first, 1)):
        program = from_file(tmp_path, body_source(asked.format(before)))
        explanation = program.explain("openai:gpt-4o")
        counts = explanation.forecast.counts
        assert (counts.calls.low, counts.calls.high, counts.new.high) == (calls, None, None)
        text = explanation.text()
        assert f"{calls}+ calls, " in text
        assert "to no bound" in text
        assert "leave `backend` out" in text
        assert "behind the generations" not in text


def test_counts_are_whole_where_the_program_fails() -> None:
    program = from_text(
        "def f():\n    s0 = root()\n    host_call('none', error='ValueError')\n    return\n", "f.sglir"
    )
    assert explained_program(program, OracleBackend().target).forecast.counts.calls.high == 0
