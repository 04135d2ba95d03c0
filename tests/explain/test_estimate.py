"""Estimates of programs, counted by hand or by the tokenizer: what is exact, bounded, or has no bound."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.cli import main
from sglc.errors import UsageError
from sglc.explain.estimate.estimate import estimated
from sglc.explain.estimate.forecast import Forecast
from sglc.explain.estimate.intervals import Interval
from sglc.explain.estimate.intervals import sure as exactly
from sglc.explain.estimate.price import price_of
from sglc.explain.estimate.token_counts import TokenCounter, Unknown, weight
from sglc.ir.target import Target, Tokenizer
from sglc.ir.text.printer import from_text
from sglc.passes.compile import compile_program
from tests.oracle_backend import Characters, OracleBackend
from tests.templates import ByteTokenizer

ESSAYS = [json.loads(line) for line in Path("examples/essays.jsonl").read_text().splitlines()]


def of(text: str, tokenizer: Tokenizer | None = None, **args: str) -> Forecast:
    """The estimate of `def f(...)`, a token a byte."""
    target = Target("local", tokenizer or ByteTokenizer(None), scores_tokens=True, continues_text=True)
    program = from_text(f"{text.rstrip()}\n    return\n", "f.sglir")
    return estimated([(compile_program(program, target).plan, args)], target)


def bounds(span: Interval) -> tuple[int, int | None]:
    return span.low, span.high


def prompts(forecast: Forecast) -> dict[str, tuple[int, int | None]]:
    return {step.name: bounds(step.each.prompt) for step in forecast.steps}


@cache
def small() -> tuple[LocalBackend, Tokenizer]:
    backend = LocalBackend(LocalOptions("smollm2"))  # never asked for a token: only its tokenizer is
    tokenizer = backend.target.tokenizer
    assert tokenizer is not None
    return backend, tokenizer


def judge() -> Any:
    from sglc.cli.program_file import open_function

    return open_function("examples/judge.py")


def test_literals_and_arguments_are_exact_in_the_model_s_tokenizer() -> None:
    backend, tokenizer = small()
    (essay,) = (ESSAYS[0]["essay"],)
    forecast = judge().explain(backend, essay=essay).forecast
    head = f"Evaluate this essay:\n{essay}\n"
    for number, aspect in enumerate(("Clarity", "Creativity", "Evidence")):
        step = forecast.step_of(f"grade_essay[{number}].score#0")
        whole = len(tokenizer.encode(f"{head}Rate the {aspect} from 1 to 5: "))
        assert bounds(step.each.prompt) == (whole, whole)
        assert bounds(step.each.new) == (0, 4)
    verdict = forecast.step_of("grade_essay.verdict#0")
    assert verdict is not None
    assert verdict.after == tuple(f"grade_essay[{n}].score#0" for n in range(3))
    filled = "".join(f"{aspect}: 3\n" for aspect in ("Clarity", "Creativity", "Evidence"))
    assert len(tokenizer.encode(f"{head}{filled}Verdict: the essay is")) in verdict.each.prompt
    assert verdict.each.prompt.high - verdict.each.prompt.low <= 3 * (4 + 8)
    assert forecast.chain == ("grade_essay[0].score#0", "grade_essay.verdict#0")


def test_what_an_estimate_calls_grows_with_its_program() -> None:
    """As many functions for each generation of a long chain: none for each pair of them."""

    def calls(count: int) -> int:
        @sgl.function
        def chain(s: Any) -> None:
            for number in range(count):
                s += f"{number}: " + sgl.gen(f"g{number}")

        made = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal made
            made += event == "call" and "/sglc/explain/" in frame.f_code.co_filename

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            chain.explain(OracleBackend())
        finally:
            sys.setprofile(before)
        return made

    first, second, third = calls(10), calls(20), calls(30)
    assert 0 < third - second < 1.1 * (second - first)


def test_a_literal_counts_with_what_stands_beside_it() -> None:
    """The model's tokenizer makes one token of `wonder` and `ful` where they stand together."""
    _, tokenizer = small()
    apart = len(tokenizer.encode("It is wonder")) + len(tokenizer.encode("ful."))
    together = len(tokenizer.encode("It is wonderful."))
    assert together < apart
    text = """
def f(q):
    s0 = root()
    s1 = append(s0, 'It is wonder')
    s2, s3 = fork(s1)
    s4 = append(s2, 'ful.')
    s5, t0 = gen(s4, 'x', max_tokens=1)
    s6 = append(s3, q)
    s7, t1 = gen(s6, 'y', max_tokens=1)
"""
    assert prompts(of(text, tokenizer, q="ful.")) == {"x": (together,) * 2, "y": (together,) * 2}
    low, high = prompts(of(text, tokenizer))["y"]
    assert low <= together
    assert high is None


