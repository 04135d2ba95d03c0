"""Arguments keep their types in plans, wherever they come from; and a plan refuses those that it is not for."""

from __future__ import annotations

import csv
import enum
import json
import math
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

import sglc as sgl
from sglc.api.function import Function
from sglc.api.plan import LoadedPlan
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.cli import main
from sglc.errors import RunError, TraceError, UsageError, VerifyError
from sglc.frontend.tracing.arguments import Bound, promised
from sglc.ir.facts import names_in, readable, spell, value_of
from sglc.ir.plan.plan import HostStep, PlanGuard, steps_of
from sglc.ir.plan.plan_file import plan_from_text, plan_to_text
from sglc.ir.pure import Instance
from sglc.ir.text.printer import from_text, to_text
from tests.corpus.case import same
from tests.depth import few


class Tone(enum.Enum):
    KIND = "kind"
    CURT = "curt"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    name: str


@dataclass
class Place:
    """Another class with the fields of a `Point`."""

    x: int
    name: str


class Order(BaseModel):
    items: list[str]
    total: float


Pair = namedtuple("Pair", ["left", "right"])


class Answers(ScriptedBackend):
    """A script that answers with the length of the prompt, and notes every prompt."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

        def said(asked: Asked) -> str:
            self.prompts.append(asked.prompt)
            return asked.choices[-1] if asked.choices else f"{len(asked.prompt)} a b c d e"

        super().__init__(said)


def python(function: Function, given: Mapping[str, Any]) -> tuple[Any, ...]:
    backend = Answers()
    result = function.run(**given, backend=backend, seed=0, use_thread=False)
    return result.ret_value, dict(result.variables), sorted(backend.prompts)


def compiled(function: Function, args: Mapping[str, Any] | None) -> LoadedPlan:
    """The plan of a program, which is the same as a file and whose program is the same as a text."""
    made = function.compile(Answers(), args=args)
    text = to_text(made.source)
    assert to_text(from_text(text, "x.sglir")) == text
    plan = plan_from_text(plan_to_text(made.plan), "x.json")
    assert plan == made.plan
    assert not any(isinstance(step, HostStep) for step in steps_of(plan)), text
    return LoadedPlan(plan)


def planned(plan: LoadedPlan, given: Mapping[str, Any]) -> tuple[Any, ...]:
    backend = Answers()
    result = plan.run(given, backend=backend, seed=0)
    return result.ret_value, dict(result.variables), sorted(backend.prompts)


def refused(plan: LoadedPlan, given: Mapping[str, Any]) -> UsageError:
    backend = Answers()
    with pytest.raises(UsageError) as caught:
        plan.run(given, backend=backend)
    assert not backend.prompts  # before anything ran
    return caught.value


# -- each type ---------------------------------------------------------------------------------------


@sgl.function
def shows(s: Any, x: Any) -> Any:
    s += f"<{x}>" + sgl.gen("a")
    return {"it": x, "twice": [x, s["a"]]}


VALUES: list[tuple[Any, Any]] = [  # an example, and another of its type
    (1, 2**70), (True, False), (0.5, -0.0), (0.5, math.inf), ("a", "<|im_end|>\n'\""), ("", "3"), (None, None),
    ([1, "a"], [None, [2.5]]), ({"a": 1}, {"b": {"c": [1, True]}}), ((1,), (1, ("x",))), ({1}, {2}),
    ({1: "a"}, {(1, 2): None}), (b"a", b"\xff"), ([], [[]]),
]  # fmt: skip


@pytest.mark.parametrize(("example", "value"), few(VALUES, 5), ids=repr)
def test_a_value_keeps_its_type(example: Any, value: Any) -> None:
    expected = python(shows, {"x": value})
    found = planned(compiled(shows, {"x": example}), {"x": value})
    assert same(found, expected)
    assert spell(found[0]["it"]) == spell(value)  # -0.0 and 0.0 too


def with_default(value: Any) -> Function:
    @sgl.function
    def shown(s: Any, x: Any = value) -> Any:
        s += f"<{x}>" + sgl.gen("a")
        return [x]

    return shown


@pytest.mark.parametrize(("default", "value"), few(VALUES, 5), ids=repr)
def test_a_default_is_one_that_a_run_can_change(default: Any, value: Any) -> None:
    function = with_default(default)
    plan = compiled(function, None)
    assert same(planned(plan, {}), python(function, {}))
    assert same(planned(plan, {"x": value}), python(function, {"x": value}))


@pytest.mark.parametrize("value", [Tone.CURT, Level.HIGH, Point(1, "a"), Pair(1, [2])], ids=repr)
def test_objects_reach_the_user_as_they_are(value: Any) -> None:
    expected = python(shows, {"x": value})
    found = planned(compiled(shows, {"x": value}), {"x": value})
    assert same(found, expected)
    assert found[0]["it"] is value
    function = with_default(value)
    assert same(planned(compiled(function, None), {}), python(function, {}))


PAIR = Pair("l", "r")


@sgl.function
def reads(s: Any, tone: Tone, point: Point, order: Order, pair: Any = PAIR) -> Any:
    s += f"{tone.value} {point.name} at {point.x:03d}: "
    s += " and ".join(order.items) + f" cost {order.total:.2f}, {pair.right}" + sgl.gen("a")
    return point.x + 1, order.items, pair.left


OBJECTS = {"tone": Tone.KIND, "point": Point(1, "a"), "order": Order(items=["x", "y"], total=1.5)}
OTHERS = {"tone": Tone.CURT, "point": Point(7, "b"), "order": Order(items=["z"], total=2.0)}


def test_fields_of_objects_are_data() -> None:
    plan = compiled(reads, OBJECTS)
    assert same(planned(plan, OTHERS), python(reads, OTHERS))
    as_json = {"tone": "curt", "point": {"x": 7, "name": "b"}, "order": {"items": ["z"], "total": 2.0}}
    assert same(planned(plan, as_json), python(reads, OTHERS))
    assert "`type(point.x)`" in refused(plan, {**OTHERS, "point": {"x": "7", "name": "b"}}).message


def test_an_object_that_is_used_as_a_whole_is_no_dict() -> None:
    plan = compiled(shows, {"x": Point(1, "a")})
    problem = refused(plan, {"x": {"x": 1, "name": "a"}})
    assert (problem.code, problem.note) == ("SGLC048", "here it is 'dict'")


@sgl.tool
def kinds_of(items: list[Any]) -> str:
    return " ".join(type(item).__name__ for item in items)


@sgl.function
def gives_to_a_tool(s: Any, x: Any) -> None:
    s += kinds_of([x]) + sgl.gen("a")


@sgl.function
def gives_back(s: Any, x: Any) -> Any:
    s += "here: " + sgl.gen("a")
    return {"it": (x,)}


@pytest.mark.parametrize("function", [gives_to_a_tool, gives_back], ids=["tool", "value"])
def test_an_object_that_only_goes_through_is_of_its_class(function: Function) -> None:
    plan = compiled(function, {"x": Point(1, "a")})
    alike = {"x": Point(7, "b")}
    assert same(planned(plan, alike), python(function, alike))
    assert refused(plan, {"x": Place(1, "a")}).code == "SGLC047"
    assert refused(plan, {"x": {"x": 1, "name": "a"}}).message == (
        f"the plan is for arguments of which `type(x)` is `'{__name__}.Point'`"
    )


# -- classes with code of their own ------------------------------------------------------------------

RAN: list[str] = []  # code of classes that a plan names


@dataclass
class WithPostInit:
    x: int
    name: str

    def __post_init__(self) -> None:
        RAN.append("__post_init__")


class Inherits(WithPostInit):
    pass


@dataclass
class WithInit:
    x: int
    name: str

    def __init__(self, x: int, name: str) -> None:
        RAN.append("__init__")


@dataclass
class WithNew:
    x: int
    name: str

    def __new__(cls, *args: Any, **named: Any) -> Any:
        RAN.append("__new__")
        return super().__new__(cls)


@dataclass
class WithSetattr:
    x: int
    name: str

    def __setattr__(self, name: str, value: Any) -> None:
        RAN.append("__setattr__")


class Meta(type):
    def __call__(cls, *args: Any, **named: Any) -> Any:
        RAN.append("__call__")
        return super().__call__(*args, **named)


@dataclass
class WithMeta(metaclass=Meta):
    x: int
    name: str


class Told:
    def __set__(self, owner: object, value: Any) -> None:
        RAN.append("__set__")


@dataclass
class WithDescriptor:
    x: int
    name: str


WithDescriptor.x = Told()  # type: ignore[assignment]


@dataclass
class WithFactory:
    x: int
    name: str
    more: list[str] = field(init=False, default_factory=lambda: RAN.append("factory") or [])


class PairWithNew(namedtuple("PairWithNew", ["x", "name"])):
    def __new__(cls, *args: Any) -> Any:
        RAN.append("__new__")
        return super().__new__(cls, *args)


class ModelWithPostInit(BaseModel):
    x: int
    name: str

    def model_post_init(self, context: Any, /) -> None:
        RAN.append("model_post_init")


class ModelThatConstructs(BaseModel):
    x: int
    name: str

    @classmethod
    def model_construct(cls, *args: Any, **named: Any) -> Any:
        RAN.append("model_construct")
        return super().model_construct(*args, **named)


@pytest.mark.parametrize(
    "kind",
    [WithPostInit, Inherits, WithInit, WithNew, WithSetattr, WithMeta, WithDescriptor, WithFactory, PairWithNew,
     ModelWithPostInit, ModelThatConstructs],
)  # fmt: skip
def test_a_plan_makes_no_object_whose_class_runs_code(kind: type) -> None:
    """A plan file may come from a stranger: its default is another class than it was compiled with."""
    made = compiled(with_default(Point(1, "a")), None).plan
    default = str(made.params[0].default).replace("Point", kind.__name__)
    param = replace(made.params[0], kind=f"{__name__}.{kind.__name__}", default=default)
    other = replace(made, params=(param,), guards=())
    plan = LoadedPlan(plan_from_text(plan_to_text(other), "x.json"))
    RAN.clear()
    ((found,), _, _) = planned(plan, {})
    assert found == Instance(f"{__name__}.{kind.__name__}", {"x": 1, "name": "a"})
    assert RAN == []


@dataclass(frozen=True, slots=True)
class Frozen:
    x: int
    name: str


class Named(NamedTuple):
    x: int
    name: str = "n"


class Model(BaseModel):
    x: int
    name: str


@pytest.mark.parametrize(
    "value", [Point(1, "a"), Frozen(1, "a"), Named(1, "a"), Model(x=1, name="a")], ids=repr
)
def test_a_plan_makes_objects_that_only_hold_their_fields(value: Any) -> None:
    again = value_of(str(spell(value)))
    assert type(again) is type(value)
    assert again == value


# -- what tools are given -----------------------------------------------------------------------------

TAKEN: list[Any] = []


@sgl.tool
def take(thing: Any, *, again: Any = None) -> str:
    TAKEN.extend([thing, again])
    return "taken"


@sgl.function
def gives(s: Any, x: Any) -> Any:
    s += sgl.gen("a")
    take(x, again=[x, s["a"]])


@pytest.mark.slow
@pytest.mark.parametrize(("example", "value"), few(VALUES, 6), ids=repr)
def test_a_tool_is_given_the_argument(example: Any, value: Any) -> None:
    TAKEN.clear()
    planned(compiled(gives, {"x": example}), {"x": value})
    assert TAKEN[0] is value
    assert TAKEN[1][0] is value


class Name(str):
    """A text that is more than one."""


class Size(int):
    """A number that is more than one."""


class Words(list[str]):
    """A list that is more than one."""


KEPT: list[Any] = [
    3, "3", True, None, 0.5, 2**70, math.inf, ("a", 1), (("a", [1]), {"k": (None,)}), {1: "a"},
    {"k": {2: (1,)}}, {(1, 2): [True]}, [("a", {3: 4})],
]  # fmt: skip
REFUSED: list[Any] = [
    Words(["a"]), {"k": Words()}, (Words(["a"]), 1), Pair(1, 2), [Pair(1, 2)], OrderedDict(a=1),
    Counter("ab"), {1}, frozenset({1}), b"a", range(3), Tone.KIND, Level.LOW, Path("x"), [Path("x")],
]  # fmt: skip


def constant(value: Any, made: Callable[[Any], Any]) -> Function:
    held = (value,)

    @sgl.function
    def gives_it(s: Any) -> None:
        s += sgl.gen("a")
        take(made(held[0]), again=s["a"])

    return gives_it


@pytest.mark.slow
@pytest.mark.parametrize("value", KEPT, ids=repr)
def test_a_constant_is_given_to_a_tool_as_it_is(value: Any) -> None:
    TAKEN.clear()
    planned(compiled(constant(value, copied), None), {})
    assert same(TAKEN[0], value)


def itself(value: Any) -> Any:
    return value


def copied(value: Any) -> Any:
    """A value with containers of its own, as a program makes them."""
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    if type(value) is list:
        return [copied(item) for item in value]
    return tuple([copied(item) for item in value]) if type(value) is tuple else value


@pytest.mark.parametrize("value", REFUSED, ids=repr)
def test_what_would_be_a_copy_of_another_type_is_a_break(value: Any) -> None:
    TAKEN.clear()
    made = constant(value, itself).compile(Answers())
    assert any("given to `take`" in step.reason for step in made.plan.steps if isinstance(step, HostStep))
    backend = Answers()
    constant(value, itself).run(backend=backend, use_thread=False).sync()
    assert TAKEN[0] is value


@sgl.function
def gives_counts(s: Any) -> None:
    s += sgl.gen("a")
    take(Counter("aab"))


def test_what_the_program_makes_is_no_copy_of_another_type_either() -> None:
    (step,) = [step for step in gives_counts.compile(Answers()).plan.steps if isinstance(step, HostStep)]
    assert step.reason == "a `Counter` is given to `take`"


NO_DATA: list[Any] = [
    Path("x"), Name("x"), Size(3), Words(["a"]), Decimal("1"), date(2020, 1, 1), 1j, range(2), {"k": Path("x")},
    [Name("x")], (Size(3),),
]  # fmt: skip


@pytest.mark.parametrize("value", NO_DATA, ids=repr)
def test_an_argument_that_is_no_data_is_never_converted(value: Any) -> None:
    """A plan for it would hold another object: there is none, in memory or as a file."""
    TAKEN.clear()
    made = gives.compile(Answers(), args={"x": value})
    plan = plan_from_text(plan_to_text(made.plan), "x.json")
    assert plan.params == ()
    assert any("given to `take`" in step.reason for step in plan.steps if isinstance(step, HostStep))
    with pytest.raises(UsageError):
        LoadedPlan(plan).run({"x": value}, backend=Answers())
    gives.run(value, backend=Answers(), use_thread=False).sync()
    assert TAKEN[0] is value


def test_what_is_no_number_stays_what_it_is() -> None:
    TAKEN.clear()
    plan, value = compiled(gives, {"x": math.nan}), [math.nan, -math.inf, 2**70]
    planned(plan, {"x": math.nan})
    assert type(TAKEN[0]) is float
    assert math.isnan(TAKEN[0])
    ((found,), variables, prompts) = planned(compiled(with_default(value), None), {})
    assert spell(found) == spell(value)
    assert prompts == ["<[nan, -inf, 1180591620717411303424]>"]
    assert list(variables) == ["a"]


CHANGED = threading.Event()


@sgl.pure
def joined(words: list[str]) -> str:
    CHANGED.wait(0.2)  # a tool that did not wait for this would have changed them by then
    return ",".join(words)


@sgl.tool
def push(words: list[str]) -> str:
    words.append("pushed")
    CHANGED.set()
    return "pushed"


@sgl.function
def reads_before(s: Any, words: list[str]) -> Any:
    said, count = joined(words), words.count("pushed")
    push(words)
    s += said + sgl.gen("a")
    return count


@pytest.mark.slow
def test_a_tool_waits_for_what_reads_its_argument_before_it() -> None:
    CHANGED.clear()
    plan, words = compiled(reads_before, {"words": ["x"]}), ["a", "b"]
    found = planned(plan, {"words": words})
    assert same(found, (0, {"a": "3 a b c d e"}, ["a,b"]))
    assert words == ["a", "b", "pushed"]


# -- another process ---------------------------------------------------------------------------------

_CHILD = """
import json, sys
import sglc
from sglc.backends.scripted import ScriptedBackend
from sglc.ir.facts import spell, value_of
for line in sys.stdin:
    task = json.loads(line)
    prompts = []
    def said(asked):
        prompts.append(asked.prompt)
        return asked.choices[-1] if asked.choices else f"{len(asked.prompt)} a b c d e"
    given = {name: value_of(value) for name, value in task["given"].items()}
    result = sglc.load_plan(task["file"]).run(given, backend=ScriptedBackend(said), seed=0)
    print(json.dumps([spell(result.ret_value), spell(dict(result.variables)), sorted(prompts)]))
