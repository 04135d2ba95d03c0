"""What a program costs beside the engine, by part: microseconds of CPU a generation, for two programs.

The work is that of `sglc bench programs` on CUDA (tree of thought, mmlu), with the made-up tokenizer of
Qwen3-0.6B's shape. The program's process runs on answers that come at once. The runtime's part is timed in its
own thread over an oracle, without the engine's steps. For comparison, what two parts would cost in another way:
a prompt encoded as a whole, and looked up from the root of the prefix tree. Best of several rounds: other work
on the machine only adds.

Writes benchmarks/results/program-side-<cpu>.json.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from benchmarks.machine import result_path, setting, store
from sglc.bench.programs.vocabulary import DrawnWords, shape_folder
from sglc.bench.programs.workload import WorkloadBatch
from sglc.bench.programs.workloads import BY_NAME
from sglc.ir.plan.events import Event, GenDone, Sample, Usage
from sglc.ir.plan.segment import GenNode, Segment
from sglc.ir.target import Target
from sglc.runtime.engine import wire
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.machine import Machine
from sglc.runtime.model.registry import prepare
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer, load_tokenizer
from tests.reference.oracle import Oracle

SHAPE = "qwen3-0.6b"
VOCABULARY = 151_936
ROUNDS = 5
PROMPT, OUT = 820, 120  # ids of an answer on its way, as they are on average in tree of thought


class Instant:
    """Answers every generation at once, with as many ids as the real ones have."""

    def __init__(self, tokenizer: LocalTokenizer) -> None:
        self.target = Target(
            "local", tokenizer, scores_tokens=True, continues_text=True, concurrency=1024, whole_answers=True
        )
        self.segments: list[Segment] = []
        self.done = answer()

    def start(self) -> None:
        """Nothing has to be loaded."""

    async def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        self.segments.append(segment)
        for index, node in enumerate(segment.nodes):
            if isinstance(node, GenNode):
                yield GenDone(index, self.done.prompt_ids, self.done.samples, self.done.usage)

    def close(self) -> None:
        """Nothing is held."""


def answer() -> GenDone:
    generator = random.Random(0)
    prompt, out = (tuple(generator.randrange(VOCABULARY) for _ in range(count)) for count in (PROMPT, OUT))
    sample = Sample("x" * 6 * OUT, out, "length", tuple(-9 * generator.random() for _ in out))
    return GenDone(3, prompt, (sample,), Usage(1, 2, 3, 4, 5, 6))


def best(rounds: int, count: int, one: Callable[[], object]) -> float:
    """Microseconds of CPU of this process for each of the `count` things that `one` does."""
    least = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        one()
        least = min(least, time.process_time() - began)
    return round(1e6 * least / count, 1)


def program(batch: WorkloadBatch, tokenizer: LocalTokenizer) -> tuple[float, list[Segment], int]:
    """The program's own process without the wire: bodies, launches, events, results. Also what it submits."""
    backend = Instant(tokenizer)
    rows = list(batch.rows)
    batch.function.run_batch(rows, backend=backend, seed=1)
    segments = list(backend.segments)
    generations = sum(isinstance(node, GenNode) for segment in segments for node in segment.nodes)
    spent = best(ROUNDS, generations, lambda: batch.function.run_batch(rows, backend=backend, seed=1))
    return spent, segments, generations


def on_the_wire(segments: Sequence[Segment], generations: int) -> dict[str, float]:
    """Both ways, both ends."""
    commands = [wire.encode_submit(0, segment, streams=False) for segment in segments]
    events = [(0, answer())] * 256
    frame = wire.encode_events(events)
    return {
        "encode_segments": best(ROUNDS, generations, lambda: [wire.encode_submit(0, s) for s in segments]),
        "decode_segments": best(
            ROUNDS, generations, lambda: [wire.decode_segment(read(command)) for command in commands]
        ),
        "encode_events": best(ROUNDS, len(events), lambda: wire.encode_events(events)),
        "decode_events": best(ROUNDS, len(events), lambda: wire.decode_events(reported(frame))),
    }


