"""Why ahead-of-time tracing stops: every kind of reason, with its code, and what to do about it.

Recording a program never guesses: what only exists when the program runs, and what could have
effects, ends the recorded part. `fullgraph` programs refuse these places with the same codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglc.errors import Loc, TraceError


@dataclass(frozen=True, slots=True)
class BreakKind:
    """One kind of place. `what` names it in a sentence, `note` explains it, `hint` is a way out."""

    code: str
    what: str
    note: str = ""
    hint: str = ""


_UNKNOWN = "it has no finite set of values that could be recorded one by one"
_ASK = "ask with `select(...)`, `gen(dtype=bool)` or an Enum, or write `sglc.cond(sglc.eq(text, ...), ...)`"
_COMPUTE = "compute it in a function that is declared with `@sglc.pure`"

OTHER = BreakKind(
    "SGLC120", "this", "only a run can know it", "move it behind the generations, or out of the program"
)
OTHER_BACKEND = BreakKind(
    "SGLC120", "another `backend`", "a plan is for one back end",
    "leave `backend` out, and run the program on that back end",
)  # fmt: skip
RAISED = BreakKind(
    "SGLC120", "an exception", "a run that comes here fails, and a plan cannot raise it",
    "return something that tells so, or raise it in a function declared with `@sglc.tool`",
)  # fmt: skip
NO_TEXT = BreakKind(
    "SGLC120", "a value", "a prompt is made of texts, and this is none, whatever the run makes it",
    "write it in an f-string",
)  # fmt: skip
JOINED = BreakKind(
    "SGLC120", "a `join`", "`join` keeps the list that an iteration before has stored, and the first has none",
    "read the branches' own variables, `forks[0][\"name\"]`, instead of joining them",
)  # fmt: skip
BRANCH = BreakKind(
    "SGLC120", "the choice of a branch", "the branches of a fork are no data",
    "read the variable of all of them, and choose among these: `[f[\"name\"] for f in forks][i]`",
)  # fmt: skip
CONDITION = BreakKind("SGLC121", "a condition", _UNKNOWN, _ASK)
COMPARISON = BreakKind("SGLC122", "a comparison", _UNKNOWN, _ASK)
KEY = BreakKind(
    "SGLC124", "a dictionary key or set member", _UNKNOWN,
    "ask with `select(...)`, or branch with `sglc.switch(value, {...})`",
)  # fmt: skip
ITERATION = BreakKind(
    "SGLC126", "a loop", _UNKNOWN, "loop with `sglc.loop(...)`, or over a list with `sglc.map(...)`"
)
SPREAD = BreakKind(
    "SGLC126", "`*`", "how many items are in it shows when the program runs",
    f"hand on the list as it is, `list(...)` of it, or {_COMPUTE}",
)  # fmt: skip
UNPACKED = BreakKind(
    "SGLC126", "`**`", "which names are in it shows when the program runs",
    f'write out what is wanted, `name=data["name"]`, or {_COMPUTE}',
)  # fmt: skip
STR = BreakKind(
    "SGLC131", "`str(...)`", _UNKNOWN, "append the value itself, or write it in an f-string without a format"
)
FORMAT = BreakKind("SGLC132", "a format", _UNKNOWN, "leave out what follows the `:` or the `!` in the f-string")
METHOD = BreakKind(
    "SGLC135", "a method", "it is none of those that a plan may call on a value that it makes", _COMPUTE
)
UNDECLARED = BreakKind(
    "SGLC136", "a call", "a function that is not declared could have effects, so compiling does not call it",
    "declare it with `@sglc.tool`, or with `@sglc.pure` if all it does is compute",
)  # fmt: skip
CALLBACK = BreakKind(
    "SGLC137", "a call-back", "the function is not part of the program, and could have effects",
    "write a `lambda` in the program, or a loop",
)  # fmt: skip
OUTSIDE = BreakKind(
    "SGLC138", "a change", "the container was made outside the program, so the change would outlive compiling",
    "make the container inside the program, or change it in a function declared with `@sglc.tool`",
)  # fmt: skip
ASSIGNED = BreakKind(
    "SGLC138", "an assignment", "a block may run several times or not at all, and Python would not notice",
    'keep the value in a state (`s["count"] = ...`), or return it from the block',
)  # fmt: skip
WHOLE_TEXT = BreakKind(
    "SGLC139", "the whole prompt", "chat turns are written by the back end's own template",
    "read single variables; a run's result has `text()` and `messages()`",
)  # fmt: skip
RETRIES = BreakKind(
    "SGLC120", "`retries`", "only a run can know whether a text has to be made again",
    "leave it out: take a form that every whole text has, and a `max_tokens` with room for it",
)  # fmt: skip
SETTING = BreakKind(
    "SGLC145", "a setting", "a plan holds settings as they are written",
    "take it from an argument, or write constants, in the arms of an `if` on a `select(...)`",
)  # fmt: skip
META = BreakKind(
    "SGLC140", "`get_meta_info`", "counts and scores are known when the program has run",
    "read it from the run's result",
)  # fmt: skip
OWN_METHOD = BreakKind(
    "SGLC141", "`choices_method`", "Python decides with the scores that the model gives",
    "take one of `token_length_normalized`, `greedy_token_selection`, `unconditional_likelihood_normalized`",
)  # fmt: skip
ASYNC = BreakKind(
    "SGLC142", "`await`", "only programs, declared functions and functions of yours are awaited",
    "let a function declared with `@sglc.tool` await it",
)  # fmt: skip
NO_SOURCE = BreakKind(
    "SGLC143", "the source", "calls and f-strings are recorded from a function's source",
    "define it with `def` in a file",
)  # fmt: skip
VARIADIC = BreakKind(
    "SGLC144", "an argument", "a compiled program has a fixed number of arguments",
    "name every parameter, or compile for such arguments: `compile(args={...})`",
)  # fmt: skip
NO_DATA = BreakKind(
    "SGLC145", "an object", "texts, truth values, lists and plain JSON data can be handed on",
    "hand on the variables that are wanted",
)  # fmt: skip
PATHS = BreakKind(
    "SGLC146", "a branch", "every arm of every branch on a finite set of values is recorded",
    "branch with `sglc.cond(...)`, `sglc.switch(...)` or `sglc.loop(...)`",
)  # fmt: skip

BEHIND_TOOL = BreakKind(
    "SGLC150", "a read", "a tool may change what is read behind it, and a plan would not notice",
    "read it before the tool, or return it from the tool",
)  # fmt: skip
FOREIGN = BreakKind(
    "SGLC151", "an object", "a method of its class would run, which is not part of the program",
    "hand on the texts and numbers that are wanted, or use a dataclass without methods of that kind",
)  # fmt: skip
OPERATOR = BreakKind("SGLC151", "an operator", FOREIGN.note, _COMPUTE)
ATTRIBUTE = BreakKind(
    "SGLC151", "an attribute", "a property, or `__getattr__`, runs code that is not part of the program",
    "read a plain field, or compute it in a function that is declared with `@sglc.pure`",
)  # fmt: skip
CONTEXT = BreakKind(
    "SGLC152", "`with`", "what its manager does at its beginning and end is not part of the program",
    "leave it to a function that is declared with `@sglc.tool`",
)  # fmt: skip
TRIED = BreakKind(
    "SGLC153", "`try`", "whether it fails only a run knows, and a plan asks that of Python's own functions",
    "move what can fail out of the `try`",
)  # fmt: skip
GUARDED = BreakKind(
    "SGLC155", "an argument", "what Python asks of it is no plain data that a plan can compare",
    "read a plain field of it, or compute it in a function that is declared with `@sglc.pure`",
)  # fmt: skip
NO_RULE = BreakKind(
    "SGLC154", "this", "the tracer has no rule for it", "write it another way, or in a function of its own"
)

_NEEDING = {
    "`text()`": WHOLE_TEXT,
    "`messages()`": WHOLE_TEXT,
    "`get_meta_info`": META,
    "`choices_method`": OWN_METHOD,
    RETRIES.what: RETRIES,
    OTHER_BACKEND.what: OTHER_BACKEND,
}


def needing(what: str) -> BreakKind:
    """The kind of `what`, which needs the program to run."""
    return _NEEDING.get(what, OTHER)


@dataclass(frozen=True, slots=True)
class BreakPlace:
    """A graph break as data: where the recorded part of a program ends, why, and what would remove it."""

    loc: Loc
    reason: str
    hint: str = ""


class ArmsApart(BaseException):
    """The arms of a branch cannot meet behind it: Python would see which of them ran."""


class ArmsDiffer(BaseException):
    """What follows a branch asks what only its arms know, so that they do not meet behind it after all."""


class GraphBreak(BaseException):
    """The recorded part of a program ends here. Not an `Exception`: user code must not catch it."""

    def __init__(self, reason: str, loc: Loc, kind: BreakKind = OTHER, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.loc = loc
        self.kind = kind
        self.hint = hint or kind.hint
        self.root: GraphBreak | None = None  # of a call: what the called program breaks at

    @property
    def code(self) -> str:
        return self.kind.code

    @property
    def place(self) -> BreakPlace:
        """What is left of it when tracing is over: it would keep everything that was traced."""
        return BreakPlace(self.loc, self.reason, self.hint)

    def of_call(self, name: str, loc: Loc) -> GraphBreak:
        """The graph break of a call of the program `name`, which has this one or calls what has it."""
        root = self.root or self
        reason = f"`{name}` goes on as ordinary Python at {root.loc}: {root.reason}"
        made = GraphBreak(reason, loc, self.kind)
        made.root = root
        return made

    def as_error(self, name: str) -> TraceError:
        """The error of the program `name`, which is `fullgraph`."""
        note = f"`{name}` has `fullgraph=True`, so nothing may be left to ordinary Python"
        if self.kind.note:
            note = f"{self.kind.note}; {note}"
        return TraceError(self.code, self.reason, self.loc, note=note, hint=self.hint)


def generator(name: str, loc: Loc) -> GraphBreak:
    """The graph break at a generator function of the user's."""
    hint = "have it return a list, or write the loop where it is used"
    return GraphBreak(f"`{name}` is a generator function", loc, NO_RULE, hint)