def test_what_is_not_known_leaves_room_where_it_meets_literals() -> None:
    """Wherever a text is cut, its tokens lie between the bounds that its parts have with an unknown middle."""
    backend, tokenizer = small()
    counter, random = TokenCounter(backend.target), Random(0)
    texts = [row["essay"] for row in ESSAYS] + [Path("examples/react.py").read_text()]
    for _ in range(3_000):
        text = random.choice(texts)
        begin = random.randrange(len(text))
        end = min(len(text), begin + random.randrange(30))
        left, right = text[max(0, begin - 60) : begin], text[end : end + random.randrange(60)]
        middle = Unknown("x", exactly(len(tokenizer.encode(text[begin:end]))), "{x}")
        line = [part for part in (left, middle, right) if part != ""]
        whole = weight(counter.symbols(line), counter)
        assert len(tokenizer.encode(left + text[begin:end] + right)) in whole, (left, text[begin:end], right)
        assert whole.high - whole.low <= 2 + sum(
            len(tokenizer.encode(p)) for p in (left, text[begin:end], right)
        )


def test_what_two_prompts_begin_with_is_shared_once() -> None:
    forecast = of("""
def f():
    s0 = root()
    s1 = append(s0, 'abcdefgh')
    s2, s3, s4 = fork(s1)
    s5 = append(s2, '1')
    s6, t0 = gen(s5, 'x', max_tokens=1)
    s7 = append(s3, '2')
    s8, t1 = gen(s7, 'y', max_tokens=1)
    s9 = append(s4, '3')
    s10, t2 = gen(s9, 'z', max_tokens=1)
""")
    assert bounds(forecast.counts.prompt) == (27, 27)
    assert bounds(forecast.counts.shared) == (16, 16)
    assert bounds(forecast.counts.computed) == (11, 11)
    assert [(node.above, node.text, node.prompts) for node in forecast.tree] == [
        (-1, "abcdefgh", 3), (0, "1", 1), (0, "2", 1), (0, "3", 1),
    ]  # fmt: skip


SWITCH = """
def f(q):
    s0 = root()
    s1 = append(s0, 'ab')
    s6, t2 = switch(q):
        case 'x':
            s2, t0 = gen(s1, 'short', max_tokens=2)
            yield s2, t0
        case _:
            s3 = append(s1, 'cdefgh')
            s4, t3 = gen(s3, 'long', max_tokens=9)
            s5, t1 = gen(s4, 'more', max_tokens=9)
            yield s5, t1
"""


def test_of_two_arms_one_counts() -> None:
    open_ = of(SWITCH)
    assert bounds(open_.counts.calls) == (1, 2)
    assert open_.counts.new.high == 18
    assert {step.name: bounds(step.counts.calls) for step in open_.steps} == {
        "short": (0, 1), "long": (0, 1), "more": (0, 1),
    }  # fmt: skip
    # Nothing is shared with the other arm, which does not run.
    assert bounds(open_.step_of("f.long#0").each.shared) == (0, 0)  # type: ignore[union-attr]
    assert bounds(of(SWITCH, q="x").counts.calls) == (1, 1)
    assert bounds(of(SWITCH, q="y").counts.calls) == (2, 2)


def test_a_loop_counts_from_once_to_its_limit() -> None:
    forecast = of("""
def f(q):
    s0 = root()
    s1 = append(s0, 'abc')
    s6 = loop((s1,), 3) as s2:
        s3, t0 = gen(s2, 'x', max_tokens=2)
        s4 = append(s3, '--')
        b0 = eq(t0, q)
        yield b0, s4
    s7, t1 = gen(s6, 'end', max_tokens=1)
""")
    (x, end) = forecast.steps
    assert bounds(x.counts.calls) == (1, 3)
    assert bounds(x.each.prompt) == (3, 3 + 2 * (2 + 2))
    assert bounds(x.counts.prompt) == (3, 3 + 7 + 11)
    assert bounds(end.each.prompt) == (3 + 2, 3 + 3 * (2 + 2))
    assert bounds(forecast.counts.calls) == (2, 4)


