"""Every pass keeps the meaning of random programs, and broken passes are found out by the same test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pytest

from sglc.errors import LegalizeError, VerifyError
from sglc.ir.core import (
    Op,
    Program,
    Site,
    Value,
    operands,
    substitute,
    walk,
    with_regions,
)
from sglc.ir.ops import Append, Call, Fork, Format, Gen, Join, RoleClose, RoleOpen, Select
from sglc.ir.plan.plan_json import plan_from_json, plan_to_json
from sglc.ir.sampling import Sampling
from sglc.ir.target import Takes, Target
from sglc.ir.text.printer import from_text, to_text
from sglc.ir.verify.verify import verify
from sglc.passes.base import PASSES, run_pipeline
from sglc.passes.chat.markup import ChatMarkup
from sglc.passes.lowering.lower_plan import lower_plan
from sglc.passes.pipelines import CHAT, LOCAL
from tests.depth import at_depth, few
from tests.random_programs import ARGS, STREAMS, random_program
from tests.reference.interpret import Meaning, Model, meaning
from tests.reference.interpret_plan import plan_meaning
from tests.reference.numbering import canonical
from tests.soak_ir import declared, host
from tests.templates import TEMPLATES, ByteTokenizer

PLAIN = Target("plain")
SEEDS = range(at_depth(15, 20, 600))
# Templates that keep contents as they are, so that the whole text can be compared.
STYLES = ("chatml", "smollm2", "moving", "countdown", "qwen3")
# These write the last answer of a closed conversation as they write no other. Generations are compared.
LAST_ANSWER_DIFFERS = ("countdown", "qwen3")


def answer(site: Site, prefix: str) -> str:
    return blake2b(f"{site}|{prefix}".encode(), digest_size=2).hexdigest()


def choose(site: Site, prefix: str, choices: tuple[str, ...]) -> int:
    return blake2b(f"{site}|{prefix}|{choices}".encode(), digest_size=1).digest()[0] % len(choices)


def model(tokenizer: ByteTokenizer | None = None) -> Model:
    if tokenizer is None:
        return Model(answer, choose)
    return Model(answer, choose, lambda messages, generate: tokenizer.render(messages, generate=generate))


def means(program: Program, tokenizer: ByteTokenizer | None = None) -> Meaning:
    return meaning(program, model(tokenizer), ARGS, STREAMS)


@pytest.mark.parametrize("name", ["fold_text", "share_prefixes"])
def test_pass_keeps_meaning(name: str) -> None:
    changed = 0
    for seed in SEEDS:
        program = random_program(seed)
        after, _ = run_pipeline(program, PLAIN, [name])
        assert means(after) == means(program), to_text(program)
        changed += canonical(after) != canonical(program)
    assert changed > len(SEEDS) // 3  # the programs give the pass something to do


@pytest.mark.parametrize("style", few(STYLES, 2))
def test_lower_roles_keeps_meaning(style: str) -> None:
    tokenizer = ByteTokenizer(TEMPLATES[style])
    target = Target("local", tokenizer)
    lowered = 0
    for seed in SEEDS:
        program = random_program(seed, chat=True)
        expected = means_or_refused(program, tokenizer)
        if expected is None:
            continue
        after, _ = run_pipeline(program, target, ["lower_roles"])
        found = means(after)
        assert found.calls == expected.calls, to_text(program)
        assert found.returns == expected.returns or style in LAST_ANSWER_DIFFERS, to_text(program)
        assert not any(isinstance(op, RoleOpen | RoleClose) for op in after.ops)
        lowered += 1
    assert lowered >= len(SEEDS) // 4


def means_or_refused(program: Program, tokenizer: ByteTokenizer) -> Meaning | None:
    """None where a returned stream stands inside a turn that the template does not write yet."""
    try:
        return means(program, tokenizer)
    except ValueError:
        return None


@pytest.mark.parametrize("style", few(["chatml", "smollm2"], 1))
def test_pipeline_and_plan_keep_meaning(style: str) -> None:
    tokenizer = ByteTokenizer(TEMPLATES[style])
    target = Target("local", tokenizer)
    for seed in SEEDS:
        program = random_program(seed, chat=True)
        expected = means(program, tokenizer)
        after, _ = run_pipeline(program, target, LOCAL)
        assert means(after) == expected, to_text(program)
        assert run_pipeline(after, target, ["lower_roles"])[0] == after  # it has nothing more to do
        plan = lower_plan(after, target)
        found = plan_meaning(plan, model(), ARGS, STREAMS)
        assert found == expected, to_text(program)
        assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
        assert lower_plan(canonical(after), target) == plan


@pytest.mark.parametrize(("style", "least"), few([("chatml", 60), ("smollm2", 40), ("qwen3", 25)], 1))
def test_turns_in_blocks_keep_their_meaning(style: str, least: int) -> None:
    """With every pass and as a plan; what cannot be lowered for sure is refused, and that is not all."""
    tokenizer = ByteTokenizer(TEMPLATES[style])
    target = Target("local", tokenizer)
    lowered = 0
    count = at_depth(6, 20, 60)
    for seed in range(count):
        program = random_program(seed, chat=True, regions=True, images=False)
        expected = meaning(program, with_functions(tokenizer), ARGS)
        try:
            after, _ = run_pipeline(program, target, LOCAL)
        except LegalizeError as error:
            refused = error
        else:
            lowered += 1
            for found in (
                meaning(after, with_functions(), ARGS),
                plan_meaning(lower_plan(after, target), with_functions(), ARGS),
            ):
                assert found.calls == expected.calls, to_text(program)
                if style not in LAST_ANSWER_DIFFERS:
                    assert (found.returns, found.hosts) == (expected.returns, expected.hosts), to_text(program)
            assert run_pipeline(after, target, ["lower_roles"])[0] == after
            continue
        assert refused.code in ("SGLC304", "SGLC309", "SGLC310")
    assert lowered >= least * count // 60


def with_functions(tokenizer: ByteTokenizer | None = None) -> Model:
    return replace(model(tokenizer), host=host, declared=declared)


def test_plan_of_raw_text_keeps_meaning() -> None:
    for seed in SEEDS:
        program = without_roles(random_program(seed))
        expected = means(program)
        after, _ = run_pipeline(program, PLAIN, LOCAL)
        assert plan_meaning(lower_plan(after, PLAIN), model(), ARGS, STREAMS) == expected, to_text(program)


def without_roles(program: Program) -> Program:
    """Roles as plain text."""
    return replace(program, ops=tuple(map(_as_text, program.ops)))


def _as_text(op: Op) -> Op:
    match op:
        case RoleOpen():
            return Append(op.stream, f"<{op.role}>", results=op.results)
        case RoleClose():
            return Append(op.stream, f"</{op.role}>", results=op.results)
        case _:
            return op


def test_text_form_is_exact() -> None:
    for seed in SEEDS:
        program = random_program(seed)
        text = to_text(program)
        parsed = from_text(text, "random.sglir")
        assert to_text(parsed) == text
        assert parsed == canonical(program)
        with_locs = to_text(parsed, locs=True)
        assert to_text(from_text(with_locs, "elsewhere.sglir"), locs=True) == with_locs


# -- broken passes -----------------------------------------------------------------------------------


def merge_generations(program: Program) -> Program:
    """CSE that forgets that a generation samples: the second of two alike takes the first one's text."""
    first: dict[Any, Gen] = {}
    rename: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in program.ops:
        op = _rewired(op, rename)
        if isinstance(op, Gen):
            twin = first.setdefault((op.site.name, op.sampling), op)
            if twin is not op:
                rename[op.results[1]] = twin.results[1]
        ops.append(op)
    return replace(program, ops=tuple(ops), returns=substitute(program.returns, rename))