"""


@pytest.mark.slow
def test_a_plan_does_the_same_in_another_process(tmp_path: Path) -> None:
    tasks, expected = [], []
    cases: list[tuple[Function, Any, Any]] = [
        (shows, {"x": example}, {"x": value}) for example, value in VALUES
    ]
    cases += [(with_default(example), None, {}) for example, _ in VALUES]
    cases += [(reads, OBJECTS, OTHERS), (walks, WALKED, {**WALKED, "rows": [("q", 9), ("r", 8)]})]
    for number, (function, example, given) in enumerate(cases):
        file = tmp_path / f"{number}.json"
        function.compile(Answers(), args=example).save(file)
        spelled = {name: spell(value) for name, value in given.items()}
        tasks.append(json.dumps({"file": str(file), "given": spelled}))
        value, variables, prompts = python(function, given)
        expected.append([spell(value), spell(variables), prompts])
    made = subprocess.run(
        [sys.executable, "-c", _CHILD], input="\n".join(tasks), capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    assert [json.loads(line) for line in made.stdout.splitlines()] == expected


# -- what Python asks --------------------------------------------------------------------------------


@sgl.function
def walks(s: Any, rows: list[Any], extra: dict[str, Any], limit: int = 2) -> Any:
    for number, (name, count) in enumerate(rows):
        s += f"{number}. {name} has {count}\n" + sgl.gen(f"row{number}")
    for key, value in extra.items():
        s += f"{key}={value};"
    if limit > 1:
        s += "more than one"
    return [count + limit for _, count in rows]


WALKED = {"rows": [("a", 1), ("b", 2)], "extra": {"k": 1.5}, "limit": 3}


@sgl.function
def asks(s: Any, x: Any, how: str) -> Any:
    if how == "compare":
        s += "big" if x > 3 else "small"
    elif how == "true":
        s += "yes" if x else "no"
    elif how == "range":
        for number in range(x):
            s += str(number)
    elif how == "inside":
        s += "there" if "k" in x else "not there"
    elif how == "type":
        s += "text" if isinstance(x, str) else "number" if type(x) is int else "other"
    elif how == "none":
        s += "nothing" if x is None else "something"
    elif how == "name":
        s += sgl.gen(x)
    elif how == "length":
        s += "long" if len(x) > 2 else "short"
    elif how == "member":
        s += "curt" if x is Tone.CURT else "kind" if x == Tone.KIND else "?"
    elif how == "unpack":
        first, *rest = x
        s += f"{first} and {len(rest)}"
    elif how == "match":
        match x:
            case {"op": "add", "by": by}:
                s += f"plus {by}"
            case [one, _]:
                s += f"two, {one}"
            case _:
                s += "else"
    elif how == "method":
        s += "upper" if x.strip().startswith("U") else "lower"
    elif how == "samples":
        s += sgl.gen("short", n=x)
    elif how == "choices":
        s += sgl.select("c", choices=x)
    s += sgl.gen("end")
    return x


# What is asked, an example, an argument that is the same in it, and one that is not.
HELD: list[tuple[str, Any, Any, Any]] = [
    ("compare", 5, 2**60, 3), ("true", [1], ["a", 2], []), ("true", "a", "b", ""), ("range", 2, 2, 3),
    ("inside", {"k": 1}, {"j": 2, "k": 3}, {"j": 1}), ("type", 3, 4, "3"),
    ("type", "3", "4", 3), ("none", None, None, 1), ("name", "one", "one", "two"),
    ("length", [1, 2, 3], "abc", [1]), ("member", Tone.CURT, Tone.CURT, Tone.KIND),
    ("unpack", [1, 2], [8, 9], [1]), ("unpack", [1, 2], [3, 4], [1, 2, 3]),
    ("match", {"op": "add", "by": 2}, {"op": "add", "by": 9}, {"op": "sub", "by": 2}),
    ("match", [1, 2], [3, 2], [1]), ("method", " Up", "U", "u"), ("samples", 3, 3, 4),
    ("choices", ["a", "b"], ["c", "d"], ["a", "b", "c"]),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("how", "example", "alike", "other"), few(HELD, 8), ids=repr)
def test_a_plan_is_for_what_it_asked_of_its_example(how: str, example: Any, alike: Any, other: Any) -> None:
    plan = compiled(asks, {"x": example, "how": how})
    for value in (example, alike) if type(alike) is type(example) else (example,):
        row = {"x": value, "how": how}
        assert same(planned(plan, row), python(asks, row))
    row = {"x": other, "how": how}
    problem = refused(plan, row)
    assert problem.code == ("SGLC048" if type(other) is type(example) else "SGLC047")
    assert problem.hint.endswith("`compile(args={...})`")
    assert problem.loc is not None
    assert problem.loc.line in range(asks.definition.loc.line, asks.definition.loc.line + 60)
    assert same(planned(compiled(asks, row), row), python(asks, row))
    assert refused(plan, {"x": example, "how": "other"}).code == "SGLC048"


@pytest.mark.slow
def test_a_guard_is_what_keeps_a_plan_from_other_arguments() -> None:
    """Without them, plans do something else than Python: none of these guards is idle."""
    idle = []
    for how, example, _, other in HELD:
        plan = compiled(asks, {"x": example, "how": how})
        own = tuple(guard for guard in plan.plan.guards if "x" in names_in(guard.fact))
        row = {"x": other, "how": how}
        if type(other) is not type(example):
            continue
        bare = LoadedPlan(replace(plan.plan, guards=()))
        expected, backend = python(asks, row), Answers()
        result = bare.run(row, backend=backend, seed=0)
        did = None if result.error() else (result.ret_value, dict(result.variables), sorted(backend.prompts))
        if not own or (did is not None and same(did, expected)):
            idle.append((how, other))
    assert idle == []


def test_items_of_a_list_stay_data() -> None:
    plan = compiled(walks, WALKED)
    for rows, extra, limit in (([("q", -4), ("r", 0)], {"z": 2.5}, 10), (WALKED["rows"], {"k": math.inf}, 2)):
        row = {"rows": rows, "extra": extra, "limit": limit}
        assert same(planned(plan, row), python(walks, row))
    facts = {guard.fact for guard in plan.plan.guards}
    assert {"len(rows)", "operator.gt(limit, 1)"} <= facts
    assert not any("'a'" in guard.expected for guard in plan.plan.guards)  # no value that nothing asked for
    assert refused(plan, {**WALKED, "limit": 1}).message == (
        "the plan is for arguments of which `limit > 1` is `True`"
    )
    assert "len(rows)" in refused(plan, {**WALKED, "rows": []}).message


def test_a_batch_checks_every_row_before_one_runs() -> None:
    plan, backend = compiled(walks, WALKED), Answers()
    rows = [WALKED, {**WALKED, "limit": 2}, {**WALKED, "rows": [("c", 1), ("d", 2)]}]
    found = plan.run_batch(rows, backend=backend, seed=0)
    assert [result.ret_value for result in found] == [python(walks, row)[0] for row in rows]
    with pytest.raises(UsageError) as caught:
        plan.run_batch([*rows, {**WALKED, "limit": 0}], backend=Answers())
    assert caught.value.note.startswith("row 3 of the batch")


@sgl.function
def inner(s: Any, n: int, words: list[str]) -> Any:
    s += f"{n}: " + ", ".join(words) + sgl.gen("w")
    return n * 2 if n > 1 else 0


@sgl.function
def outer(s: Any, n: int, words: list[str]) -> Any:
    return inner(n, words).ret_value, inner(n=5, words=["x"]).ret_value


def test_a_called_program_gets_them_as_data() -> None:
    plan = compiled(outer, {"n": 2, "words": ["a"]})
    row = {"n": 3, "words": ["b", "c"]}
    result = plan.run(row, backend=Answers(), seed=0)
    assert result.ret_value == (6, 10)
    assert "`n > 1`" in refused(plan, {**row, "n": 1}).message


@sgl.function
def any_number(s: Any, *words: str, **options: Any) -> Any:
    for word in words:
        s += word + " "
    s += sgl.gen("a")
    return options.get("count", 0), len(words)


@sgl.function
def limited(s: Any, topic: str, limits: Any) -> list[str]:
    for number, limit in enumerate(limits):
        s += f"{topic} {number}:" + sgl.gen("one", max_tokens=limit)
    forks = s.fork(2)
    for fork in forks:
        fork += sgl.gen("two", max_tokens=limits[0] + 1, temperature=0)
    return [s["one"], forks[1]["two"]]


@sgl.function
def short(s: Any, most: int) -> None:
    s += "It is" + sgl.gen("it", most)


@sgl.function
def calling_limited(s: Any, most: int) -> None:
    s += "Say " + short(2 * most)["it"] + sgl.gen("three", max_tokens=most)


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (limited, [{"topic": "a", "limits": limits} for limits in ([3, 2], [1, 4], [5, 1], [6, 1000])]),
        (calling_limited, [{"most": most} for most in (3, 2, 1, 2**29)]),
    ],
)
def test_how_many_tokens_are_made_is_data(function: Function, rows: list[dict[str, Any]]) -> None:
    plan = compiled(function, rows[0])
    for row in rows:
        assert same(planned(plan, row), python(function, row))
        assert function.run(**row, backend=Answers(), seed=0).mode == "plan"
    texts = [
        repr(result.ret_value) + repr(result.variables)
        for result in function.run_batch(rows, backend=Answers())
    ]
    assert len(set(texts)) == len(rows)


@pytest.mark.parametrize(
    "limits", [[0, 2], [2, 0], [-1, 2], [2, True], [2, 2.0], [2, "2"], [2, 2**31], [2, None]]
)
def test_what_is_no_count_of_tokens_goes_its_own_way(limits: list[Any]) -> None:
    """Without any there is no text, a huge one is the back end's to take, and what is none is refused."""
    limited.run("a", [2, 2], backend=Answers()).sync()
    row = {"topic": "a", "limits": limits}
    ran = []
    for mode in ("auto", "python"):
        backend = Answers()
        error = limited.run(**row, backend=backend, seed=0, mode=mode).error()
        ran.append((getattr(error, "message", None), sorted(backend.prompts)))
    assert ran[0] == ran[1]


