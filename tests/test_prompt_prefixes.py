"""Long beginnings of prompts are encoded once and change nothing: on the oracle, with letters that pair up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import prompt_encoding
from sglc.backends.local.prompt_encoding import PromptEncoder
from sglc.execution.result import Result
from sglc.ir.plan.events import PackedIds
from sglc.ir.plan.segment import EncodedText
from sglc.ir.target import Target
from sglc.runtime.engine import prompt_prefixes
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.machine import Machine
from sglc.runtime.engine.prompt_prefixes import PromptPrefixes
from tests.depth import at_depth
from tests.oracle_backend import OracleBackend, PacedOracle
from tests.soak_explain import PAIRS, Pairs

pytestmark = pytest.mark.slow

LETTERS = "".join(sorted({*"".join(PAIRS), *"abcdefgh "}))


class CountingPairs(Pairs):
    """Counts the characters that it encodes."""

    encoded = 0

    def encode(self, text: str) -> list[int]:
        self.encoded += len(text)
        return super().encode(text)


class Backend(OracleBackend):
    """The oracle with that tokenizer."""

    def __init__(self, pages: int = 8_000) -> None:
        super().__init__(pages=pages)
        self.pairs = CountingPairs()
        size = len(self.pairs.token_bytes())
        self.oracle = PacedOracle(pages=pages, page_size=4, vocab_size=size)

    @cached_property
    def target(self) -> Target:
        return replace(super().target, tokenizer=self.pairs)

    def _load(self) -> Machine:
        return Machine(Engine(self.oracle, EngineConfig(max_rows=8, max_len=4_000)), self.pairs)


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()
    yield made
    made.close()


@sgl.function
def ask(s: Any, rules: str, essay: str, question: str) -> None:
    s += sgl.system("Be kind. " + rules)
    s += sgl.user(essay + question)
    s += sgl.assistant(sgl.gen("first", max_tokens=3, ignore_eos=True))
    branches = s.fork(2)
    for number, branch in enumerate(branches):
        branch += sgl.user(f"{number}") + sgl.assistant(sgl.gen("second", max_tokens=2, ignore_eos=True))
    branches.join()


@sgl.function
def compare(s: Any, rules: str, essay: str, question: str) -> None:
    s += rules + essay
    branches = s.fork(2)
    for number, branch in enumerate(branches):
        branch += LETTERS[number] + question + sgl.gen("third", max_tokens=2, ignore_eos=True)
    branches.join()


def text(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(LETTERS, k=length))


def rows_of(rng: random.Random, count: int, length: int) -> list[dict[str, str]]:
    rules = [text(rng, rng.randint(1, length)) for _ in range(2)]
    essays = [text(rng, rng.randint(1, length)) for _ in range(3)]
    return [
        {"rules": rng.choice(rules), "essay": rng.choice(essays), "question": text(rng, rng.randint(0, 9))}
        for _ in range(count)
    ]


def run(rows: list[dict[str, str]], backend: Backend, function: Any = ask) -> list[Any]:
    results: list[Result] = function.run_batch(rows, backend=backend, seed=1)
    assert all(result.error() is None for result in results)
    return [(result.text(), [call.prompt_ids for call in result.calls]) for result in results]


def test_what_rows_begin_with_is_encoded_once(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    rules, essays = text(rng, 1_100), [text(rng, 1_500) for _ in range(4)]
    rows = [{"rules": rules, "essay": essays[i % 4], "question": text(rng, 8)} for i in range(100)]
    found = run(rows, backend)
    # Each came twice before it was known, and is cut once more where it is remembered.
    assert backend.pairs.encoded < 4 * (1_100 + 4 * 1_500) + 100 * 100
    monkeypatch.setattr(prompt_encoding, "_LONG", 10**9)
    other = Backend()
    assert run(rows, other) == found
    assert other.pairs.encoded > 100 * 1_500
    other.close()


def differing(seeds: range) -> int:
    """How many random batches differ where the runtime encodes all, and remembers nothing."""
    differ = 0
    for seed in seeds:
        rows = rows_of(random.Random(seed), 12, 60)
        found = []
        for encoded in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                if encoded:
                    patch.setattr(prompt_encoding, "_LONG", 1)
                    patch.setattr(prompt_encoding, "_CHARACTERS", 200 if seed % 2 else 1 << 20)
                else:
                    patch.setattr(PromptEncoder, "encoded", lambda self, segment: segment)
                used = Backend(pages=200 if seed % 3 else 8_000)  # where it is small, what was cached goes
                try:
                    found.append([run(rows, used, function) for function in (ask, compare)])
                finally:
                    used.close()
        differ += found[0] != found[1]
    return differ


def test_it_changes_nothing() -> None:
    assert differing(range(at_depth(4, 8, 200))) == 0


def test_a_wrong_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pairs, "cut", lambda self, text: len(text))
    assert differing(range(6))


@pytest.mark.parametrize(("kind", "name"), [(PromptPrefixes, "longest"), (PromptEncoder, "_longest")])
def test_a_prefix_behind_another_is_found(kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what is known is taken for one that only begins in the same way."""
    longest = getattr(kind, name)

    def one_too_many(self: Any, parts: Any, *others: Any) -> Any:
        found, done = longest(self, parts, *others)
        return found, min(done + 1, len(parts)) if done else 0

    monkeypatch.setattr(kind, name, one_too_many)
    assert differing(range(6))


def test_text_behind_the_beginning_keeps_what_it_may_merge_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: prompts are encoded to their end, whatever comes behind them."""
    parts = PromptEncoder.parts
    monkeypatch.setattr(PromptEncoder, "parts", lambda self, given, whole: parts(self, given, whole=True))
    assert differing(range(6))


def test_flushing_forgets_them(backend: Backend) -> None:
    rng = random.Random(2)
    row = {"rules": text(rng, 1_200), "essay": "", "question": ""}
    found = run([row] * 3, backend)
    backend.flush_cache()
    before = backend.pairs.encoded
    assert run([row], backend) == found[:1]
    assert backend.pairs.encoded >= before + 1_200


def test_where_there_is_little_room_the_short_beginnings_stay(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long one is found through those that it begins with: it would be of no use without them."""
    monkeypatch.setattr(prompt_encoding, "_CHARACTERS", 9_000)
    encoder, rng = PromptEncoder(backend.pairs), random.Random(3)
    parts = tuple(text(rng, 1_100) for _ in range(6))
    for _ in range(20):
        encoder.parts(parts, whole=True)
    # The first, and it with the second, and so on: 1,100 + 2,200 + 3,300 characters.
    assert min(len(encoder.parts(parts, whole=True)) for _ in range(10)) > 3


def test_the_runtime_keeps_the_newest_prefixes(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_prefixes, "_BYTES", 1_000)
    found = backend._load().model.prefixes
    first, *others = [EncodedText(PackedIds.of([number] * 60)) for number in range(40)]
    for part in (first, *others):
        prefix, _ = found.longest((part, first))
        assert prefix is not None
        assert prefix.ids == part.ids
    kept = [PackedIds(packed)[0] for _, packed in found._known]  # of 240 bytes each
    assert kept == [36, 37, 38, 39]
