"""Real values beside data: what the arguments of a recording are, and what is made of them alone.

Data stays data as long as it only flows. Where Python needs the value itself the real one is taken, and the
program is then for arguments of which just that fact is the same: a guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sglc.ir.facts import spell
from sglc.ir.pure import function_of

_LONGEST = 4000  # characters of a fact


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """`real` is what `fact`, an expression over the arguments, is for those that a recording was given.

    `parts` are the facts that it is made of.
    """

    fact: str
    real: Any
    parts: tuple[str, ...] = ()

    @property
    def argument(self) -> bool:
        """Whether it is an argument itself, whose type a run checks in any case."""
        return self.fact.isidentifier()


class HasKnown:
    """Data that may be known."""

    __slots__ = ()
    known: Known | None


def computed(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Known | None:
    """What a function of `ir.pure` gives; None where an operand is not known, or it fails: then a run tells."""
    facts = [written(arg) for arg in args]
    keywords = {key: written(item) for key, item in named.items()}
    if None in facts or None in keywords.values():
        return None
    inner = ", ".join([*map(str, facts), *(f"{key}={fact}" for key, fact in keywords.items())])
    fact = f"{name}({inner})"
    if len(fact) > _LONGEST:
        return None
    try:
        real = function_of(name)(*map(real_of, args), **{key: real_of(item) for key, item in named.items()})
    except Exception:
        return None
    return Known(fact, real, tuple(_facts_in((*args, *named.values()))))


def _facts_in(items: Iterable[Any]) -> Iterator[str]:
    for item in items:
        if isinstance(item, HasKnown) and item.known is not None:
            yield item.known.fact
        elif type(item) in (list, tuple):
            yield from _facts_in(item)
        elif type(item) is dict:
            yield from _facts_in((*item, *item.values()))


def written(item: Any) -> str | None:
    """An operand in a fact: a constant, what is known, or a container of such."""
    if isinstance(item, HasKnown):
        return None if item.known is None else item.known.fact
    if type(item) in (list, tuple):
        parts = [written(part) for part in item]
        if None in parts:
            return None
        inner = ", ".join(map(str, parts))
        if type(item) is list:
            return f"[{inner}]"
        return f"({inner},)" if len(parts) == 1 else f"({inner})"
    if type(item) is dict:
        pairs = {written(key): written(part) for key, part in item.items()}
        if None in pairs or None in pairs.values():
            return None
        return "{" + ", ".join(f"{key}: {part}" for key, part in pairs.items()) + "}"
    return spell(item)


def real_of(item: Any) -> Any:
    """The operand itself."""
    if isinstance(item, HasKnown):
        return None if item.known is None else item.known.real
    if type(item) in (list, tuple):
        return type(item)(map(real_of, item))
    if type(item) is dict:
        return {real_of(key): real_of(part) for key, part in item.items()}
    return item