def test_a_count_of_tokens_beside_choices_is_refused_in_every_mode() -> None:
    @sgl.function
    def chosen(s: Any, most: int) -> None:
        s += "Which?" + sgl.gen("one", choices=["a", "b"], max_tokens=most)

    for most in (3, 4, 5):  # at the second number counts are data
        for mode in ("auto", "python"):
            error = chosen.run(most, backend=Answers(), mode=mode).error()
            assert isinstance(error, TraceError)
            assert error.code == "SGLC114"


def test_the_length_of_a_form_is_a_fact() -> None:
    """What a short text can be is less than what a long one can."""

    @sgl.function
    def rated(s: Any, most: int) -> None:
        s += "Rate:" + sgl.gen("grade", regex="[0-9]+", max_tokens=most) + sgl.gen("why", max_tokens=most)

    plan = compiled(rated, {"most": 3})
    assert plan.plan.guards[0].fact == "most"
    assert refused(plan, {"most": 4}).code == "SGLC048"


def test_a_plan_for_any_count_refuses_what_is_none() -> None:
    @sgl.function
    def told(s: Any, topic: str, most: int) -> None:
        s += topic + sgl.gen("story", max_tokens=most)

    plan = compiled(told, None)
    assert "limit=t0" in to_text(told.compile(Answers()).source)
    assert plan.run({"topic": "a", "most": 2}, backend=Answers()).text() == "a1 a"
    for most in (0, -1, 2**31):
        error = plan.run({"topic": "a", "most": most}, backend=Answers()).error()
        assert isinstance(error, RunError)
        assert error.code == "SGLC466"
    assert "any number of new tokens" in told.explain(Answers()).text()


