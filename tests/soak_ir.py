"""Random programs with control flow: every pass keeps their meaning, and so do their plans; their text form
is exact, and what a random change makes of the text is a program or an error with a place.

    python -m tests.soak_ir --programs 2000 --seed 0
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from random import Random

from sglc.errors import VerifyError
from sglc.ir.core import Op, Program, Site, walk
from sglc.ir.ops import Append, Call, Resume, RoleClose, RoleOpen
from sglc.ir.plan.plan_json import plan_from_json, plan_to_json
from sglc.ir.plan.plan_text import plan_text
from sglc.ir.rewrite import rewritten
from sglc.ir.target import Target
from sglc.ir.text.printer import from_text, identity, to_text
from sglc.ir.verify.verify import verify
from sglc.passes.base import run_pipeline
from sglc.passes.lowering.lower_plan import lower_plan
from sglc.runtime.model.registry import path
from sglc.runtime.tokenizer.tokenizer import load_tokenizer
from tests.random_programs import ARGS, STREAMS, random_program
from tests.reference.interpret import Meaning, Model, Plain, meaning
from tests.reference.interpret_plan import plan_meaning
from tests.reference.numbering import canonical

PASSES = (
    "inline_calls",
    "fold_text",
    "share_prefixes",
    "hoist_prefix",
    "unify",
    "overlap_tools",
    "unify",
)  # turns need a template: tests/test_semantics.py lowers them
PLAIN = Target("plain", images=True)


def generate(site: Site, prefix: str) -> str:
    return blake2b(f"{site}|{prefix}".encode(), digest_size=2).hexdigest()


def choose(site: Site, prefix: str, choices: tuple[str, ...]) -> int:
    return blake2b(f"{site}|{prefix}|{choices}".encode(), digest_size=1).digest()[0] % len(choices)


def host(reason: str, reads: tuple[Plain, ...]) -> Plain:
    return (reason, *reads)


def declared(name: str, args: tuple[Plain, ...], named: Mapping[str, Plain]) -> object:
    """The functions of random programs, which have what they give in their names."""
    seen = blake2b(f"{name}|{args!r}|{named!r}".encode("utf-8", "surrogatepass"), digest_size=2).hexdigest()
    match name.split()[1]:
        case "text":
            return seen
        case "bool":
            return seen < "8"
        case "list":
            return [seen, "two"]
        case _:
            return {"seen": seen, "args": [*args, None, 1.5]}


MODEL = Model(generate, choose, host=host, declared=declared)


def means(program: Program) -> Meaning:
    return meaning(program, MODEL, ARGS, STREAMS)


def check_text(program: Program) -> None:
    """The text form is exact both ways, with and without locations."""
    text = to_text(program)
    parsed = from_text(text, "random.sglir")
    assert to_text(parsed) == text
    assert parsed == canonical(program)
    assert identity(parsed) == identity(program)
    verify(parsed)
    with_locs = to_text(parsed, locs=True)
    assert to_text(from_text(with_locs, "elsewhere.sglir"), locs=True) == with_locs


def check_pass(program: Program, name: str) -> bool:
    """The pass keeps the meaning, also when it runs once more; whether it did something."""
    after, _ = run_pipeline(program, PLAIN, [name])
    assert means(after) == means(program), to_text(program)
    check_text(after)
    again, _ = run_pipeline(after, PLAIN, [name])
    assert means(again) == means(program), to_text(program)
    return to_text(after) != to_text(program)


def check_plan(program: Program) -> int:
    """The plan means what the program does, and so does its JSON; how many blocks it has."""
    program = without_turns(program)
    plan = lower_plan(program, PLAIN)
    assert plan_meaning(plan, MODEL, ARGS, STREAMS) == means(program), to_text(program)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan, to_text(program)
    assert plan_text(plan)
    return len(plan.blocks)


def without_turns(program: Program) -> Program:
    """The program with turns as text, called programs included."""

    def changed(op: Op) -> Op:
        match op:
            case RoleOpen():
                return Append(op.stream, f"<{op.role}>", results=op.results)
            case RoleClose():
                return Append(op.stream, f"</{op.role}>", results=op.results)
            case Call():
                return replace(op, program=without_turns(op.program))
            case _:
                return op

    params = tuple(replace(op, turns=(), role="") if isinstance(op, Resume) else op for op in program.params)
    return replace(program, params=params, ops=rewritten(program.ops, changed, calls=False))


def mutated(text: str, random: Random) -> str:
    """`text` with one to three random changes: characters, words, or whole lines."""
    for _ in range(random.randrange(1, 4)):
        lines = text.split("\n")
        here, there = random.randrange(len(lines)), random.randrange(len(lines))
        at = random.randrange(len(text) + 1)
        match random.randrange(9):
            case 0:
                del lines[here]
                text = "\n".join(lines)
            case 1:
                lines[here], lines[there] = lines[there], lines[here]
                text = "\n".join(lines)
            case 2:
                lines.insert(there, lines[here])
                text = "\n".join(lines)
            case 3:
                lines[here] = "    " * random.randrange(4) + lines[here].lstrip()
                text = "\n".join(lines)
            case 4:
                text = text[:at] + text[at + random.randrange(1, 6) :]
            case 5:
                text = text[:at] + random.choice("()[]{}:,='\"\\# \n\t0-_éxs%@") + text[at:]
            case 6:
                text = text[:at] + random.choice(_WORDS) + text[at:]
            case _:
                words = text.split(" ")
                first, second = random.randrange(len(words)), random.randrange(len(words))
                words[first] = words[second] if random.random() < 0.7 else random.choice(_WORDS)
                text = " ".join(words)
    return text


_WORDS = (
    "yield", "return", "else:", "case _:", "case 'x':", "def f():", "cond(b0):", "loop((), 3):", "as t0:",
    "s0,", "s0 =", "b0 = not_(b0)", "t0", "None", "nan", "-1", "9" * 400, "'\\ud800'", "1e999", "@", "((((",
    "host_call('x')\n", "t0 = tool('x', (t0,))", "gives='stream'", "{'a': t0}",
    "scope_end(s0, 'x')", "image(s0, t0)", "pack(", "temperature=2.5", "(s0, t0)", "fork=(-1,)",
    "# sglir 3\n", "# a:1:2", "def f() -> ('x',):", "order='free'",
)  # fmt: skip


def check_mutant(program: Program, random: Random) -> bool:
    """A changed text is a program that prints and parses, or an error with a place; whether it is the first."""
    text = mutated(to_text(program), random)
    try:
        parsed = from_text(text, "mutant.sglir")
        verify(parsed)
    except VerifyError as error:
        refused = error
    else:
        assert from_text(to_text(parsed), "again.sglir") == canonical(parsed), text
        return True
    assert refused.loc is not None, f"{refused}\n{text}"
    assert 1 <= refused.loc.line <= text.count("\n") + 1
    return False


def soak(programs: int, seed: int) -> Iterator[Counter[str]]:
    """Check that many programs, a mutant of each among them; yields what each was good for."""
    # They check with what is defined here.
    from tests.pass_checks import (
        chat_program,
        check_ids,
        check_orders,
        check_prune,
        check_pruned_run,
        check_reorder,
        raw_program,
    )
    from tests.test_unify import check_random as check_batch

    tokenizer = load_tokenizer(path("smollm2"))
    for number in range(seed, seed + programs):
        program = random_program(number, regions=True)
        verify(program)
        check_text(program)
        found = Counter(op.mnemonic for op in walk(program.ops))
        found.update({name: check_pass(program, name) for name in PASSES})
        found["blocks of plans"] += check_plan(program)
        found["mutants that are programs"] += check_mutant(program, Random(number))
        found["reorder"] += check_reorder(program)
        found["generations that prune took"] += check_prune(program, number)
        orders = Random(number).sample((*PASSES, "prune"), k=len(PASSES) + 1)
        found["pruned runs with all passes in some order"] += (
            check_pruned_run(raw_program(number), number, tokenizer, orders) is not None
        )
        check_orders(program, number, orders)
        prompts = check_ids(chat_program(number), tokenizer, PASSES[number % len(PASSES)])
        found["prompts whose ids were compared"] += prompts[0] if prompts is not None else 0
        made, without = check_batch(number)
        found["calls of batches"] += without
        found["calls of batches that unify saved"] += without - made
        meant = means(program)
        found["generations"] += len(meant.calls)
        found["tools called, and runs that hand over"] += len(meant.hosts)
        yield found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/soak-ir.json"))
    arguments = parser.parse_args()
    start, total = time.monotonic(), Counter[str]()
    for found in soak(arguments.programs, arguments.seed):
        total.update(found)
    seconds = time.monotonic() - start
    ran = f"{arguments.programs} programs, {total['generations']} generations"
    print(f"{ran}, {seconds:.1f} s: no violation")
    report = {
        "what": "random programs with control flow: text form, passes with what each promises, plans, "
        "and a random change of each text",
        "programs": arguments.programs,
        "seed": arguments.seed,
        "counts": dict(sorted(total.items())),
        "violations": 0,  # the first one ends the run with its assertion
        "seconds": round(seconds, 1),
        "python": platform.python_version(),
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