def test_a_map_has_a_call_for_each_item_that_is_known() -> None:
    text = """
def f(a, b):
    l0 = concat((a, b, 'ccc'))
    l1 = map(l0) as t0:
        s0 = root()
        s1 = append(s0, t0)
        s2, t1 = gen(s1, 'x', max_tokens=2)
        yield t1
"""
    forecast = of(text, a="a", b="bb")
    assert bounds(forecast.counts.calls) == (3, 3)
    assert bounds(forecast.counts.prompt) == (6, 6)
    unknown = of(text.replace("concat((a, b, 'ccc'))", "tool('m.list', (a,), gives='list')"))
    assert bounds(unknown.counts.calls) == (0, None)
    assert bounds(unknown.steps[0].counts.calls) == (0, None)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ("max_tokens=64, regex='[0-9]{2,4}'", (2, 5)),  # one more says that it has ended
        ("max_tokens=64, regex='(yes|no)'", (2, 4)),
        ("max_tokens=64, regex='[0-9]{2,4}', stop=('1',)", (0, 5)),
        ("max_tokens=3, regex='[0-9]+'", (1, 3)),
        ("max_tokens=7, n=3", (0, 21)),
        ("max_tokens=7, min_tokens=5", (5, 7)),
        ("max_tokens=7, ignore_eos=True", (7, 7)),
        ("max_tokens=0", (0, 1)),
    ],
)
def test_a_form_bounds_what_is_generated(held: str, expected: tuple[int, int]) -> None:
    forecast = of(f"def f():\n    s0 = root()\n    s1 = append(s0, 'a')\n    s2, t0 = gen(s1, 'x', {held})\n")
    assert bounds(forecast.counts.new) == expected


def test_the_estimate_is_that_of_the_plan() -> None:
    """`Plan.estimate` tells of the same calls, limits and chain."""
    plan = judge().compile(small()[0]).plan
    forecast = judge().explain(small()[0]).forecast
    told = plan.estimate
    assert told.calls == forecast.counts.calls.low == forecast.counts.calls.high
    assert told.max_new_tokens == forecast.counts.new.high
    assert told.critical_path == forecast.depth == len(forecast.chain)


def test_a_batch_is_the_sum_of_its_rows_and_shares_between_them() -> None:
    backend, tokenizer = small()
    rows = ESSAYS[:4]
    one = [judge().explain(backend, **row).forecast for row in rows]
    forecast = judge().explain(backend, rows=rows).forecast
    assert forecast.rows == 4
    assert forecast.counts.prompt.low == sum(single.counts.prompt.low for single in one)
    assert forecast.counts.calls.low == 16
    begin = len(tokenizer.encode("Evaluate this essay:\n"))
    more = forecast.counts.shared.low - sum(single.counts.shared.low for single in one)
    assert more >= 3 * (begin - 1)
    as_tuples = judge().explain(backend, rows=[(row["essay"],) for row in rows]).forecast
    assert as_tuples.counts == forecast.counts


def test_arguments_that_the_body_reads_are_given_to_it() -> None:
    @sgl.function
    def rounds(s: Any, question: str, count: int) -> None:
        s += question
        for _ in range(count):
            s += sgl.gen("x", max_tokens=2)

    forecast = rounds.explain(OracleBackend(), question="ab", count=3).forecast
    assert bounds(forecast.counts.calls) == (3, 3)
    assert [bounds(step.each.prompt) for step in forecast.steps] == [(2, 2), (2, 4), (2, 6)]


def test_an_unknown_argument_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError) as caught:
        judge().explain(small()[0], essays="x")
    assert caught.value.code == "SGLC060"
    assert caught.value.loc.line == 15  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="SGLC060"):
        judge().explain(small()[0], rows=[{"essays": "x"}])


def test_a_row_that_a_run_would_refuse_is_refused() -> None:
    for rows in ([{"essay": "x"}, {}], [("x",), ()], [("x",), ("x", "y")]):
        with pytest.raises(UsageError, match="SGLC011") as caught:
            judge().explain(small()[0], rows=rows)
        assert caught.value.note.startswith("row 1 of the batch")