def test_a_count_below_the_least_is_refused_where_it_is_known() -> None:
    @sgl.function
    def told(s: Any, most: int) -> None:
        s += "a" + sgl.gen("story", min_tokens=5, max_tokens=most)

    plan = compiled(told, None)
    assert plan.run({"most": 5}, backend=Answers()).error() is None
    errors = [plan.run({"most": 4}, backend=Answers()).error()]
    errors += [told.run(most=4, backend=Answers(), mode=mode).error() for mode in ("auto", "python")]
    said = {(type(error).__name__, str(error)) for error in errors}
    assert len(said) == 1
    assert "SGLC103" in said.pop()[1]


def test_any_number_of_arguments() -> None:
    plan = compiled(any_number, {"words": ("a", "b"), "count": 3})
    found = planned(plan, {"words": ("c", "d"), "options": {"count": 4}})
    backend = Answers()
    result = any_number.run("c", "d", count=4, backend=backend, seed=0)
    assert same(found, (result.ret_value, dict(result.variables), sorted(backend.prompts)))
    assert refused(plan, {"words": ("c",), "options": {"count": 4}}).code == "SGLC048"


@sgl.function
def doubled(s: Any, xs: list[int]) -> Any:
    s += "".join(str(x) for x in xs) + sgl.gen("a")
    xs.append(1)
    return xs


