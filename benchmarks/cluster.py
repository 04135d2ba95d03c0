"""Batches on several replicas: tokens computed beside one machine, and what a million rows take of the driver.

    python -m benchmarks.cluster counts     5,000 rows with 50 beginnings, at most 8 tokens out, on two servers
    python -m benchmarks.cluster driver     1,000,000 scripted rows on two actors of a Ray cluster of two nodes
    python -m benchmarks.cluster programs   few-shot questions and trees of thought on two servers

The first two want Ray (`make cluster`), and run the runtime's engine over an executor without a model, which
counts tokens. The pool of each of two servers holds half of what the one's does; of `programs` where there are
two GPUs, each server has one to itself. Goals: at most 1.05 times what the trie of the prompts has, and of
`programs` what one server computes, with round robin beside it, and on two GPUs 1.9 times as fast; of the
driver at most 300 MB, and 100 us of a core a row, and its first result 10 s after its actors are there. Writes
benchmarks/results/cluster-*.json (of two GPUs cluster-gpus.json; of one program alone with its name behind);
fails if it misses one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch

from benchmarks.http_path import Server as Served
from benchmarks.http_path import started
from benchmarks.machine import RESULTS, ROOT, medians, setting, store
from sglc.bench import rig
from sglc.bench.options import Options
from sglc.bench.programs.vocabulary import DrawnWords, shape_folder
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
SHARE, AS_FAST, DRIVER_MB, ROW_US, FIRST_S = 1.05, 1.9, 300, 100, 10.0
SECONDS = re.compile(r"; ([\d.]+) s; seed")  # of a batch that is over, as it says itself
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
        "kv_mib": 8192, "rows": 16_384, "beginnings": 512, "beginning": 1000, "question": 80,
        "trees": 448, "problem": 600, "branches": (8, 4), "adds": (50, 20), "outs": (200, 100),
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


def work(size: Mapping[str, Any], words: DrawnWords) -> dict[str, tuple[str, list[dict[str, str]]]]:
    """Few-shot questions and trees of thought: a program and its rows."""
    draw = random.Random(1)
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
    return {"few-shot": (ask, questions), "tree": (tree, problems)}


def measured(
    folder: Path, program: str, rows: Sequence[dict[str, str]], parts: Sequence[str], servers: Sequence[Served]
) -> dict[str, float]:
    """One run: `parts` are what `--backend` names of each command, which have the rows in turns."""
    for one in servers:
        urlopen(Request(f"{one.url}/flush_cache", method="POST")).close()
    for place in range(len(parts)):
        (folder / str(place)).mkdir(exist_ok=True)
        prepare(folder / str(place), rows[place :: len(parts)], program)
    served_s, began_s = [one.cpu_s() for one in servers], time.monotonic()
    runs = [start(folder / str(place), "out.jsonl", "--backend", url) for place, url in enumerate(parts)]
    batch_s = cpu_s = 0.0
    for run in runs:
        assert run.stderr is not None
        told = run.stderr.read()
        _, status, used = os.wait4(run.pid, 0)
        assert status == 0, told
        batch_s = max(batch_s, float(SECONDS.findall(told)[-1]))
        cpu_s += used.ru_utime + used.ru_stime
    seconds = time.monotonic() - began_s
    ended = [row for place in range(len(parts)) for row in results(folder / str(place) / "out.jsonl")]
    assert len(ended) == len(rows)
    return {
        "computed_tokens": sum(row["usage"]["computed"] for row in ended),
        "seconds": seconds, "batch_s": batch_s, "driver_cpu_s": cpu_s,
        "a_servers_http_cpu_s": max(
            one.cpu_s() - before for one, before in zip(servers, served_s, strict=True)
        ),
    }  # fmt: skip


def programs(model: str, device: str, rounds: int, end_s: float, only: str | None) -> dict[str, Any]:
    """Few-shot questions and trees of thought on one server, and on two in two ways: tokens and seconds.

    With two GPUs each server has one, and one of them is the one. Else the two have half of the one's pool
    each, and what is compared are tokens. No round begins that would not end `end_s` behind the call.
    """
    size, shape = SIZES[device], shape_folder(model)
    todo = work(size, DrawnWords(load_tokenizer(shape)))
    todo = todo if only is None else {only: todo[only]}
    end_s += time.monotonic()
    whole, half = size["kv_mib"], size["kv_mib"] // 2
    apart = device == "cpu" or len(gpus()) > 1
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        name: {"one": [], "two": [], "round robin": []} for name in todo
    }
    with ExitStack() as stack, ThreadPoolExecutor() as beside:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def server(mib: int, gpu: str | None = None) -> Served:
            named = ("--port", "0", "--model", f"dummy:{shape}", "--device", device, "--kv-mib", str(mib))
            env = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
            return stack.enter_context(started("sglc.cli", "serve", *named, **env))

        if apart:
            two = [*beside.map(server, (whole, whole), gpus()[:2] or (None, None))]
            one = two[0]
        else:
            one, *two = beside.map(server, (whole, half, half))
        both = ",".join(each.url for each in two)
        for program, rows in todo.values():  # warm
            measured(folder, program, rows[: max(len(rows) // 16, 4)], [each.url for each in two], two)
        longest_s = 0.0
        for number in range(rounds):
            began_s = time.monotonic()
            if number and began_s + longest_s > end_s:
                break
            for name, (program, rows) in todo.items():
                ways = {"one": ([one.url], [one]), "two": ([both], two)}
                if not number:  # its tokens are what it is for
                    ways["round robin"] = ([each.url for each in two], two)
                for way, (parts, servers) in ways.items():
                    run = measured(folder, program, rows, parts, servers)
                    found[name][way].append(run)
                    print(f"{name:9} {way:12}", json.dumps(rounded(run)), flush=True)
            longest_s = max(longest_s, time.monotonic() - began_s)
    made: dict[str, Any] = {}
    for name, runs_of in found.items():
        middle = {way: medians(runs) for way, runs in runs_of.items()}
        base = middle["one"]
        for way, each in middle.items():
            times_one = round(each["computed_tokens"] / base["computed_tokens"], 4)
            as_fast = round(base["batch_s"] / each["batch_s"], 3)
            made.setdefault(name, {})[way] = {**rounded(each), "times_one": times_one, "as_fast": as_fast}
    count = min(len(ways["one"]) for ways in found.values())
    return {
        "model": model, "device": device, "gpus": gpus(), "a_gpu_each": apart, "rounds": count, "sizes": size,
        "programs": made,
    }  # fmt: skip


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """For people."""
    return {name: round(figure, 2) for name, figure in figures.items()}


def gpus() -> list[str]:
    """Those that there are, as `CUDA_VISIBLE_DEVICES` names them."""
    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return named.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


def main() -> int:
    """1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("counts", "driver", "programs"))
    parser.add_argument("--model", default="qwen3-0.6b", help="of `programs`: a shape with random weights")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--rounds", type=int, default=3, help="of `programs`: their medians")
    parser.add_argument(
        "--seconds", type=float, default=225.0, help="of `programs`: in which no round is to end late"
    )
    parser.add_argument("--only", choices=("few-shot", "tree"), help="of `programs`")
    given = parser.parse_args()
    name = given.what
    if given.what == "counts":
        made = counts(given.rows or 5_000)
        missed = (
            not made["equal_texts"] or max(made["times_trie"][way] for way in ("two", "two on Ray")) > SHARE
        )
    elif given.what == "programs":
        made = programs(
            given.model, rig.place(Options(device=given.device)), given.rounds, given.seconds, given.only
        )
        name = "gpus" if made["device"] == "cuda" and made["a_gpu_each"] else name
        name += f"-{given.only}" if given.only else ""
        missed = any(
            ways["two"]["times_one"] > SHARE or (name.startswith("gpus") and ways["two"]["as_fast"] < AS_FAST)
            for ways in made["programs"].values()
        )
    else:
        made = driver(given.rows or 1_000_000)
        missed = (
            made["driver_peak_mb"] > DRIVER_MB
            or made["driver_cpu_us_a_row"] > ROW_US
            or made["first_result_behind_s"] > FIRST_S
        )
    print(json.dumps(made, indent=1))
    if not given.dry:
        store(RESULTS / f"cluster-{name}.json", {**setting(), **made})
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
