"""The prompts of a run as a tree of prefixes: what several of them begin with is in it once.

What stands in one arm of a choice is not there in the other: prompts carry the arms that they stand in,
outermost first, and a prompt finds only what can be there when it comes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from sglc.explain.estimate.token_counts import Symbol, Unknown, common

Arms = tuple[tuple[int, int], ...]  # (which decision, which arm), outermost first
_ALWAYS: list[Arms] = [()]


@dataclass(slots=True, eq=False)
class Branch:
    """Symbols that follow each other, and what comes behind them. `ends` are prompts that end here."""

    symbols: tuple[Symbol, ...] = ()
    below: dict[Hashable, Branch] = field(default_factory=dict)
    arms: list[Arms] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    ended: list[Arms] = field(default_factory=list)  # the arms that those stand in
    passes: int = 0  # prompts that go through it


class PrefixTree:
    """The tree."""

    def __init__(self) -> None:
        self.root = Branch(arms=[()])

    def add(self, symbols: tuple[Symbol, ...], arms: Arms, end: str = "") -> tuple[int, int, bool, int]:
        """Enter a prompt; how many of its symbols were surely there before, and how many may have been.

        Where a text that is not known yet stands beside another one, they may turn out to be the same. Then
        comes whether one of this prompt and another one begins with all of the other, and last how many of
        those that were there may be others, because what is not known in one of the prompts follows them.

        Args:
            end: what ends here; a text that goes on behind a prompt has none.
        """
        here, at, found, maybe, open_to = self.root, 0, 0, 0, 0
        certain = possible = True
        chance = False
        while True:
            here.passes += bool(end)
            child = here.below.get(_first(symbols[at])) if at < len(symbols) else None
            while child is not None and len(here.below) == 1 and child.arms == _ALWAYS:
                # As in a long chain, of which every call begins with all before it: nothing is decided here.
                if symbols[at : at + len(child.symbols)] != child.symbols:
                    break
                at += len(child.symbols)
                found, maybe = (at if certain else found), (at if possible else maybe)
                here = child
                here.passes += bool(end)
                child = None
                if at < len(symbols):
                    symbol = symbols[at]
                    child = here.below.get(("unknown", symbol.key) if isinstance(symbol, Unknown) else symbol)
            chance = chance or (at < len(symbols) and _open(here, child, symbols[at], arms))
            if at == found:
                following = [*symbols[at : at + 1], *(below.symbols[0] for below in here.below.values())]
                open_to = max((one.merges for one in following if isinstance(one, Unknown)), default=0)
            if child is None:
                break
            length = common(child.symbols, symbols[at:])
            if length < len(child.symbols):
                child = _split(child, length, here)
            certain = certain and any(arms[: len(other)] == other for other in child.arms)
            possible = possible and any(_meet(arms, other) for other in child.arms)
            at += length
            found, maybe = (at if certain else found), (at if possible else maybe)
            _enter(child, arms)
            here = child
        whole = maybe == len(symbols) or any(_meet(arms, other) for other in here.ended)
        if at < len(symbols):
            rest = Branch(symbols[at:], arms=[arms], passes=int(bool(end)))
            here.below[_first(rest.symbols[0])] = rest
            here = rest
        if end:
            here.ends.append(end)
            here.ended.append(arms)
        return found, len(symbols) if chance else maybe, whole, open_to


def _first(symbol: Symbol) -> Hashable:
    return ("unknown", symbol.key) if isinstance(symbol, Unknown) else symbol


def _open(branch: Branch, taken: Branch | None, symbol: Symbol, arms: Arms) -> bool:
    """Whether something else that comes next may turn out to be the same as `symbol`."""
    others = [
        child
        for child in branch.below.values()
        if child is not taken and any(_meet(arms, other) for other in child.arms)
    ]
    return any(isinstance(symbol, Unknown) or isinstance(child.symbols[0], Unknown) for child in others)


def _split(child: Branch, length: int, above: Branch) -> Branch:
    """The upper part of `child`, which now has the lower one below it."""
    upper = Branch(child.symbols[:length], arms=list(child.arms), passes=child.passes)
    child.symbols = child.symbols[length:]
    upper.below[_first(child.symbols[0])] = child
    above.below[_first(upper.symbols[0])] = upper
    return upper


def _enter(branch: Branch, arms: Arms) -> None:
    if not any(arms[: len(other)] == other for other in branch.arms):
        branch.arms = [other for other in branch.arms if other[: len(arms)] != arms] + [arms]


def _meet(first: Arms, second: Arms) -> bool:
    """Whether both can be there in one run."""
    chosen = dict(first)
    return all(chosen.get(number, arm) == arm for number, arm in second)