def test_an_argument_is_never_changed() -> None:
    given = [1]
    made = doubled.compile(Answers(), args={"xs": given})
    assert any("changes" in step.reason for step in made.plan.steps if isinstance(step, HostStep))
    assert given == [1]


# -- types without values ----------------------------------------------------------------------------


@sgl.function
def typed(s: Any, n: int, flag: bool, share: float, topic: str = "cats") -> Any:
    s += f"{topic} {n + 1:03d} {share:.1%}"
    if flag:
        s += " flagged"
    s += " many" if n > 3 else " few"
    s += sgl.gen("a")
    return n, flag, share, topic


def test_annotations_say_types_where_there_are_no_values() -> None:
    plan = compiled(typed, None)
    assert [(param.kind, param.default) for param in plan.plan.params] == [
        ("int", None), ("bool", None), ("float", None), ("str", "'cats'"),
    ]  # fmt: skip
    assert plan.plan.guards == ()
    for n, flag in ((2, True), (7, False)):
        row = {"n": n, "flag": flag, "share": 0.25}
        assert same(planned(plan, row), python(typed, row))
        other = {**row, "topic": "dogs"}
        assert same(planned(plan, other), python(typed, other))


@pytest.mark.parametrize(
    ("given", "found"), [({"n": "3"}, "str"), ({"n": True}, "bool"), ({"share": 1}, "int"),
                         ({"topic": Name("x")}, f"{__name__}.Name"), ({"topic": Path("x")}, "pathlib"),
                         ({"flag": 1}, "int"), ({"topic": None}, "NoneType")], ids=repr,
)  # fmt: skip
def test_no_argument_is_converted(given: dict[str, Any], found: str) -> None:
    problem = refused(compiled(typed, None), {"n": 3, "flag": True, "share": 0.5, **given})
    assert problem.code == "SGLC047"
    assert f"is of type `{found}" in problem.message
    assert problem.loc is not None


