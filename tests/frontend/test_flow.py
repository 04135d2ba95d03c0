"""What stays deferred in an ordinary run, what observes, and that both give what plain Python gives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.errors import SglcError
from sglc.execution import function_run
from sglc.frontend.analysis.survey import survey
from sglc.frontend.recorder.recorder import OpRecorder
from tests.depth import few
from tests.frontend.programs import (
    DEFERRED,
    OBSERVED,
    SEED,
    deferred_source,
    from_file,
    launches,
    observed_source,
    outcome,
    without_source,
)
from tests.oracle_backend import OracleBackend


@pytest.fixture
def oracle() -> OracleBackend:
    return OracleBackend()


@pytest.mark.parametrize("name", few(DEFERRED, 5))
def test_one_launch_where_nothing_is_looked_at(name: str, tmp_path: Path, oracle: OracleBackend) -> None:
    source = deferred_source(DEFERRED[name])
    result, count = launches(from_file(tmp_path, source), oracle, q="why")
    plain, more = launches(without_source(source), oracle, q="why")
    assert outcome(result) == outcome(plain)
    assert count == 1
    assert more > 1


@pytest.mark.parametrize("name", few(OBSERVED, 8))
def test_whatever_needs_the_text_observes_it_once(name: str, tmp_path: Path, oracle: OracleBackend) -> None:
    source = observed_source(OBSERVED[name])
    result, count = launches(from_file(tmp_path, source), oracle, q="why")
    plain, more = launches(without_source(source), oracle, q="why")
    assert outcome(result) == outcome(plain)
    # The value that is returned is not waited for where there is source.
    assert (count, more) == (3 if name == "locals" else 2, 3)


@pytest.mark.parametrize("name", few([*DEFERRED, *OBSERVED], 8))
def test_a_run_waits_at_the_lines_that_explain_names(
    name: str, tmp_path: Path, oracle: OracleBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders: list[OpRecorder] = []

    class Kept(function_run.CachingRecorder):  # type: ignore[misc,name-defined]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            recorders.append(self)

    monkeypatch.setattr(function_run, "CachingRecorder", Kept)
    source = deferred_source(DEFERRED[name]) if name in DEFERRED else observed_source(OBSERVED[name])
    program = from_file(tmp_path, source)
    launches(program, oracle, q="why")
    found = survey(program.definition)
    assert found is not None
    seen = [observation.loc.line for observation in recorders[0].observations]
    assert seen == sorted({point.loc.line for point in found.observations})


def test_names_that_mean_something_else_are_looked_at_again(tmp_path: Path, oracle: OracleBackend) -> None:
    program = from_file(tmp_path, deferred_source("s += 'a' + gen('x', max_tokens=2)\ns += user(s['x'])\n"))
    assert launches(program, oracle, q="")[1] == 1
    seen: list[Any] = []
    program.definition.call.__globals__["user"] = lambda text: seen.append(text) or "instead"
    result, count = launches(program, oracle, q="")
    assert (type(seen[0]), count) == (str, 2)
    assert result.text().endswith("instead")


def test_a_program_in_a_program_is_a_helper(tmp_path: Path, oracle: OracleBackend) -> None:
    body = """
        s += "a" + gen("x", max_tokens=2)
        if q == "inner":
            return s["x"]
        inner = program.__wrapped__(s, "inner")
        assert type(inner) is str
        return inner + "!"
    """
    source = deferred_source(body)
    names: dict[str, Any] = {"__name__": "program"}
    (tmp_path / "program.py").write_text(source)
    exec(compile(source, str(tmp_path / "program.py"), "exec"), names)
    names["program"] = program = sgl.function(names["program"])
    result, _ = launches(program, oracle, q="outer")
    assert result.ret_value == result["x"] + "!"


def test_helpers_that_are_given_the_state_defer_too(tmp_path: Path, oracle: OracleBackend) -> None:
    program = from_file(tmp_path, deferred_source("turn(s, 'x')\nturn(s=s, name='y')"))
    found = survey(program.definition)
    assert found is not None
    assert [point.what for point in found.deferred] == ["`s[name]`", "`s[name]`"]
    assert [point.what for point in found.observations] == ["`s[name]`: formatted in an f-string of a helper"]
    assert launches(program, oracle, q="")[1] == 3


def test_several_samples_and_typed_values_are_read_at_once(tmp_path: Path, oracle: OracleBackend) -> None:
    body = """
        s += "a" + gen("x", max_tokens=2, n=2)
        texts = s["x"]
        s += texts[1] + gen("y", max_tokens=2)
        return texts
    """
    result, count = launches(from_file(tmp_path, deferred_source(body)), oracle, q="")
    assert result.ret_value == result["x"]
    assert (len(result["x"]), count) == (2, 2)
    assert result.text() == "a" + result["x"][0] + result["x"][1] + result["y"]


def test_what_was_launched_before_is_known_text(tmp_path: Path, oracle: OracleBackend) -> None:
    body = """
        s += "a" + gen("x", max_tokens=2)
        early = s["x"]
        s += gen("y", max_tokens=2)
        if s["y"] == "":
            s += "empty"
        s += early + f"[{early}]" + s["x"] + gen("z", max_tokens=2)
        s += select("w", choices=[early, "none"])
        return early
    """
    source = deferred_source(body)
    result, count = launches(from_file(tmp_path, source), oracle, q="")
    assert count == 2
    assert result.text() == f"a{result['x']}{result['y']}{result['x']}[{result['x']}]{result['x']}" + (
        result["z"] + result["w"]
    )
    assert outcome(result) == outcome(launches(without_source(source), oracle, q="")[0])


def test_a_generation_that_fails_is_the_error_of_what_it_is_deferred_to(
    tmp_path: Path, oracle: OracleBackend
) -> None:
    body = """
        s += q + gen("x", max_tokens=2)
        s += "b" + s["x"] + gen("y", max_tokens=2)
        return {"x": s["x"]}
    """
    program = from_file(tmp_path, deferred_source(body))
    result = program.run(q="w" * 5_000, backend=oracle)
    error = result.error()
    assert isinstance(error, SglcError)
    with pytest.raises(SglcError):
        _ = result.ret_value


def test_a_batch_defers_in_every_row(tmp_path: Path, oracle: OracleBackend) -> None:
    program = from_file(tmp_path, deferred_source(DEFERRED["f-string"]))
    results = program.run_batch([{"q": f"q{i}"} for i in range(5)], backend=oracle, seed=SEED)
    assert [result.error() for result in results] == [None] * 5
    oracle.settle()
    assert oracle.machine is not None
    assert oracle.machine.submits == 5


def test_sites_do_not_depend_on_where_a_run_waits(oracle: OracleBackend) -> None:
    """A join counts as an occurrence of its name whether or not one launch made all that it gathers."""
    source = deferred_source(
        """
        s += "a"
        forks = s.fork(2)
        forks += gen("x", max_tokens=2)
        if q == "wait":
            str(forks[0]["x"])
        forks.join()
        outer = s.fork(1)
        inner = outer[0].fork(1)
        inner += gen("y", max_tokens=2)
        inner.join()
        if q == "wait":
            str(outer[0]["y"])
        outer.join()
        s += gen("x", max_tokens=2) + gen("y", max_tokens=2)
        """
    )
    program = without_source(source)
    first, one = launches(program, oracle, q="no")
    second, several = launches(program, oracle, q="wait")
    assert (one, several) == (1, 3)
    assert sorted(map(str, (call.site for call in first.calls))) == sorted(
        map(str, (call.site for call in second.calls))
    )
    assert first.text() == second.text()


# -- programs that nobody wrote --------------------------------------------------------------------------


def random_source(rng: random.Random) -> str:
    """A program of statements in any order; those that may fail do so with and without source alike."""
    plain = [
        's += s["x"]', 's += f"<{s[\'x\']}{q}>"', 's += "a" + s["x"] + q', 's += q + s["x"]',
        "s += user(s['x'])",
        'x = s["x"]; s += x + f"{x}"', 's += select("x", choices=[s["x"], "no"])', 's += s["x"] if q else "b"',
    ]  # fmt: skip
    lines = ['s += "a" + gen("x", max_tokens=2)']
    for number in range(rng.randrange(3, 9)):
        line = rng.choice([*plain, *plain, *(line for line in OBSERVED.values() if "\n" not in line)])
        name = rng.choice("xyz")
        line = line.replace('s["x"]', f's["{name}"]').replace("s['x']", f"s['{name}']")
        line = line.replace("a = ", f"a{number} = ").replace("s += a", f"s += a{number} ")
        made = f's += gen("{rng.choice("xyz")}", max_tokens=2)'
        lines.append(
            rng.choice(
                [
                    line, line, line, made, made,
                    f"for i in range(2):\n    {line}\n    {made}",
                    f"if s['x'] < 'k':\n    {line}\nelse:\n    {made}",
                    f"with s.copy() as c:\n    {made.replace('s +=', 'c +=')}\n    c += c['x']\n    {line}",
                    f"forks = s.fork(2)\nfor f in forks:\n    f += gen('t{number}', max_tokens=2)\n"
                    f"    f += f['x'] + f['t{number}']\ns.join(forks)\nfor t{number} in s['t{number}']:\n"
                    f"    s += t{number}",
                ]
            )
        )  # fmt: skip
    lines.append(rng.choice(["return s['x']", "return [s['x'], q + s['x']]", "return {'x': s['x'].strip()}"]))
    return "\n".join(lines)


def ended(function: sgl.Function, backend: OracleBackend) -> tuple[Any, str]:
    """What a run ended with, and the text as far as it came."""
    result = function.run("why", backend=backend, seed=SEED)
    error = result.error()
    if error is None:
        return outcome(result), result.text()
    # Where there is no source, an error shows no line of it.
    return (type(error), getattr(error, "message", str(error))), result.partial_text


@pytest.mark.parametrize("seed", few(range(60), 4))
def test_random_programs_do_the_same_with_and_without_source(
    seed: int, tmp_path: Path, oracle: OracleBackend
) -> None:
    source = deferred_source(random_source(random.Random(seed)))
    deferred, text = ended(from_file(tmp_path, source), oracle)
    plain, whole = ended(without_source(source), oracle)
    assert deferred == plain
    assert whole.startswith(text)  # a program that fails may have launched less


def test_a_line_of_thousands_of_terms_runs(tmp_path: Path, oracle: OracleBackend) -> None:
    body = 's += "a" + gen("x", max_tokens=2)\ns += ' + " + ".join(['"b"'] * 2_000 + ['s["x"]'])
    result = from_file(tmp_path, deferred_source(body)).run("", backend=oracle)
    assert result.error() is None
    assert result.text().endswith("b" + result["x"])
