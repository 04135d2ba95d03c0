"""Times the local runtime on the CPU against transformers and llama.cpp: same weights, same threads.

Three workloads of the default model, greedy, ends of turns ignored:
  single    one prompt of 128 tokens, 128 out
  batch     16 prompts of 50 to 200 tokens at once, 64 out
  prefix    64 questions behind one prefix of 600 tokens, 16 out
Baselines are transformers' `generate` (float32) one prompt after the other, over the left-padded batch, and
(for `prefix`) over the batch with the prefix computed once and its cache repeated; and llama.cpp
(`cpu_peer.py`, the same file), all sequences at once. Contenders of this process take turns, in another
order every round; times are medians (a baseline that is not the fastest of its workload runs once). The
runtime starts every round with an empty cache. Outputs must agree up to the first place where the two tokens
are all but tied (`--exact`: products in float32, as `--dtype float32` has them; without it, as `auto` chooses);
llama.cpp rounds activations to 8 bits, so of it only the largest such gap is stored.

`busy`: the same prompt beside one process for each core that never rests.

`--emulate avx2` measures what a processor without AVX-512 would do, as far as flags can tell.
Writes benchmarks/results/cpu-<cpu>.json and fails if a goal is missed or an output differs. `make bench-cpu`
makes the environment of llama.cpp; without `--peer` it is left out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import pydoc_data.topics
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from benchmarks.machine import result_path, store
from sglc.bench.setting import commit, cpu_model
from sglc.ir.sampling import Sampling
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.loading import cpu_executor
from sglc.runtime.executor.torch_executor import TorchExecutor
from sglc.runtime.kernels import cpu_build
from sglc.runtime.model.registry import prepare
from sglc.runtime.model.weights import load_config
from sglc.runtime.scheduler.requests import SampleDone
from sglc.runtime.tokenizer.tokenizer import load_tokenizer

ROUNDS = 5
# Logits closer than this may come in either order: float32 in another order of sums, inputs of 16 bits.
TIE, TIE_OF_INTEGERS = 1e-3, 0.05
PEER = "llama.cpp"
EMULATED = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
}
WITHOUT = {"avx2": ("-mno-avx512f", "-mno-avxvnni")}

Prompt = Sequence[int]
Outputs = list[list[int]]
Contender = Callable[[], Outputs]


@dataclass(frozen=True, slots=True)
class Workload:
    """`prompts` all begin with the first `prefix` tokens of each other. `goals`: contender -> least
    factor by which sglc must be faster than it."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int
    prefix: int
    goals: Mapping[str, float]


class Transformers:
    """The baselines."""

    def __init__(self, model: PreTrainedModel, workload: Workload) -> None:
        self.model, self.work = model, workload

    def sequential(self) -> Outputs:
        """One prompt after the other."""
        return [self._generate([prompt], 0, None)[0] for prompt in self.work.prompts]

    def batched(self) -> Outputs:
        """All prompts as one batch, padded on the left."""
        return self._generate(self.work.prompts, 0, None)

    def prefix_cached(self) -> Outputs:
        """The prefix once; then one batch whose padding lies between the prefix and the rest."""
        shared = torch.tensor([self.work.prompts[0][: self.work.prefix]])
        cache = DynamicCache(config=self.model.config)
        with torch.inference_mode():
            self.model(shared, past_key_values=cache, logits_to_keep=1)
            cache.batch_repeat_interleave(len(self.work.prompts))
        return self._generate(self.work.prompts, self.work.prefix, cache)

    def _generate(self, prompts: Sequence[Prompt], keep: int, cache: DynamicCache | None) -> Outputs:
        """`keep`: tokens that stay in front of the padding."""
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for line, seen, prompt in zip(ids, mask, prompts, strict=True):
            rest = longest - (len(prompt) - keep)
            line[:keep], line[rest:] = torch.tensor(prompt[:keep]), torch.tensor(prompt[keep:])
            seen[:keep] = seen[rest:] = 1
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=mask,
                past_key_values=cache,
                do_sample=False,
                max_new_tokens=self.work.new_tokens,
            )
        return out[:, longest:].tolist()