def test_what_is_not_known_still_breaks_with_a_way_out() -> None:
    @sgl.function
    def counted(s: Any, n: int) -> None:
        for number in range(n):
            s += str(number)
        s += sgl.gen("a")

    from sglc.frontend.tracing.trace import explored
    from sglc.ir.sampling import Sampling

    (found,) = explored(counted.definition, Sampling()).graph_breaks
    assert '`compile(args={"n": ...})`' in found.hint
    compiled(counted, {"n": 2})


def test_unknown_examples_and_arguments_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        typed.compile(Answers(), args={"m": 1})
    assert caught.value.code == "SGLC021"
    assert refused(compiled(typed, None), {"n": 1, "flag": True}).code == "SGLC014"
    assert refused(compiled(typed, None), {"n": 1, "flag": True, "share": 0.5, "m": 1}).code == "SGLC014"


def test_bound_arguments_are_constants() -> None:
    plan = LoadedPlan(typed.bind(n=3, flag=False).compile(Answers()).plan)
    assert plan.plan.names == ("share", "topic")
    assert planned(plan, {"share": 0.5})[0] == (3, False, 0.5, "cats")
    assert Bound(3).value == 3


# -- the command line --------------------------------------------------------------------------------

_PROGRAM = """
import sglc as sgl

@sgl.function
def f(s, n: int, t=0.5, flag=False, word="w", rows=()):
    s += f"{n + 1} {t:.2f} {flag} {word}" + sgl.gen("a")
    for row in rows:
        s += row
    return [n, t, flag, word, type(n).__name__, type(t).__name__]
"""


