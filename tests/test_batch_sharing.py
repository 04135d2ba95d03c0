"""Rows of a batch share what they begin with: tokens counted on the engine, over the oracle."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.errors import UsageError
from sglc.execution import session
from sglc.execution.batch import runner
from sglc.execution.batch.order import trie_size
from sglc.execution.batch.prefixes import beginnings, remark
from sglc.execution.result import Result
from sglc.frontend.tracing.guards import Memo
from sglc.runtime.scheduler.scheduler import WORTH_WAITING_TOKENS
from tests.depth import at_depth, few
from tests.oracle_backend import OracleBackend

ONE: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "ignore_eos": True}
FEW: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True}
PAGE = 4
LETTERS = "abcdefghijklmnopqrstuvwxyz "


@sgl.function
def ask(s: Any, examples: str, question: str) -> None:
    s += examples + question
    s += sgl.gen("answer", **ONE)


@sgl.function
def chat(s: Any, rules: str, question: str) -> None:
    s += sgl.system(rules)
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", **FEW))


def text(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(LETTERS, k=length))


def grouped(groups: int, each: int, prefix: int, question: int, seed: int = 1) -> list[tuple[str, str]]:
    """Rows of (beginning, question), `each` to a beginning, shuffled."""
    rng = random.Random(seed)
    rows = [(beginning, text(rng, question)) for beginning in (text(rng, prefix) for _ in range(groups))
            for _ in range(each)]  # fmt: skip
    rng.shuffle(rows)
    return rows


def engine(tokens: float, max_rows: int = 8) -> OracleBackend:
    """A back end with KV for so many tokens."""
    return OracleBackend(max_rows=max_rows, pages=int(tokens) // PAGE, page_size=PAGE)


def computed(results: Sequence[Result]) -> int:
    assert all(result.error() is None for result in results)
    return sum(result.usage.computed for result in results)


def least(results: Sequence[Result]) -> int:
    """Nodes of the trie of all prompts that were sent."""
    return trie_size([call.prompt_ids for result in results for call in result.calls])


def kept(results: Sequence[Result]) -> list[Any]:
    """What must not depend on the order in which rows run."""
    return [(result.row, result.seed, result["answer"], result.calls[0].prompt_ids) for result in results]


# -- tokens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_rows", few([4, 16], 1))
@pytest.mark.parametrize("share", [1.2, 0.25])
def test_every_beginning_is_computed_once(share: float, max_rows: int) -> None:
    rows = grouped(8, 12, 300, 20)
    optimum = 8 * 300 + 96 * 20
    on = engine(optimum * share, max_rows)
    results = ask.run_batch(rows, backend=on, seed=3)
    assert optimum * 0.95 < least(results) <= optimum
    assert computed(results) <= 1.03 * least(results)
    on.close()
    off = engine(optimum * share, max_rows)
    in_list_order = ask.run_batch(rows, backend=off, seed=3, hoist_prefix=False)
    assert kept(in_list_order) == kept(results)
    if share < 1:  # the pool holds three of the eight beginnings: chance does not do
        assert computed(in_list_order) > 2 * least(results)
    off.close()


def test_beginnings_within_beginnings() -> None:
    """Rules, a document below them, a question below that; the pool holds two paths."""
    rng = random.Random(4)
    rules = [text(rng, 120) for _ in range(3)]
    documents = [text(rng, 160) for _ in range(4)]
    rows = [(rule, document + text(rng, 16)) for rule in rules for document in documents for _ in range(6)]
    rng.shuffle(rows)
    for share, bound in ((1.3, 1.03), (0.35, 1.03)):
        backend = engine(share * (3 * 120 + 12 * 160 + 72 * 16), 4)
        results = ask.run_batch(rows, backend=backend, seed=1)
        assert computed(results) <= bound * least(results)
        backend.close()


@pytest.mark.parametrize("seed", range(at_depth(2, 6, 60)))
def test_random_batches(seed: int) -> None:
    """Whatever the beginnings, all prompts together take what their trie has, and the results are the same."""
    rng = random.Random(seed)
    beginnings = [text(rng, rng.randint(0, 150)) for _ in range(rng.randint(1, 5))]
    beginnings += [rng.choice(beginnings) + text(rng, rng.randint(1, 80)) for _ in range(rng.randint(0, 5))]
    rows = [(rng.choice(beginnings), text(rng, rng.randint(1, 30))) for _ in range(rng.randint(1, 40))]
    one = engine(400, 1)  # little more than the path to a row
    results = chat.run_batch(rows, backend=one, seed=seed, num_threads=1)
    assert least(results) <= computed(results) <= least(results) + PAGE * len(rows)  # of a page in part
    one.close()
    # Rows that run side by side do not wait for each other if they would save less than that.
    several = engine(20_000)
    again = chat.run_batch(rows, backend=several, seed=seed)
    assert computed(again) <= least(results) + (WORTH_WAITING_TOKENS + PAGE) * len(rows)
    assert kept(again) == kept(results)
    several.close()
    plain = engine(20_000)
    assert kept(chat.run_batch(rows, backend=plain, seed=seed, hoist_prefix=False)) == kept(results)
    plain.close()


def test_arguments_that_all_rows_have_alike_need_nothing_more() -> None:
    """They stand in the trie's trunk, wherever in the prompt."""

    @sgl.function
    def program(s: Any, rules: str, k: int, question: str, tail: str) -> None:
        s += f"{rules} {k}: {question} {tail}" + sgl.gen("answer", **ONE)

    rng = random.Random(6)
    same = {"rules": text(rng, 200), "k": 3, "tail": text(rng, 20)}
    rows = [{"question": text(rng, 10), **same} for _ in range(20)]
    backend = engine(2_000)
    results = program.run_batch(rows, backend=backend, seed=1)
    assert computed(results) <= 1.03 * least(results) <= 1.03 * (204 + 20 * 33)
    backend.close()


