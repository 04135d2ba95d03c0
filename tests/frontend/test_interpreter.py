"""Tracing has no effects, breaks before what it does not know, and otherwise does what Python would have done.

What a program may not notice: that it was compiled, explained or looked at by `cache` and batches.
"""

from __future__ import annotations

import ast
import gc
import itertools
import json
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.frontend.language import expr
from sglc.frontend.source import inner_codes
from sglc.frontend.tracing.call_frame import bindings_of, definition_of
from sglc.frontend.tracing.tools import tool
from sglc.ir.core import Program, walk
from sglc.ir.ops import Append, Gen, HostCall, Loop, PureCall, Tool
from sglc.ir.verify.verify import verify
from tests.frontend import settings as own_settings  # a name that no other test stores
from tests.frontend.stand_in import same_on_every_path

BACKEND = ScriptedBackend(lambda asked: "a")
ASKED: list[str] = []  # what user code was called while it was traced
LOCK = threading.Lock()
SEEN: list[Any] = []
ROWS: list[list[Any]] = [[]]
NESTED: OrderedDict[str, list[Any]] = OrderedDict(a=[])
QUEUE: deque[list[Any]] = deque([[]])
MEMBERS = {("x", 1)}
NUMBERS = iter([1, 2, 3])
LINES: Any = (line for line in ("a", "b"))
PAIRS = zip("ab", "cd", strict=True)
COUNT = itertools.count()
COUNTER = 0
LEVEL = 1


def helper(text: str) -> str:
    return text + "!"


helper.calls = []  # type: ignore[attr-defined]
remember = SEEN.append
remember_more = partial(SEEN.append, "more")


class Account:
    """A class of the user's, all of whose methods tell that they were called."""

    balance = 5

    def __init__(self) -> None:
        self.items: list[Any] = []

    @property
    def status(self) -> str:
        ASKED.append("status")
        return "rich"

    def __getattr__(self, name: str) -> str:
        ASKED.append(name)
        return name

    def __eq__(self, other: object) -> bool:
        ASKED.append("==")
        return True

    def __hash__(self) -> int:
        ASKED.append("hash")
        return 1

    def __bool__(self) -> bool:
        ASKED.append("bool")
        return True

    def __str__(self) -> str:
        ASKED.append("str")
        return "account"

    def __len__(self) -> int:
        ASKED.append("len")
        return 1

    def __iter__(self) -> Iterator[str]:
        ASKED.append("iter")
        return iter("a")

    def __getitem__(self, index: Any) -> str:
        ASKED.append("[]")
        return "a"

    def __contains__(self, item: object) -> bool:
        ASKED.append("in")
        return True

    def __add__(self, other: object) -> str:
        ASKED.append("+")
        return "a"

    def __lt__(self, other: object) -> bool:
        ASKED.append("<")
        return True

    def __call__(self) -> str:
        ASKED.append("()")
        return "a"

    def __enter__(self) -> None:
        ASKED.append("enter")

    def __exit__(self, *problem: object) -> None:
        ASKED.append("exit")


ACCOUNT = Account()


@dataclass
class Shown:
    name: str = "n"
    more: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        ASKED.append("str")
        return self.name

    def __add__(self, other: object) -> str:
        ASKED.append("+")
        return self.name


@dataclass
class Holder:
    account: Any = None


@dataclass
class MadeByNew:
    name: str

    def __new__(cls, *args: Any) -> Any:
        ASKED.append("__new__")
        return super().__new__(cls)


class TellingMeta(type):
    def __call__(cls, *args: Any) -> Any:
        ASKED.append("__call__")
        return super().__call__(*args)


@dataclass
class MadeByMeta(metaclass=TellingMeta):
    name: str


@dataclass
class MadeBySetattr:
    name: str

    def __setattr__(self, name: str, value: Any) -> None:
        ASKED.append("__setattr__")


class NewFailure(Exception):
    def __new__(cls, *args: Any) -> Any:
        ASKED.append("__new__")
        return super().__new__(cls, *args)


class Tolerant(Enum):
    @classmethod
    def _missing_(cls, value: object) -> Any:
        ASKED.append("_missing_")
        return None


class Answer(Tolerant):
    YES = "yes"


class Told(Enum):
    YES = "yes"

    def __str__(self) -> str:
        ASKED.append("str")
        return "told"


class Failure(Exception):
    def __str__(self) -> str:
        ASKED.append("str")
        return "failed"


SHOWN = Shown()
HOLDER = Holder(ACCOUNT)
BY_NEW: Any = MadeByNew("n")


@sgl.pure
def checked(text: str) -> str:
    if "e" in text:
        raise ValueError(text)
    return text


@tool
def lookup(text: str) -> str:
    ASKED.append("lookup")
    return text


@tool
def bump() -> str:
    global LEVEL
    LEVEL += 1
    return "bumped"


def counts() -> str:
    global COUNTER
    COUNTER += 1
    return f"{COUNTER}"