def drop_literal(program: Program) -> Program:
    """A fold that loses the last literal of a format."""
    return replace(program, ops=tuple(_shorter(op) for op in program.ops))


def _shorter(op: Op) -> Op:
    match op:
        case Format(parts=(*rest, str())):
            return replace(op, parts=tuple(rest))
        case _:
            return op


def swap_branches(program: Program) -> Program:
    """A join that gathers its branches in the wrong order."""
    swapped = (replace(op, values=op.values[::-1]) if isinstance(op, Join) else op for op in program.ops)
    return replace(program, ops=tuple(swapped))


def fold_used_stream(program: Program) -> Program:
    """A fold that does not look whether the middle stream is read elsewhere."""
    literals: dict[Value, int] = {}
    rename: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in program.ops:
        op = _rewired(op, rename)
        match op:
            case Append(text=str()) if op.stream in literals:
                # The earlier append takes both texts, and everything that read it reads the sum.
                before = ops[literals[op.stream]]
                assert isinstance(before, Append)
                ops[literals[op.stream]] = replace(before, text=f"{before.text}{op.text}")
                rename[op.results[0]] = op.stream
                continue
            case Append(text=str()):
                literals[op.results[0]] = len(ops)
        ops.append(op)
    return replace(program, ops=tuple(ops), returns=substitute(program.returns, rename))


