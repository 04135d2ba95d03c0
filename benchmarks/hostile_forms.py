"""Gaps of a free stream while forms that ask for much are compiled and read by its server, one after the other:
against the gaps of the stream alone between them, on the same machine in the same minutes.

    python -m benchmarks.hostile_forms [--model smollm2]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, setting, store
from tests.constraints.hostile_forms import HOSTILE, HOSTILE_TAGS, text_of
from tests.serve_fuzz.campaign import FreeStream, address_of, limited_server
from tests.serving import Server

_CALM_S = 1.5  # before each form, and behind the last
_TOKENS = 32  # of each form
Gaps = list[tuple[float, float]]  # when an event came, and how long after the one before, in seconds


def ask(server: Server, kind: str, text: str) -> str:
    """Have a text made; the status, or the code of the error."""
    sampling = {"max_new_tokens": _TOKENS, "temperature": 1.0, "sampling_seed": 1, kind: text}
    status, content = server.ask("POST", "/generate", {"text": "once", "sampling_params": sampling})
    return "made" if status == 200 else str(content["error"]["code"])


def measure(model: str) -> dict[str, Any]:
    """The gaps, calm and beside each form."""
    forms = [("json_schema", name, text_of(form())) for name, (form, _) in HOSTILE.items()]
    forms += [("structural_tag", name, text_of(form())) for name, (form, _) in HOSTILE_TAGS.items()]
    spans: list[tuple[float, float, str, str]] = []
    with limited_server("--request-timeout", "60", model=model) as server:
        assert ask(server, "json_schema", "true") == "made"  # which loads the libraries
        with FreeStream(address_of(server)) as stream:
            time.sleep(_CALM_S)  # until it streams
            began_s, waited_s = time.monotonic(), _waited_s(server)
            for kind, name, text in forms:
                time.sleep(_CALM_S)
                first_s = time.monotonic()
                said = ask(server, kind, text)
                spans.append((first_s, time.monotonic(), f"{kind}: {name}", said))
            time.sleep(_CALM_S)
            waited_s = _waited_s(server) - waited_s
            gaps = stream.end()
    gaps = [(at, gap) for at, gap in gaps if at - gap >= began_s]
    beside = [each for each in gaps if any(_meets(each, begin, end) for begin, end, _, _ in spans)]
    calm = sorted(gap for _, gap in {*gaps} - {*beside})
    p99 = calm[int(0.99 * (len(calm) - 1))]
    each = {
        name: {"said": said, "seconds": round(end - begin, 2), "largest_ms": _largest(beside, begin, end)}
        for begin, end, name, said in spans
    }
    return {
        "calm P99 ms": round(1e3 * p99, 2),
        "calm largest ms": round(1e3 * calm[-1], 2),
        "P99 ms": round(1e3 * sorted(gap for _, gap in beside)[int(0.99 * (len(beside) - 1))], 2),
        "largest ms": round(1e3 * max(gap for _, gap in beside), 2),
        "events": len(beside),
        "over 3 x calm P99": sum(gap > 3 * p99 for _, gap in beside),
        "largest / calm P99": round(max(gap for _, gap in beside) / p99, 2),
        "seconds": round(gaps[-1][0] - began_s, 1),
        "of them without a processor": round(waited_s, 1),  # server and runtime, which wanted one
        "forms": each,
    }


def _waited_s(server: Server) -> float:
    """How long the threads of the server and its runtime that make the stream have waited for a processor."""
    pids = (server.process.pid, server.runtime())
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in pids) / 1e9


def _largest(gaps: Gaps, begin_s: float, end_s: float) -> float:
    """The largest gap that a form has to do with, in ms."""
    return round(1e3 * max((each[1] for each in gaps if _meets(each, begin_s, end_s)), default=0.0), 2)


def _meets(gap: tuple[float, float], begin_s: float, end_s: float) -> bool:
    at, length = gap
    return at >= begin_s and at - length <= end_s


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", help="`tiny` or a model's name; several times for several")
    parser.add_argument("--out", type=Path, default=RESULTS / "hostile-forms.json")
    arguments = parser.parse_args()
    found = {}
    for model in arguments.model or ["tiny", "smollm2"]:
        found[model] = measure(model)
        print(model, json.dumps(found[model], indent=1), flush=True)
    report = {"what": __doc__.split("\n\n")[0], "models": found, **setting()}
    store(arguments.out, report)


if __name__ == "__main__":
    main()
