"""Python functions that a program declares: `@tool` has effects and is called once, `@pure` only computes.

In an ordinary run both are the plain function. While a program is recorded their calls become ops, and
whoever runs the plan calls the function by its name (`tools_of`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from sglc.errors import Loc, Paused, RunError, TraceError, ends_run, located
from sglc.frontend.locate import here, of_code
from sglc.frontend.recorder.form import BODY
from sglc.frontend.source import inner_codes
from sglc.frontend.tracing.makers import MAKERS
from sglc.frontend.tracing.pytree import tree_of
from sglc.frontend.tracing.tracer import Tracer, current, turned_to
from sglc.frontend.values.graph_breaks import OTHER, GraphBreak
from sglc.frontend.values.no_text import ToolCoroutine
from sglc.frontend.values.symbolic import END_RUN, IN_FUNCTION, MAY_CALL, Symbolic, SymbolicText, symbol
from sglc.ir.core import Program, Tree, Type, all_ops, kinds, values_in
from sglc.ir.ops import PureCall, Tool
from sglc.ir.pure import PAUSE

if TYPE_CHECKING:
    from sglc.frontend.outputs.called_tools import ToolAnswer, ToolCall

_F = TypeVar("_F", bound=Callable[..., Any])

_TYPES: dict[Any, Type] = {str: Type.TEXT, bool: Type.BOOL, list[str]: Type.LIST}
_SPELT = {"str": Type.TEXT, "bool": Type.BOOL, "list[str]": Type.LIST, "List[str]": Type.LIST}
_DECLARED: dict[str, Declared] = {}
_CALLS = (Tool, PureCall)  # ops that call a declared function
# Calls a declared function for whoever watches the run: (name, function, whether it is pure, args, named).
AROUND: ContextVar[Callable[..., Any] | None] = ContextVar("sglc_around", default=None)
# Which one of equal calls, that need no order, a plan makes: they begin in the order of the program.
EQUAL_CALL: ContextVar[int | None] = ContextVar("sglc_equal_call", default=None)


class Declared:
    """A declared function. Calling it calls the function, or records the call.

    Attributes:
        idempotent: to call it twice does what to call it once does.
        ordered: its calls need the order of the program.
    """

    def __init__(
        self, function: FunctionType, *, effects: bool, idempotent: bool = False, ordered: bool = True
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._called = _outside(function) if inspect.iscoroutinefunction(function) else function
        self.effects = effects
        self.idempotent = idempotent
        self.ordered = ordered
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.gives = _type_of(function)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        tracer = current()
        if tracer is None:
            may_call = MAY_CALL.get()
            if may_call is not None:
                may_call()
            around, inside, body = AROUND.get(), IN_FUNCTION.set(True), BODY.set(None)
            try:
                if around is None:
                    made = self._called(*args, **kwargs)
                else:
                    made = around(self.name, self._called, not self.effects, args, kwargs)
                waits = self._called is not self.function
                return ToolCoroutine(made, self.function.__name__) if waits else made
            except RunError as error:
                if not ends_run(error):
                    raise
                problem = located(error, here())
                if (end := END_RUN.get()) is not None:
                    end(problem)
                raise problem from None
            finally:
                BODY.reset(body)
                IN_FUNCTION.reset(inside)
        return self._record(tracer, args, kwargs, here())

    def __reduce__(self) -> str:
        """For `pickle`: by reference, as a function is; a copy is itself."""
        return self.__qualname__  # type: ignore[attr-defined,no-any-return]  # of the function

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Declared functions of a class are called like its methods; their `self` is no data."""
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<sglc {'tool' if self.effects else 'pure function'} {self.name}>"

    def _record(self, tracer: Tracer, args: tuple[Any, ...], kwargs: Mapping[str, Any], loc: Loc) -> Any:
        name = self.function.__name__
        if _DECLARED.get(self.name) is not self:  # who runs the plan finds it by its name
            raise GraphBreak(f"`{name}` is an older one than that which is declared under its name", loc, OTHER)
        given = tuple(_handed(tracer, arg, loc, name) for arg in args)
        named = {key: _handed(tracer, arg, loc, name) for key, arg in kwargs.items()}
        if not self.effects and not any(True for _ in values_in((given, named))):
            tracer.outside.call_as_it_is(self.function)
            with turned_to(None):  # it is no part of the program
                named_constants = {key: _constant(arg) for key, arg in kwargs.items()}
                return self.function(*map(_constant, args), **named_constants)
        emit, form = tracer.recorder.emit, str(self.gives)
        if not self.effects:
            return symbol(emit(self.gives, PureCall, self.name, given, named, form, loc=loc))
        order = "program" if self.ordered else "free"
        return symbol(emit(self.gives, Tool, self.name, given, named, form, order, loc=loc))


