"""The order of a batch: a walk through the trie of what its rows begin with, and faults that it could have."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from sglc.execution.batch import order as batch_order
from sglc.execution.batch.order import (
    begins,
    common,
    depth_first,
    keys,
    most_tokens,
    plan_order,
    trie_size,
)
from sglc.ir.plan.plan import Derived
from sglc.ir.plan.segment import Slot
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from tests.depth import at_depth
from tests.oracle_backend import OracleBackend
from tests.passes.test_leads import asked

Order = Callable[[Sequence[str]], list[int]]
PAGE = 4


def prompts(seed: int) -> list[str]:
    """Random texts with common beginnings, equal ones and empty ones among them."""
    rng = random.Random(seed)
    beginnings = ["", *("".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(rng.randint(0, 3)))]
    count = rng.randint(0, 14)
    return [rng.choice(beginnings) + "".join(rng.choices("ab", k=rng.randint(0, 4))) for _ in range(count)]


def wrong(found: Sequence[int], texts: Sequence[str]) -> str:
    """What of an order of `texts` is no walk through their trie, children by their first text; else ""."""
    if sorted(found) != list(range(len(texts))):
        return "it is no permutation"
    prefixes = {text[:end] for text in texts for end in range(len(text) + 1)}
    for prefix in prefixes:
        places = [place for place, number in enumerate(found) if texts[number].startswith(prefix)]
        if places != list(range(places[0], places[0] + len(places))):
            return f"others come between those that begin with {prefix!r}"
        children: dict[str, list[int]] = {}  # an end is a child of its own for each text
        for place in places:
            text = texts[found[place]]
            child = text[: len(prefix) + 1] if text != prefix else f"{prefix}{found[place]}"
            children.setdefault(child, []).append(found[place])
        firsts = [min(numbers) for numbers in children.values()]
        if firsts != sorted(firsts):
            return f"the children of {prefix!r} do not come by their first"
    return ""


def nodes(texts: Sequence[str]) -> int:
    return len({text[:end] for text in texts for end in range(1, len(text) + 1)})


def faults(walk: Order) -> list[str]:
    return [said for seed in range(300) if (said := wrong(walk(prompts(seed)), prompts(seed)))]


def test_it_is_a_walk_through_the_trie() -> None:
    assert faults(depth_first) == []


def test_what_it_computes_is_the_trie() -> None:
    """Theorem 3.1 of the SGLang paper: a cache that holds the path to one text computes each node once."""
    for seed in range(300):
        texts = prompts(seed)
        path = [texts[number] for number in depth_first(texts)]
        computed = sum(map(len, path)) - sum(common(a, b) for a, b in pairwise(path))
        assert computed == nodes(texts) == trie_size(texts)


def test_the_first_text_comes_first_and_what_has_nothing_in_common_stays() -> None:
    assert depth_first(["b1", "a1", "b2", "c", "a2"]) == [0, 2, 1, 4, 3]
    assert depth_first(["d", "a", "c", "b"]) == [0, 1, 2, 3]
    assert depth_first(["x"] * 4) == [0, 1, 2, 3]
    assert depth_first([]) == []


def two_groups_in_turn(texts: Sequence[str]) -> list[int]:
    """The walk, but for one text that comes behind the first of the next group."""
    found = depth_first(texts)
    for place, (a, b) in enumerate(pairwise(found)):
        if place and not common(texts[a], texts[b]) and common(texts[found[place - 1]], texts[a]):
            found[place], found[place + 1] = b, a
            break
    return found


def a_trie_cut_short(texts: Sequence[str]) -> list[int]:
    """Texts whose last common character is not seen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_order, "common", lambda a, b: max(0, common(a, b) - 1))
        return depth_first(texts)


def by_the_alphabet(texts: Sequence[str]) -> list[int]:
    return sorted(range(len(texts)), key=lambda number: texts[number])


def a_text_twice(texts: Sequence[str]) -> list[int]:
    found = depth_first(texts)
    return [*found[:-1], found[0]] if found else []


@pytest.mark.parametrize("walk", [two_groups_in_turn, a_trie_cut_short, by_the_alphabet, a_text_twice])
def test_a_wrong_order_is_found(walk: Order) -> None:
    assert faults(walk)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 191, 192, 193, 1_000])
def test_common(length: int) -> None:
    same = "x" * length
    for a, b in ((same, same), (same + "a", same + "b"), (same, same + "b"), (same + "a" * 99, same)):
        assert common(a, b) == length


def test_ids_are_counted_as_texts_are() -> None:
    rng = random.Random(5)
    for _ in range(50):
        ids = [tuple(rng.choices((0, 1, 55_296, 200_000), k=rng.randint(0, 5))) for _ in range(6)]
        assert trie_size(ids) == len({one[:end] for one in ids for end in range(1, len(one) + 1)})