def run_engine(executor: TorchExecutor, work: Workload) -> Outputs:
    """All prompts at once through a fresh engine, whose prefix tree is empty."""
    engine = Engine(executor, EngineConfig(max_rows=64, max_len=executor.config.max_len))
    sampling = Sampling(max_tokens=work.new_tokens, temperature=0.0, ignore_eos=True)
    order = {}
    for index, prompt in enumerate(work.prompts):
        handle = engine.extend(None, prompt)
        order[engine.gen(handle, sampling, [0], eos_ids=())] = index
    outputs: Outputs = [[] for _ in work.prompts]
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, SampleDone):
                outputs[order[event.request]] = list(event.ids)
    return outputs


def workloads(encode: Callable[[str], list[int]]) -> list[Workload]:
    """Real English text: the language reference that comes with Python."""
    text = encode("\n".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics)))
    lengths = [50 + (r * 97) % 151 for r in range(16)]
    starts = [5000 + 700 * r for r in range(64)]
    prefix = text[2000:2600]
    questions = (
        (
            *prefix,
            *encode("\n\nQuestion: what follows from: "),
            *text[s : s + 8 + s // 700 % 15],
            *encode("\nAnswer:"),
        )
        for s in starts
    )
    return [
        Workload("single", (tuple(text[1000:1128]),), 128, 0, {"sequential": 1.5, PEER: 0.8}),
        Workload(
            "batch",
            tuple(tuple(text[s : s + n]) for s, n in zip(starts, lengths, strict=False)),
            64,
            0,
            {"sequential": 2.5, "batched": 2.5, PEER: 1.0},
        ),
        Workload(
            "prefix",
            tuple(questions),
            16,
            600,
            {"sequential": 4.0, "batched": 4.0, "prefix_cached": 4.0, PEER: 1.0},
        ),
    ]


def largest_gap(model: PreTrainedModel, work: Workload, expected: Outputs, got: Outputs) -> float:
    """Between the logits of the first tokens that differ, over all prompts; 0 where none does.

    Raises:
        ValueError: an output of another length.
    """
    largest = 0.0
    for prompt, left, right in zip(work.prompts, expected, got, strict=True):
        if len(left) != len(right):
            raise ValueError(f"{len(right)} tokens instead of {len(left)}")
        at = next((i for i, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1]), None)
        if at is None:
            continue
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *left[:at]]]), logits_to_keep=1).logits[0, -1]
        largest = max(largest, float((logits[left[at]] - logits[right[at]]).abs()))
    return largest


def peer_results(
    python: str, gguf: str, works: Sequence[Workload], threads: int, rounds: int
) -> dict[str, Any]:
    """What `cpu_peer.py` prints, run by the interpreter `python`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        parts = [
            {name: getattr(work, name) for name in ("name", "prompts", "new_tokens", "prefix")}
            for work in works
        ]
        json.dump(parts, file)
        file.flush()
        script = str(Path(__file__).with_name("cpu_peer.py"))
        done = subprocess.run(
            [python, script, gguf, file.name, str(threads), str(rounds)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def measure(
    contenders: Mapping[str, Contender], rounds: int, slow: Collection[str]
) -> tuple[dict[str, list[float]], dict[str, Outputs]]:
    """Seconds of every round (of the first, for those that are `slow`) and the last outputs, by contender."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    outputs: dict[str, Outputs] = {}
    names = list(contenders)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if turn and name in slow:
                continue
            begin = time.perf_counter()
            outputs[name] = contenders[name]()
            seconds[name].append(time.perf_counter() - begin)
            print(f"  {name}: {seconds[name][-1]:.2f} s", file=sys.stderr, flush=True)
    return seconds, outputs


def run(
    work: Workload,
    model: PreTrainedModel,
    executor: TorchExecutor,
    only: str,
    rounds: int,
    peer: Mapping[str, Any],
    fastest: bool,
) -> dict[str, Any]:
    """One workload's part of the result."""
    baselines = Transformers(model, work)
    contenders: dict[str, Contender] = {"sglc": lambda: run_engine(executor, work)}
    names = [name for name in work.goals if name != PEER]
    names = names[-1:] if fastest else names
    contenders |= {name: getattr(baselines, name) for name in names if only in ("", name)}
    # Not timed: fills caches of kernels and memory.
    run_engine(executor, work)
    Transformers(model, Workload("warm", work.prompts[:1], 2, 0, {})).sequential()
    seconds, outputs = measure(contenders, rounds, () if len(names) == 1 else names[:-1])
    if peer:
        seconds[PEER], outputs[PEER] = peer[work.name]["seconds"], peer[work.name]["outputs"]
    median = {name: statistics.median(times) for name, times in seconds.items()}
    reference = outputs.get("sequential", outputs["sglc"])
    return {
        "prompts": len(work.prompts),
        "tokens_in": sum(map(len, work.prompts)),
        "tokens_out": work.new_tokens * len(work.prompts),
        "seconds": {name: [round(t, 3) for t in times] for name, times in seconds.items()},
        "median_s": {name: round(t, 3) for name, t in median.items()},
        "faster_than": {name: round(median[name] / median["sglc"], 2) for name in work.goals if name in median},
        "goals": dict(work.goals),
        "largest_gap": {name: largest_gap(model, work, reference, out) for name, out in outputs.items()},
    }