# -- order -----------------------------------------------------------------------------------------


def began(program: sgl.Function, rows: Sequence[Any], **options: Any) -> list[int]:
    """The rows of a program in the order in which their bodies ran; each appends its row to `BEGAN`."""
    BEGAN.clear()
    backend = tight()
    results = program.run_batch(rows, backend=backend, num_threads=1, **options)
    assert [result.row for result in results] == list(range(len(rows)))
    backend.close()
    return list(BEGAN)


def tight() -> OracleBackend:
    """A back end that holds a row of `SHUFFLED`, and not what all of them begin with."""
    return OracleBackend(pages=4, page_size=PAGE)


BEGAN: list[int] = []


def note(number: str) -> str:
    BEGAN.append(int(number))
    return ""


SHUFFLED = [(10 * examples, str(number)) for number, examples in enumerate("abcabcab")]
IN_GROUPS = [0, 3, 6, 1, 4, 7, 2, 5]


@sgl.function
def noted(s: Any, examples: str, number: str) -> None:
    s += examples + " "
    s += note(number) + number + sgl.gen("x", **ONE)


def test_rows_run_in_groups_and_give_their_results_in_order() -> None:
    assert began(noted, SHUFFLED) == IN_GROUPS
    assert began(noted, SHUFFLED, hoist_prefix=False) == list(range(8))


def test_rows_stay_where_the_cache_holds_what_they_begin_with() -> None:
    backend = engine(1_000)
    backend.server_info()  # its model is loaded
    BEGAN.clear()
    noted.run_batch(SHUFFLED, backend=backend, num_threads=1)
    assert list(range(8)) == BEGAN
    backend.close()


def test_results_come_in_row_order_one_by_one() -> None:
    BEGAN.clear()
    backend = tight()
    results = noted.run_batch(SHUFFLED, backend=backend, num_threads=1, generator_style=True)
    assert next(results).row == 0
    assert [result.row for result in results] == list(range(1, 8))
    assert BEGAN == IN_GROUPS
    backend.close()