def test_the_prompt_counts_first_that_can_share_most() -> None:
    own = ["q1", "q2", "q3", "q4"]
    rubric = ["one rubric", "another rubric", "one rubric", "another rubric"]
    assert depth_first(keys(list(zip(own, rubric, strict=True)))) == [0, 2, 1, 3]
    # What all rows have in common, no order shares better.
    always = [f"the same long beginning {i}" for i in range(4)]
    assert depth_first(keys(list(zip(always, rubric, strict=True)))) == [0, 2, 1, 3]


def test_a_row_s_own_texts_stand_in_its_beginnings() -> None:
    lead = ("Rules: ", Derived("lower", (Derived("strip", (Slot("rules"),)),)), "\nQ: ", Slot("q"))
    assert begins((lead, (Slot("q"),)), {"rules": "  Be KIND ", "q": " Why?"}) == (
        "Rules: be kind\nQ:  Why?",
        " Why?",
    )


def test_rows_of_a_plan() -> None:
    plan = asked.compile(OracleBackend()).plan
    rows = [{"rules": rules, "question": f" {i}"} for i, rules in enumerate("xyzxyz")]
    assert plan_order(plan, rows, OracleBackend()) == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(("spare", "expected"), [(0, [0, 3, 1, 4, 2, 5]), (1, [0, 1, 2, 3, 4, 5])])
def test_rows_of_a_plan_stay_where_there_is_room_for_all(spare: int, expected: list[int]) -> None:
    plan = asked.compile(OracleBackend()).plan
    rows = [{"rules": 100 * rules, "question": f" {i}"} for i, rules in enumerate("xyzxyz")]
    pages = -(-most_tokens([(plan.leads, row) for row in rows]) // PAGE)
    backend = OracleBackend(pages=pages - 1 + spare, page_size=PAGE)
    assert plan_order(plan, rows, backend) == [0, 3, 1, 4, 2, 5]  # nobody has loaded the model
    backend.server_info()
    assert [*plan_order(plan, rows, backend)] == expected
    backend.close()


def test_tokens_that_are_enough_for_all_beginnings(default_tokenizer: LocalTokenizer) -> None:
    rng = random.Random(8)
    texts = ["".join(rng.choices("a b😀é\n", k=rng.randint(0, 30))) for _ in range(6)]
    for _ in range(at_depth(10, 50, 500)):
        prefixes = [("Rules: ", Slot("a"), "\n", Slot("b")), (Slot("b"), Derived("lower", (Slot("a"),)))]
        rows = [{"a": rng.choice(texts), "b": rng.choice(texts)} for _ in range(rng.randint(0, 12))]
        ids = [default_tokenizer.encode(text) for row in rows for text in begins(prefixes, row)]
        assert trie_size(ids) <= most_tokens([(prefixes, row) for row in rows])
    row = {"a": "yes"}
    assert most_tokens([((("x", Slot("a")),), row)] * 3) == 4
    recorded = [((("x", Slot("a"), level),), row) for level in ("1", "2")]  # apart, and alike up to there
    assert most_tokens(recorded) == 4 + 2


def test_an_order_of_ten_thousand_long_prompts_compares_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two texts are compared as often as there are rows, besides being sorted."""
    rng = random.Random(3)
    beginnings = ["".join(rng.choices("abcdef", k=6_000)) for _ in range(8)]
    count = at_depth(1_500, 3_000, 10_000)
    texts = [rng.choice(beginnings) + f"{i}" for i in range(count)]
    calls = 0

    def counted(a: str, b: str) -> int:
        nonlocal calls
        calls += 1
        return common(a, b)

    monkeypatch.setattr(batch_order, "common", counted)
    found = depth_first(texts)
    assert calls == count - 1
    groups = [texts[number][:6_000] for number in found]
    assert sum(a != b for a, b in pairwise(groups)) == 7


def test_texts_stand_in_for_tokens(default_tokenizer: LocalTokenizer) -> None:
    """Where beginnings part inside a token, what tokens share ends a little before what characters do."""
    tokenizer = default_tokenizer
    rng = random.Random(8)
    words = (Path(__file__).parent.parent / "docs" / "language.md").read_text().split()
    some = [" ".join(rng.choices(words, k=60)) for _ in range(4)]
    starts = [start[: rng.randint(150, len(start))] for start in some for _ in range(4)]
    texts = [start + " ".join(rng.choices(words, k=8)) for start in starts for _ in range(6)]
    rng.shuffle(texts)
    ids = ["".join(map(chr, tokenizer.encode(text))) for text in texts]

    def computed(numbers: Sequence[int]) -> int:
        """By a cache that holds the path to one prompt."""
        path = [ids[number] for number in numbers]
        return sum(map(len, path)) - sum(common(a, b) for a, b in pairwise(path))

    assert computed(depth_first(texts)) <= 1.02 * trie_size(ids)
    assert computed(range(len(texts))) > 3 * trie_size(ids)