def merge_forks(program: Program) -> Program:
    """CSE that takes a second fork of one stream for the first."""
    first: dict[Any, Fork] = {}
    rename: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in program.ops:
        op = _rewired(op, rename)
        if isinstance(op, Fork):
            twin = first.setdefault((op.stream, len(op.results)), op)
            if twin is not op:
                rename.update(zip(op.results, twin.results, strict=True))
                continue
        ops.append(op)
    return replace(program, ops=tuple(ops), returns=substitute(program.returns, rename))


def share_without_fork(program: Program) -> Program:
    """CSE that lets two generations meet in one stream."""
    first: dict[Op, Op] = {}
    rename: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in program.ops:
        op = _rewired(op, rename)
        twin = first.setdefault(replace(op, results=()), op) if op.pure and not isinstance(op, Fork) else op
        if twin is op:
            ops.append(op)
        else:
            rename.update(zip(op.results, twin.results, strict=True))
    return replace(program, ops=tuple(ops), returns=substitute(program.returns, rename))


def swap_choices(program: Program) -> Program:
    """A rewrite that lists a select's choices in another order."""
    turned = (replace(op, choices=op.choices[::-1]) if isinstance(op, Select) else op for op in program.ops)
    return replace(program, ops=tuple(turned))


def append_too_late(program: Program) -> Program:
    """A rewrite that moves an append behind the op that reads it."""
    ops = list(program.ops)
    for i, op in enumerate(ops[:-1]):
        if isinstance(op, Append):
            ops[i], ops[i + 1] = ops[i + 1], ops[i]
            break
    return replace(program, ops=tuple(ops))


def _rewired(op: Op, rename: dict[Value, Value]) -> Op:
    return replace(op, **{name: substitute(getattr(op, name), rename) for name in op.own_fields})


