"""What a recorded block leaves behind: the value that it hands on, its streams and its variables.

A block is a function's whole body, an arm of a branch, or the body of a structured op. Blocks that are
arms of one branch are brought together leaf by leaf: what is the same stays, what differs becomes a
result of the op that holds the arms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sglc.errors import Loc
from sglc.ir.core import Op, Tree, Value


@dataclass(frozen=True, slots=True)
class Opaque:
    """A Python object that cannot be a value of the IR; it is the same as itself only."""

    item: Any
    values: tuple[Value, ...] = ()  # recorded ones that it holds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.item is other.item

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A variable that only some arms store, or not as one kind of value: reading it is an error."""

    name: str
    reason: str
    loc: Loc
    there: bool = False  # something is stored in any case


def is_there(variable: object) -> bool:
    """Whether a variable that some path has stored is stored in any case."""
    return not isinstance(variable, Unsettled) or variable.there


@dataclass(frozen=True, slots=True)
class Stored:
    """A variable behind a block: what it is in the IR, and the object itself while it is still that."""

    leaf: Tree | Opaque | Unsettled
    item: Any = None
    kept: bool = False  # `item` is valid


VariableKey = tuple[int, str]  # number of a state, name of a variable


@dataclass(frozen=True, slots=True)
class BlockExit:
    """`streams` are those of the states from before the block, in order; `opens` their open roles; `joined`
    which of them were joined, in some arm at least."""

    tree: Tree = None
    streams: tuple[Value, ...] = ()
    opens: tuple[str, ...] = ()
    variables: Mapping[VariableKey, Stored] = field(default_factory=dict)
    joined: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class TracedBlock:
    """Ops, and how they end; without an `exit` ordinary Python takes over in them, and does not come back."""

    ops: tuple[Op, ...]
    exit: BlockExit | None
