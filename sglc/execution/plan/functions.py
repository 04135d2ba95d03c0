"""Functions that a running plan calls: Python's own where it stands, declared ones in threads of their own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sglc.errors import RunError
from sglc.execution.plan.values import Exact, Value
from sglc.execution.python_effects import EFFECTS, READS
from sglc.execution.served import Served, ToolCall, key_of
from sglc.execution.tool_calls import Tools, call_function
from sglc.frontend.locate import PLACE
from sglc.frontend.outputs.output_form import OutputParser
from sglc.ir.plan.plan import FunctionStep
from sglc.ir.pure import PURE, STORED, function_of
from sglc.ir.remark import place
from sglc.ir.values import returned

Told = Callable[[Value, Exception | None], None]


class Functions:
    """The functions of one run.

    Attributes:
        calling: what runs now, in the order of its beginning.
        printed: whether something was done that Python would do once more.
        served: what declared functions gave.
        context: what they see. A tool in the order of the program sets variables of it, as in the program;
            what may run beside it sets those of a copy.
    """

    def __init__(self, program: str, tools: Tools, context: contextvars.Context) -> None:
        self.calling: dict[object, FunctionStep] = {}
        self.printed = False
        self._program = program
        self._tools = tools
        self.context = context
        self.served = Served()
        self._begun: dict[tuple[str, str], int] = {}  # the last one of equal calls that need no order
        self._tasks: dict[asyncio.Task[None], None] = {}

    def at_once(self, step: FunctionStep) -> bool:
        """Whether a function needs no thread."""
        return step.function in PURE or step.function.endswith(STORED)

    def made(self, step: FunctionStep, args: Sequence[Any], named: Mapping[str, Any]) -> Value:
        """What a function gives that needs none.

        Raises:
            RunError: SGLC401, what it raises, as the program itself would have; SGLC463, it is no text.
        """
        if step.function not in PURE:  # it only reads a text
            return Exact(self._tools[step.function](*args))
        try:
            made = function_of(step.function)(*args, **named)
        except Exception as error:
            text = str(error) or "no message"
            message = f"`{type(error).__name__}` in `{self._program}`: {text}"
            raise RunError("SGLC401", message, place(step.loc)) from error
        match step.gives:
            case "text" if not isinstance(made, str):
                return returned(step.function, made, step.gives, step.loc)  # which raises
            case "text" | "bool":
                return made  # type: ignore[no-any-return]
            case "list":
                return tuple(made)
            case _:
                return Exact(made)

    def call(self, step: FunctionStep, args: Sequence[Any], named: Mapping[str, Any], told: Told) -> None:
        """Call a declared function; `told` gets what it gives, or why it gives nothing."""

        async def work() -> None:
            value: Value = None
            problem: Exception | None = None
            try:
                made = await self._called(step, args, named)
                exact = step.gives in ("json", "object")  # what the program itself would go on with
                value = Exact(made) if exact else returned(step.function, made, step.gives, step.loc)
            except Exception as error:
                problem = error
            self._tasks.pop(task, None)
            told(value, problem)

        task = asyncio.get_running_loop().create_task(work())
        self._tasks[task] = None

    def abandon(self) -> None:
        """Nobody waits any more for what runs."""
        for task in tuple(self._tasks):
            task.cancel()

    async def _called(self, step: FunctionStep, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        function = self._tools.get(step.function) or {**EFFECTS, **READS}[step.function]
        call, number = object(), 0
        if step.effects and not step.needs_order:
            equal = step.function, key_of(args, named) or ""
            number = self._begun[equal] = self._begun.get(equal, -1) + 1
        self.calling[call] = step
        self.printed = self.printed or step.function in EFFECTS
        made, problem = None, None
        context = self.context.copy()  # a call that is abandoned sets nothing
        if isinstance(getattr(function, "__self__", None), OutputParser):  # its errors are of who reads
            context.run(PLACE.set, lambda: step.loc)
        try:
            made = await call_function(step.function, function, args, named, step.loc, context, number)
        except Exception as error:
            problem = error
        finally:
            self.calling.pop(call, None)
        if step.effects and step.in_order:
            self.context = context
        why = None if problem is None else problem.__cause__ or problem
        self.served.add(ToolCall(step.function, made, why), step, args, named, number)
        if problem is not None:
            raise problem
        return made
