"""Hostile requests to a real server.

python -m tests.serve_fuzz --requests 2000 --seed 0 [--first N] [--model smollm2] [--control] [--kills 50]
[-o FILE.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.serve_fuzz.campaign import limited_server, run
from tests.serve_fuzz.faults import RAISES, changed_copy
from tests.serve_fuzz.free_stream import TOKENS
from tests.serve_fuzz.kills import kill_at_random


def main() -> int:
    """Print what came of it; 1 if something is not as it has to be."""
    parser = argparse.ArgumentParser(prog="python -m tests.serve_fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first request")
    parser.add_argument("--model", default="tiny", help="of the server; `tiny` or one that is known by name")
    parser.add_argument("--kills", type=int, default=0, help="how often the runtime is ended afterwards")
    parser.add_argument("--control", action="store_true", help="tell gaps in the time of a control, too")
    parser.add_argument("-o", type=Path)
    given = parser.parse_args()
    with limited_server(model=given.model) as server:
        numbers = range(given.first, given.first + given.requests)
        summary = run(server, numbers, given.seed, calm_events=TOKENS, niceness=19, controlled=given.control)
    found = {"hostile": summary.as_json()}
    wrong = [*summary.wrong]
    if given.kills:
        with (
            TemporaryDirectory() as folder,
            limited_server("--request-timeout", "60", root=changed_copy(RAISES, Path(folder))) as server,
        ):
            killed = kill_at_random(server, given.kills, given.seed)
        found["killed"] = killed.as_json()
        wrong += killed.wrong
    made = json.dumps(found, indent=1)
    print(made)
    if given.o is not None:
        given.o.write_text(made + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
