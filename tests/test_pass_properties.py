"""Every pass keeps what it promises on random programs, and passes that are broken in small ways do not.

The checks are in tests/pass_checks.py; tests/soak_ir.py runs them over more programs. Passes that keep the
whole meaning are in tests/test_semantics.py and tests/test_regions.py too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from sglc.errors import VerifyError
from sglc.ir.core import Op, Program, Region, Site, Value, values_in, walk, with_regions
from sglc.ir.effects import Effect
from sglc.ir.ops import Append, Call, Cond, Gen, ScopeEnd, Select, Switch, Tool
from sglc.ir.rewrite import rewritten
from sglc.ir.target import Takes, Target
from sglc.ir.text.printer import to_text
from sglc.ir.verify.verify import verify
from sglc.passes import cache_hints, inline_calls, prune
from sglc.passes.base import PASSES, Exactness, run_pipeline
from sglc.passes.pipelines import CHAT, LOCAL, TEXT
from sglc.passes.reorder import _Reordering, _Section
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from tests.depth import at_depth, few
from tests.pass_checks import (
    alike,
    chat_program,
    check_cache_hints,
    check_ids,
    check_orders,
    check_prune,
    check_pruned_run,
    check_reorder,
    raw_program,
)
from tests.random_programs import random_program
from tests.soak_ir import PASSES as TOKEN_EXACT
from tests.soak_ir import PLAIN, means
from tests.templates import TEMPLATES, ByteTokenizer

RAW, CHAT_PROGRAMS = at_depth(10, 12, 300), at_depth(4, 5, 60)


PROGRAMS = at_depth(30, 40, 400)


def programs(count: int = PROGRAMS) -> Iterator[Program]:
    for seed in range(count):
        yield random_program(seed, regions=True)


# -- what they promise ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", few(TOKEN_EXACT, 2))
def test_token_exact_passes_keep_the_ids_of_every_prompt(name: str, default_tokenizer: LocalTokenizer) -> None:
    """With the model's own vocabulary and template; plans are run, so streams that are kept count too."""
    raw = [check_ids(raw_program(seed), default_tokenizer, name, ()) for seed in range(RAW)]
    chat = [check_ids(chat_program(seed), default_tokenizer, name) for seed in range(CHAT_PROGRAMS)]
    written = [counts for counts in (*raw, *chat) if counts is not None]
    assert len(written) > 118 / 130 * (RAW + CHAT_PROGRAMS)
    assert sum(prompts for prompts, _ in written) > 400 / 130 * (RAW + CHAT_PROGRAMS)
    if name == "inline_calls":
        assert sum(less for _, less in written) > RAW // 10
        assert all(less >= 0 for _, less in written)


@pytest.mark.parametrize(("style", "least"), few([("chatml", 20), ("smollm2", 12), ("moving", 2)], 1))
def test_inlined_programs_are_written_by_templates_as_calls_are(style: str, least: int) -> None:
    """Where the template writes more than the turn itself, or earlier turns once more."""
    tokenizer = ByteTokenizer(TEMPLATES[style])
    found = [check_ids(chat_program(seed), tokenizer, "inline_calls") for seed in range(at_depth(6, 10, 30))]
    assert sum(1 for counts in found if counts is not None) >= least * len(found) // 30


def test_reorder_moves_whole_neighbouring_sections_and_nothing_else() -> None:
    assert sum(map(check_reorder, programs())) > PROGRAMS // 5


@pytest.mark.slow
def test_prune_takes_generations_that_nothing_asked_for_depends_on() -> None:
    gone = [check_prune(program, seed) for seed, program in enumerate(programs())]
    assert sum(gone) > PROGRAMS
    assert sum(map(bool, gone)) > PROGRAMS // 3


@pytest.mark.slow
def test_passes_compose_in_any_order() -> None:
    for seed, program in enumerate(programs()):
        check_orders(program, seed, Random(seed).sample((*TOKEN_EXACT, "prune"), k=len(TOKEN_EXACT) + 1))


@pytest.mark.slow
def test_runs_of_pruned_programs_have_what_is_asked_for(default_tokenizer: LocalTokenizer) -> None:
    """With the other passes before or behind it."""
    gone = []
    for seed in range(RAW):
        passes = Random(seed).sample((*TOKEN_EXACT, "prune"), k=len(TOKEN_EXACT) + 1)
        gone.append(check_pruned_run(raw_program(seed), seed, default_tokenizer, passes))
    assert sum(count or 0 for count in gone) > RAW // 2


