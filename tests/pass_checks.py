"""What each pass promises, checked on one program; tests and the soak run these over random ones.

A token-exact pass leaves the ids of every generation's prompt, one that is asked for by name keeps its own
promise: `reorder` moves whole neighbouring sections and nothing else. `prune` takes only generations that feed
nothing that is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from random import Random
from typing import cast

from sglc.errors import LegalizeError, RunError
from sglc.execution.plan.executor import run_plan
from sglc.execution.session import Session
from sglc.ir.core import Op, Program, Site, walk
from sglc.ir.effects import variable_of
from sglc.ir.ops import GIVES, Append, Gen, ScopeBegin, ScopeEnd, Select
from sglc.ir.rewrite import rewritten
from sglc.ir.target import Takes, Target, Tokenizer
from sglc.ir.text.printer import to_text
from sglc.passes.base import run_pipeline
from sglc.passes.lowering.lower_plan import lower_plan
from tests.prompt_ids import PromptIds
from tests.random_programs import ARGS, STREAMS, random_program
from tests.reference.interpret import Meaning, Model, Plain, meaning
from tests.reference.interpret_plan import plan_meaning
from tests.soak_ir import MODEL, PLAIN, choose, declared, host, means, without_turns

# -- token-exact ----------------------------------------------------------------------------------

TOOLS = {f"{kind} {gives}": partial(lambda name, *args, **named: declared(name, args, named), f"{kind} {gives}")
         for kind in ("tool", "free", "pure_call") for gives in GIVES}  # fmt: skip
Ids = Mapping[Site, tuple[int, ...]]
_Run = tuple[dict[str, object], object]  # its variables, and what it returns


@dataclass(frozen=True, slots=True)
class Failure:
    """How a run ended that did not come to its end."""

    code: str
    place: str


def chat_program(seed: int) -> Program:
    """One that a chat template can write, with everything but pictures, Python, and streams of earlier runs."""
    return random_program(seed, chat=True, regions=True, images=False, python=False, resumed=False)


def raw_program(seed: int) -> Program:
    """The same with turns as text, so that no template is needed."""
    return without_turns(random_program(seed, regions=True, images=False, python=False, resumed=False))


def ids_of(program: Program, tokenizer: Tokenizer, passes: Sequence[str]) -> tuple[Ids, object, int] | None:
    """Of every generation the ids of its prompt, what the program gives, and how often work was handed over.

    None: the template cannot write its turns one after another.
    """
    backend = PromptIds(tokenizer)
    try:
        after, _ = run_pipeline(program, backend.target, passes)
    except LegalizeError:
        return None
    given: object
    try:
        given = run_plan(lower_plan(after, backend.target), ARGS, Session(backend, 0), TOOLS)
    except RunError as error:
        given = Failure(error.code, str(error.loc))
    return backend.asked, given, backend.submits


def check_ids(
    program: Program, tokenizer: Tokenizer, name: str, behind: tuple[str, ...] = ("lower_roles",)
) -> tuple[int, int] | None:
    """The pass changes no id; how many prompts there are, and hand-overs less. `behind`: what follows it.

    None if they cannot be written. Where something fails, what does not read it may or may not have begun.
    """
    before = ids_of(program, tokenizer, behind)
    if before is None:
        return None
    after = ids_of(program, tokenizer, (name, *behind))
    assert after is not None, to_text(program)
    failed = isinstance(before[1], Failure)
    assert failed or after[0].keys() == before[0].keys(), to_text(program)
    assert all(after[0][site] == ids for site, ids in before[0].items() if site in after[0]), to_text(program)
    assert after[1] == before[1], to_text(program)
    return len(after[0]), 0 if failed else before[2] - after[2]


# -- cache_hints ----------------------------------------------------------------------------------

API = Target("api", protocol="chat", images=True, takes=Takes(cache_key=True))
OTHERS = {"a": "quite another", "b": "and one more", "s0": "!"}


def check_cache_hints(program: Program, least_bytes: int) -> int:
    """Prompts of one key begin alike in that many bytes, whatever the arguments are; counts the keys."""
    after, _ = run_pipeline(program, API, ["cache_hints{min_tokens=1}"])
    assert without_keys(after) == program, to_text(program)
    keyed: dict[str, list[str]] = {}
    for args, salt in ((ARGS, ""), (OTHERS, "other")):
        model = replace(MODEL, generate=lambda site, prefix, salt=salt: f"{salt}{len(prefix)}", choose=choose)  # type: ignore[misc]
        spied = replace(with_keys(after), params=after.params)
        for site, (prefix, _) in meaning(spied, model, args, STREAMS).calls.items():
            if site.name.startswith("sglc-"):
                keyed.setdefault(site.name, []).append(prefix)
    for prefixes in keyed.values():
        begins = {prefix.encode("utf-8", "surrogatepass")[:least_bytes] for prefix in prefixes}
        assert len(begins) == 1, to_text(program)
        assert len(begins.pop()) == least_bytes, to_text(program)
    return len(keyed)


def without_keys(program: Program) -> Program:
    return _generations(program, lambda op: replace(op, cache_key=""))


def with_keys(program: Program) -> Program:
    """Generations under the names of their keys, and with names of their own."""
    numbers = iter(range(10**6))
    return _generations(
        program, lambda op: replace(op, site=Site("f", (), op.cache_key or "none", next(numbers)))
    )


def _generations(program: Program, change: Callable[[Gen | Select], Op]) -> Program:
    ops = rewritten(program.ops, lambda op: change(op) if isinstance(op, Gen | Select) else op)
    return replace(program, ops=ops)


# -- reorder --------------------------------------------------------------------------------------

_MOVABLE, _FIXED, _END = "\ue0b1", "\ue0b2", "\ue0b3"


def check_reorder(program: Program) -> bool:
    """Neighbouring movable sections may have changed places, and nothing else has; whether they did."""
    after, remarks = run_pipeline(program, PLAIN, ["reorder"])
    assert alike(program, after), to_text(program)
    changed = to_text(after) != to_text(program)
    assert changed == bool(remarks)
    again, _ = run_pipeline(after, PLAIN, ["reorder"])
    assert alike(program, again), to_text(program)
    return changed


def alike(before: Program, after: Program) -> bool:
    """Whether two programs mean the same up to the order of movable sections that stand next to each other."""
    return _sorted_meaning(before) == _sorted_meaning(after)


def _sorted_meaning(program: Program) -> Meaning:
    def generate(site: Site, prefix: str) -> str:
        return blake2b(f"{site}|{in_order(prefix)}".encode(), digest_size=2).hexdigest()

    def chosen(site: Site, prefix: str, choices: tuple[str, ...]) -> int:
        return choose(site, in_order(prefix), choices)

    found = meaning(marked(program), Model(generate, chosen, host=host, declared=declared), ARGS, STREAMS)
    calls = {site: (in_order(prefix), said) for site, (prefix, said) in found.calls.items()}
    hosts = tuple((name, _in_order(reads)) for name, reads in found.hosts)
    return Meaning(calls, _in_order(found.returns), hosts)  # type: ignore[arg-type]


def marked(program: Program) -> Program:
    """The program with the borders of its sections as text."""

    def changed(op: Op) -> Op:
        match op:
            case ScopeBegin():
                mark = (_MOVABLE if op.movable else _FIXED) + op.name + ":"
                return Append(op.stream, mark, results=op.results)
            case ScopeEnd():
                return Append(op.stream, _END, results=op.results)
            case _:
                return op

    return replace(program, ops=rewritten(program.ops, changed))


def _in_order(data: Plain) -> Plain:
    match data:
        case str():
            return in_order(data)
        case tuple():
            return tuple(map(_in_order, data))
        case Mapping():
            return {key: _in_order(part) for key, part in data.items()}
        case _:
            return data


def in_order(text: str) -> str:
    """A marked text with neighbouring movable sections sorted; sections that are still open stay."""
    levels: list[list[tuple[bool, str]]] = [[]]  # (movable, text) of what stands in each open section
    begins: list[str] = []
    for piece in _pieces(text):
        if piece in (_MOVABLE, _FIXED):
            levels.append([])
            begins.append(piece)
        elif piece == _END and begins:
            inside, begin = _joined(levels.pop()), begins.pop()
            levels[-1].append((begin == _MOVABLE, f"{begin}{inside}{_END}"))
        else:
            levels[-1].append((False, piece))
    while begins:
        inside, begin = _joined(levels.pop()), begins.pop()
        levels[-1].append((False, f"{begin}{inside}"))
    return _joined(levels[0])


def _pieces(text: str) -> list[str]:
    pieces = [""]
    for character in text:
        if character in (_MOVABLE, _FIXED, _END):
            pieces += [character, ""]
        else:
            pieces[-1] += character
    return [piece for piece in pieces if piece]


def _joined(parts: list[tuple[bool, str]]) -> str:
    out: list[str] = []
    run: list[str] = []
    for movable, text in parts:
        if movable:
            run.append(text)
            continue
        out += [*sorted(run), text]
        run = []
    return "".join([*out, *sorted(run)])


# -- prune ----------------------------------------------------------------------------------------


def asking(program: Program, seed: int) -> Program:
    """The program with some of its variables asked for."""
    names = sorted({name for op in walk(program.ops) if (name := variable_of(op)) is not None})
    random = Random(seed)
    return replace(program, outputs=tuple(random.sample(names, random.randrange(len(names) + 1))))


def check_prune(program: Program, seed: int) -> int:
    """Generations may be gone, and nothing else has changed; how many are."""
    asked = asking(program, seed)
    after, remarks = run_pipeline(asked, PLAIN, ["prune"])
    gone = pruned(asked, after)
    assert gone is not None, to_text(asked)
    assert bool(gone) <= bool(remarks)
    assert run_pipeline(program, PLAIN, ["prune"]) == (program, ())  # all is asked for
    plain = without_turns(after)
    assert plan_meaning(lower_plan(plain, PLAIN), MODEL, ARGS, STREAMS) == means(plain), to_text(program)
    return gone


def pruned(before: Program, after: Program) -> int | None:
    """How many generations went at run time; None if anything else changed."""
    was, now = means(before), means(after)
    kept = all(was.calls.get(site) == call for site, call in now.calls.items())
    fine = kept and was.returns == now.returns and _ordered(was) == _ordered(now)
    fine = fine and not Counter(map(repr, now.hosts)) - Counter(map(repr, was.hosts))
    return len(was.calls.keys() - now.calls.keys()) if fine else None


def _ordered(found: Meaning) -> list[object]:
    """What Python was given in an order that counts."""
    return [host for host in found.hosts if not host[0].startswith("free ")]


def check_orders(program: Program, seed: int, passes: Sequence[str]) -> None:
    """Passes in any order keep the meaning of a program; of one that is asked for less, what is asked for."""
    asked = asking(program, seed)
    after, _ = run_pipeline(asked, PLAIN, passes)
    again, _ = run_pipeline(after, PLAIN, passes[::-1])
    for made in (after, again):
        assert pruned(asked, made) is not None, f"{passes}\n{to_text(asked)}"
    whole, _ = run_pipeline(program, PLAIN, passes)
    assert means(whole) == means(program), f"{passes}\n{to_text(program)}"


def check_pruned_run(program: Program, seed: int, tokenizer: Tokenizer, passes: Sequence[str]) -> int | None:
    """Runs: what is asked for is as it was, whatever else `passes` do; how many generations went.

    None if one of them fails.
    """
    asked = asking(program, seed)
    before, after = ids_of(asked, tokenizer, ()), ids_of(asked, tokenizer, passes)
    assert before is not None
    assert after is not None
    if isinstance(before[1], Failure) or isinstance(after[1], Failure):
        return None
    assert all(before[0][site] == ids for site, ids in after[0].items()), to_text(asked)
    (was, value), (now, again) = cast("_Run", before[1]), cast("_Run", after[1])
    assert value == again, to_text(asked)
    wanted = asked.outputs or ()
    assert {name: was.get(name) for name in wanted} == {name: now.get(name) for name in wanted}, to_text(asked)
    return len(before[0].keys() - after[0].keys())