@pytest.mark.parametrize("row", [None, 3, "x"])
def test_a_row_that_is_no_row_is_refused(row: Any) -> None:
    with pytest.raises(UsageError, match="SGLC017") as caught:
        judge().explain(small()[0], rows=[("x",), row])
    assert caught.value.note == "row 1 of the batch"


@pytest.mark.parametrize("rows", ["x", b"x", {"essay": "x"}, 3])
def test_what_is_no_batch_is_refused(rows: Any) -> None:
    with pytest.raises(UsageError, match=f"a batch is a list of rows, not `{type(rows).__name__}`"):
        judge().explain(small()[0], rows=rows)


def test_a_batch_without_rows_is_refused() -> None:
    with pytest.raises(UsageError, match="SGLC064"):
        judge().explain(small()[0], rows=[])


def test_sampling_defaults_are_part_of_the_program() -> None:
    @sgl.function
    def plain(s: Any) -> None:
        s += "a" + sgl.gen("x")

    assert plain.explain(OracleBackend(), max_new_tokens=5).forecast.counts.new.high == 5


def test_without_a_tokenizer_counts_are_guessed_and_say_so() -> None:
    target = Target("openai:gpt-4o", protocol="chat", continues_text=False)
    program = from_text(
        "def f():\n    s0 = root()\n    s1 = role_open(s0, 'user')\n    s2 = append(s1, 'abcdefgh')\n"
        "    s3 = role_close(s2, 'user')\n    s4 = role_open(s3, 'assistant')\n"
        "    s5, t0 = gen(s4, 'x', max_tokens=4)\n    s6 = role_close(s5, 'assistant')\n    return\n",
        "f.sglir",
    )
    forecast = estimated([(compile_program(program, target).plan, {})], target)
    assert not forecast.exact
    assert forecast.counts.prompt.low <= 2 <= 8 <= (forecast.counts.prompt.high or 0)


def test_a_price_is_that_of_the_table_or_is_not_known() -> None:
    counts = of(
        "def f():\n    s0 = root()\n    s1 = append(s0, 'abcd')\n    s2, t0 = gen(s1, 'x', max_tokens=8)\n"
    )
    price = price_of("openai:gpt-4o-2024-08-06", counts.counts)  # 2.5 and 10 dollars for a million
    assert price is not None
    assert price.low == pytest.approx(4 * 2.5e-6)
    assert price.high == pytest.approx(4 * 2.5e-6 + 8 * 10e-6)
    assert "LiteLLM" in price.source
    assert price_of("openai:gpt-none", counts.counts) is None
    assert price_of("local", counts.counts) is None


def test_data_is_json_and_says_what_the_text_says() -> None:
    explanation = judge().explain(OracleBackend(), essay="An essay.")
    data = json.loads(json.dumps(explanation.to_json()))
    assert data["version"] == 2
    assert data["estimate"]["counts"]["calls"] == [4, 4, 4.0]
    assert [step["site"] for step in data["estimate"]["steps"]][-1] == "grade_essay.verdict#0"
    head = len("Evaluate this essay:\nAn essay.\n")
    assert data["estimate"]["tree"][0]["tokens"] == [head, head, head]
    assert len(Characters().encode("Evaluate this essay:\nAn essay.\n")) == head
    assert "grade_essay.verdict#0" in explanation.text() == str(explanation)


def test_graphs_have_an_edge_for_what_a_step_waits_for() -> None:
    explanation = judge().explain(OracleBackend())
    assert explanation.to_mermaid().count("-->") == 2
    assert explanation.to_mermaid().count("==>") == 1  # of the longest chain
    dot = explanation.to_dot()
    assert dot.count(" -> ") == 3
    assert dot.count("[style=bold]") == 1


def test_a_constant_behind_an_argument_is_weighed_by_the_rows() -> None:
    rules = "Answer in one word. " * 12

    @sgl.function
    def ask(s: Any, question: str) -> None:
        s += question + rules
        s += sgl.gen("answer", max_tokens=3)

    backend = OracleBackend()
    (alone,) = ask.explain(backend, question="Why?").findings
    rows = [{"question": question} for question in ("Why?", "How?", "Why?", "When?")]
    (found,) = ask.explain(backend, rows=rows).findings
    backend.close()
    assert (alone.code, found.code) == ("SGLC601", "SGLC601")
    # A token a character: two of the three beginnings compute what one would do for.
    assert found.note == alone.note + f"; these rows compute {2 * len(rules):,} tokens more for it"