def test_values_that_are_no_texts_are_recorded_as_they_are() -> None:
    @sgl.function
    def program(s: Any, number: str, examples: list[str], shots: int = 1) -> None:
        for example in examples[:shots]:
            s += example
        s += note(number) + number + sgl.gen("x", **ONE)

    rows = [
        {"number": str(i), "examples": [letter, "same"], "shots": 2} for i, (letter, _) in enumerate(SHUFFLED)
    ]
    assert began(program, rows) == IN_GROUPS
    assert began(program, [{**row, "shots": 0} for row in rows]) == list(range(8))


def test_many_different_values_are_arguments() -> None:
    @sgl.function
    def program(s: Any, examples: str, number: int) -> None:
        s += f"{examples} {number}"
        s += note(str(number)) + sgl.gen("x", **ONE)

    rows = [(10 * letter, i) for i, letter in enumerate("abc" * 10)]
    found = began(program, rows)
    assert [number % 3 for number in found] == [0] * 10 + [1] * 10 + [2] * 10


@sgl.function
def python_first(s: Any, examples: str, number: str) -> None:
    s += note(number) + examples + number + sgl.gen("x", **ONE)


@sgl.function
def constant(s: Any, examples: str, number: str) -> None:
    s += "Hello" + sgl.gen("x", **ONE)
    s += number + sgl.gen("y", **ONE)
    s += note(number)


@sgl.function
def literal(s: Any, examples: str, number: str) -> None:
    s += "Hello" + sgl.gen("x", **ONE)


@sgl.function
def several(s: Any, *words: str) -> None:
    s += words[0] + note(words[1]) + sgl.gen("x", **ONE)


@sgl.function
def wrong(s: Any, examples: str, number: str) -> None:
    note(number)
    s += examples + sgl.gen("x", max_tokens=-1)


@sgl.function
def wrong_at_once(s: Any, examples: str, number: str) -> None:
    s += examples + sgl.gen("x", max_tokens=-1) + note(number)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (python_first, "ordinary Python comes before any argument: `.append(...)` changes what outlives"),
        (constant, "ordinary Python comes before any argument"),
        (literal, "no prompt begins with an argument"),
        (several, "ordinary Python comes before any argument: `*words"),
        (wrong, "ordinary Python comes before any argument"),
        (wrong_at_once, "it cannot be recorded ahead: `max_tokens`"),
    ],
)
def test_where_nothing_is_known_rows_run_in_the_order_of_the_list(program: sgl.Function, why: str) -> None:
    rows = [dict(zip(("examples", "number"), row, strict=True)) for row in SHUFFLED]
    known = beginnings(program.definition, Memo(), rows)
    said = remark(known, None)
    assert said.message.startswith(f"rows run in the order of the list: {why}")
    assert said.loc is not None
    assert said.loc.file.endswith("test_batch_sharing.py")
    if program in (python_first, constant, several):
        assert began(program, SHUFFLED) == list(range(8))