MUTANTS = [
    merge_generations, drop_literal, swap_branches, fold_used_stream, merge_forks, share_without_fork,
    swap_choices, append_too_late,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_broken_pass_is_caught(mutant: Callable[[Program], Program]) -> None:
    assert any(is_caught(random_program(seed, length=60), mutant) for seed in SEEDS)


def is_caught(program: Program, mutant: Callable[[Program], Program]) -> bool:
    after = mutant(program)
    try:
        verify(after)
    except VerifyError:
        return True
    return means(after) != means(program)


def test_wrong_role_history_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering that writes every turn as if it were the first."""
    tokenizer = ByteTokenizer(TEMPLATES["smollm2"])
    right = ChatMarkup.opened

    def forgetful(self: ChatMarkup, roles: tuple[str, ...]) -> Any:
        view = right(self, roles)
        return view.replace("user", "usr") if isinstance(view, str) and len(roles) > 1 else view

    monkeypatch.setattr(ChatMarkup, "opened", forgetful)
    target = Target("local", tokenizer)
    assert any(
        means(run_pipeline(program, target, ["lower_roles"])[0]) != means(program, tokenizer)
        for program in (random_program(seed, chat=True) for seed in SEEDS)
    )


# How turns are shown where they are messages: `RoleMark.text`.
_SHOWN = (
    "{% for m in messages %}{{ m['role']|upper }}:{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


@pytest.mark.parametrize("regions", [False, True])
def test_messages_keep_their_meaning(regions: bool) -> None:
    """What a chat model can be asked for is asked for as it stands; all else is refused."""
    tokenizer = ByteTokenizer(_SHOWN)
    chat = Target("chat", images=True, scores_tokens=True, protocol="chat", takes=Takes(samples=1))
    kept, refused = 0, set()
    count = at_depth(30, 100, 300)
    for seed in range(count):
        program = random_program(seed, chat=True, regions=regions, length=12)
        try:
            after, _ = run_pipeline(program, chat, CHAT)
        except LegalizeError as error:
            refused.add(error.code)
            continue
        kept += 1
        plan = lower_plan(after, chat)
        expected = meaning(program, with_functions(tokenizer), ARGS, STREAMS)
        assert plan_meaning(plan, with_functions(), ARGS, STREAMS).calls == expected.calls, to_text(program)
        assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    assert kept >= count // 10
    assert refused <= {"SGLC315", "SGLC316", "SGLC317"}


@pytest.mark.parametrize("protocol", ["text", "chat"])
def test_speculate_only_says_what_may_go_on(protocol: str) -> None:
    """Nothing but `ahead` changes, and where it is left one generation alone goes on from the other."""
    target = Target("api", images=True, guesses=True, protocol=protocol)
    joined = 0
    count = at_depth(30, 100, 300)
    for seed in range(count):
        program = random_program(seed, chat=True, regions=True, length=40)
        asked = with_ahead(program, lambda _: 64)
        after, remarks = run_pipeline(asked, target, ["speculate"])
        assert with_ahead(after, lambda _: 0) == with_ahead(program, lambda _: 0)
        read = [value for op in walk(after.ops) for value in operands(op)]
        ahead = [op for op in walk(after.ops) if isinstance(op, Gen) and op.ahead]
        assert all(read.count(op.results[0]) == 1 for op in ahead), to_text(program)
        assert bool(ahead) <= any("in one request" in remark.message for remark in remarks)
        joined += len(ahead)
        assert run_pipeline(program, target, ["speculate"])[0] == program  # nobody asks for it
    assert joined > count // 15


def with_ahead(program: Program, ahead: Callable[[Gen], int]) -> Program:
    def changed(op: Op) -> Op:
        match op:
            case Gen():  # with a stop, so that something may come behind it
                return replace(op, ahead=ahead(op), sampling=Sampling(stop=("\n",)))
            case Call():
                return replace(op, program=with_ahead(op.program, ahead))
            case _:
                return with_regions(op, lambda region: replace(region, ops=tuple(map(changed, region.ops))))

    return replace(program, ops=tuple(map(changed, program.ops)))


def test_every_pass_has_a_property_test() -> None:
    # `compile_constraints` and `legalize` change nothing but marks: what they refuse is in tests/golden.
    here = ["fold_text", "lower_roles", "share_prefixes", "chat_turns", "speculate"]
    # tests/test_pass_properties.py, tests/test_unify.py and tests/test_engine_hints.py
    elsewhere = [
        "cache_hints",
        "engine_hints",
        "fuse_gens",
        "hoist_prefix",
        "inline_calls",
        "overlap_tools",
        "prune",
        "reorder",
    ]
    elsewhere.append("unify")
    assert sorted(PASSES) == sorted(["compile_constraints", "legalize", *here, *elsewhere])
