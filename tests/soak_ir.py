"""Random programs with control flow: every pass keeps their meaning, their text form is exact, and what
a random change makes of the text is a program or an error with a place.

    python -m tests.soak_ir --programs 2000 --seed 0
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random

from sglc.errors import VerifyError
from sglc.ir.core import Program, Site, walk
from sglc.ir.interpret import Meaning, Model, Plain, meaning
from sglc.ir.target import Target
from sglc.ir.text import canonical, from_text, identity, to_text
from sglc.ir.verify import verify
from sglc.passes.base import run_pipeline
from tests.random_programs import ARGS, STREAMS, random_program

PASSES = ("fold_text", "share_prefixes")  # the others refuse programs with control flow
PLAIN = Target("plain")


def generate(site: Site, prefix: str) -> str:
    return blake2b(f"{site}|{prefix}".encode(), digest_size=2).hexdigest()


def choose(site: Site, prefix: str, choices: tuple[str, ...]) -> int:
    return blake2b(f"{site}|{prefix}|{choices}".encode(), digest_size=1).digest()[0] % len(choices)


def host(reason: str, reads: tuple[Plain, ...]) -> Plain:
    return (reason, *reads)


def means(program: Program) -> Meaning:
    return meaning(program, Model(generate, choose, host=host), ARGS, STREAMS)


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
    "host_call('x')\n", "temperature=2.5", "(s0, t0)", "fork=(-1,)", "# sglir 2\n", "# a:1:2",
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
    for number in range(seed, seed + programs):
        program = random_program(number, regions=True)
        verify(program)
        check_text(program)
        found = Counter(op.mnemonic for op in walk(program.ops))
        found.update({name: check_pass(program, name) for name in PASSES})
        found["mutants that are programs"] += check_mutant(program, Random(number))
        meant = means(program)
        found["generations"] += len(meant.calls)
        found["runs that hand over"] += len(meant.hosts)
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
        "what": "random programs with control flow: text form, passes, and a random change of each text",
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
