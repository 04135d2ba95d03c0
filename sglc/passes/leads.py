"""How the prompts of a program begin, as far as that is known before it runs.

Rows of a batch that begin alike are run one behind the other (`sglc.batch_order`). What differs from row
to row are arguments, so a beginning is written with the names of the arguments in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sglc.ir.core import Op, Program, Type, Value
from sglc.ir.ops import (
    Append,
    Arg,
    Call,
    Control,
    Fork,
    Format,
    FusedGen,
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
    Speculate,
    Strip,
    Warm,
)
from sglc.ir.plan import Derived, Lead, RoleMark, Slot


def leads(program: Program) -> tuple[Lead, ...]:
    """The beginnings of the prompts of `program` up to the last argument in each, in program order.

        s1 = append(s0, 'Essay: '); s2 = append(s1, essay); s3, t0 = gen(s2, 'x'); s4 = append(s3, q)
            -> ('Essay: ', Slot('essay'))

    A prompt counts as far as it needs nothing that is generated, or that ordinary Python makes; in the arms of
    a branch it counts no more. Prompts without an argument are equal in all runs: they are left out, and of
    those that hold the same arguments in the same order all but one are, which tell rows apart no better.
    """
    walk = _Walk()
    walk.program(program, {op.results[0]: (Slot(op.name),) for op in program.params if isinstance(op, Arg)})
    found: dict[Lead, Lead] = {}  # by the arguments alone
    for lead in walk.found:
        found.setdefault(tuple([part for part in lead if not isinstance(part, str)]), _to_last_argument(lead))
    return tuple([lead for own, lead in found.items() if not any(_begins(own, other) for other in found)])


def _begins(lead: Lead, other: Lead) -> bool:
    return len(lead) < len(other) and other[: len(lead)] == lead


def _to_last_argument(lead: Lead) -> Lead:
    end = len(lead)
    while end and isinstance(lead[end - 1], str):
        end -= 1
    return _merged(lead[:end])


def _merged(parts: Lead) -> Lead:
    """Neighbouring literals as one: where appends were split tells nothing."""
    out: list[str | Slot | Derived] = []
    for part in parts:
        if isinstance(part, str) and out and isinstance(out[-1], str):
            out[-1] += part
        elif part != "":
            out.append(part)
    return tuple(out)


class _Walk:
    """Ops in order. What is not in `texts` or `streams` is not known before the run."""

    def __init__(self) -> None:
        self.found: list[Lead] = []
        self.texts: dict[Value, Lead] = {}
        self.streams: dict[Value, tuple[Lead, bool]] = {}  # a stream's beginning, and whether it is all of it

    def program(self, program: Program, texts: Mapping[Value, Lead]) -> None:
        """A program with values of its own."""
        before = self.texts, self.streams
        self.texts, self.streams = dict(texts), {}
        self.ops(program.ops)
        self.texts, self.streams = before

    def ops(self, ops: Iterable[Op]) -> None:
        for op in ops:
            self.op(op)

    def op(self, op: Op) -> None:
        match op:
            case Root():
                self.streams[op.results[0]] = ((), True)
            case Append() | Image():
                self.extend(op, self.text(op.text if isinstance(op, Append) else op.data))
            case Control():
                self.extend(op, (op.text,))
            case RoleOpen() | RoleClose():
                self.extend(op, (RoleMark(op.role, isinstance(op, RoleOpen)).text,))
            case Fork() | ScopeBegin() | ScopeEnd():
                if op.stream in self.streams:
                    self.streams.update(dict.fromkeys(op.results, self.streams[op.stream]))
            case Gen() | Select() | Warm():
                if op.stream in self.streams:
                    self.found.append(self.streams[op.stream][0])
            case HostCall():
                self.found += [lead for lead, _ in self.streams.values()]  # it may go on from any of them
            case Format():
                parts = [self.text(part) for part in op.parts]
                if all(part is not None for part in parts):
                    self.texts[op.results[0]] = tuple(one for part in parts for one in part or ())
            case Strip() | Lower():
                if (text := self.text(op.text)) is not None:
                    self.texts[op.results[0]] = (Derived(op.mnemonic, text),)
            case Call():
                given = zip(op.program.params, op.args, strict=True)
                args = {param.results[0]: self.text(arg) for param, arg in given if isinstance(param, Arg)}
                self.program(op.program, {value: text for value, text in args.items() if text is not None})
            case Loop():  # its first iteration
                self.rename(dict(zip(op.body.params, op.init, strict=True)))
                self.ops(op.body.ops)
            case Speculate() | FusedGen():
                self.ops(op.body.ops)
                self.rename(dict(zip(op.results, op.body.results, strict=True)))

    def text(self, item: Value | str) -> Lead | None:
        """What a text is made of; None if that is not known."""
        return (item,) if isinstance(item, str) else self.texts.get(item)

    def extend(self, op: Append | Image | Control | RoleOpen | RoleClose, text: Lead | None) -> None:
        if op.stream not in self.streams:
            return
        before, whole = self.streams[op.stream]
        known = (*before, *text) if whole and text is not None else before
        self.streams[op.results[0]] = (known, whole and text is not None)

    def rename(self, names: Mapping[Value, Value]) -> None:
        for new, old in names.items():
            if new.type is Type.STREAM and old in self.streams:
                self.streams[new] = self.streams[old]
            elif old in self.texts:
                self.texts[new] = self.texts[old]
