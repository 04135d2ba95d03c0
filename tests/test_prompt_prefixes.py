"""Long beginnings of prompts are encoded once and change nothing: on the oracle, with letters that pair up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

import sglc as sgl
from sglc.backends.local import prompt_encoding
from sglc.backends.local.prompt_encoding import PromptEncoder
from sglc.execution.result import Result
from sglc.ir.plan.dataflow import encode_behind, filled_parts
from sglc.ir.plan.events import PackedIds
from sglc.ir.plan.segment import EncodedText, ExtendNode, Made, NodeResult, OpenNode, Part, Segment
from sglc.ir.target import ControlText, Target
from sglc.runtime.engine import prompt_prefixes
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.generation import EngineModel
from sglc.runtime.engine.machine import Machine
from sglc.runtime.engine.prompt_prefixes import PromptPrefixes, TokenStream
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer, TokenizerFiles
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


@sgl.function
def go_on(s: Any, rules: str, essay: str, question: str) -> None:
    s += rules + sgl.gen("first", max_tokens=4, stop=list("aeiou"))
    s += essay + question + sgl.select("chosen", ["x" + question, rules])
    s += essay + s["first"] + rules + s["chosen"]
    branches = s.fork(2)
    for number, branch in enumerate(branches):
        branch += LETTERS[number] + essay + sgl.gen("second", max_tokens=2, ignore_eos=True) + question
        branch += essay + sgl.gen("third", max_tokens=2)
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
    # Branches may end in any order.
    return [(result.text(), sorted([tuple(call.prompt_ids) for call in result.calls])) for result in results]


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
                    found.append([run(rows, used, function) for function in (ask, compare, go_on)])
                finally:
                    used.close()
        differ += found[0] != found[1]
    return differ


def test_it_changes_nothing() -> None:
    assert differing(range(at_depth(4, 8, 200))) == 0


@pytest.mark.parametrize(("name", "place"), [("cut", len), ("first_cut", lambda text: min(1, len(text)))])
def test_a_wrong_cut_is_found(name: str, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pairs, name, lambda self, text: place(text))
    assert differing(range(6))


def test_no_long_text_is_left_to_the_runtime(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stands, of a text only its ends are encoded where all wait for it."""
    given: list[int] = []
    encode = EngineModel.encode_behind

    def counted(self: EngineModel, ids: Any, text: str) -> tuple[int, ...]:
        given.append(len(text))
        return encode(self, ids, text)

    monkeypatch.setattr(EngineModel, "encode_behind", counted)
    rng = random.Random(4)
    run([{"rules": "Be kind.", "essay": text(rng, 1_100), "question": "Who?"}], backend, go_on)
    assert given
    assert max(given) < 100


def test_what_cannot_be_encoded_is_left_as_it_is(default_tokenizer: LocalTokenizer) -> None:
    """The runtime says which character of the whole text is none, and which generation needs it."""
    words = " and the fox" * 120
    for text in (f"\ud800 x y{words}", f"{words} x y \ud800"):
        assert PromptEncoder(default_tokenizer).behind((text,), whole=True) == (text,)


def test_of_many_long_texts_few_are_put_end_to_end_by_the_runtime(default_tokenizer: LocalTokenizer) -> None:
    nodes = (
        OpenNode(),
        ExtendNode(0, (NodeResult(0), "a")),
        *(ExtendNode(at, (" fox" * 300,)) for at in range(1, 101)),
    )
    made = PromptEncoder(default_tokenizer).encoded(Segment(nodes)).nodes
    encoded = [any(type(part) is EncodedText for part in getattr(node, "parts", ())) for node in made]
    assert sum(encoded) == 64


@pytest.fixture(scope="session", params=[False, True])
def real(request: pytest.FixtureRequest, default_tokenizer: LocalTokenizer) -> LocalTokenizer:
    """The default model's; one that puts a space before what begins a text."""
    if not request.param:
        return default_tokenizer
    raw = type(default_tokenizer._raw).from_str(default_tokenizer._raw.to_str())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    files = TokenizerFiles(raw.to_str(), None, (), (0,), add_bos=False)
    spaced = LocalTokenizer(files)
    assert spaced.encode("a") != spaced.encode_within("a")
    assert spaced.first_cut("a b")
    return spaced


TEXTS = st.lists(
    st.sampled_from(
        ["the", " fox", " jumps", ",", ". ", ": ", "'s", "  ", "\n", "12", " 345", "e\u0301", " \u0301", "你好"]
    ),
    max_size=12,
).map("".join)
NAMED = [NodeResult(0), NodeResult(1), ControlText("<|im_end|>", (2,)), ControlText("", ())]
MADE = [Made("the", (1195,)), Made("fox", (1195,), "fox"), Made(" jumps")]
PARTS = st.lists(TEXTS | st.sampled_from([*NAMED, *MADE]), min_size=1, max_size=6).map(tuple)


@settings(max_examples=at_depth(200, 500, 5_000), deadline=None, derandomize=True)
@given(
    before=st.lists(st.integers(0, 49_151), max_size=2), tail=TEXTS, parts=PARTS, texts=st.tuples(TEXTS, TEXTS),
    more=st.just("") | TEXTS,
)  # fmt: skip
def test_long_texts_behind_others_have_the_same_ids(
    real: LocalTokenizer, before: list[int], tail: str, parts: tuple[Part, ...], texts: Any, more: str
) -> None:
    encode = partial(encode_behind, real)

    def ids(given: tuple[Part, ...]) -> list[int]:
        stream = TokenStream(tuple(before), tail)
        filled = filled_parts((*given, more), dict(enumerate(texts)))
        stream = stream.followed_by(filled, before, encode)
        return [*stream.ids, *encode(stream.ids, stream.tail)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_encoding, "_LONG", 1)
        encoded = PromptEncoder(real).behind(parts, whole=not more)
    assert ids(encoded) == ids(parts)


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
