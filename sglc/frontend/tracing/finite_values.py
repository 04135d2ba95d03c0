"""What recorded values are on the path that is traced: decided, made of what is known, or one of few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sglc.errors import Loc
from sglc.frontend.outputs.finite_regex import texts_of
from sglc.frontend.tracing.paths import Frame
from sglc.frontend.values.graph_breaks import ArmsDiffer
from sglc.frontend.values.symbolic import SymbolicText
from sglc.ir import ops
from sglc.ir.core import Op, Type, Value, inputs, walk
from sglc.ir.pure import PURE

_TEXTS = (ops.Strip, ops.Lower, ops.Format)  # ops that make a text of others
_COMPUTED = (*_TEXTS, ops.Eq, ops.In, ops.Not, ops.PureCall)


@dataclass(eq=False, kw_only=True)
class FiniteValues:
    """The part of a tracer that decides: `frames` are the blocks that are recorded, innermost last."""

    frames: list[Frame] = field(default_factory=list)
    decided: dict[Value, str | bool] = field(default_factory=dict)
    answered: list[tuple[Any, bool]] = field(default_factory=list)  # questions that are decided, and how
    # What arms that have met had decided.
    forgotten: set[Value] = field(default_factory=set)
    forgotten_questions: list[Any] = field(default_factory=list)
    opened: Value | None = None  # what is asked for next is not known: that has just been looked for

    def known(self, value: Value) -> str | bool | None:
        if value in self.decided:
            return self.decided[value]
        if value in self.forgotten:
            raise ArmsDiffer
        made = self.made_by(value)
        if value.type is Type.BOOL:
            return self._known_answer(made)
        if isinstance(made, _TEXTS):
            return _made_of(made, self._known_text)
        options = self._options(value, made)
        return options[0] if options is not None and len(options) == 1 else None

    def _known_answer(self, made: Op | None) -> bool | None:
        """The truth value that an op makes."""
        match made:
            case ops.Eq(left=left, right=right):
                one, other = self._known_text(left), self._known_text(right)
                return self._same_fact(made) if one is None or other is None else one == other
            case ops.In(part=part, text=text):
                one, other = self._known_text(part), self._known_text(text)
                return self._same_fact(made) if one is None or other is None else one in other
            case ops.Not(value=inner):
                negated = self.known(inner)
                return None if negated is None else not negated
            case _:
                return self._same_fact(made)

    def _same_fact(self, made: Op | None) -> bool | None:
        """What this path has decided of a question that was asked before."""
        asked = _question(made)
        if asked is None:
            return None
        for known, outcome in self.answered:
            if known == asked:
                return outcome
        if asked in self.forgotten_questions:
            raise ArmsDiffer
        return None

    def _asked(self, made: Op | None) -> tuple[Any, bool]:
        """The question that an op's value answers, and whether with its opposite."""
        negated = False
        while isinstance(made, ops.Not):
            made, negated = self.made_by(made.value), not negated
        return _question(made), negated

    def behind(self, decided: Iterable[Value]) -> set[Value]:
        """Values that are decided, and what they are computed from."""
        found, todo = set[Value](), [*decided]
        while todo:
            value = todo.pop()
            found.add(value)
            made = self.made_by(value)
            if isinstance(made, _COMPUTED):
                todo += inputs(made)
        return found

    def decidable(self, value: Value) -> bool:
        if value.type is Type.BOOL or value in self.decided:
            return True
        made = self.made_by(value)
        if isinstance(made, _TEXTS):
            return all(map(self.decidable, inputs(made)))
        return self._options(value, made) is not None

    def decide(self, value: Value, loc: Loc) -> str | bool:
        opened, self.opened = self.opened, None
        known = None if value is opened else self.known(value)
        if known is not None:
            return known
        made = self.made_by(value)
        if isinstance(made, _TEXTS):
            text = _made_of(made, lambda part: part if isinstance(part, str) else str(self.decide(part, loc)))
            assert text is not None
            return text
        cases = () if value.type is Type.BOOL else self._options(value, made)
        assert cases is not None, "asked without `decidable`"
        if self.frames[-1].points:
            self.frames[-1].points[-1].deciding()
        outcome = self.frames[-1].decide(value, cases, loc).outcome
        self.decided[value] = outcome
        asked, negated = self._asked(made)
        if asked is not None and isinstance(outcome, bool):
            self.answered.append((asked, outcome is not negated))
        return outcome

    def options_of(self, text: SymbolicText) -> tuple[str, ...] | None:
        """Every text that a text of one value can be, if these are few."""
        (part, *more) = text.parts
        return self._options(part, self.made_by(part)) if isinstance(part, Value) and not more else None

    def _known_text(self, item: Value | str) -> str | None:
        known = item if isinstance(item, str) else self.known(item)
        return known if isinstance(known, str) else None

    def _options(self, value: Value, made: Op | None) -> tuple[str, ...] | None:
        """Every text that the value of an op can be, if these are few."""
        if value.type is not Type.TEXT:
            return None
        match made:
            case ops.Select(choices=choices):
                texts = [choice for choice in choices if isinstance(choice, str)]
                return tuple(dict.fromkeys(texts)) if len(texts) == len(choices) else None
            case ops.Gen(sampling=sampling):
                return texts_of(sampling)
            case ops.Format(parts=parts) if all(isinstance(part, str) for part in parts):
                return ("".join(part for part in parts if isinstance(part, str)),)
            case ops.Cond() | ops.Switch() as op:
                at = op.results.index(value)
                return self._any_of([arm.results[at] for arm in ops.arms_of(op) if not ops.hands_over(arm)])
            case ops.Loop() as op:
                at = op.results.index(value)
                placeholder = self.made_by(op.init[at]) == ops.Format(("",), results=(op.init[at],))
                behind = op.body.results[at + 1]
                return self._any_of([behind] if placeholder else [op.init[at], behind])
            case _:
                return None

    def _any_of(self, values: list[Value]) -> tuple[str, ...] | None:
        texts: dict[str, None] = {}
        for value in values:
            if (options := self._options(value, self.made_by(value))) is None:
                return None
            texts |= dict.fromkeys(options)
        return tuple(texts)

    def made_by(self, value: Value) -> Op | None:
        """The op that made the value, inside of regions too; None for an argument."""
        number = value.id
        for frame in reversed(self.frames):
            if number in frame.made:
                return frame.made[number]
        for frame in reversed(self.frames):
            made = frame.made
            for op in reversed(frame.ops):  # what was recorded since a value was asked for last
                if op.results and op.results[0].id in made:
                    break
                for each in walk((op,)) if op.region_fields else (op,):
                    for result in each.results:
                        made[result.id] = each
            if number in made:
                return made[number]
        return None


def _made_of(
    op: ops.Strip | ops.Lower | ops.Format, text_of: Callable[[Value | str], str | None]
) -> str | None:
    """The text that an op makes of others; None if one of them is not known."""
    texts = [text_of(part) for part in (op.parts if isinstance(op, ops.Format) else (op.text,))]
    whole = "".join(text for text in texts if text is not None)
    if None in texts:
        return None
    return whole.strip() if isinstance(op, ops.Strip) else whole.lower() if isinstance(op, ops.Lower) else whole


def _question(op: Op | None) -> tuple[Any, ...] | None:
    """What a truth value asks: two that ask the same of the same values are equal."""
    match op:
        case ops.Eq(left=left, right=right):
            return "eq", left, right
        case ops.In(part=part, text=text):
            return "in", part, text
        case ops.PureCall(name=name, args=args, named=named) if name in PURE:
            return name, args, dict(named)
        case _:
            return None
