"""What explain says: where a run waits, what stays deferred, where compiling stops, blocks and arms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.explain.render.summary import table
from sglc.frontend.analysis.survey import survey
from sglc.ir.text.printer import from_text
from tests.frontend.programs import (
    deferred_source,
    from_file,
    launches,
)
from tests.oracle_backend import OracleBackend


@pytest.fixture
def oracle() -> OracleBackend:
    return OracleBackend()


def test_explain_names_every_place_by_its_line(tmp_path: Path, oracle: OracleBackend) -> None:
    body = """
        s += q + gen("x", max_tokens=2)
        s += note(s["x"])
        s += s["x"]
        if s["x"] == "a":
            s += json.dumps([1])
        s.messages()
        print("done", open("/nowhere"))
    """
    program = from_file(tmp_path, deferred_source(body))
    text = program.explain(oracle).text().replace(str(tmp_path), ".")
    first = program.definition.code.co_firstlineno
    assert f"from ./program.py:{first + 7}:" in text
    assert [line.strip() for line in text.splitlines() if line.startswith("    ./")] == [
        f"./program.py:{first + 8}: `open(...)` is ordinary Python",
        f"./program.py:{first + 3}: `s['x']`: passed to `note`",
        f"./program.py:{first + 5}: `s['x']`: a comparison",
        f"./program.py:{first + 7}: `s.messages(...)`",
        f"./program.py:{first + 4}: `s['x']`",
    ]


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
        "0     select           f.act#0                    2 of 3 arms  f.sglir:5:5",
        "1     switch                                                   f.sglir:6:5",
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
        "0     loop          at most 3 times          f.sglir:4:5",
        "        gen         f.draft#0        <=4     f.sglir:6:9",
        "        cond                                 f.sglir:8:9",
        "          then",
        "            select  f.sure#0         1 of 2  f.sglir:9:13",
        "          else",
        "        tool        m.look                   f.sglir:13:9",
    ]


@sgl.tool
def look(text: str) -> str:
    return text


def test_explain_names_declared_functions(oracle: OracleBackend) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=2)
        s += look(s["x"])

    found = survey(program.definition)
    assert found is not None
    assert [point.what for point in found.tools] == ["`look(...)`"]
    assert [point.what for point in found.observations] == ["`s['x']`: passed to `look`"]
    assert found.calls == ()
    assert launches(program, oracle)[1] == 2