@pytest.mark.slow
def test_the_command_line_gives_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.py").write_text(_PROGRAM)
    (tmp_path / "script.json").write_text('[{"text": "said"}]')
    backend = f"scripted:{tmp_path / 'script.json'}"
    program, plan = str(tmp_path / "p.py"), str(tmp_path / "p.json")
    assert main(["compile", program, "--target", backend, "--arg", "n=1", "--emit", "json", "-o", plan]) == 0
    for which in (program, plan):
        given = ["--arg", "n=3", "--arg", "t=2", "--arg", "flag=true", "--arg", "word=7"]
        capsys.readouterr()
        assert main(["run", which, "--backend", backend, "--json", *given]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["value"] == [3, 2.0, True, "7", "int", "float"]
        assert main(["run", which, "--backend", backend, "--arg", "n=x"]) == 2
        assert "SGLC007" in capsys.readouterr().err
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"n": 9007199254740993}\n{"n": 2, "word": "z"}\n')
    assert main(["run", plan, "--backend", backend, "--json", "--batch", str(rows)]) == 0
    values = [json.loads(line)["value"] for line in capsys.readouterr().out.splitlines()]
    assert [value[0] for value in values] == [9007199254740993, 2]
    assert main(["run", plan, "--backend", backend, "--args", '{"n": "1"}']) == 2
    assert "SGLC047" in capsys.readouterr().err


_CLASSES = """
import enum
from dataclasses import dataclass
from typing import Literal, Optional

import sglc as sgl

class Tone(enum.Enum):
    KIND = "kind"
    CURT = "curt"

@dataclass
class Point:
    x: int
    name: str

@sgl.function
def f(
    s, tone: Tone, points: list[Point], n: int | None = None, o: "Optional[float]" = None,
    size: Literal["s", 3] = "s", word: str | int = "w", default=Tone.CURT,
):
    s += tone.value + "".join(point.name for point in points) + sgl.gen("a")
    return [tone.name, points[0].x, type(points[0]).__name__, n, o, size, word, default.name]
"""
_PLANNED = """
import enum
from dataclasses import dataclass

import sglc as sgl

class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"

@dataclass
class City:
    name: str
    n: int = 2

@sgl.function
def f(s, c: City, mood: Mood):
    s += c.name + str(c.n) + mood.value + sgl.gen("a")
    return [c.name, c.n, mood.name]
"""
_CITY = ["--arg", 'c={"name": "R", "n": 3}']
_SAID = ["KIND", 2, "Point", 5, 2.0, 3, "7", "KIND"]
_AS_TEXTS = [
    *("--arg", "tone=kind", "--arg", 'points=[{"x": 2, "name": "b"}]', "--arg", "n=5", "--arg", "o=2"),
    *("--arg", "size=3", "--arg", "word=7", "--arg", "default=kind"),
]
_ROW = {
    "tone": "kind", "points": [{"x": 2, "name": "b"}], "n": 5, "o": 2, "size": 3, "word": "7", "default": "kind"
}  # fmt: skip


@pytest.fixture
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A program whose annotations are classes, and a script of answers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.py").write_text(_CLASSES)
    (tmp_path / "script.json").write_text('[{"text": "said"}]')
    return ["c.py", "--backend", "scripted:script.json"]


@pytest.mark.parametrize("given", [_AS_TEXTS, ["--args", json.dumps(_ROW)]], ids=["texts", "JSON"])
@pytest.mark.parametrize(
    "how", [[], ["--mode", "python"], ["--passes", "+fold_text"]], ids=["", "python", "passes"]
)
def test_the_command_line_makes_what_annotations_say(
    classes: list[str], how: list[str], given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *classes, "--json", *how, *given]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == _SAID


