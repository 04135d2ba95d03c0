"""Tries of choices against brute force: what is passed through, what is seen, and what each id's score is."""

from __future__ import annotations

import random

import pytest

from sglc.runtime.choice_trie import ChoiceTrie, tries_of

Ids = tuple[int, ...]


def histories(trie: ChoiceTrie) -> list[Ids]:
    """What each id of a trie sees, itself last, by `until` alone."""
    return [
        tuple(trie.ids[j] for j in range(i + 1) if trie.until[j] > i) for i in range(len(trie.ids))
    ]  # fmt: skip


def random_choices(rng: random.Random) -> list[Ids]:
    stems = [tuple(rng.randrange(3) for _ in range(rng.randrange(6))) for _ in range(3)]
    found = []
    for _ in range(rng.randrange(1, 12)):
        stem = rng.choice(stems)
        found.append(stem[: rng.randrange(7)] + tuple(rng.randrange(3) for _ in range(rng.randrange(4))))
    return found


@pytest.mark.parametrize("branching", [True, False])
@pytest.mark.parametrize("room", [1, 4, 1000])
def test_random_choices(branching: bool, room: int) -> None:
    rng = random.Random(room)
    branches = 0
    for _ in range(300):
        choices = random_choices(rng)
        made = tries_of(choices, room, branching=branching)
        seen = [histories(trie) for trie in made.tries]
        for trie, each in zip(made.tries, seen, strict=True):
            assert [len(history) - 1 for history in each] == trie.depths.tolist()
            assert list(trie.pairs) == sorted(set(trie.pairs)), "something is scored twice"
            assert len(set(each)) == len(each), "an id is passed through twice"
            longest = max(trie.depths.tolist(), default=-1) + 1
            assert len(trie.ids) <= max(room, longest)
            assert trie.branches == (longest < len(trie.ids))
            branches += trie.branches
        for choice, where in zip(choices, made.where, strict=True):
            scored = []
            for number, pair in where:
                place, token = made.tries[number].pairs[pair]
                scored.append(((*(seen[number][place] if place >= 0 else ()), token), number, place))
            assert [ids for ids, _, _ in scored] == [choice[: i + 1] for i in range(len(choice))]
            # The prompt's own row scores what comes first.
            assert all((number == 0 or place >= 0) for _, number, place in scored)
            assert all(number == 0 for _, number, _ in scored[:1])
        above = {choice[:i] for choice in choices for i in range(1, len(choice))}
        ends = [ids for ids in above if not any(ids == more[: len(ids)] for more in above - {ids})]
        if not branching:
            assert sum(len(trie.ids) for trie in made.tries) == sum(map(len, ends))
            assert len(made.tries) == max(1, len(ends))
        elif room == 1000:
            assert len(made.tries) == 1
            assert set(seen[0]) == above
    assert (branches > 0) == (branching and room > 1)


def test_nothing_to_pass_through() -> None:
    made = tries_of([(5,), (), (4,), (5,)], 10, branching=True)
    assert made.where == (((0, 1),), (), ((0, 0),), ((0, 1),))
    (trie,) = made.tries
    assert (trie.ids, trie.pairs, trie.branches) == ((), ((-1, 4), (-1, 5)), False)


def test_one_long_choice_needs_no_room() -> None:
    made = tries_of([tuple(range(9)), (0, 1, 7)], 4, branching=True)
    assert [trie.ids for trie in made.tries] == [tuple(range(8))]
    assert made.where[1] == ((0, 0), (0, 1), (0, 3))
    assert made.tries[0].pairs[:4] == ((-1, 0), (0, 1), (1, 2), (1, 7))