def state_of_the_world() -> Any:
    """What effects of tracing would change."""
    return (
        *(list(SEEN), COUNTER, LEVEL, list(ASKED), LOCK.locked(), [list(row) for row in ROWS]),
        *({key: list(row) for key, row in NESTED.items()}, [list(row) for row in QUEUE], set(MEMBERS)),
        *(NUMBERS.__length_hint__(), repr(COUNT), list(helper.calls), list(ACCOUNT.items), Account.balance),  # type: ignore[attr-defined]
        *(LINES.gi_frame is not None and LINES.gi_frame.f_lasti, list(SHOWN.more), vars(ACCOUNT).copy()),
    )


def breaks_of(function: sgl.Function) -> list[HostCall]:
    program = traced(function)
    return [op for op in walk(program.ops) if isinstance(op, HostCall) and not op.error]


def traced(function: sgl.Function) -> Program:
    program = function.trace()
    verify(program)
    return program


def body(statements: Callable[[Any], Any]) -> sgl.Function:
    """A program that generates, and then does what is looked at."""

    def program(s: Any) -> Any:
        s += "Q" + sgl.gen("x", max_tokens=3)
        return statements(s)

    return sgl.function(program)


def counts_in_a_prompt(s: Any) -> None:
    s += f"{counts()}"


def appends_to_a_global(s: Any) -> None:
    SEEN.append(s["x"])


def appends_through_a_bound_method(s: Any) -> None:
    remember("x")


def appends_through_a_partial(s: Any) -> None:
    remember_more()


def appends_to_a_row(s: Any) -> None:
    for row in ROWS:
        row.append("x")


def appends_to_a_row_of_a_mapping(s: Any) -> None:
    for row in NESTED.values():
        row.append("x")


def appends_to_a_row_of_a_queue(s: Any) -> None:
    for row in list(QUEUE):
        row.append("x")


def adds_to_a_set(s: Any) -> None:
    MEMBERS.add(("y", 2))


def adds_in_place(s: Any) -> None:
    rows = ROWS
    rows += [[1]]


def stores_in_a_function(s: Any) -> None:
    helper.calls.append("x")  # type: ignore[attr-defined]


def stores_in_an_object(s: Any) -> None:
    ACCOUNT.items.append("x")


def stores_in_a_class(s: Any) -> None:
    Account.balance = 6


def stores_in_a_dataclass(s: Any) -> None:
    SHOWN.more.append("x")


def deletes(s: Any) -> None:
    del ROWS[0]


def assigns_a_global(s: Any) -> None:
    global COUNTER
    COUNTER = 7


def takes_the_next(s: Any) -> None:
    s += str(next(NUMBERS))


def goes_through_an_iterator(s: Any) -> None:
    for number in NUMBERS:
        s += str(number)


def makes_a_list_of_an_iterator(s: Any) -> None:
    s += str(list(NUMBERS))


def makes_a_queue_of_an_iterator(s: Any) -> None:
    s += str(len(deque(NUMBERS)))


def makes_a_tuple_of_a_generator(s: Any) -> None:
    s += str(tuple(LINES))


def joins_a_generator_from_outside(s: Any) -> None:
    s += "".join(LINES)


def zips_an_iterator(s: Any) -> None:
    s += str(list(zip(NUMBERS, "ab", strict=False)))


def unpacks_an_iterator(s: Any) -> None:
    first, *more = NUMBERS
    s += f"{first}{more}"


def searches_an_iterator(s: Any) -> None:
    s += str(2 in NUMBERS)


def spreads_an_iterator(s: Any) -> None:
    s += str([*NUMBERS])


def counts_on(s: Any) -> None:
    s += str(next(COUNT))


def holds_a_lock(s: Any) -> None:
    with LOCK:
        s += "locked" + sgl.gen("y", max_tokens=3)


def enters_a_manager(s: Any) -> None:
    with ACCOUNT:
        s += "inside"


def reads_a_property(s: Any) -> None:
    s += ACCOUNT.status


def reads_what_is_not_there(s: Any) -> None:
    s += ACCOUNT.nothing


def asks_for_an_attribute(s: Any) -> None:
    s += str(hasattr(ACCOUNT, "nothing"))


def compares_an_object(s: Any) -> None:
    s += str(ACCOUNT == 5)


def compares_in_a_list(s: Any) -> None:
    s += str([ACCOUNT] == [5])


def compares_in_a_dataclass(s: Any) -> None:
    s += str(Holder(5) == HOLDER)


def searches_for_an_object(s: Any) -> None:
    s += str(ACCOUNT in [1, 2])


def branches_on_an_object(s: Any) -> None:
    if ACCOUNT:
        s += "yes"


def shows_an_object(s: Any) -> None:
    s += f"{ACCOUNT}"


def shows_a_dataclass(s: Any) -> None:
    s += f"{SHOWN}"


def shows_a_dataclass_by_percent(s: Any) -> None:
    s += "%s" % SHOWN  # noqa: UP031


