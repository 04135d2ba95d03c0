"""How the prompts of a program begin, as far as that is known before it runs.

Rows of a batch that begin alike are run one behind the other (`sglc.execution.batch.order`). What
differs from row to row are arguments, so a beginning is written with the names of the arguments in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sglc.ir.core import Op, Program, Value
from sglc.ir.ops import (
    Append,
    Arg,
    Call,
    Control,
    Fork,
    Format,
    Gen,
    HostCall,
    Image,
    Loop,
    Lower,
    RoleClose,
    RoleOpen,
    Root,
    ScopeBegin,
    ScopeEnd,
    Select,
    Strip,
)
from sglc.ir.plan.plan import Derived, PromptPrefix
from sglc.ir.plan.segment import RoleMark, Slot, joined


def prefix_of_each(program: Program) -> Sequence[tuple[Op, PromptPrefix]]:
    """How the prompt of each generation begins, and what a host call may go on from, in program order."""
    walk = _Walk()
    args: dict[Value, _Known] = {
        op.results[0]: ((Slot(op.name),), True)
        for op in program.params
        if isinstance(op, Arg) and op.kind == "str"
    }
    walk.program(program, args)
    return [(op, joined(prefix)) for op, prefix in walk.found]


def prompt_prefixes(
    program: Program, *, constants: bool = False, marked: bool = False
) -> tuple[PromptPrefix, ...]:
    """The beginnings of the prompts of `program` up to the last argument in each, in program order.

        s1 = append(s0, 'Essay: '); s2 = append(s1, essay); s3, t0 = gen(s2, 'x'); s4 = append(s3, q)
            -> ('Essay: ', Slot('essay'))

    A prompt counts as far as it needs nothing that is generated, or that ordinary Python makes; in the arms of
    a branch it counts no more. Prompts without an argument are equal in all runs: they are left out, and of
    those that hold the same arguments in the same order all but one are, which tell rows apart no better.

    Args:
        constants: other runs have other literals, so these tell rows apart as arguments do.
        marked: only those of generations that `hoist_prefix` has marked.
    """
    found: dict[PromptPrefix, PromptPrefix] = {}  # by what tells rows apart
    for op, prefix in prefix_of_each(program):
        if marked and not (isinstance(op, Gen | Select) and op.hoist):
            continue
        if constants:
            found.setdefault(prefix, prefix)
        else:
            own = tuple([part for part in prefix if not isinstance(part, str)])
            found.setdefault(own, _to_last_argument(prefix))
    shorter = {own[:end] for own in found for end in range(len(own))}
    return tuple([prefix for own, prefix in found.items() if prefix and own not in shorter])


def _to_last_argument(prefix: PromptPrefix) -> PromptPrefix:
    end = len(prefix)
    while end and isinstance(prefix[end - 1], str):
        end -= 1
    return prefix[:end]


# Ops of which something is known before the run.
_TOLD = (
    Append, Image, Gen, Select, Root, Control, RoleOpen, RoleClose, Fork, ScopeBegin, ScopeEnd,
    HostCall, Format, Strip, Lower, Call, Loop,
)  # fmt: skip

# What is known of a text or a stream: how it begins, and whether that is all of it.
_Known = tuple[PromptPrefix, bool]
_NOTHING: _Known = ((), False)


def _joined(parts: Iterable[_Known]) -> _Known:
    """Texts one behind the other."""
    prefix: PromptPrefix = ()
    for part, whole in parts:
        prefix += part
        if not whole:
            return prefix, False
    return prefix, True


class _Walk:
    """Ops in order. Of what is not in `texts` or `streams` nothing is known before the run."""

    def __init__(self) -> None:
        self.found: list[tuple[Op, PromptPrefix]] = []
        self.texts: dict[Value, _Known] = {}
        self.streams: dict[Value, _Known] = {}

    def program(self, program: Program, texts: Mapping[Value, _Known]) -> None:
        """A program with values of its own."""
        before = self.texts, self.streams
        self.texts, self.streams = dict(texts), {}
        self.ops(program.ops)
        self.texts, self.streams = before

    def ops(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if isinstance(op, _TOLD):
                self.op(op)

    def op(self, op: Op) -> None:
        match op:
            case Append() | Image():
                self.extend(op, self.text(op.text if isinstance(op, Append) else op.data))
            case Gen() | Select():
                if op.stream in self.streams:
                    self.found.append((op, self.streams[op.stream][0]))
            case Root():
                self.streams[op.results[0]] = ((), True)
            case Control():
                self.extend(op, ((op.text,), True))
            case RoleOpen() | RoleClose():
                self.extend(op, ((RoleMark(op.role, isinstance(op, RoleOpen)).text,), True))
            case Fork() | ScopeBegin() | ScopeEnd():
                if op.stream in self.streams:
                    self.streams.update(dict.fromkeys(op.results, self.streams[op.stream]))
            case HostCall():
                # It may go on from any of them.
                self.found += [(op, prefix) for prefix, _ in self.streams.values()]
            case Format():
                self.texts[op.results[0]] = _joined(map(self.text, op.parts))
            case Strip() | Lower():
                text, whole = self.text(op.text)
                if whole:
                    self.texts[op.results[0]] = ((Derived(op.mnemonic, text),), True)
            case Call():
                given = zip(op.program.params, op.args, strict=True)
                self.program(
                    op.program,
                    {param.results[0]: self.text(arg) for param, arg in given if isinstance(param, Arg)},
                )
            case Loop():  # its first iteration
                for param, value in zip(op.body.params, op.init, strict=True):
                    known = self.streams if value in self.streams else self.texts
                    if value in known:
                        known[param] = known[value]
                self.ops(op.body.ops)

    def text(self, item: Value | str) -> _Known:
        return ((item,), True) if isinstance(item, str) else self.texts.get(item, _NOTHING)

    def extend(self, op: Append | Image | Control | RoleOpen | RoleClose, text: _Known) -> None:
        if op.stream in self.streams:
            self.streams[op.results[0]] = _joined((self.streams[op.stream], text))
