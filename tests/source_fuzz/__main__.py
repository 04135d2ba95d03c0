"""Random Python programs, run every way and compared.

python -m tests.source_fuzz --programs 3000 --seed 0 [-o FILE.json] [--strict] [--minimise N]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.source_fuzz.module import FEATURES, random_module
from tests.source_fuzz.not_yet import is_known
from tests.source_fuzz.runner import fuzzer, nothing, shown


def main() -> int:
    """Print what came of it; 1 if something is not equal that has to be."""
    parser = argparse.ArgumentParser(prog="python -m tests.source_fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--strict", action="store_true", help="also what is known to be unequal is a violation")
    parser.add_argument("--only", help="show differences of this kind alone")
    parser.add_argument("--minimise", type=int, default=3, help="how many violations are made small and shown")
    parser.add_argument("--source", action="store_true", help="print the programs, and run none")
    parser.add_argument("-o", type=Path)
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.programs)
    if given.source:
        for number in numbers:
            print(random_module(given.seed, number).source)
        return 0
    with fuzzer(nothing if given.strict or given.only else is_known) as running:
        for number in numbers:
            running.run(random_module(given.seed, number))
            if (number + 1) % 100 == 0:
                print(f"... {number + 1}", file=sys.stderr)
        summary = running.summary
        print(
            f"{summary.programs} programs, {summary.whole} trace whole; no plan of the others:",
            dict(summary.not_whole),
        )
        print("programs with a feature, those that trace whole before those that there are:")
        for name in FEATURES:
            print(f"  {summary.whole_features[name]:5} / {summary.features[name]:5}  {name}")
        print("programs that show a difference:")
        for kind, count in summary.kinds.most_common():
            print(f"  {count:5}  {kind}{'   <- a violation' if kind in summary.violations else ''}")
        for module, why in summary.failed[:5]:
            print(f"Python cannot run {module.name}: {why}")
        if given.o is not None:
            given.o.write_text(json.dumps(summary.as_json(), indent=1) + "\n", encoding="utf-8")
        violations = {k: v for k, v in summary.violations.items() if given.only in (None, k)}
        for module, found in list(violations.values())[: given.minimise]:
            small = running.smaller(module, found)
            again = [
                other
                for other in running.report(small).differences
                if (other.kind, other.way) == (found.kind, found.way)
            ]
            print(shown(small, again[0] if again else found))
    print(
        f"{len(summary.violations)} kinds of violations, {len(summary.failed)} programs that Python cannot run"
    )
    return 1 if summary.violations or summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