def _outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """A declared coroutine function, whose structured forms are none of the body's."""

    @functools.wraps(function)
    async def called(*args: Any, **kwargs: Any) -> Any:
        body = BODY.set(None)
        try:
            return await function(*args, **kwargs)
        finally:
            BODY.reset(body)

    return called


def _constant(arg: Any) -> Any:
    """An argument that is known as the function gets it: a text that is made of literals as a text."""
    if isinstance(arg, SymbolicText):
        return "".join(part for part in arg.parts if isinstance(part, str))
    if type(arg) in (list, tuple):
        return type(arg)(map(_constant, arg))
    return {key: _constant(item) for key, item in arg.items()} if type(arg) is dict else arg


def _handed(tracer: Tracer, arg: Any, loc: Loc, name: str) -> Tree:
    """An argument of a declared function: data with its own types, tuples as tuples.

    Raises:
        GraphBreak: it is an object of the user's, and the function wants that one and no copy.
    """
    if _is_data(arg):
        return tracer.as_data(tracer, arg, name)
    return tree_of(tracer, arg, loc, f"given to `{name}`")


def _is_data(arg: Any) -> bool:
    if type(arg) is dict:
        return all(_is_data(key) and _is_data(item) for key, item in arg.items())
    if type(arg) in (list, tuple):
        return all(map(_is_data, arg))
    return isinstance(arg, Symbolic) or type(arg) in (str, int, float, bool, type(None))


@overload
def tool(function: _F) -> _F: ...


@overload
def tool(*, idempotent: bool = ..., ordered: bool = ...) -> Callable[[_F], _F]: ...


def tool(
    function: _F | None = None, *, idempotent: bool = False, ordered: bool = True
) -> _F | Callable[[_F], _F]:
    """Declare a function with effects: a compiled program calls it once, in order, when it runs.

    What it returns is a text, a truth value or a list of texts if its annotation says so (`-> str`,
    `-> bool`, `-> list[str]`), else anything, which is handed on as it is. It is given texts, truth values,
    lists and JSON data.

    Args:
        idempotent: to call it twice does what to call it once does. A run that goes on then calls it again
            where it was called and its end is not known.
        ordered: False says that it may be called before or beside other calls, as a look-up may. A plan then
            calls it when its arguments are there, in a thread of its own.

    Raises:
        TraceError: SGLC149, no plain function, or another one is declared under its name.
    """

    def declared(function: _F) -> _F:
        return cast(_F, _declare(function, effects=True, idempotent=idempotent, ordered=ordered))

    return declared if function is None else declared(function)


def pure(function: _F) -> _F:
    """Declare a function that only computes: compiling calls it where its arguments are known.

    Raises:
        TraceError: SGLC149, as of `tool`.
    """
    return cast(_F, _declare(function, effects=False))


def tools_of(program: Program | None = None) -> dict[str, Callable[..., Any]]:
    """The declared functions by their names in a plan: all, or those that `program` calls."""
    if program is None:
        return {**MAKERS, **{name: declared.function for name, declared in _DECLARED.items()}}
    found: dict[str, Callable[..., Any]] = {}
    if kinds(program).isdisjoint(_CALLS):
        return found
    for name in dict.fromkeys(op.name for op in all_ops(program) if isinstance(op, _CALLS)):
        declared = _DECLARED.get(name)
        function = MAKERS.get(name) if declared is None else declared.function
        if function is not None:
            found[name] = function
    return found


def codes_of_functions() -> frozenset[CodeType]:
    """The code of what is declared."""
    return frozenset([declared.function.__code__ for declared in _DECLARED.values()])


def is_idempotent(name: str) -> bool:
    """Whether the function that is declared under this name may be called twice."""
    declared = _DECLARED.get(name)
    return declared is not None and declared.idempotent


def is_ordered(name: str) -> bool:
    """Whether calls of the function that is declared under this name need their order."""
    declared = _DECLARED.get(name)
    return declared is None or declared.ordered