def test_prompts_of_one_cache_key_begin_alike() -> None:
    assert sum(check_cache_hints(program, 4) for program in programs()) > PROGRAMS // 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compile_constraints", "legalize"])
def test_passes_that_only_look_change_nothing_but_their_mark(name: str) -> None:
    api = Target("api", protocol="chat", scores_tokens=True, takes=Takes(samples=1))

    def unmarked(op: Op) -> Op:
        return replace(op, fsm="") if isinstance(op, Gen | Select) else op

    for program in programs():
        for target in (PLAIN, api):
            after = run_pipeline(program, target, [name])[0]
            assert replace(after, ops=rewritten(after.ops, unmarked)) == program


@pytest.mark.slow
def test_fuse_gens_changes_nothing_but_its_marks() -> None:
    """Random programs hold few neighbours whose texts can be told apart; golden specs have the others."""
    marked = 0
    for seed, chat in ((seed, chat) for seed in range(PROGRAMS) for chat in (False, True)):
        program = random_program(seed, chat=chat, regions=True)
        for protocol in ("text", "chat"):
            target = Target("api", protocol=protocol, images=True, takes=Takes(samples=1), guesses=True)
            after = run_pipeline(program, target, ["fuse_gens"])[0]
            marks = [op for op in walk(after.ops) if isinstance(op, Gen | Select) and op.fused]
            marked += len(marks)
            assert all(not isinstance(op, Gen) or op.sampling.n == 1 for op in marks)
            unmarked = rewritten(
                after.ops, lambda op: replace(op, fused=False) if isinstance(op, Gen | Select) else op
            )
            assert replace(after, ops=unmarked) == program
    assert marked >= PROGRAMS // 20


def test_aggressive_passes_run_only_when_they_are_asked_for() -> None:
    aggressive = {name for name, made in PASSES.items() if made.exactness is Exactness.AGGRESSIVE}
    assert "reorder" in aggressive
    assert not aggressive & {*LOCAL, *TEXT, *CHAT}


# -- broken passes --------------------------------------------------------------------------------


def fails(check: Callable[[], object]) -> bool:
    """Whether a check finds something."""
    try:
        check()
    except AssertionError:
        return True
    return False


def inlined(program: Program) -> Program:
    return run_pipeline(program, PLAIN, ["inline_calls"])[0]


def meaning_changes(change: Callable[[Program], Program], count: int = 160) -> bool:
    """Whether some program means something else behind `change`, or is none any more."""
    return any(_differs(program, change) for program in programs(count))


def _differs(program: Program, change: Callable[[Program], Program]) -> bool:
    try:
        after = change(program)
        verify(after)
    except VerifyError:
        return True
    return means(after) != means(program)