def shows_an_enum(s: Any) -> None:
    s += f"{Told.YES}"


def shows_an_exception(s: Any) -> None:
    s += str(Failure("x"))


def prints_an_object(s: Any) -> None:
    print(ACCOUNT)


def adds_an_object(s: Any) -> None:
    s += ACCOUNT + 5


def adds_a_dataclass(s: Any) -> None:
    s += SHOWN + 5


def orders_objects(s: Any) -> None:
    s += str(len(sorted([ACCOUNT, ACCOUNT])))


def sorts_objects(s: Any) -> None:
    items = [ACCOUNT, ACCOUNT]
    items.sort()


def measures_an_object(s: Any) -> None:
    s += str(len(ACCOUNT))


def goes_through_an_object(s: Any) -> None:
    for text in ACCOUNT:
        s += text


def indexes_an_object(s: Any) -> None:
    s += ACCOUNT[0]


def indexes_by_an_object(s: Any) -> None:
    s += {1: "a"}[ACCOUNT]  # type: ignore[index]


def keeps_an_object_in_a_set(s: Any) -> None:
    s += str(len({ACCOUNT}))


def asks_an_object_for_an_item(s: Any) -> None:
    s += str(5 in ACCOUNT)


def calls_an_object(s: Any) -> None:
    s += ACCOUNT()


def makes_an_object_by_new(s: Any) -> None:
    s += MadeByNew("n").name


def makes_an_object_by_a_metaclass(s: Any) -> None:
    s += MadeByMeta("n").name


def makes_an_object_by_setattr(s: Any) -> None:
    s += MadeBySetattr("n").name


def makes_an_exception_by_new(s: Any) -> None:
    s += NewFailure("n").args[0]


def asks_for_a_missing_member(s: Any) -> None:
    s += Answer("yes!").value


def gives_an_object_that_sets_itself_up(s: Any) -> Any:
    return BY_NEW


