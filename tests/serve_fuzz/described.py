"""Requests as `/openapi.json` describes them, and as it does not, made by schemathesis.

python -m tests.serve_fuzz.described --cases 2000 --seed 0 [-o FILE.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import just

from tests.serve_fuzz.campaign import MOST_S, limited_server
from tests.serving import Server
from tests.waiting import until

_CHECKS = ("response_schema_conformance", "content_type_conformance")
_ANSWERS = (200, 400, 404, 405, 413, 429, 503)


def run(server: Server, cases: int, number: int) -> tuple[Counter[str], list[str]]:
    """So many requests over all operations: how many were answered how, and what must not be."""
    import schemathesis
    from schemathesis.generation import GenerationMode

    statuses: Counter[str] = Counter()
    wrong: list[str] = []
    schema: Any = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    with_body = [operation for operation in operations if operation.body]
    for operation in operations:
        share = cases // (2 * len(with_body)) if operation in with_body else 1
        for mode in GenerationMode if operation in with_body else (GenerationMode.POSITIVE,):
            what = f"{operation.method.upper()} {operation.path} ({mode.value})"
            found = settings(
                max_examples=share,
                database=None,
                deadline=None,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            )
            send = partial(_send, what, statuses, wrong)

            def ask(case: Any, send: Callable[[Any], None]) -> None:
                send(case)

            strategy = operation.as_strategy(generation_mode=mode)
            seed(number)(found(given(case=strategy, send=just(send))(ask)))()
    until(server.idle)
    return statuses, wrong


def _send(what: str, statuses: Counter[str], wrong: list[str], case: Any) -> None:
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    answer = case.call(timeout=MOST_S)
    statuses[f"{what}: {answer.status_code}"] += 1
    if answer.status_code not in _ANSWERS:
        wrong.append(f"{what}: {answer.status_code} {answer.text[:300]} for {case.body!r:.300}")
    elif answer.status_code != 413:
        try:
            case.validate_response(answer, checks=[CHECKS.get_one(name) for name in _CHECKS])
        except (Exception, BaseExceptionGroup) as error:  # several failures are no `Exception`
            wrong.append(f"{what}: {error}")


def main() -> int:
    """Print what came of it; 1 if something is not as it has to be."""
    parser = argparse.ArgumentParser(prog="python -m tests.serve_fuzz.described", description=__doc__)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", type=Path)
    options = parser.parse_args()
    with limited_server() as server:
        statuses, wrong = run(server, options.cases, options.seed)
    made = json.dumps({"statuses": dict(sorted(statuses.items())), "wrong": wrong}, indent=1)
    print(made)
    if options.o is not None:
        options.o.write_text(made + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