def blocks(program: Program, change: Callable[[list[Op]], list[Op]]) -> Program:
    """The program with `change` made to the ops of every block, called programs included."""

    def block(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(map(inner, change(list(ops))))

    def inner(op: Op) -> Op:
        if isinstance(op, Call):
            return replace(op, program=blocks(op.program, change))
        return with_regions(op, lambda region: replace(region, ops=block(region.ops)))

    return replace(program, ops=block(program.ops))


def swap_tools(ops: list[Op]) -> list[Op]:
    """Two tools that need nothing of each other are called in the other order."""
    at = [i for i, op in enumerate(ops) if isinstance(op, Tool)]
    for first, second in pairwise(at):
        between = {value for op in ops[first:second] for value in op.results}
        if not between & set(values_in((ops[second].args, ops[second].named))):  # type: ignore[attr-defined]
            ops.insert(first, ops.pop(second))
            break
    return ops


def drop_arm(ops: list[Op]) -> list[Op]:
    """An arm that is thought dead runs what the other does."""
    return [replace(op, orelse=replace(op.then, ops=())) if _simple(op) else op for op in ops]  # type: ignore[attr-defined,call-arg]


def _simple(op: Op) -> bool:
    return isinstance(op, Cond) and not op.results


def drop_tool(ops: list[Op]) -> list[Op]:
    """A tool whose result nothing reads is not called."""
    read = {value for op in walk(ops) for value in _all_reads(op)}
    return [op for op in ops if not (isinstance(op, Tool) and not set(op.results) & read)]


def _all_reads(op: Op) -> Iterator[Value]:
    for name in op.own_fields:
        yield from values_in(getattr(op, name))
    for name in op.region_fields:
        held = getattr(op, name)
        for region in (held,) if isinstance(held, Region) else held or ():
            yield from region.results


def merge_samples(ops: list[Op]) -> list[Op]:
    """Two generations of one name are one sample."""
    first: dict[str, Site] = {}
    return [
        replace(op, site=first.setdefault(op.site.name, op.site)) if isinstance(op, Gen) else op for op in ops
    ]


def first_case_only(ops: list[Op]) -> list[Op]:
    """A `switch` without its last case."""
    return [
        replace(op, cases=op.cases[:-1], arms=op.arms[:-1]) if isinstance(op, Switch) and op.cases else op
        for op in ops
    ]


def generate_later(ops: list[Op]) -> list[Op]:
    """A text goes before the generation that it stands behind."""
    readers = {op.stream: i for i, op in enumerate(ops) if isinstance(op, Append) and isinstance(op.text, str)}
    for i, op in enumerate(ops):
        if isinstance(op, Gen | Select) and (at := readers.get(op.results[0])) is not None:
            append = ops[at]
            assert isinstance(append, Append)
            stream, text = op.results
            ops[i : i + 1] = [
                replace(append, stream=op.stream, results=(stream,)),
                replace(op, stream=stream, results=(append.results[0], text)),
            ]
            del ops[at + 1]
            break
    return ops


@pytest.mark.parametrize(
    "mutant",
    [swap_tools, drop_arm, drop_tool, merge_samples, first_case_only, generate_later],
    ids=lambda mutant: mutant.__name__,
)
def test_broken_rewrites_change_the_meaning(mutant: Callable[[list[Op]], list[Op]]) -> None:
    assert not meaning_changes(lambda program: program, 5)
    assert meaning_changes(lambda program: blocks(program, mutant))


def keep_own_sites(patch: pytest.MonkeyPatch) -> None:
    """Sites as they stand in the called program."""
    patch.setattr(inline_calls, "_under", lambda op, call: op)


def forget_the_call(patch: pytest.MonkeyPatch) -> None:
    """Sites under the name of the call, without its occurrence."""
    right = inline_calls._under
    patch.setattr(inline_calls, "_under", lambda op, call: right(op, call.rpartition("#")[0]))


def inline_in_loops(patch: pytest.MonkeyPatch) -> None:
    """Calls inside loops too."""
    right = inline_calls._Inlining.call
    patch.setattr(inline_calls._Inlining, "call", lambda self, op, repeated: right(self, op, ""))


def swap_results(patch: pytest.MonkeyPatch) -> None:
    """What a called program gives, in another order."""
    patch.setattr(inline_calls, "values_in", lambda tree: list(values_in(tree))[::-1])


def drop_argument(patch: pytest.MonkeyPatch) -> None:
    """A literal argument is empty."""
    right = inline_calls.Format  # type: ignore[attr-defined]
    patch.setattr(inline_calls, "Format", lambda parts, **given: right((), **given))


@pytest.mark.parametrize(
    "break_it",
    [keep_own_sites, forget_the_call, inline_in_loops, swap_results, drop_argument],
    ids=lambda break_it: break_it.__name__,
)
def test_broken_inlining_is_caught(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert meaning_changes(inlined)


def past_readers(patch: pytest.MonkeyPatch) -> None:
    """A section passes a place from which something else goes on."""
    patch.setattr(_Reordering, "next", lambda self, op, readers: readers.get(op.results[0]))


def past_text(patch: pytest.MonkeyPatch) -> None:
    """A section passes text that is in none."""
    right = _Reordering.next

    def next_section(self: Any, op: Any, readers: Any) -> Any:
        found = right(self, op, readers)
        while isinstance(op, ScopeEnd) and isinstance(found, Append):
            found = right(self, found, readers)
        return found

    patch.setattr(_Reordering, "next", next_section)


def lose_text(patch: pytest.MonkeyPatch) -> None:
    """The last text of a section that moves is lost."""
    right = _Reordering.order

    def shorter(self: Any, run: Any) -> Any:
        order = right(self, run)
        return order if order == list(run) else [_Section((s.ops[0], *s.ops[2:]), s.rank) for s in order]

    patch.setattr(_Reordering, "order", shorter)


def move_what_is_fixed(patch: pytest.MonkeyPatch) -> None:
    """Sections move that are not marked."""
    right = _Reordering.block

    def unmarked(self: Any, before: Any) -> Any:
        free = [replace(op, movable=True) if hasattr(op, "movable") else op for op in before]
        flags = {op.results[0]: op.movable for op in before if hasattr(op, "movable")}
        ends = Counter(flags.values())
        after = right(self, tuple(free))
        return tuple(before) if not ends[False] else after

    patch.setattr(_Reordering, "block", unmarked)


@pytest.mark.parametrize(
    "break_it",
    [past_readers, past_text, lose_text, move_what_is_fixed],
    ids=lambda break_it: break_it.__name__,
)
def test_broken_reordering_is_caught(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def caught(program: Program) -> bool:
        try:
            return not alike(program, run_pipeline(program, PLAIN, ["reorder"])[0])
        except VerifyError:
            return True

    break_it(monkeypatch)
    assert any(map(caught, programs()))


def test_a_section_past_a_generation_is_caught() -> None:
    assert any(not alike(program, blocks(program, generate_later)) for program in programs(40))


def prune_what_is_asked(patch: pytest.MonkeyPatch) -> None:
    """A variable is found by the names of called programs only."""
    patch.setattr(prune, "variable_of", lambda op: None)


def prune_tools(patch: pytest.MonkeyPatch) -> None:
    """A tool goes whose result feeds nothing."""
    patch.setattr(prune, "_ROOTS", prune._ROOTS & ~Effect.ACTS)


def prune_decisions(patch: pytest.MonkeyPatch) -> None:
    """A decision goes that gives nothing, with the tools and outputs in it."""
    patch.setattr(prune, "_ROOTS", Effect.LEAVES)


def prune_what_blocks_read(patch: pytest.MonkeyPatch) -> None:
    """What only a block reads is thought unread."""
    right = prune._Pruning.narrowed
    patch.setattr(prune._Pruning, "narrowed", lambda self, op, live, asked: right(self, op, set(live), asked))


def prune_what_loops_carry(patch: pytest.MonkeyPatch) -> None:
    """A loop carries only what is read behind it."""
    right = prune._Pruning.loop

    def once(self: Any, op: Any, live: Any, asked: Any, read: Any) -> Any:
        narrowed: Any = right(self, op, live, asked, read)
        keep = [value in {*narrowed.results} for value, wanted in zip(op.results, read, strict=True) if wanted]
        again, *carried = narrowed.body.results
        return replace(
            narrowed, init=narrowed.init[: len(keep)], results=narrowed.results[: len(keep)],
            body=replace(narrowed.body, params=narrowed.body.params[: len(keep)],
                         results=(again, *carried[: len(keep)])),
        )  # fmt: skip

    patch.setattr(prune._Pruning, "loop", once)


def prune_earlier_arms(patch: pytest.MonkeyPatch) -> None:
    """What one arm stores is thought to be stored in all."""
    patch.setattr(prune, "set", lambda items=(): items if isinstance(items, set) else set(items), raising=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "break_it",
    [
        prune_what_is_asked, prune_tools, prune_decisions, prune_what_blocks_read, prune_what_loops_carry,
        prune_earlier_arms,
    ],
    ids=lambda break_it: break_it.__name__,
)  # fmt: skip
def test_broken_pruning_is_caught(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch,
    default_tokenizer: LocalTokenizer,
) -> None:  # fmt: skip
    break_it(monkeypatch)

    def caught(seed: int) -> bool:
        try:
            check_prune(random_program(seed, regions=True), seed)
            check_pruned_run(raw_program(seed), seed, default_tokenizer, ["prune"])
        except (AssertionError, VerifyError):
            return True
        return False

    assert any(map(caught, range(200)))


def test_a_key_that_does_not_end_at_an_argument_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_hints._Prefix, "closed", lambda self: self)
    assert any(fails(lambda program=program: check_cache_hints(program, 4)) for program in programs())  # type: ignore[misc]


def test_wrong_ids_are_caught(default_tokenizer: LocalTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inlining that writes what it is given as a turn's own text would: text alike, other ids."""
    right = inline_calls.Format  # type: ignore[attr-defined]
    monkeypatch.setattr(inline_calls, "Format", lambda parts, **given: right((*parts, " "), **given))
    found = (
        lambda seed=seed: check_ids(chat_program(seed), default_tokenizer, "inline_calls") for seed in range(40)
    )
    assert any(map(fails, found))


def test_targets_without_keys_get_none() -> None:
    program = random_program(3, regions=True)
    assert to_text(run_pipeline(program, Target("plain"), ["cache_hints"])[0]) == to_text(program)