BREAKS = [
    counts_in_a_prompt, appends_to_a_global, appends_through_a_bound_method, appends_through_a_partial,
    appends_to_a_row, appends_to_a_row_of_a_mapping, appends_to_a_row_of_a_queue, adds_to_a_set, adds_in_place,
    stores_in_a_function, stores_in_an_object, stores_in_a_class, stores_in_a_dataclass, deletes,
    assigns_a_global, takes_the_next, goes_through_an_iterator, makes_a_list_of_an_iterator,
    makes_a_queue_of_an_iterator, makes_a_tuple_of_a_generator, joins_a_generator_from_outside,
    zips_an_iterator, unpacks_an_iterator, searches_an_iterator, spreads_an_iterator, counts_on, holds_a_lock,
    enters_a_manager, reads_a_property, reads_what_is_not_there, asks_for_an_attribute, compares_an_object,
    compares_in_a_list, compares_in_a_dataclass, searches_for_an_object, branches_on_an_object, shows_an_object,
    shows_a_dataclass, shows_a_dataclass_by_percent, shows_an_enum, shows_an_exception, prints_an_object,
    adds_an_object, adds_a_dataclass, orders_objects, sorts_objects, measures_an_object, goes_through_an_object,
    indexes_an_object, indexes_by_an_object, keeps_an_object_in_a_set, asks_an_object_for_an_item,
    calls_an_object, makes_an_object_by_new, makes_an_object_by_a_metaclass, makes_an_object_by_setattr,
    makes_an_exception_by_new, asks_for_a_missing_member, gives_an_object_that_sets_itself_up,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("statements", BREAKS, ids=lambda function: function.__name__)
def test_an_effect_is_a_break_before_it_happens(statements: Callable[[Any], Any]) -> None:
    program = body(statements)
    before = state_of_the_world()
    assert len(breaks_of(program)) == 1
    program.compile()
    program.explain(BACKEND)
    program.cache(BACKEND)
    assert state_of_the_world() == before


def equals(a: Any) -> Any:
    return a == ACCOUNT


def is_equalled(a: Any) -> Any:
    return ACCOUNT == a  # noqa: SIM300


def differs(a: Any) -> Any:
    return a != ACCOUNT


def is_less(a: Any) -> Any:
    return a < ACCOUNT


def is_inside(a: Any) -> Any:
    return a in ACCOUNT


def is_in_a_list(a: Any) -> Any:
    return a in [ACCOUNT]


def is_added(a: Any) -> Any:
    return ACCOUNT + a


def adds(a: Any) -> Any:
    return a + SHOWN


def multiplies(a: Any) -> Any:
    return a * ACCOUNT


def formats_it(a: Any) -> Any:
    return a % SHOWN


def is_counted(a: Any) -> Any:
    return [ACCOUNT].count(a)


def is_removed(a: Any) -> Any:
    items = [ACCOUNT, a]
    items.remove(a)
    return len(items)


def is_replaced(a: Any) -> Any:
    return a.replace(a, ACCOUNT)


MEETS = [
    equals, is_equalled, differs, is_less, is_inside, is_in_a_list, is_added, adds, multiplies, formats_it,
    is_counted, is_removed, is_replaced,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("meets", MEETS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("how", ["unknown", "bound", "example", "decided"])
def test_a_text_that_meets_an_object_of_the_user_s_runs_no_code_of_it(
    meets: Callable[[Any], Any], how: str
) -> None:
    @sgl.function
    def program(s: Any, a: str) -> Any:
        s += "Q" + sgl.select("x", choices=["x", "y"])
        s["met"] = meets(s["x"] if how == "decided" and s["x"] == "x" else a)
        return 1

    before = state_of_the_world()
    given: Any = program.bind(a="a") if how == "bound" else program
    given.compile(BACKEND, args={"a": "a"} if how == "example" else None)
    assert state_of_the_world() == before


# -- `try` ---------------------------------------------------------------------------------------------


def test_a_bare_except_does_not_see_a_break() -> None:
    def statements(s: Any) -> Any:
        try:
            SEEN.append("x")
        except:  # noqa: E722
            SEEN.append("caught")
            s += "caught"
        return "behind"

    made = traced(body(statements))
    (graph_break,) = breaks_of(body(statements))
    assert ".append" in graph_break.reason
    assert made.returns is None
    assert SEEN == []


def leaves_a_loop(s: Any) -> Any:
    """Whatever the comparison raised while it was traced was caught, and the other arm was the plan."""
    made = "went on"
    for _ in range(2):
        try:
            if s["x"] > "m":
                break
            made = "compared"
        except:  # noqa: E722
            made = "caught"
    s += made
    return made


def asks_in_a_helper(s: Any) -> Any:
    s += in_words(s)


def in_words(s: Any) -> str:
    try:
        return "many" if len(s["x"]) > 3 else "few"
    finally:
        return "finally"  # noqa: B012, SIM107


@pytest.mark.parametrize(
    "statements", [leaves_a_loop, asks_in_a_helper], ids=lambda function: function.__name__
)
def test_no_except_and_no_finally_decides_what_the_plan_holds(statements: Callable[[Any], Any]) -> None:
    made = traced(body(statements))
    (graph_break,) = breaks_of(body(statements))
    assert "can fail inside of a `try`" in graph_break.reason
    assert made.ops[-1] == graph_break
    assert made.returns is None
    assert [op.text for op in walk(made.ops) if isinstance(op, Append)] == ["Q"]


def test_a_return_in_finally_does_not_end_a_break() -> None:
    def statements(s: Any) -> Any:
        try:
            SEEN.append("x")
        finally:
            return "finally"  # noqa: B012

    (graph_break,) = breaks_of(body(statements))
    assert ".append" in graph_break.reason
    assert traced(body(statements)).returns is None


def test_a_loop_in_finally_does_not_end_a_break() -> None:
    def statements(s: Any) -> Any:
        for _ in range(2):
            try:
                SEEN.append("x")
            finally:
                continue  # noqa: B012
        return "behind"

    (graph_break,) = breaks_of(body(statements))
    assert ".append" in graph_break.reason


def tool_in_try(s: Any) -> Any:
    try:
        found = lookup("a")
    except Exception:
        found = "ERR"
    return found


def tool_in_finally(s: Any) -> Any:
    try:
        found = lookup("a")
    finally:
        s += "after"
    return found


def read_in_try(s: Any) -> Any:
    try:
        return s["x"]
    except sgl.SglcError:
        return "none"


def read_before_finally(s: Any) -> Any:
    try:
        return s["x"]
    finally:
        s += "after"


def parse_in_try(s: Any) -> Any:
    text, wrong = s["x"], ValueError
    try:
        return int(text)
    except wrong:
        return 0


def pure_in_try(s: Any) -> Any:
    text = s["x"]
    try:
        return checked(text)
    except ValueError:
        return "none"


def block_in_try(s: Any) -> Any:
    text = s["x"]
    try:
        return [int(word) for word in text.split()]
    except ValueError:
        return []


def tool_in_handler(s: Any) -> Any:
    try:
        raise ValueError("a")
    except ValueError:
        found = lookup("a")
    finally:
        s += "after"
    return found


def tool_in_a_helper_in_try(s: Any) -> Any:
    try:
        return tool_behind_a_helper()
    except Exception:
        return "ERR"


def tool_behind_a_helper() -> str:
    return str(lookup("a"))


TRIED = [
    *(tool_in_try, tool_in_finally, read_in_try, read_before_finally, parse_in_try, pure_in_try, block_in_try),
    *(tool_in_handler, tool_in_a_helper_in_try),
]


@pytest.mark.parametrize("statements", TRIED, ids=lambda function: function.__name__)
def test_what_can_fail_where_the_program_would_see_it_is_a_break(statements: Callable[[Any], Any]) -> None:
    made = traced(body(statements))
    (graph_break,) = breaks_of(body(statements))
    assert "inside of a `try`" in graph_break.reason
    assert [op for op in walk(made.ops) if isinstance(op, Tool)] == []


def test_a_break_where_a_failure_is_asked_for_names_the_programs_function() -> None:
    def statements(s: Any) -> Any:
        try:
            return json.loads(s["x"], parse_float=str)
        except ValueError:
            return None

    (graph_break,) = breaks_of(body(statements))
    assert "a `type` is given to `json.loads`" in graph_break.reason


def fails_in_another_way(s: Any) -> Any:
    try:
        number = int(s["x"].replace("-", "").split()[0])
    except ValueError:
        raise LookupError("no number") from None
    return number


def test_what_may_fail_is_asked_and_called_in_the_arm_where_it_does_not() -> None:
    made = traced(body(fails_in_another_way))
    assert breaks_of(body(fails_in_another_way)) == []
    calls = [op for op in walk(made.ops) if isinstance(op, PureCall)]
    asked = [op.args[:2] for op in calls if op.name == "sglc.raises"]
    assert asked == [(("ValueError",), "operator.getitem"), (("ValueError",), "int")]
    assert {op.name for op in calls if op in made.ops} == {"str.replace", "str.split", "sglc.raises"}


@sgl.function
def handles_its_own_errors(s: Any, text: str) -> Any:
    s += text + sgl.select("x", choices=["a", "b"])
    kind = s["x"]
    found: list[Any] = []
    try:
        found.append({"a": 1}["c"])
    except (KeyError, ValueError) as error:
        found.append(f"{type(error).__name__} {error.args[0]}")
    else:
        found.append("else")
    finally:
        found.append("finally")
    for item in ("1", "x", ""):
        try:
            found.append(int(item))
        except ValueError:
            found.append("no number")
            continue
        found.append("number")
    try:
        try:
            raise Failure("inner")
        except Failure as error:
            raise LookupError("outer") from error
        finally:
            found.append("cleaned up")
    except LookupError as error:
        found.append([str(error), type(error.__cause__).__name__])
    try:
        [][1]
    except IndexError:
        found.append("index")
    try:
        if kind == "a":
            raise RuntimeError("only here")
        found.append("went on")
    except RuntimeError as error:
        found.append(str(error))
    return found


def returns_from_try(text: str) -> str:
    for item in text:
        try:
            if item == "w":
                return "early"
        finally:
            if item == "v":
                break  # noqa: B012
    return "late"


@sgl.function
def leaves_in_the_middle(s: Any, text: str) -> Any:
    s += text + sgl.gen("x")
    return [returns_from_try("aw"), returns_from_try("avw"), returns_from_try("ab")]


# -- behind a tool -------------------------------------------------------------------------------------


def reads_behind(s: Any) -> None:
    bump()
    s += f"{LEVEL}"


def reads_behind_in_a_helper(s: Any) -> None:
    bump()
    s += level()


def level() -> str:
    return f"{LEVEL}"


def reads_an_item_behind(s: Any) -> None:
    bump()
    s += f"{len(SEEN)}"


def reads_an_attribute_behind(s: Any) -> None:
    account = HOLDER
    bump()
    s += f"{account.account is None}"


def reads_in_the_next_iteration(s: Any) -> None:
    def step(s: Any = s) -> None:
        s += f"{LEVEL}" + sgl.gen("y", max_tokens=3)
        bump()

    sgl.loop(step, max_iters=3)


def reads_for_the_next_item(s: Any) -> None:
    def of(item: Any) -> str:
        made = f"{LEVEL}{item}"
        bump()
        return made

    s["all"] = sgl.map(["a", "b"], of)


@sgl.function
def called(s: Any) -> None:
    s += "inner" + sgl.gen("z", max_tokens=3)
    bump()


@sgl.function
def reads(s: Any) -> None:
    s += f"{LEVEL}" + sgl.gen("z", max_tokens=3)


def reads_behind_a_program(s: Any) -> None:
    called()
    s += f"{LEVEL}"


def reads_in_a_program_behind(s: Any) -> None:
    bump()
    s += reads()["z"]


BEHIND = [
    reads_behind, reads_behind_in_a_helper, reads_an_item_behind, reads_an_attribute_behind,
    reads_in_the_next_iteration, reads_for_the_next_item, reads_behind_a_program, reads_in_a_program_behind,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("statements", BEHIND, ids=lambda function: function.__name__)
def test_what_a_tool_may_have_changed_is_not_read_ahead(statements: Callable[[Any], Any]) -> None:
    (graph_break,) = breaks_of(body(statements))
    assert "read behind `bump`, which may have changed it" in graph_break.reason
    assert LEVEL == 1


def test_what_is_read_before_a_tool_is_no_break() -> None:
    def statements(s: Any) -> Any:
        before = LEVEL
        bump()
        return before

    assert breaks_of(body(statements)) == []
    assert traced(body(statements)).returns == 1


@tool
def change_settings(patch: Any = None) -> str:
    own_settings.BY_ATTRIBUTE += 1
    setattr(own_settings, "BY_NAME", own_settings.BY_NAME + 1)  # noqa: B010
    vars(own_settings)["BY_TEXT"] += 1
    own_settings.__dict__.update(BY_DICT=2)
    if patch is not None:
        patch.setattr("tests.frontend.settings.BY_PATCH", 2)
    own_settings.assign()
    own_settings.Limits.least += 1
    own_settings.replaced = lambda: "second"
    return "changed"


CHANGED = [
    own_settings.by_attribute, own_settings.by_name, own_settings.by_text, own_settings.by_dict,
    own_settings.by_patch, own_settings.by_global, own_settings.of_the_class,
    own_settings.by_function, own_settings.changeable,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("read", CHANGED, ids=lambda function: function.__name__)
def test_what_some_code_stores_is_not_read_behind_a_tool(read: Callable[[], str]) -> None:
    def statements(s: Any) -> None:
        change_settings()
        s += read()

    (graph_break,) = breaks_of(body(statements))
    assert "read behind `change_settings`, which may have changed it" in graph_break.reason


def test_constants_of_modules_and_classes_are_read_behind_a_tool() -> None:
    def statements(s: Any) -> Any:
        change_settings()
        s += own_settings.never_changed()
        return [
            own_settings.NEVER_CHANGED,
            own_settings.WORDS,
            own_settings.KIND is own_settings.Kind.ONE,
            own_settings.Limits.most_of_all,
        ]

    program = body(statements)
    assert breaks_of(program) == []
    assert traced(program).returns is not None
    said: Any = program.run(backend=BACKEND)
    assert said.text() == "Qa2020-01-02 constant ('a', ('b', 1), None) 1 3"


@tool
def push(items: Any) -> str:
    items.append("pushed")
    return "pushed"


def reads_what_it_gave(s: Any) -> None:
    items = ["a"]
    push(items)
    s += f"{len(items)}"


def gives_it_again(s: Any) -> None:
    items = ["a"]
    push(items)
    push(items)


def reads_what_holds_it(s: Any) -> None:
    items = ["a"]
    held = {"items": (items, 1)}
    push(items)
    s += f"{held['items'][1]}"


def reads_the_object_that_holds_it(s: Any) -> None:
    shown = Shown("a", [])
    push(shown.more)
    s += shown.name


def reads_what_was_generated(s: Any) -> None:
    found = words("a")
    push(found)
    s += ",".join(found)


def reads_a_variable(s: Any) -> None:
    s["items"] = ["a"]
    push(s["items"])
    s += f"{s['items']}"


def stores_it_before(s: Any) -> None:
    items = ["a"]
    s["items"] = items
    push(items)


@tool
def words(text: str) -> list[str]:
    return text.split()


GIVEN = [
    reads_what_it_gave, gives_it_again, reads_what_holds_it, reads_the_object_that_holds_it,
    reads_what_was_generated, reads_a_variable, stores_it_before,
]  # fmt: skip


@pytest.mark.parametrize("statements", GIVEN, ids=lambda function: function.__name__)
def test_what_a_tool_was_given_is_not_read_behind_it(statements: Callable[[Any], Any]) -> None:
    (graph_break,) = breaks_of(body(statements))
    assert "read behind `push`, which may have changed it" in graph_break.reason


def gives_a_list_from_outside(s: Any) -> None:
    push(SEEN)


def gives_what_holds_one(s: Any) -> None:
    push([(ROWS, 1)])


def gives_a_mapping_from_outside(s: Any) -> None:
    push(NESTED)


FROM_OUTSIDE = [gives_a_list_from_outside, gives_what_holds_one, gives_a_mapping_from_outside]


@pytest.mark.parametrize("statements", FROM_OUTSIDE, ids=lambda function: function.__name__)
def test_a_tool_gets_no_copy_of_what_was_there_before(statements: Callable[[Any], Any]) -> None:
    before = state_of_the_world()
    (graph_break,) = breaks_of(body(statements))
    assert "from outside is given to `push`" in graph_break.reason
    assert state_of_the_world() == before


def test_what_is_read_before_a_tool_gets_it_is_no_break() -> None:
    def statements(s: Any) -> Any:
        items = ["a"]
        before = len(items)
        push(items)
        items = ["b"]
        return before, items

    assert breaks_of(body(statements)) == []


# -- limits --------------------------------------------------------------------------------------------


def endless(depth: int) -> int:
    return other(depth + 1)


def other(depth: int) -> int:
    return endless(depth + 1)


def turns_of(count: int) -> Callable[[Any], Any]:
    def statements(s: Any) -> Any:
        total = 0
        for i in range(count):
            total += i
        return total

    return statements


def test_a_loop_of_more_than_a_thousand_turns_is_a_break() -> None:
    (graph_break,) = breaks_of(body(turns_of(1001)))
    assert "more than 1000 turns" in graph_break.reason
    assert traced(body(turns_of(1000))).returns == sum(range(1000))


@pytest.mark.slow
def test_loops_in_loops_end_as_a_break() -> None:
    def statements(s: Any) -> Any:
        return sum(sum(i * j for j in range(900)) for i in range(900))

    (graph_break,) = breaks_of(body(statements))
    assert "more than 50,000 steps" in graph_break.reason


def test_a_loop_without_an_end_is_a_break() -> None:
    def statements(s: Any) -> Any:
        while True:
            pass

    (graph_break,) = breaks_of(body(statements))
    assert "more than 1000 turns" in graph_break.reason


def test_helpers_that_call_each_other_without_an_end_are_a_break() -> None:
    def statements(s: Any) -> Any:
        return endless(0)

    (graph_break,) = breaks_of(body(statements))
    assert "more than 64 deep" in graph_break.reason


# -- what Python does ----------------------------------------------------------------------------------


@sgl.function
def joins(s: Any, text: str) -> Any:
    s += text + sgl.gen("x")
    words = [text, s["x"], "end"]
    s += ", ".join(word for word in words if word != "end") + sgl.gen("y")
    return "|".join(f"{i}{word}" for i, word in enumerate(words))


@sgl.function
def views(s: Any, text: str) -> Any:
    s += text + sgl.gen("x") + sgl.gen("y")
    found = {"x": s["x"], "y": s["y"]}
    s += max(found.values()) + sgl.gen("z")
    return [
        sorted(found.values()),
        min(found.items()),
        list(found.values()),
        len(found),
        sorted(deque(found.values())),
    ]


@sgl.function
def formats(s: Any, text: str) -> Any:
    s += text + sgl.gen("x")
    size = len(s["x"])
    s += f"{size:5}|{size!s:5}|{size!r:>5}|{s['x']!s:>9}|{s['x']!a}" + sgl.gen("y")
    return "%s %d %r" % (s["x"], size, text)  # noqa: UP031


@sgl.function
def keys(s: Any, text: str) -> Any:
    s += text + sgl.gen("x") + sgl.select("kind", choices=["a", "b"])
    named = {s["x"]: 1, "more": {s["kind"]: s["x"]}, **{"last": 2}}  # noqa: PIE800
    return [named, {"a": "A", "b": "B"}[s["kind"]]]


@sgl.function
def counts_texts(s: Any, text: str) -> Any:
    found = []
    for i in range(2):
        s += f"{i}" + sgl.select(f"x{i}", choices=["a", "b"])
        found.append(s[f"x{i}"])
        s += "A" if s[f"x{i}"] == "a" else "B"
    return [found.count("a"), "a" in found, found.index(found[-1])]


@sgl.function
def changes_in_place(s: Any, text: str) -> Any:
    s += text + sgl.gen("x")
    numbers, named, bits = {1, 2, 3}, {"x": s["x"]}, 6
    numbers |= {4}
    numbers &= {2, 3, 4}
    numbers ^= {2}
    numbers -= {3}
    named |= {"text": text}
    bits |= 1
    bits &= 5
    bits ^= 1
    bits <<= 2
    return [sorted(numbers), named, bits, 6 | 1, 6 & 3, 6 ^ 1]


@sgl.function
def prints(s: Any, text: str) -> Any:
    s += text + sgl.gen("x")
    print("found", s["x"])
    return s["x"]


PROGRAMS = [
    (handles_its_own_errors, 2), (leaves_in_the_middle, 1), (joins, 1), (views, 1), (formats, 1), (keys, 2),
    (counts_texts, 4), (changes_in_place, 1), (prints, 1),
]  # fmt: skip


@pytest.mark.parametrize(("function", "runs"), PROGRAMS, ids=[f.__name__ for f, _ in PROGRAMS])
def test_it_does_what_python_does(function: sgl.Function, runs: int) -> None:
    assert breaks_of(function) == []
    assert same_on_every_path(function, text="w") == runs


def test_texts_of_one_list_are_one_format() -> None:
    """`join` of texts is a part of the prompt: nothing is computed when the program runs."""
    assert [op for op in walk(traced(joins).ops) if isinstance(op, PureCall)] == []
    assert len([op for op in walk(traced(joins).ops) if isinstance(op, Gen)]) == 2


def test_a_loop_of_an_op_is_one_loop() -> None:
    def statements(s: Any) -> None:
        def step(s: Any = s) -> None:
            s += f"{LEVEL}" + sgl.gen("y", max_tokens=3)

        sgl.loop(step, max_iters=3)

    assert breaks_of(body(statements)) == []
    assert len([op for op in walk(traced(body(statements)).ops) if isinstance(op, Loop)]) == 1


def test_a_list_is_extended_by_branches() -> None:
    @sgl.function
    def program(s: Any) -> list[str]:
        s += "a"
        states = [s]
        states += s.fork(2)
        for state in states:
            state += sgl.gen("x", max_tokens=3)
        return [state["x"] for state in states]

    backend = ScriptedBackend(lambda asked: str(asked.site))
    assert len(program.run(backend=backend).ret_value) == 3
    assert not breaks_of(program)


@tool
def billed(text: str) -> str:
    ASKED.append("billed")
    return text


@sgl.function
def billing(s: Any, text: str) -> None:
    s += billed(text) + sgl.gen("b")


@sgl.function
def in_a_batch(s: Any, q: str) -> None:
    s += q + "".join(result["b"] for result in billing.run_batch([{"text": q}, {"text": "x"}]))


@sgl.function
def together(s: Any, q: str) -> None:
    s += q + str(len(sgl.run_together([(billing, [{"text": "x"}])])))


@sgl.function
def emptying(s: Any, q: str) -> None:
    s += q + str(BACKEND.flush_cache())


@pytest.mark.parametrize("program", [in_a_batch, together, emptying], ids=lambda program: program.__name__)
def test_what_a_body_runs_is_not_run_while_it_is_compiled(program: sgl.Function) -> None:
    calls = BACKEND.calls
    sgl.set_default_backend(BACKEND)
    ASKED.clear()
    broken = [op for op in walk(program.trace().ops) if isinstance(op, HostCall)]
    sgl.set_default_backend(None)
    assert "is ordinary Python" in broken[0].reason
    assert (BACKEND.calls, ASKED) == (calls, [])


@sgl.function
def raises_last(s: Any) -> int:
    s += "Is it good?" + sgl.gen("b")
    if s["b"] == "yes":
        return 1
    if s["b"] == "no":
        raise ValueError(f"said {s['b']}")
    raise TimeoutError("no answer")


@pytest.mark.parametrize("answer", ["yes", "no", "perhaps"])
def test_a_message_of_one_arm_is_nothing_behind_it(answer: str) -> None:
    backend = ScriptedBackend(lambda asked: answer)
    verify(raises_last.trace())
    found = [raises_last.run(backend=backend, mode=mode) for mode in ("python", "auto")]
    assert len({repr(result.error()) for result in found}) == 1
    if answer == "yes":
        assert [(result.ret_value, result.mode) for result in found] == [(1, "python"), (1, "plan")]


@sgl.function
def counter(s: Any) -> Any:
    s += sgl.gen("a")
    return Counter(s["a"].split())


@pytest.mark.parametrize("mode", ["python", "plan"])
def test_what_is_returned_keeps_its_class(mode: str) -> None:
    made = counter.run(backend=ScriptedBackend(lambda asked: "a b a"), mode=mode).ret_value
    assert made.most_common(1) == [("a", 2)]


@sgl.function
def decoded(s: Any) -> str:
    s += sgl.gen("a")
    return str(s["a"], "utf8")


def test_a_text_is_not_decoded() -> None:
    error = decoded.run(backend=BACKEND).error()
    assert "decoding str is not supported" in str(error)


BOUND = """
def bound():
    x: int
    (y,) = [outside for outside in outside]
    for z in y:
        lambda: z
    def inner():
        nonlocal z
        of_inner = z
    if inner() or (w := z):
        del w
"""


def test_the_names_of_its_code_are_those_that_a_function_binds() -> None:
    (node,) = ast.parse(BOUND).body
    code = next(inner_codes(compile(BOUND, "", "exec")))
    own = bindings_of(node).own
    assert own == {"x", "y", "z", "inner", "w"}
    found = bindings_of(node, frozenset((*code.co_varnames, *code.co_cellvars))).own
    assert own - {"x"} <= found <= own  # of `x` there is no code


DECLARED = """
def declared():
    if a:
        if a:
            {declaration} c
    c = y = 1
"""


@pytest.mark.parametrize("declaration", ["global", "nonlocal"])
def test_what_is_declared_further_in_is_not_its_own(declaration: str) -> None:
    source = "def around():\n    c = 0\n" + DECLARED.format(declaration=declaration).replace("\n", "\n    ")
    around = next(inner_codes(compile(source, "", "exec")))
    code = next(inner_codes(around))
    (node,) = (one for one in ast.walk(ast.parse(source)) if getattr(one, "name", "") == "declared")
    assert bindings_of(node, frozenset((*code.co_varnames, *code.co_cellvars))).own == {"y"}


def test_what_a_notebook_ran_long_ago_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells come again and again, each time with classes and sources of their own."""
    monkeypatch.setattr(expr, "_KNOWN", {})
    monkeypatch.setattr(expr, "_MOST_KNOWN", 3)
    alive: list[weakref.ref[type]] = []
    for _ in range(8):
        kind = Enum("kind", ["a", "b"])  # type: ignore[misc]
        sgl.gen("x", dtype=kind)
        alive.append(weakref.ref(kind))
        del kind
    gc.collect()
    assert sum(one() is not None for one in alive) <= 3
    assert alive[0]() is None
    for known in (definition_of, bindings_of):
        assert known.cache_info().maxsize is not None
