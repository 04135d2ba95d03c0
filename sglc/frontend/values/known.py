"""Real values beside data: what the arguments of a recording are, and what is made of them alone.

Data stays data as long as it only flows. Where Python needs the value itself the real one is taken, and the
program is then for arguments of which just that fact is the same: a guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def computed(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Known | None:
    """What a function of `ir.pure` gives; None where an operand is not known, or it fails: then a run tells."""
    given = _all_known((*args, *named.values()))
    if given is None:
        return None
    labels = [*("" for _ in args), *(f"{key}=" for key in named)]
    fact = f"{name}({', '.join(label + one.fact for label, one in zip(labels, given, strict=True))})"
    if len(fact) > _LONGEST:
        return None
    reals = [one.real for one in given]
    try:
        real = function_of(name)(*reals[: len(args)], **dict(zip(named, reals[len(args) :], strict=True)))
    except Exception:
        return None
    return Known(fact, real, _parts_of(given))


def _all_known(items: Iterable[Any]) -> list[Known] | None:
    found: list[Known] = []
    for item in items:
        if (known := _operand(item)) is None:
            return None
        found.append(known)
    return found


def _operand(item: Any) -> Known | None:
    """An operand as what is known of it: a constant, data, or a container of such."""
    kind = type(item)
    if isinstance(item, HasKnown):
        return None if item.known is None else Known(item.known.fact, item.known.real, (item.known.fact,))
    if kind not in (list, tuple, dict):
        fact = spell(item)
        return None if fact is None else Known(fact, item)
    held = _all_known((*item, *item.values()) if kind is dict else item)
    if held is None:
        return None
    if kind is dict:
        pairs = list(zip(held, held[len(item) :], strict=False))
        fact = "{" + ", ".join(f"{key.fact}: {value.fact}" for key, value in pairs) + "}"
        return Known(fact, {key.real: value.real for key, value in pairs}, _parts_of(held))
    inner = ", ".join(one.fact for one in held) + ("," if kind is tuple and len(held) == 1 else "")
    fact = f"[{inner}]" if kind is list else f"({inner})"
    return Known(fact, kind(one.real for one in held), _parts_of(held))


def _parts_of(known: Iterable[Known]) -> tuple[str, ...]:
    return tuple([part for one in known for part in one.parts])