def read(command: bytes) -> wire.Submit:
    decoded = wire.decode_command(command)
    assert isinstance(decoded, wire.Submit)
    return decoded


def reported(frame: bytes) -> wire.Events:
    decoded = wire.decode_report(frame)
    assert isinstance(decoded, wire.Events)
    return decoded


def runtime(segments: Sequence[Segment], generations: int, tokenizer: LocalTokenizer) -> dict[str, float]:
    """Segments over an engine whose own time is left out: what begins requests, and what takes their ends."""
    oracle = Oracle(pages=40_000, page_size=16, vocab_size=VOCABULARY, eos_ids=tokenizer.eos_ids)
    engine = Engine(oracle, EngineConfig(token_budget=8192, max_rows=1024, max_len=40_960))
    machine = Machine(engine, tokenizer)
    inside = 0.0
    step = engine.step

    def timed(meanwhile: Callable[[], bool] | None = None) -> Any:
        nonlocal inside
        began = time.thread_time()
        events = step(meanwhile)
        inside += time.thread_time() - began
        return events

    engine.step = timed  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()  # as the runtime's process does
    submit = rest = float("inf")
    for _ in range(2):
        machine.forget_texts()
        inside, began = 0.0, time.thread_time()
        for segment in segments:
            machine.submit(segment, lambda event: None, lambda: None, streams=False)
        middle = time.thread_time()
        while not machine.idle:
            machine.step()
        submit = min(submit, middle - began)
        rest = min(rest, time.thread_time() - middle - inside)
        while engine.tree.evictable:
            engine.tree.evict()
    return {
        "submit": round(1e6 * submit / generations, 1),
        "ends_and_what_follows": round(1e6 * rest / generations, 1),
    }


def otherwise(tokenizer: LocalTokenizer) -> dict[str, float]:
    """A prompt of 1,500 tokens that are known and 100 that are new: by its parts, and as a whole."""
    words, generator = DrawnWords(tokenizer), random.Random(0)
    shared = words.text(generator, 1500)
    texts, others = ([shared + words.text(generator, 100) for _ in range(64)] for _ in range(2))
    oracle = Oracle(pages=2_000, page_size=16, vocab_size=VOCABULARY, eos_ids=tokenizer.eos_ids)
    engine = Engine(oracle, EngineConfig(max_len=40_960))
    prompts = [words.ids(text) for text in texts]
    base = engine.extend(None, prompts[0][:1500])
    engine.warm(base)
    while not engine.idle:
        engine.step()
    return {
        "encode_prompt_whole": best(2, 64, lambda: [tokenizer.encode_whole(text) for text in texts]),
        "encode_prompt_in_pieces": best(1, 64, lambda: [tokenizer.encode(text) for text in others]),
        "encode_prompt_known": best(ROUNDS, 64, lambda: [tokenizer.encode(text) for text in texts]),
        "handle_from_root": best(ROUNDS, 64, lambda: [engine.extend(None, ids) for ids in prompts]),
        "handle_from_handle": best(ROUNDS, 64, lambda: [engine.extend(base, ids[1500:]) for ids in prompts]),
    }


def main() -> int:
    tokenizer = load_tokenizer(prepare(f"dummy:{shape_folder(SHAPE)}"))
    tokenizer.token_bytes()
    words = DrawnWords(tokenizer)
    found: dict[str, Any] = {}
    for name in ("tot", "mmlu"):
        spent, segments, generations = program(BY_NAME[name].batch(words, 0, "cuda"), tokenizer)
        found[name] = {
            "generations": generations,
            "program": spent,
            **on_the_wire(segments, generations),
            **runtime(segments, generations, tokenizer),
        }
        print(name, json.dumps(found[name]), file=sys.stderr)
    compared = otherwise(tokenizer)
    print(json.dumps(compared), file=sys.stderr)
    result = {
        "what": "microseconds of CPU a generation beside the engine; of a prompt, where it says so",
        "unit": "us",
        "programs": found,
        "prompt_of_1600_tokens": compared,
        **setting(),
    }
    store(result_path("program-side"), result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
