"""Types as `dtype` and of a tool's parameters: what a text is held to, and what is read from it."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable
from dataclasses import InitVar, dataclass, make_dataclass
from datetime import date
from typing import Annotated, Any, ForwardRef, Literal, NotRequired, Required, TypedDict

import annotated_types
import pydantic
import pydantic.dataclasses
import pytest
import typing_extensions

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import Loc, RunError, TraceError
from sglc.frontend.outputs.output_form import OutputParser
from sglc.frontend.outputs.typed import arguments_of, form_of
from sglc.frontend.tracing import makers
from sglc.ir.core import NOWHERE
from sglc.ir.grammar.json_schema import enforced
from sglc.ir.grammar.schema_check import check_value


@sgl.function
def typed(s: Any, dtype: Any) -> None:
    s += sgl.gen("x", dtype=dtype)


def says(*texts: str) -> ScriptedBackend:
    """Answers with these texts in turn."""
    return ScriptedBackend(lambda asked: texts[asked.site.occurrence])


def read_as(dtype: Any, text: str) -> Any:
    return typed.run(dtype, backend=says(text))["x"]


def assert_none(dtype: Any, text: str) -> None:
    with pytest.raises(RunError, match="SGLC410"):
        read_as(dtype, text)


def asked_of(dtype: Any) -> Any:
    """The schema of a type; all of it can be enforced."""
    schema = form_of(dtype, NOWHERE).json_schema
    assert schema is not None
    enforced(schema)
    return json.loads(schema)


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad (very)"


@dataclass
class Point:
    x: int
    y: float = 0.5


def test_strict_pydantic_models_are_read_as_json() -> None:
    class Strict(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(strict=True)
        day: date
        pair: tuple[int, str]
        mood: Mood

    text = '{"day": "2020-01-02", "pair": [1, "a"], "mood": "good"}'
    assert read_as(Strict, text) == Strict(day=date(2020, 1, 2), pair=(1, "a"), mood=Mood.GOOD)
    assert_none(Strict, text.replace("1, ", '"1", '))


@pydantic.dataclasses.dataclass
class Stay:
    day: date
    guests: int = pydantic.Field(default=2, ge=1, alias="Guests")


def test_dataclasses_of_pydantic_are_its_own() -> None:
    assert asked_of(Stay)["properties"]["Guests"]["minimum"] == 1
    result = typed.run(list[Stay], backend=says('[{"day": "2020-01-02", "Guests": 3}]'))
    assert result["x"] == [Stay(date(2020, 1, 2), Guests=3)]  # type: ignore[call-arg]
    assert result.as_json()["vars"]["x"] == [{"day": "2020-01-02", "guests": 3}]
    assert_none(Stay, '{"day": "2020-01-02", "Guests": 0}')


class Leaf(pydantic.BaseModel):
    value: int


class Twig(pydantic.BaseModel):
    leaf: Leaf
    twigs: list[Twig] = []


@dataclass
class Tree:
    twig: Twig | None
    mood: Annotated[Mood, pydantic.Field(strict=True)]


def test_pydantic_models_in_something_bring_their_definitions_along() -> None:
    text = '{"twig": {"leaf": {"value": 1}, "twigs": [{"leaf": {"value": 2}}]}, "mood": "good"}'
    twig = Twig(leaf=Leaf(value=1), twigs=[Twig(leaf=Leaf(value=2))])
    assert read_as(Tree, text) == Tree(twig, Mood.GOOD)
    schema = asked_of(Tree)
    assert sorted(schema["$defs"]) == ["Leaf", "Twig"]
    check_value(schema, json.loads(text))
    assert_none(Tree, text.replace("2", '"two"'))

    def plant(twigs: list[Twig]) -> str:
        return "done"

    assert sorted(arguments_of(plant, NOWHERE)[0]["$defs"]) == ["Leaf", "Twig"]


def test_definitions_of_one_name_stay_apart() -> None:
    other = pydantic.create_model("Leaf", word=(str, ...))
    branch = pydantic.create_model("Branch", leaf=(other, ...))
    made = make_dataclass("Both", [("twig", Twig), ("branch", branch), ("again", branch)])
    schema = asked_of(made)
    assert sorted(schema["$defs"]) == ["Leaf", "Leaf_2", "Twig"]
    twig, leaf = {"leaf": {"value": 1}}, {"leaf": {"word": "a"}}
    check_value(schema, {"twig": twig, "branch": leaf, "again": leaf})
    with pytest.raises(ValueError, match=r"value|word"):
        check_value(schema, {"twig": twig, "branch": twig, "again": leaf})


Small = Annotated[int, pydantic.Field(ge=0, le=5)]


@dataclass
class Child:
    age: Small
    name: Annotated[str, "as it is written", annotated_types.MaxLen(3)]
    ages: list[Annotated[int, annotated_types.Interval(gt=1, lt=3)]]
    note: Annotated[str, "free"] = ""


class ChildRow(TypedDict):
    age: Small


@sgl.tool
def note_age(age: Small) -> str:
    """Notes it."""
    return "noted"


def test_constraints_of_annotated_parts_hold() -> None:
    assert asked_of(Child)["properties"] == {
        "age": {"maximum": 5, "minimum": 0, "type": "integer"},
        "name": {"maxLength": 3, "type": "string"},
        "ages": {"type": "array", "items": {"exclusiveMaximum": 3, "exclusiveMinimum": 1, "type": "integer"}},
        "note": {"type": "string"},
    }
    text = '{"age": 5, "name": "Ann", "ages": [2]}'
    assert read_as(Child, text) == Child(5, "Ann", [2])
    for one, other in (("5", "6"), ("5", '"5"'), ("Ann", "Anna"), ("[2]", "[3]")):
        assert_none(Child, text.replace(one, other))
    assert_none(ChildRow, '{"age": 6}')
    assert read_as(Small | str, '"5"') == "5"  # type: ignore[operator]
    call = '<tool_call>\n{"name": "note_age", "arguments": {"age": %s}}\n</tool_call>'

    @sgl.function
    def calls(s: Any) -> None:
        s += sgl.gen("x", tools=[note_age])

    assert calls.run(backend=says(call % 5))["x"].calls[0].arguments == {"age": 5}
    for wrong in ("6", "1e999"):
        with pytest.raises(RunError, match="SGLC410"):
            calls.run(backend=says(call % wrong))["x"]


def test_annotated_as_a_dtype() -> None:
    assert read_as(Small, "5") == 5
    assert_none(Small, "6")
    assert read_as(Annotated[Mood, "how it is"], "good") is Mood.GOOD
    assert read_as(Annotated[int, pydantic.Field(description="how many")], "5") == "5"


Number = typing_extensions.TypeAliasType("Number", int)
Moods = typing_extensions.TypeAliasType("Moods", list[Mood])


def test_aliases_are_what_they_stand_for() -> None:
    assert read_as(Number, "5") == "5"
    assert read_as(Moods, '["good"]') == [Mood.GOOD]
    assert read_as(dict[str, Moods], '{"a": ["good"]}') == {"a": [Mood.GOOD]}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="it has no statement `type`")
@pytest.mark.parametrize(
    ("said", "message"), [("list[X]", "it holds itself"), ("list[Unknown]", "cannot be evaluated")]
)
def test_aliases_without_a_form_are_refused(said: str, message: str) -> None:
    names: dict[str, Any] = {}
    exec(f"type X = {said}", names)
    with pytest.raises(TraceError, match=f"SGLC115.*{message}"):
        form_of(names["X"], NOWHERE)


class Given(TypedDict):
    a: int
    b: NotRequired[int]
    c: Annotated[NotRequired[int], annotated_types.Ge(1)]


class Partial(typing_extensions.TypedDict, total=False):
    a: Required[int]
    b: typing_extensions.ReadOnly[int]


@pytest.mark.parametrize("dtype", [Given, Partial])
def test_what_a_typed_dict_does_not_require_may_be_missing(dtype: Any) -> None:
    """The annotations of this file are texts."""
    assert asked_of(dtype)["required"] == ["a"]
    assert read_as(dtype, '{"a": 1}') == {"a": 1}
    assert read_as(dtype, '{"a": 1, "b": 2}') == {"a": 1, "b": 2}
    assert_none(dtype, '{"b": 1}')


class Half(enum.Enum):
    ONE = 1.0
    PAIR = (1, 2)
    LIST = ["a"]  # noqa: RUF012  # no default, but a value
    MAP = {"a": (1, 2.0)}  # noqa: RUF012


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ("1", Half.ONE),
        ("1.0", Half.ONE),
        ("[1, 2.0]", Half.PAIR),
        ('["a"]', Half.LIST),
        ('{"a": [1.0, 2]}', Half.MAP),
    ],
)
def test_members_are_read_as_json_has_them(text: str, member: Half) -> None:
    assert read_as(list[Half], f"[{text}]") == [member]


def test_many_values_are_told_apart() -> None:
    words = Literal[tuple(f"w{i}" for i in range(30000))]  # type: ignore[valid-type]
    value = form_of(words, NOWHERE).value
    assert value is not None
    assert value("w7") == "w7"


@pytest.mark.parametrize("text", ["1e999", "-1e999", "1" + "0" * 400])
def test_a_number_that_no_float_holds_is_none(text: str) -> None:
    assert_none(Point, f'{{"x": 1, "y": {text}}}')
    assert_none(list[float], f"[{text}]")


@pytest.mark.parametrize("deep", [201, 500, 100_000])
def test_a_value_that_is_nested_too_deeply_is_none(deep: int) -> None:
    assert_none(list, "[" * deep + "]" * deep)
    assert read_as(list, "[" * 200 + "]" * 200)


@dataclass
class Even:
    n: int

    def __post_init__(self) -> None:
        assert self.n % 2 == 0, f"{self.n} is odd"
        {0: 1, 2: 1}[self.n]


def test_an_assertion_of_a_class_refuses_a_value_and_other_errors_are_its_own() -> None:
    assert read_as(Even, '{"n": 2}') == Even(2)
    with pytest.raises(RunError, match=r"SGLC410.*3 is odd"):
        read_as(Even, '{"n": 3}')
    with pytest.raises(KeyError, match="4"):
        read_as(Even, '{"n": 4}')

    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x", dtype=Even, retries=1)
        return s["x"].n

    assert program.run(backend=says(*['{"n": 1}', '{"n": 2}'])).ret_value == 2


@dataclass
class Foreign:
    """A constraint of another library."""

    ge: int


class Nothing(enum.Enum):
    pass


class Days(enum.Enum):
    FIRST = date(2020, 1, 1)


class Twice(enum.Enum):
    PAIR = (1, 2)
    LIST = [1, 2]  # noqa: RUF012


@dataclass
class Apart:
    n: int
    more: InitVar[int]


@dataclass(init=False)
class Own:
    n: int

    def __init__(self, other: int) -> None:
        self.n = other


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (list[Nothing], "has no values"),
        (list[Days], r"`datetime.date\(2020, 1, 1\)` is none of JSON's"),
        (list[Literal[b"x"]], "`b'x'` is none of JSON's"),
        (list[Twice], r"two values that are written `\[1, 2]`"),
        (Apart, "`__init__` takes other arguments than its fields.*'more'"),
        (Own, "`__init__` takes other arguments than its fields"),
        (list[Annotated[int, Foreign(3)]], r"`Foreign\(ge=3\)` is no constraint that is known"),
        (pydantic.create_model("Calls", f=(Callable[[int], int], ...)), "CallableSchema"),
        (pydantic.create_model("Fwd", f=(ForwardRef("Unknown"), ...)), "not fully defined"),
    ],
)
def test_types_without_a_form_are_refused_by_name(dtype: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        sgl.gen("x", dtype=dtype)
    assert caught.value.code == "SGLC115"


def test_a_constraint_without_pydantic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(TraceError, match=r"SGLC115.*pydantic 2.* is not installed"):
        sgl.gen("x", dtype=Annotated[int, annotated_types.Ge(1)])


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(3000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(TraceError, match=r"SGLC103.*nested too deeply"):
        sgl.gen("x", json_schema=schema)


@dataclass
class Doubled:
    x: int

    def __post_init__(self) -> None:
        self.x *= 2


@pydantic.dataclasses.dataclass
class Base:
    a: int


@dataclass
class Derived(Base):
    b: str


def test_a_limit_leaves_values_as_their_classes_read_them() -> None:
    dtype = Annotated[list[Doubled | float], pydantic.Field(min_length=1)]
    assert read_as(dtype, '[{"x": 1}, 1]') == [Doubled(1), 1.0]
    assert type(read_as(dtype, "[1]")[0]) is float
    assert_none(dtype, "[]")


def test_a_dataclass_may_derive_from_one_of_pydantic() -> None:
    assert read_as(Derived, '{"a": 1, "b": "y"}') == Derived(1, "y")


@sgl.function
def halved(s: Any) -> Any:
    s += sgl.gen("x", dtype=Point)
    return s["x"]


def test_readers_are_kept_of_the_newest_programs_and_a_plan_keeps_its_own() -> None:
    def run() -> Any:
        return halved.run(backend=says('{"x": 1, "y": 2.0}'), mode="plan").ret_value

    assert run() == Point(1, 2.0)
    for cell in range(makers._MOST + 1):
        makers.declare_reader(OutputParser("Point", str, Loc(f"<cell {cell}>", 1, 1), Point))
    assert len(makers.MAKERS) == makers._MOST
    assert run() == Point(1, 2.0)
