"""Batches on several replicas: tokens computed beside one machine, and what a million rows take of the driver.

    python -m benchmarks.cluster counts     5,000 rows with 50 beginnings, at most 8 tokens out, on two servers
    python -m benchmarks.cluster driver     1,000,000 scripted rows on two actors of a Ray cluster of two nodes
    python -m benchmarks.cluster programs   few-shot questions and trees of thought on two servers of one device

The first two want Ray (`make cluster`), and run the runtime's engine over an executor without a model, which
counts tokens. The pool of each of two servers holds half of what the one's does. Goals: at most 1.05 times what
the trie of the prompts has, and of `programs` what one server computes, with round robin beside it; of the
driver at most 300 MB, and 100 us of a core a row, and its first result 10 s after its actors are there. Writes
benchmarks/results/cluster-*.json; fails if it misses one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.http_path import started
from sglc.bench import rig
from sglc.bench.options import Options
from sglc.bench.programs.vocabulary import DrawnWords, shape_folder
from sglc.bench.setting import ROOT, setting
from sglc.execution.batch.order import trie_size
from sglc.runtime.tokenizer.tokenizer import load_tokenizer
from tests.serving import Server, running
from tests.soak_spread import nodes

PROGRAM = """
import sglc as sgl

@sgl.function
def ask(s, rules, q):
    s += rules + q + sgl.gen("a", max_tokens=8, temperature=1)
"""
SHARE, DRIVER_MB, ROW_US, FIRST_S = 1.05, 300, 100, 10.0
ALL_PAGES = 2_000  # of 16 tokens: less than 50 beginnings of 1,000 tokens take

TREE = """
import sglc as sgl

WAYS, STEPS = {ways!r}, {steps!r}

@sgl.function
def think(s, problem):
    s += problem
    thoughts = s.fork(len(WAYS))
    for thought, way, below in zip(thoughts, WAYS, STEPS):
        thought += way + sgl.gen("thought", max_tokens={outs[0]}, temperature=0.6, ignore_eos=True)
        nexts = thought.fork(len(below))
        for following, step in zip(nexts, below):
            following += step + sgl.gen("step", max_tokens={outs[1]}, temperature=0.6, ignore_eos=True)
"""
# Of the model's tokens; `kv_mib` of one server, half of it of each of two.
SIZES: dict[str, dict[str, Any]] = {
    "cuda": {
        "kv_mib": 8192, "rows": 4096, "beginnings": 128, "beginning": 1000, "question": 80,
        "trees": 64, "problem": 600, "branches": (8, 4), "adds": (50, 20), "outs": (200, 100),
    },
    "cpu": {
        "kv_mib": 2, "rows": 120, "beginnings": 12, "beginning": 120, "question": 12,
        "trees": 6, "problem": 96, "branches": (3, 2), "adds": (8, 4), "outs": (12, 8),
    },
}  # fmt: skip


def text(draw: random.Random, length: int) -> str:
    """As many tokens of the executor's tokenizer."""
    return "".join(draw.choices(string.ascii_letters + " ", k=length))


def rows_of(count: int, beginnings: int, length: int) -> Iterator[dict[str, str]]:
    """Rows whose beginnings are drawn."""
    draw = random.Random(1)
    begun = [text(draw, length) for _ in range(beginnings)]
    for number in range(count):
        yield {"rules": draw.choice(begun), "q": f" {number:07} {text(draw, 20)}"}


def prepare(folder: Path, rows: Iterable[dict[str, str]], program: str = PROGRAM) -> None:
    """Program and rows."""
    (folder / "prog.py").write_text(program)
    (folder / "script.json").write_text('[{"text": " yes"}]')
    with (folder / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def start(folder: Path, out: str, *more: str, **env: str) -> subprocess.Popen[str]:
    """`sglc run` over the rows."""
    words = ["run", "prog.py", "--batch", "rows.jsonl", "--seed", "1", "-o", out, "--force", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "sglc.cli", *words], cwd=folder, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))), **env},
    )  # fmt: skip