def test_the_remark_counts_tokens(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLC_DEBUG", "1")
    backend = engine(4_000)
    ask.run_batch([("x" * 100, "1"), ("y" * 100, "2"), ("x" * 100, "3")], backend=backend)
    backend.close()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hoist_prefix: ")]
    assert len(lines) == 1
    assert lines[0].startswith("hoist_prefix: hoisted 100 of 303 tokens out of 3 rows (")


# -- nothing runs twice ----------------------------------------------------------------------------

COUNTS: dict[str, int] = {}
NUMBERS: Iterator[int] = iter(())


class Settings:
    seen = 0


SETTINGS = Settings()
LOCK = threading.Lock()
DEEP: list[list[str]] = [[]]


def stores_outside(s: Any, examples: str) -> None:
    COUNTS["x"] = COUNTS.get("x", 0) + 1


def through_another_name(s: Any, examples: str) -> None:
    counts = COUNTS
    counts["x"] = counts.get("x", 0) + 1


def an_attribute(s: Any, examples: str) -> None:
    SETTINGS.seen += 1


def a_global(s: Any, examples: str) -> None:
    global TOTAL
    TOTAL += 1


TOTAL = 0


def an_iterator(s: Any, examples: str) -> None:
    next(NUMBERS)


def a_list_in_a_list(s: Any, examples: str) -> None:
    inner = DEEP[0]
    inner += [examples]


def a_lock(s: Any, examples: str) -> None:
    with LOCK:
        COUNTS.update(x=COUNTS.get("x", 0) + 1)


def how_often() -> int:
    return COUNTS.get("x", 0) + SETTINGS.seen + TOTAL + 99 - sum(1 for _ in NUMBERS) + len(DEEP[0])


@pytest.mark.parametrize(
    "change",
    [stores_outside, through_another_name, an_attribute, a_global, an_iterator, a_list_in_a_list, a_lock],
)
@pytest.mark.parametrize("helper", [False, True])
def test_what_changes_the_world_does_so_once_a_row(change: Callable[..., None], helper: bool) -> None:
    """The order is found without running what a row runs, the body or a helper that it calls."""
    global NUMBERS, TOTAL
    COUNTS.clear()
    SETTINGS.seen, TOTAL, NUMBERS = 0, 0, iter(range(99))
    DEEP[0].clear()

    @sgl.function
    def through_helper(s: Any, examples: str) -> None:
        s += examples
        change(s, examples)
        s += sgl.gen("x", **ONE)

    program = through_helper if helper else sgl.function(change)
    backend = OracleBackend()
    results = program.run_batch([(letter,) for letter, _ in SHUFFLED], backend=backend)
    assert [result.error() for result in results] == [None] * 8
    backend.close()
    assert how_often() == 8


def test_a_closure_is_not_counted_up() -> None:
    ran = 0

    @sgl.function
    def program(s: Any, examples: str) -> None:
        nonlocal ran
        ran += 1
        s += examples + sgl.gen("x", **ONE)

    backend = OracleBackend()
    program.run_batch([(letter,) for letter, _ in SHUFFLED], backend=backend, num_threads=1)
    backend.close()
    assert ran == 8


def test_what_a_program_makes_itself_it_may_change() -> None:
    @sgl.function
    def program(s: Any, examples: str, number: str) -> None:
        parts: dict[str, str] = {}
        parts["first"] = examples
        words = ["a"]
        words += ["b"]
        words[0] = "c"
        s["kept"] = "text"
        forks = s.fork(2)
        for fork in forks:
            fork += parts["first"] + words[0] + number
        forks[0] += note(number) + sgl.gen("x", **ONE)

    assert began(program, SHUFFLED) == IN_GROUPS


# -- several programs ------------------------------------------------------------------------------


@sgl.function
def summarize(s: Any, rules: str, document: str) -> None:
    s += sgl.system(rules)
    s += sgl.user("Sum up: " + document)
    s += sgl.assistant(sgl.gen("answer", **FEW))


def test_programs_that_run_together_share_what_they_begin_with() -> None:
    rng = random.Random(9)
    rules = [text(rng, 300) for _ in range(6)]
    questions = [(rng.choice(rules), text(rng, 20)) for _ in range(30)]
    documents = [{"rules": rng.choice(rules), "document": text(rng, 40)} for _ in range(30)]
    optimum = 6 * 300 + 30 * 60 + 30 * 90
    # One row at a time: with several, one that a busy machine holds up comes when its rules are gone.
    together = engine(optimum / 4, 1)
    first, second = sgl.run_together(
        [(chat, questions), (summarize, documents)], backend=together, seed=5, num_threads=1
    )
    assert computed([*first, *second]) <= 1.03 * least([*first, *second])
    together.close()
    alone = engine(optimum / 4)
    assert kept(chat.run_batch(questions, backend=alone, seed=5)) == kept(first)
    assert kept(summarize.run_batch(documents, backend=alone, seed=5)) == kept(second)
    alone.close()


def test_together_rows_of_all_programs_run_in_one_order() -> None:
    @sgl.function
    def other(s: Any, examples: str, number: str) -> None:
        s += examples + " "
        s += note(number) + "o" + number + sgl.gen("x", **ONE)

    BEGAN.clear()
    backend = tight()
    a, b, c = 10 * "a", 10 * "b", 10 * "c"
    mine = [(a, "0"), (b, "1")]
    theirs = [(b, "2"), (a, "3"), (c, "4")]
    results = sgl.run_together([(noted, mine), (other, theirs)], backend=backend, num_threads=1)
    assert BEGAN == [0, 3, 1, 2, 4]
    assert [[result.row for result in each] for each in results] == [[0, 1], [0, 1, 2]]
    backend.close()


def test_a_row_that_fails_fails_alone() -> None:
    backend = OracleBackend()
    results = sgl.run_together([(ask, [("a", "b")]), (wrong, SHUFFLED[:3]), (chat, [])], backend=backend)
    assert [[result.error() is None for result in each] for each in results] == [[True], [False] * 3, []]
    assert sgl.run_together([], backend=backend) == []
    backend.close()


@pytest.mark.parametrize(
    ("programs", "code"),
    [
        (chat, "SGLC032"),
        ([chat], "SGLC032"),
        ([(chat, [("a", "b")]), (len, [])], "SGLC032"),
        ([(chat, "ab")], "SGLC017"),
        ([(chat, [("a",)])], "SGLC011"),
    ],
)
def test_what_cannot_run_together(programs: Any, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        sgl.run_together(programs, backend=OracleBackend())
    assert caught.value.code == code
    with pytest.raises(UsageError, match="num_threads"):
        sgl.run_together([(chat, [])], num_threads=0)


# -- faults ----------------------------------------------------------------------------------------


def results_as_they_began(patch: pytest.MonkeyPatch) -> None:
    original, places = runner._Batch._begin, itertools.count()

    def faulty(batch: Any, number: int, row: Any) -> None:
        make = batch._make
        batch._make = lambda _, own: make(number, own)
        original(batch, next(places), row)
        batch._make = make

    patch.setattr(runner._Batch, "_begin", faulty)


def seeds_as_they_begin(patch: pytest.MonkeyPatch) -> None:
    original, turns = session.seeds_of, itertools.count()  # type: ignore[attr-defined]
    patch.setattr(session, "seeds_of", lambda seed, row: original(seed, next(turns)))


@pytest.mark.parametrize("fault", [None, results_as_they_began, seeds_as_they_begin])
def test_faults_are_found(fault: Callable[[pytest.MonkeyPatch], None] | None) -> None:
    rows = [(letter, f"question {number}") for letter, number in SHUFFLED]
    backend = engine(120)
    expected = kept([chat.run(*row, backend=backend, seed=7).sync() for row in rows])
    with pytest.MonkeyPatch.context() as patch:
        if fault is not None:
            fault(patch)
        found = kept(chat.run_batch(rows, backend=backend, seed=7, num_threads=1))
    backend.close()
    # A run alone is row 0: prompts are the same, seeds and so samples are another row's.
    same_prompts = [one[3] for one in found] == [one[3] for one in expected]
    in_order = [one[0] for one in found] == list(range(8))
    assert (same_prompts and in_order) == (fault is not results_as_they_began)
    plain = OracleBackend()
    listed = kept(chat.run_batch(rows, backend=plain, seed=7, num_threads=1, hoist_prefix=False))
    plain.close()
    assert (found == listed) == (fault is None)


def test_on_a_real_model(local: LocalBackend) -> None:
    """The default model, its template and its tokenizer: each beginning is computed once."""
    rng = random.Random(12)
    words = ["please", "answer", "briefly", "kindly", "truly", "never", "guess", "always", "think"]
    rules = [" ".join(rng.choices(words, k=120)) for _ in range(3)]
    rows = [(rule, f"What is {number} and {number}?") for number in range(4) for rule in rules]
    local.flush_cache()
    results = chat.run_batch(rows, backend=local, seed=2)
    assert [result.row for result in results] == list(range(12))
    assert computed(results) <= 1.03 * least(results)
    assert sum(result.usage.prompt for result in results) > 2.5 * least(results)