def _declare(function: Any, *, effects: bool, idempotent: bool = False, ordered: bool = True) -> Any:
    what = "tool" if effects else "pure"
    if not isinstance(function, FunctionType):
        raise TraceError(
            "SGLC149", f"`@{what}` wants a function, not `{type(function).__name__}`", here(),
            hint=f"write `@{what}` above a `def`",
        )  # fmt: skip
    declared = Declared(function, effects=effects, idempotent=idempotent, ordered=ordered)
    other = _DECLARED.get(declared.name)
    if other is not None and _are_apart(other.function.__code__, function.__code__):
        raise TraceError(
            "SGLC149", f"`{declared.name}` is declared twice", of_code(function.__code__),
            note=f"the first is at {of_code(other.function.__code__)}", hint="give one of them another name",
        )  # fmt: skip
    _DECLARED[declared.name] = declared  # a module that is loaded again brings its newest function
    return declared


def _are_apart(one: CodeType, other: CodeType) -> bool:
    """Whether one file brings two functions. In a notebook a new one comes from another cell, and a module
    that is loaded again runs new code, which the earlier one is no part of."""
    if one.co_filename != other.co_filename or one.co_firstlineno == other.co_firstlineno:
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if any(code is one for code in inner_codes(frame.f_code)):
            return True
        frame = frame.f_back
    return False


def _type_of(function: FunctionType) -> Type:
    annotation = function.__annotations__.get("return")
    if isinstance(annotation, str):
        spelt = _SPELT.get(annotation, Type.JSON)
        try:
            annotation = typing.get_type_hints(function).get("return")
        except (NameError, TypeError, AttributeError):  # of some other parameter, perhaps
            return spelt
    return next((kind for form, kind in _TYPES.items() if annotation == form), Type.JSON)


# -- calls that a model wrote ------------------------------------------------------------------------


def _run_tools(answer: ToolAnswer) -> str:
    """Run the calls of a generation with `tools` in their order.

    What they gave is the text of the user's next turn, as the model is told of it.
    """
    return "\n".join(call.result(_ended(_begun(call), call.name)) for call in answer.calls)


def _begun(call: ToolCall) -> Any:
    """What a call gives; whoever watches the run is told of it, whether its function is declared or not."""
    function, around = call.function, AROUND.get()
    if function is None or around is None or isinstance(function, Declared):
        return call.run()
    return around(f"{function.__module__}.{function.__qualname__}", function, False, (), call.arguments)


def _ended(made: Any, name: str) -> Any:
    """What a coroutine function gives in the end."""
    if not isinstance(made, Coroutine):
        return made
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(made)
    made.close()
    raise TraceError(
        "SGLC103", f"`run_tools` cannot wait for `{name}`, a coroutine function, in the body of one", here(),
        hint="loop over `calls`: `call.result(await call.run())`",
    )  # fmt: skip


# -- stopping for a person ---------------------------------------------------------------------------


def _pause(name: str, question: str | None = None, **data: Any) -> Any:
    """Stop the run for a person; it goes on with what that one answers.

    Without an answer the run ends with an error that has `name`, `question` and `data`. One that is recorded
    goes on with `run(record=DIR, resume=True, answers={name: value})`, and this gives the value. Where a name
    is asked for again, the second one is `name#1`.

    Raises:
        Paused: SGLC413, there is no answer; the program cannot catch it.
    """
    raise Paused(
        "SGLC413", f"the run waits for an answer to `{name}`", note=question or "",
        hint="nothing is kept that could go on: record the run, with `record=` or `--record DIR`",
        name=name, question=question, data=data,
    )  # fmt: skip


class _Pause(Declared):
    """`pause`, in the body of a program."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if IN_FUNCTION.get():
            raise paused_in_function(None)
        return super().__call__(*args, **kwargs)


def paused_in_function(pause: Paused | None) -> RunError:
    """The error of a declared function that pauses."""
    return RunError(
        "SGLC431", "`pause` is called in a declared function", here() if pause is None else pause.loc,
        note="what the function has done before would be done once more when the run goes on",
        hint="pause in the body of the program",
    )  # fmt: skip


def _own(name: str, function: Callable[..., Any]) -> FunctionType:
    """A declared function of the language's own."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = "sglc"
    return cast(FunctionType, function)


run_tools = Declared(_own("run_tools", _run_tools), effects=True)
_DECLARED[run_tools.name] = run_tools
pause = _Pause(_own("pause", _pause), effects=True)
_DECLARED[PAUSE] = pause
