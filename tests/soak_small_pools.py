"""Constrained generations where there is room for few, some of them aborted: of the oracle, or a real model.

Every text matches; what is cut or aborted begins as a match does.

python -m tests.soak_small_pools --rounds 14 --seed 0 [--model smollm2]
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import cast

from sglc.backends.local import LocalBackend, LocalOptions
from sglc.ir.plan.events import Delta, Event, GenDone, NodeFailed, Sample
from sglc.ir.plan.segment import ExtendNode, OpenNode, Segment
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.machine import Machine
from sglc.runtime.scheduler.kv_allocator import Lengths
from tests.oracle_backend import Characters, OracleBackend, PacedOracle
from tests.soak_constrained import CHARACTER, CITY, MAX_TOKENS, PROMPTS, TAGS, Case, cases, check, check_prefix

ROUNDS = 14  # of every form at each temperature: 2,000 generations
# Of a real model: what 200 tokens of the default one take, room for one text of the greatest length.
MODEL_KV, MODEL_LEN = 200 * 30 * 2 * 3 * 64 * 4, 190
PAGES, PAGE_SIZE, ROWS = 44, 4, 12  # room for one text of the greatest length
PIECES = (
    b"the", b'"', b'": "', b'", "', b"{\"", b"}", b", ", b" 1", b"00", b"ab", b"an", b"\n    ", b"true",
    b"1.", b"-0", b"\xed\x95", b"\x9c", "한".encode(), b"\xc3\xa9!", b"\xf0\x9f", b"\x98\x80", b"",
)  # fmt: skip


class Bytes(Characters):
    """An id for every byte, and some for several."""

    hash = "bytes"

    def __init__(self) -> None:
        self._bytes = [b"", b"", b"", *(bytes([byte]) for byte in range(256)), *PIECES]

    def encode(self, text: str) -> list[int]:
        return [3 + byte for byte in text.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._bytes[i] for i in ids).decode("utf-8", "replace")


class SmallModel(LocalBackend):
    """A real model with few pages, in a thread of this process."""

    def __init__(self, name: str) -> None:
        super().__init__(
            LocalOptions(
                name,
                max_rows=ROWS,
                max_len=MODEL_LEN,
                kv_bytes=MODEL_KV,
                page_size=PAGE_SIZE,
                dtype="float32",
                process=False,
            )
        )

    def _load(self) -> Machine:
        machine = super()._load()
        machine.engine.allocator.lengths = Lengths(0.0)  # every text is expected to end at once
        return machine


class SmallPool(OracleBackend):
    """The oracle with that tokenizer and few pages."""

    def __init__(self) -> None:
        super().__init__(max_rows=ROWS)
        size = len(Bytes().token_bytes())
        self.oracle = PacedOracle(pages=PAGES, page_size=PAGE_SIZE, vocab_size=size)

    def _is_kept(self, form: Sampling) -> bool:
        return True  # no process for what takes no time

    @cached_property
    def target(self) -> Target:
        return replace(super().target, tokenizer=Bytes())

    def _load(self) -> Machine:
        engine = Engine(self.oracle, EngineConfig(max_rows=ROWS, max_len=300))
        engine.allocator.lengths = Lengths(0.0)  # every text is expected to end at once
        return Machine(engine, Bytes())


async def made(backend: LocalBackend, case: Case, seed: int, most: int | None) -> Sample:
    """The text of a case; one that is aborted behind `most` tokens is what had come until then."""
    segment = Segment((OpenNode(), ExtendNode(0, (case.prompt,)), case.node(seed)))
    ids: list[int] = []
    async with aclosing(cast(AsyncGenerator[Event, None], backend.submit(segment))) as events:
        async for event in events:
            assert not isinstance(event, NodeFailed), (case, event.error)
            if isinstance(event, GenDone):
                return event.samples[0]
            if isinstance(event, Delta):
                ids += [token for _, token, _ in event.tokens]
            if most is not None and len(ids) >= most:
                break
    return Sample("", tuple(ids), "abort")


def is_short(case: Case) -> bool:
    """Whether a model ends its texts soon, whatever it samples."""
    return case.ebnf is None and case.regex not in (CHARACTER, CITY) and case.tag not in TAGS[2:]


def soak(rounds: int, seed: int, model: str | None = None, most: int | None = None) -> Counter[str]:
    """Generate and check; what came of it.

    Args:
        model: a real one, for forms whose texts are short; without it the oracle, for all forms.
        most: generations of a round.
    """
    rng, found = random.Random(seed), Counter[str]()
    backend = SmallPool() if model is None else SmallModel(model)
    assert backend.target.tokenizer is not None
    token_bytes = backend.target.tokenizer.token_bytes()
    constraints = Constraints(token_bytes, len(token_bytes))
    try:
        for number in range(rounds):
            batch = cases(1)
            if model is not None:
                prompt = PROMPTS[number % len(PROMPTS)]
                batch = [replace(case, prompt=prompt) for case in batch if is_short(case)]
            rng.shuffle(batch)
            batch = batch[:most]
            aborts = [rng.choice((None, None, None, None, 3, 20)) for _ in batch]

            async def together(
                batch: list[Case] = batch, aborts: list[int | None] = aborts, first: int = seed + 1000 * number
            ) -> list[Sample]:
                todo = (
                    made(backend, case, first + i, most)
                    for i, (case, most) in enumerate(zip(batch, aborts, strict=True))
                )
                return await asyncio.gather(*todo)

            for case, sample in zip(batch, asyncio.run(together()), strict=True):
                found["generations"] += 1
                found[sample.finish] += 1
                if sample.finish == "abort":
                    found["aborted in the middle"] += bool(sample.ids)
                    check_prefix(case, sample, constraints, token_bytes)
                else:
                    check(case, sample, constraints, token_bytes)
        if isinstance(backend, SmallPool):
            backend.settle()
        assert backend.machine is not None
        found["preempted"] = backend.machine.engine.queue.preempted
    finally:
        backend.close()
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model")
    parser.add_argument("--most", type=int, help="generations of a round")
    arguments = parser.parse_args()
    found = soak(arguments.rounds, arguments.seed, arguments.model, arguments.most)
    print(dict(sorted(found.items())), f"of at most {MAX_TOKENS} tokens")
    assert found["preempted"] or arguments.model, "there is room for all"


if __name__ == "__main__":
    main()