def busy(executor: TorchExecutor, work: Workload, runs: int = 10) -> dict[str, Any]:
    """The same prompt alone, and beside one process for each core that never rests: seconds of every run."""
    short = replace(work, new_tokens=32)

    def timed() -> float:
        begin = time.perf_counter()
        run_engine(executor, short)
        return round(time.perf_counter() - begin, 4)

    quiet = [timed() for _ in range(runs)]
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        time.sleep(0.5)
        beside = [timed() for _ in range(runs)]
    finally:
        for other in others:
            other.kill()
    usual = statistics.median(quiet)
    return {
        "quiet_s": quiet, "busy_s": beside, "goal": 2.5,
        "times": round(statistics.median(beside) / usual, 2), "most_times": round(max(beside) / usual, 2),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="", help="run only this one, and write nothing")
    parser.add_argument("--baseline", default="", help="measure only this baseline, and write nothing")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peer", default="", help="an interpreter that has `llama_cpp`")
    parser.add_argument("--gguf", default="", help="the default model's file, for the peer")
    parser.add_argument("--fastest", action="store_true", help="leave out baselines that others outrun")
    parser.add_argument("--exact", action="store_true", help="products in float32; writes nothing")
    parser.add_argument("--emulate", default="", choices=["", *EMULATED])
    arguments = parser.parse_args()
    if arguments.emulate and any(os.environ.get(k) != v for k, v in EMULATED[arguments.emulate].items()):
        # Libraries read these when they are loaded.
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **EMULATED[arguments.emulate]})
    torch.set_num_threads(arguments.threads)
    folder = prepare("smollm2")
    if arguments.emulate:
        library = ctypes.CDLL(str(cpu_build.build(*WITHOUT[arguments.emulate])))
        cpu_build.library = lambda: library  # type: ignore[assignment]
    executor = cpu_executor(folder, load_config(folder), torch.float32, 16, 1024, (), arguments.exact)
    integers = getattr(executor, "integers", False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    works = [w for w in workloads(load_tokenizer(folder).encode) if arguments.workload in ("", w.name)]
    peer: dict[str, Any] = {}
    if arguments.peer:
        peer = peer_results(arguments.peer, arguments.gguf, works, arguments.threads, arguments.rounds)
    result: dict[str, Any] = {
        "what": "the default model on the CPU: sglc, transformers (float32), llama.cpp; greedy, seconds",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "emulated": arguments.emulate,
        "cores": os.cpu_count(),
        "threads": arguments.threads,
        "executor": type(executor).__name__,
        "products": "integers of 16 bits" if integers else "float32",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": numpy.__version__,
            **({PEER: f"{peer['version']} {peer['system_info']}"} if peer else {}),
        },
        "commit": commit(),
    }
    good = True
    for work in works:
        print(work.name, file=sys.stderr)
        part = run(work, model, executor, arguments.baseline, arguments.rounds, peer, arguments.fastest)
        result[work.name] = part
        print(
            f"{work.name}: {json.dumps({k: part[k] for k in ('median_s', 'faster_than', 'largest_gap')})}",
            flush=True,
        )
        good &= all(part["faster_than"].get(k, v) >= v for k, v in work.goals.items())
        ties = {PEER: float("inf"), "sglc": TIE_OF_INTEGERS if integers else TIE}
        good &= all(gap <= ties.get(name, TIE) for name, gap in part["largest_gap"].items())
        if work.name == "single":
            result["busy"] = busy(executor, work)
            print(f"busy: {json.dumps(result['busy'])}", flush=True)
            good &= result["busy"]["times"] <= result["busy"]["goal"]
    if not (arguments.workload or arguments.baseline or arguments.exact):
        store(result_path(f"cpu-{arguments.emulate}-emulated-on" if arguments.emulate else "cpu"), result)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
