"""Control flow that a compiled program keeps: `cond`, `switch`, `loop`, `map`, `call`, and what they ask.

In an ordinary run these are plain Python and need what they ask at once. While a program is recorded
each becomes one op with its bodies as blocks. A body is a callable that appends to states, stores
variables in them, and may return a value; it must not assign variables of Python that are outside of it
(append to a state with `s.user(...)`, or name it as an argument: `def body(s=s): s += ...`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from sglc.errors import Loc, RunError, TraceError
from sglc.frontend.locate import here
from sglc.frontend.program.instance import MapItems
from sglc.frontend.recorder.form import Form
from sglc.frontend.tracing import control_blocks
from sglc.frontend.tracing.tracer import Tracer, current
from sglc.frontend.values.known import Known
from sglc.frontend.values.symbolic import SymbolicBool, SymbolicJson, SymbolicText, real
from sglc.ir.core import Type, Value
from sglc.ir.ops import Eq, In, Not, ParseJson

ArmBody = Callable[[], Any]


def cond(pred: Any, then: ArmBody, orelse: ArmBody | None = None) -> Any:
    """`then()` if `pred` is true, else `orelse()`; gives what that returns.

    Args:
        pred: a truth value; of `eq`, `contains`, `not_` or a tool it is recorded. A text is true if it
            is not empty.

    Raises:
        TraceError: SGLC148, the arms leave a state in different chat turns.
    """
    tracer, loc, form = current(), here(), Form()
    asked = bool(pred) if tracer is None else control_blocks.predicate(tracer, pred, loc)
    if tracer is not None and isinstance(asked, Value):
        return control_blocks.record_cond(tracer, asked, then, orelse, form, loc)
    chosen = then if asked else orelse
    with form.inside(arm=0 if asked else 1):
        return None if chosen is None else chosen()


def switch(value: Any, cases: Mapping[str, ArmBody], default: ArmBody | None = None) -> Any:
    """The body of the case that `value` equals, else `default()`; gives what that returns.

    Where no case fits and there is no default, nothing is done.

    Raises:
        TraceError: SGLC148, as of `cond`, and for cases that are no texts.
    """
    tracer, loc, form = current(), here(), Form()
    for case in cases:
        if not isinstance(case, str):
            raise TraceError("SGLC148", f"a case of `switch` is a text, not `{case!r}`", loc)
    if tracer is not None and isinstance(value, SymbolicText) and value.settled() is None:
        texts = tracer.options_of(value)
        operand = tracer.operand(value, loc)
        assert isinstance(operand, Value)
        arms: list[ArmBody | None] = list(cases.values())
        if texts is None or default is not None or any(text not in cases for text in texts):
            arms.append(default)
        return control_blocks.record_switch(tracer, operand, tuple(cases), arms, form, loc)
    chosen = cases.get(str(value), default)
    with form.inside(arm=next((arm for arm, case in enumerate(cases) if case == str(value)), len(cases))):
        return None if chosen is None else chosen()


def loop(body: ArmBody, max_iters: int) -> None:
    """`body()` again and again, as long as it returns a true value or None, at most `max_iters` times.

    Raises:
        TraceError: SGLC148, `max_iters` is no number of at least 1, or the body leaves a state in
            another chat turn.
    """
    tracer, loc, form = current(), here(), Form()
    if isinstance(max_iters, SymbolicJson) and max_iters.known is not None:
        max_iters = real(max_iters.known, loc)
    if not isinstance(max_iters, int) or isinstance(max_iters, bool) or max_iters < 1:
        raise TraceError(
            "SGLC148", f"`max_iters` is `{max_iters!r}`", loc, hint="`loop` needs a bound of at least 1"
        )
    if tracer is not None:
        control_blocks.record_loop(tracer, body, max_iters, form, loc)
        return
    for iteration in range(max_iters):
        with form.inside(iteration=iteration):
            again = body()
        if again is not None and not again:
            return


def map(items: Any, body: Callable[[Any], Any]) -> Any:
    """What `body(item)` returns for each text of a list, in the order of the list.

    The bodies have no order among each other, so none may append to a state from outside: fork it. None sees
    what another one has stored, nor does what makes the items; behind the last one stands what all have
    stored, in the order of the list.

    Raises:
        TraceError: SGLC148, the body appends to such a state (where the program is recorded).
    """
    tracer, loc, form = current(), here(), Form()
    if tracer is not None:
        return control_blocks.record_map(tracer, items, body, loc, form)
    made, stores = [], MapItems()
    try:
        for iteration, item in enumerate(items):
            with form.inside(iteration=iteration), stores.item():
                made.append(body(item))
    finally:
        stores.end()
    return made


def call(program: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run another program: `call(program, ...)` is `program(...)`, which is what reads its variables."""
    return program(*args, **kwargs)


# -- what they ask -----------------------------------------------------------------------------------


def eq(left: Any, right: Any) -> Any:
    """Whether two texts are the same, character by character."""
    tracer, loc = current(), here()
    if tracer is None or not _undecided(left, right):
        return left == right
    return asked_of_texts(tracer, Eq, left, right, loc)


def contains(part: Any, text: Any) -> Any:
    """Whether `part` occurs in `text`."""
    tracer, loc = current(), here()
    if tracer is None or not _undecided(part, text):
        return part in text
    return asked_of_texts(tracer, In, part, text, loc)


def not_(value: Any) -> Any:
    """The opposite of a truth value; of a text, whether it is empty."""
    tracer, loc = current(), here()
    if tracer is None:
        return not value
    asked = control_blocks.predicate(tracer, value, loc)
    if isinstance(asked, bool):
        return not asked
    return SymbolicBool(tracer.recorder.emit(Type.BOOL, Not, asked, loc=loc))


def parse_json(text: Any) -> Any:
    """The JSON value that a text spells (RFC 8259: no NaN).

    Raises:
        RunError: SGLC460, it spells none.
    """
    tracer, loc = current(), here()
    if tracer is not None and isinstance(text, SymbolicText) and text.settled() is None:
        return SymbolicJson(tracer.recorder.emit(Type.JSON, ParseJson, tracer.operand(text, loc), loc=loc))

    def refuse(name: str) -> NoReturn:
        raise ValueError(name)

    try:
        return json.loads(str(text), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        message = f"`parse_json` is given a text that is no JSON: {error}"
        raise RunError("SGLC460", message, loc) from None


def _undecided(*texts: Any) -> bool:
    """Whether texts are compared of which one only exists when the program runs."""
    plain = all(isinstance(text, str | SymbolicText) for text in texts)
    return plain and any(isinstance(text, SymbolicText) and text.settled() is None for text in texts)


def asked_of_texts(
    tracer: Tracer, kind: type[Eq | In], one: Any, other: Any, loc: Loc, known: Known | None = None
) -> SymbolicBool:
    """A question about two texts as a recorded truth value."""
    texts = tracer.operand(one, loc), tracer.operand(other, loc)
    return SymbolicBool(tracer.recorder.emit(Type.BOOL, kind, *texts, loc=loc), known)