def test_what_is_said_of_branches_agrees() -> None:
    from sglc.cli.program_file import open_function

    react = open_function(str(Path(__file__).parents[2] / "examples" / "react.py"))
    explained = react.explain(f"scripted:{Path(__file__).with_name('answers.json')}", question="Where is it?")
    forecast = explained.forecast
    assert (forecast.depth, len(forecast.chain)) == (3, 13)
    assert "3-13 calls, 3-13 one after another; " in explained.text()
    for counts in [forecast.counts, *(step.counts for step in forecast.steps)]:
        assert counts.prompt.low >= counts.shared.low + counts.computed.low


# -- the command line

PROGRAMS = """
import sglc as sgl

@sgl.function
def ask(s, q: str, n: int = 2):
    s += q + sgl.gen("a", max_tokens=n)

@sgl.function
def broken(s):
    s += 1

@sgl.function
def other(s):
    s += "b" + sgl.gen("c", max_tokens=3)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    Path("prog.py").write_text(PROGRAMS)
    Path("script.json").write_text('[{"text": " yes"}]')
    return ["explain", "--target", "scripted:script.json"]


def test_arguments_that_a_run_refuses(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "prog.py:ask", "--args", '{"q": "a", "n": "x"}']) == 1
    assert "error[SGLC103]: `max_tokens` is `'x'`" in capsys.readouterr().err
    assert main([*command, "prog.py:ask", "--args", '{"q": "a", "n": 4}']) == 0


@pytest.mark.parametrize(
    ("row", "code", "message", "note"),
    [
        (
            '{"q": "a", "n": "x"}',
            1,
            "error[SGLC103]: `max_tokens` is `'x'`",
            "note: rows.jsonl:2: row 1 of the batch",
        ),
        (
            '{"q": 1}',
            1,
            "error[SGLC102]: `int` cannot be part of a prompt",
            "rows.jsonl:2: row 1 of the batch; a prompt",
        ),
        (
            '{"z": 1}',
            2,
            "error[SGLC060]: `ask` has no argument `z`",
            "rows.jsonl:2: row 1 of the batch; its",
        ),
    ],
)
def test_a_row_that_a_run_refuses_is_named(
    row: str, code: int, message: str, note: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rows.jsonl").write_text('{"q": "a"}\n' + row + "\n")
    assert main([*command, "prog.py:ask", "--batch", "rows.jsonl"]) == code
    err = capsys.readouterr().err
    assert err.startswith(message)
    assert note in err


def test_a_program_that_cannot_be_explained_hides_no_other(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "prog.py", "--html", "page.html"]) == 1
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if not line.startswith(" ")] == [
        "ask(q) on `scripted`", "other() on `scripted`",
    ]  # fmt: skip
    assert err.count("error[") == err.count("error[SGLC102]: `int` cannot be part of a prompt") == 1
    assert Path("page.html").stat().st_size


@sgl.function
def has_names_of_options(s: Any, rows: list[str], target: str, backend: str, outputs: str = "") -> None:
    for row in rows:
        s += row + target + backend + outputs + sgl.gen("x", max_tokens=4)


def test_a_keyword_that_the_program_has_is_the_programs() -> None:
    named = {"rows": ["a", "b"], "target": "T", "backend": "B"}
    explanation = has_names_of_options.explain(OracleBackend(), **named)
    assert explanation.forecast.counts.calls.low == 2
    assert explanation.text() == has_names_of_options.explain_for(OracleBackend(), named, None, None).text()
    assert explanation.compiled.plan.target == OracleBackend().target.name


def test_a_back_end_has_three_ways_to_be_given() -> None:
    @sgl.function
    def program(s: Any, rows: str = "") -> None:
        s += rows + sgl.gen("x", max_tokens=4)

    backend = OracleBackend()
    texts = {program.explain(backend).text(), program.explain(target=backend).text()}
    assert {program.explain(backend=backend).text()} == texts