def test_the_command_line_makes_what_a_plan_is_for(
    classes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the module of its classes is loaded."""
    Path("p.py").write_text(_PLANNED)
    Path("rows.jsonl").write_text('{"c": {"name": "R"}, "mood": "bad"}\n')
    backend = classes[1:]
    assert (
        main(["compile", "p.py", "--backend", classes[-1], "-o", "p.json", *_CITY, "--arg", "mood=good"]) == 0
    )
    for program in (["p.py"], ["p.json", "--tools", "p.py"]):
        assert main(["run", *program, *backend, "--json", *_CITY, "--arg", "mood=good"]) == 0
        assert json.loads(capsys.readouterr().out)["value"] == ["R", 3, "GOOD"]
        assert main(["run", *program, *backend, "--json", "--batch", "rows.jsonl"]) == 0
        assert json.loads(capsys.readouterr().out)["value"] == ["R", 2, "BAD"]
        assert main(["run", *program, *backend, "--arg", "c=x", "--arg", "mood=bad"]) == 2
        assert capsys.readouterr().err.startswith("error[SGLC007]: `--arg c=x`: `c` is of type `City`")


def test_compile_and_explain_make_what_annotations_say(
    classes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["c.py", "--target", classes[-1]]
    assert main(["compile", *target, *_AS_TEXTS]) == 0
    assert "tone: sglc_program_c.Tone, points: list, n: int = None, o: float = None" in capsys.readouterr().out
    Path("rows.jsonl").write_text(json.dumps(_ROW) + "\n")
    assert main(["explain", *target, *_AS_TEXTS]) == main(["explain", *target, "--batch", "rows.jsonl"]) == 0
    assert "SGLC401" not in capsys.readouterr().err


def test_rows_are_made_what_annotations_say(classes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with open("rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([_ROW.keys(), ["kind", json.dumps(_ROW["points"]), 5, 2, 3, 7, "kind"]])
    Path("rows.jsonl").write_text(json.dumps(_ROW) + "\n")
    for rows in ("rows.csv", "rows.jsonl"):
        for how in ([], ["--passes", "+fold_text"]):
            assert main(["run", *classes, "--json", "--batch", rows, *how]) == 0
            assert json.loads(capsys.readouterr().out)["value"] == _SAID


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("tone", "rude", "`'rude'` is no `Tone`, which has the values 'kind', 'curt'"),
        ("points", [{"x": 2, "name": "b", "z": 3}], "there is no field `z`"),
        ("points", [{"x": 2}], "`name` is missing"),
        ("size", "m", "`'m'` is no `Literal['s', 3]`"),
        ("n", "x", "`'x'` is no `int | None`"),
    ],
)
def test_the_command_line_refuses_what_annotations_do_not_say(
    classes: list[str], name: str, value: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {**_ROW, name: value}
    Path("rows.jsonl").write_text(f"{json.dumps(_ROW)}\n{json.dumps(row)}\n")
    assert main(["run", *classes, "--args", json.dumps(row)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error[SGLC011]: `{name}` is of type")
    assert f"note: {why}" in said
    assert "sglc_program" not in said  # the module that the file is loaded as
    assert main(["run", *classes, "--batch", "rows.jsonl"]) == 2
    assert f"rows.jsonl:2: row 1 of the batch; {why}" in capsys.readouterr().err
    if isinstance(value, str):
        others = [text for text in _AS_TEXTS[:4] if not text.startswith(f"{name}=")]
        others = [text for text in others if text != "--arg"]
        given = [part for text in (*others, f"{name}={value}") for part in ("--arg", text)]
        assert main(["run", *classes, *given]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error[SGLC007]: `--arg {name}={value}`: `{name}` is of type")
        assert f"note: {why}" in said
        Path("rows.csv").write_text(f"{name}\n{value}\n")
        assert main(["run", *classes, "--batch", "rows.csv"]) == 2
        assert f"note: {why}" in capsys.readouterr().err


_HELD = """
import enum
from dataclasses import dataclass

import sglc as sgl

class Tone(enum.Enum):
    KIND = "kind"
    CURT = "curt"

@dataclass
class Point:
    x: int
    name: str

@sgl.function
def f(s, tone: Tone, point: Point):
    s += tone.name + tone.value + point.name + sgl.gen("a")
"""


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A plan whose classes this process does not have."""
    (tmp_path / "held.py").write_text(_HELD)
    given = ["--arg", "tone=kind", "--arg", 'point={"x": 1, "name": "a"}']
    command = [sys.executable, "-m", "sglc", "compile", str(tmp_path / "held.py"), *given]
    (tmp_path / "script.json").write_text('[{"text": "said"}]')
    target = ["--target", f"scripted:{tmp_path / 'script.json'}"]
    subprocess.run([*command, *target, "-o", str(tmp_path / "held.json")], check=True)
    return tmp_path / "held.json"


@pytest.mark.slow
def test_a_plan_knows_what_its_classes_hold(held: Path) -> None:
    plan, backend = sgl.load_plan(held), Answers()
    result = plan.run({"tone": "curt", "point": {"x": 2, "name": "b"}}, backend=backend)
    assert (result.error(), backend.prompts) == (None, ["CURTcurtb"])
    wrong = refused(plan, {"tone": "rude", "point": {"x": 2, "name": "b"}})
    message = "`tone` is `'rude'`, and no member of `sglc_program_held.Tone` has this value"
    assert (wrong.code, wrong.message, wrong.note) == (
        "SGLC047", message, "its members: KIND = 'kind', CURT = 'curt'"
    )  # fmt: skip
    wrong = refused(plan, {"tone": "kind", "point": {"x": 2, "name": "b", "z": 3}})
    message = "`point` has a field `z`, and `sglc_program_held.Point` has none of this name"
    assert (wrong.code, wrong.message, wrong.note) == ("SGLC047", message, "its fields: x, name")
    assert refused(plan, {"tone": "kind", "point": {"x": 2}}).code == "SGLC048"
    assert refused(plan, {"tone": "kind", "point": "b"}).code == "SGLC047"
    assert refused(plan, {"tone": ["kind"], "point": {"x": 2, "name": "b"}}).code == "SGLC047"


# -- facts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", few([value for pair in VALUES for value in pair], 6), ids=repr)
def test_spelled_values_are_exact(value: Any) -> None:
    spelled = spell(value)
    assert spelled is not None
    again = value_of(spelled)
    assert same(again, value)
    assert spell(again) == spelled


def test_a_number_that_is_none_is_spelled() -> None:
    assert math.isnan(value_of(str(spell(math.nan))))
    assert spell(-0.0) != spell(0.0)
    assert spell(lambda: 0) is None
    assert spell(Name("x")) is None


@pytest.mark.parametrize("fact", ["open('x')", "a.b", "a[0]", "[x for x in a]", "lambda: 0", "a +", "print(a)",
                                  "sglc.unknown(a)", "len(*a)", "f'{a}'"])  # fmt: skip
def test_a_fact_runs_nothing_but_functions_of_the_list(fact: str) -> None:
    with pytest.raises(ValueError, match="fact"):
        names_in(fact)
    made = compiled(typed, None).plan
    with pytest.raises(VerifyError):
        plan_from_text(plan_to_text(replace(made, guards=(PlanGuard(fact, "1", made.params[0].loc),))), "x")


@pytest.mark.parametrize(
    ("fact", "shown"),
    [
        ("operator.gt(operator.getitem(xs, 0), 2)", "xs[0] > 2"),
        (
            "operator.contains(operator.getitem(known, 'a'), sglc.attribute(place, 'name'))",
            "place.name in known['a']",
        ),
        ("operator.not_(sglc.is_none(x))", "not x is None"),
        ("sglc.type(operator.add(a, b))", "type(operator.add(a, b))"),
        ("the sampling defaults", "the sampling defaults"),
    ],
)
def test_facts_for_people(fact: str, shown: str) -> None:
    assert readable(fact) == shown


def test_promises() -> None:
    assert promised(typed.definition) == {"n": "int", "flag": "bool", "share": "float", "topic": "str"}
    check: Callable[[str], set[str]] = names_in
    assert check("operator.gt(len(n), m)") == {"n", "m"}