def results(path: Path) -> list[Any]:
    """Its lines, by row."""
    return sorted(map(json.loads, path.read_text().splitlines()), key=lambda row: row["index"])


def counts(rows: int) -> dict[str, Any]:
    """Tokens computed on one server, and on two in several ways."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = [*rows_of(rows, 50, 1_000)]
        prepare(folder, made)

        def server(pages: int) -> Server:
            return stack.enter_context(running("tests.oracle_server", f"quick:{pages}", "64"))

        one, *two = server(ALL_PAGES), server(ALL_PAGES // 2), server(ALL_PAGES // 2)
        both = ",".join(each.url for each in two)
        cluster = stack.enter_context(nodes())
        ways = {"one": (one.url,), "two": (both,), "two on Ray": (both, "--cluster", "ray")}
        tokens: dict[str, int] = {}
        texts: dict[str, list[Any]] = {}
        for way, (url, *more) in ways.items():
            for each in (one, *two):
                each.ask("POST", "/flush_cache")
            run = start(folder, "out.jsonl", "--backend", url, *more, RAY_ADDRESS=cluster.address)
            _, told = run.communicate()
            assert run.returncode == 0, told
            found = results(folder / "out.jsonl")
            tokens[way] = sum(row["usage"]["computed"] for row in found)
            texts[way] = [(row["text"], row["error"]) for row in found]
        for each in two:
            each.ask("POST", "/flush_cache")
        tokens["round robin"] = 0
        for place, each in enumerate(two):
            prepare(folder, made[place::2])
            start(folder, "half.jsonl", "--backend", each.url).communicate()
            tokens["round robin"] += sum(row["usage"]["computed"] for row in results(folder / "half.jsonl"))
    trie = trie_size([row["rules"] + row["q"] for row in made])
    return {
        "rows": rows, "trie_tokens": trie, "pool_tokens_of_all": 16 * ALL_PAGES, "computed_tokens": tokens,
        "times_trie": {way: round(count / trie, 4) for way, count in tokens.items()},
        "equal_texts": all(each == texts["one"] for each in texts.values()),
    }  # fmt: skip


def driver(rows: int) -> dict[str, Any]:
    """What a batch of scripted rows takes of its driver."""
    with tempfile.TemporaryDirectory() as name, nodes() as cluster:
        folder = Path(name)
        prepare(folder, rows_of(rows, 1_000, 200))
        size = (folder / "rows.jsonl").stat().st_size
        began_s = time.monotonic()
        more = ("--backend", "scripted:script.json", "--cluster", "ray")
        run = start(folder, "out.jsonl", *more, RAY_ADDRESS=cluster.address)
        assert run.stderr is not None
        told = run.stderr.readline()
        assert told.endswith("is there\n"), told + run.stderr.read()
        there_s = time.monotonic()
        out = folder / "out.jsonl"
        while not (out.exists() and out.stat().st_size):
            time.sleep(0.01)
        first_s = time.monotonic()
        peak_kb = 0
        while (known := Path(f"/proc/{run.pid}/status").read_text()).find("VmHWM:") >= 0:
            peak_kb = int(known.partition("VmHWM:")[2].split()[0])
            time.sleep(0.5)
        told = run.stderr.read()
        _, status, used = os.wait4(run.pid, 0)
        assert status == 0, told
        with out.open("rb") as lines:
            assert len({json.loads(line)["index"] for line in lines}) == rows
        cpu_s = used.ru_utime + used.ru_stime
        return {
            "rows": rows, "bytes_a_row": round(size / rows), "actors_are_there_s": round(there_s - began_s, 1),
            "first_result_behind_s": round(first_s - there_s, 1),
            "seconds": round(time.monotonic() - began_s, 1),
            "driver_peak_mb": round(peak_kb / 1024), "driver_cpu_us_a_row": round(1e6 * cpu_s / rows, 1),
        }  # fmt: skip


def programs(model: str, device: str) -> dict[str, Any]:
    """Tokens that few-shot questions and trees of thought compute on one server, and on two in two ways."""
    size = SIZES[device]
    shape = shape_folder(model)
    words, draw = DrawnWords(load_tokenizer(shape)), random.Random(1)
    examples = [words.text(draw, size["beginning"]) for _ in range(size["beginnings"])]
    questions = [
        {"rules": draw.choice(examples), "q": words.text(draw, size["question"])} for _ in range(size["rows"])
    ]
    wide, deep = size["branches"]
    tree = TREE.format(
        ways=[words.text(draw, size["adds"][0]) for _ in range(wide)],
        steps=[[words.text(draw, size["adds"][1]) for _ in range(deep)] for _ in range(wide)],
        outs=size["outs"],
    )
    problems = [{"problem": words.text(draw, size["problem"])} for _ in range(size["trees"])]
    ask = PROGRAM.replace("max_tokens=8, temperature=1", "max_tokens=1, temperature=0, ignore_eos=True")
    work = {"few-shot": (ask, questions), "tree": (tree, problems)}
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def server(mib: int) -> str:
            named = ("--port", "0", "--model", f"dummy:{shape}", "--device", device, "--kv-mib", str(mib))
            return f"http://127.0.0.1:{stack.enter_context(started('sglc.cli', 'serve', *named)).port}"

        one, *two = server(size["kv_mib"]), server(size["kv_mib"] // 2), server(size["kv_mib"] // 2)

        for name, (program, rows) in work.items():
            ways = {"one": [(rows, one)], "two": [(rows, ",".join(two))]}
            ways["round robin"] = [(rows[place::2], each) for place, each in enumerate(two)]
            for way, parts in ways.items():
                for each in (one, *two):
                    urlopen(Request(f"{each}/flush_cache", method="POST")).close()
                for place, (part, _) in enumerate(parts):
                    (folder / str(place)).mkdir(exist_ok=True)
                    prepare(folder / str(place), part, program)
                began_s = time.monotonic()
                runs = [
                    start(folder / str(place), "out.jsonl", "--backend", url)
                    for place, (_, url) in enumerate(parts)
                ]
                for run in runs:
                    _, told = run.communicate()
                    assert run.returncode == 0, told
                seconds = round(time.monotonic() - began_s, 2)
                ended = [
                    row for place, _ in enumerate(runs) for row in results(folder / str(place) / "out.jsonl")
                ]
                assert len(ended) == len(rows)
                computed = sum(row["usage"]["computed"] for row in ended)
                found.setdefault(name, {})[way] = {"computed_tokens": computed, "seconds": seconds}
            base = found[name]["one"]["computed_tokens"]
            for each_way in found[name].values():
                each_way["times_one"] = round(each_way["computed_tokens"] / base, 4)
    return {"model": model, "device": device, "sizes": size, "programs": found}


def main() -> int:
    """1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("counts", "driver", "programs"))
    parser.add_argument("--model", default="qwen3-0.6b", help="of `programs`: a shape with random weights")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--dry", action="store_true", help="write no file")
    given = parser.parse_args()
    if given.what == "counts":
        made = counts(given.rows or 5_000)
        missed = (
            not made["equal_texts"] or max(made["times_trie"][way] for way in ("two", "two on Ray")) > SHARE
        )
    elif given.what == "programs":
        made = programs(given.model, rig.place(Options(device=given.device)))
        missed = any(ways["two"]["times_one"] > SHARE for ways in made["programs"].values())
    else:
        made = driver(given.rows or 1_000_000)
        missed = (
            made["driver_peak_mb"] > DRIVER_MB
            or made["driver_cpu_us_a_row"] > ROW_US
            or made["first_result_behind_s"] > FIRST_S
        )
    print(json.dumps(made, indent=1))
    if not given.dry:
        path = ROOT / "benchmarks" / "results" / f"cluster-{given.what}.json"
        path.write_text(json.dumps({**setting(), **made}, indent=1) + "\n", encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
