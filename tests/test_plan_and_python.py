"""Programs whose plans once gave other values than their Python: each runs both ways, and all is compared."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest

import sglc as sgl
from sglc.execution.result import Result
from tests.source_fuzz.observe import ASKED, RESULT, differences, seen

SEEDS = range(6)
CALLS: list[str] = []
LISTED = r'(\["a","b"\]|\["c"\])'
KEYED = r'\{"a":[12],"b":\[2\]\}'


@dataclass
class Point:
    x: Any
    held: Any = None


@sgl.tool
def handed(value: Any) -> Any:
    CALLS.append(repr(value))
    return value


@sgl.tool
def extended(words: Any) -> Any:
    words.append("end")


@sgl.pure
def same(value: Any) -> Any:
    return value


# -- what Python changes behind a copy ---------------------------------------------------------------


@sgl.function
def joined_list_is_changed(s: Any) -> Any:
    held: list[Any] = []
    forks = s.fork(2)
    for fork in forks:
        fork["held"] = held
        fork += sgl.gen("word")
        held.append(fork["word"])
    forks.join()
    held.append("end")


@sgl.function
def returned_list_is_changed(s: Any) -> Any:
    s += sgl.gen("word")
    held = [s["word"]]
    made = sgl.cond(sgl.contains("e", s["word"]), lambda: held, lambda: ["other"])
    held.append("end")
    return made


@sgl.function
def object_is_changed(s: Any) -> Any:
    s += sgl.gen("word")
    held = Point(1)
    made = sgl.cond(sgl.contains("e", s["word"]), lambda: held, lambda: None)
    held.x = 2
    return made


@sgl.function
def stored_list_is_changed(s: Any) -> Any:
    s += sgl.gen("word")
    s["held"], held = 1, [s["word"]]

    def arm() -> None:
        s["held"] = held

    sgl.cond(sgl.contains("e", s["word"]), arm)
    held.append("end")
    s += f"{s['held']}"


@sgl.function
def list_is_changed_where_it_was_stored(s: Any) -> Any:
    s += sgl.gen("word")
    s["held"] = ["a"]

    def arm() -> Any:
        s["held"] = s["held"] + ["b"]
        s["held"].append("c")
        return s["held"]

    return sgl.cond(sgl.contains("e", s["word"]), arm, list)


@sgl.function
def mapped_list_is_changed(s: Any) -> Any:
    held = ["k"]
    made = sgl.map(["a", "b"], lambda item: (item, held))
    held.append("end")
    return made


@sgl.function
def carried_list_is_changed(s: Any) -> Any:
    s += sgl.gen("word")
    s["held"], held = 1, [s["word"]]

    def body() -> Any:
        s["held"] = held
        return sgl.contains("e", s["word"])

    sgl.loop(body, max_iters=2)
    held.append("end")


@sgl.function
def list_in_a_sorted_list_is_changed(s: Any) -> Any:
    s += sgl.gen("word")
    rows = [[s["word"], 1], ["b", 2]]
    made = sorted(rows)
    rows[0].append("end")
    return made


@sgl.function
def tool_changes_what_an_arm_gave(s: Any) -> Any:
    s += sgl.gen("word")
    held = [s["word"]]
    made = sgl.cond(sgl.contains("e", s["word"]), lambda: held, list)
    extended(held)
    s["made"] = made


@sgl.function
def tool_changes_what_was_stored(s: Any) -> Any:
    s += sgl.gen("word")
    words = s["word"].split()
    s["words"] = words
    extended(words)


# -- what the arms of a form change ------------------------------------------------------------------


@sgl.function
def variable_is_changed_in_an_arm(s: Any) -> Any:
    s += sgl.gen("word")
    s["held"] = ["a"]
    sgl.cond(sgl.contains("e", s["word"]), lambda: s["held"].append("b"))


@sgl.function
def field_is_changed_in_an_arm(s: Any) -> Any:
    s += sgl.gen("word")
    s["held"] = Point("a", [])
    sgl.cond(sgl.contains("e", s["word"]), lambda: s["held"].held.append("b"))


@sgl.function
def default_is_changed_in_an_arm(s: Any) -> Any:
    s += sgl.gen("word")

    def add(word: str, held: list[str] = []) -> list[str]:  # noqa: B006  # what this is about
        held.append(word)
        return list(held)

    sgl.cond(sgl.contains("e", s["word"]), lambda: add("a") and None)
    return add("b")


@sgl.function
def closure_is_changed_in_an_arm(s: Any) -> Any:
    s += sgl.gen("word")

    def adding() -> Callable[[str], list[str]]:
        held: list[str] = []

        def add(word: str) -> list[str]:
            held.append(word)
            return list(held)

        return add

    add = adding()
    sgl.cond(sgl.contains("e", s["word"]), lambda: add("a") and None)
    return add("b")


@sgl.function
def iterator_goes_on_in_an_arm(s: Any) -> Any:
    s += sgl.gen("word")
    words = iter("abc")
    sgl.cond(sgl.contains("e", s["word"]), lambda: next(words) and None)
    return next(words)


# -- `+=` of what only a run knows -------------------------------------------------------------------


@sgl.function
def other_name_of_a_list(s: Any) -> Any:
    s += sgl.gen("data", regex=LISTED)
    words = json.loads(s["data"])
    other = words
    words += ["end"]
    return other


@sgl.function
def stored_list_is_extended(s: Any) -> Any:
    s += sgl.gen("word")
    words = s["word"].split()
    s["words"] = words
    words += ["end"]


@sgl.function
def item_is_extended(s: Any) -> Any:
    s += sgl.gen("data", regex=KEYED)
    data = json.loads(s["data"])
    items = data["b"]
    items += [3]
    return data


@sgl.function
def set_is_extended(s: Any) -> Any:
    s += sgl.gen("word")
    words = {s["word"]}
    other = words
    words |= {"end"}
    return len(other)


@sgl.function
def argument_is_extended(s: Any, words: list[str]) -> Any:
    s += sgl.gen("word")
    words += ["end"]
    return words


# -- what is done for each item ----------------------------------------------------------------------


@sgl.function
def any_ends_early(s: Any) -> Any:
    s += sgl.gen("word")
    return any(handed(word) for word in s["word"].split())


@sgl.function
def membership_ends_early(s: Any) -> Any:
    s += sgl.gen("word")
    return "a" in map(handed, s["word"].split())


@sgl.function
def conditions_stand_between_items(s: Any) -> Any:
    s += sgl.gen("word")
    return [handed(word) for word in s["word"].split() if handed(word + "?")]


@sgl.function
def items_are_made_one_by_one(s: Any) -> Any:
    s += sgl.gen("word")
    return [handed(word) for word in (handed(other + "!") for other in s["word"].split())]


@sgl.function
def items_are_made_all_at_once(s: Any) -> Any:
    s += sgl.gen("word")
    words = s["word"].split()
    listed = any([handed(word) == "a" for word in words]), [handed(word) for word in words if "e" in word]  # noqa: C419  # all of them
    return listed, ",".join(handed(word) for word in words), [word for word in words if handed(word)]


# -- types -------------------------------------------------------------------------------------------


@sgl.function
def tuples_of_arms(s: Any) -> Any:
    s += sgl.gen("word")
    asked = sgl.contains("e", s["word"])
    both = sgl.cond(asked, lambda: ("a", s["word"]), lambda: ("b", ("c",)))
    mixed = sgl.cond(asked, lambda: ("a", "b"), lambda: ["a", "b"])
    inner = sgl.cond(asked, lambda: {"k": (1,)}, lambda: {"k": [s["word"]]})
    nothing = sgl.cond(asked, tuple, list)
    zero = sgl.cond(asked, lambda: 0.0, lambda: -0.0)
    first, second = both
    s += first + f"{second} {both} {mixed} {inner} {nothing} {zero}" + sgl.gen("more")
    return both, mixed, inner, nothing, zero


@sgl.function
def forms_are_traced_once_more(s: Any) -> Any:
    s += sgl.gen("word")

    def one() -> Any:
        s.__iadd__(sgl.gen("same"))
        return s["same"], 1

    made = sgl.cond(sgl.contains("e", s["word"]), one, lambda: [*one()])
    s += f"{made}" + sgl.gen("same")
    return made


@sgl.function
def tuple_or_list_is_stored(s: Any) -> Any:
    s += sgl.gen("word")

    def one() -> None:
        s["held"] = ()

    def other() -> None:
        s["held"] = []

    sgl.cond(sgl.contains("e", s["word"]), one, other)
    s += f"{s['held']}"


@sgl.function
def what_tools_give(s: Any) -> Any:
    s += sgl.gen("word")
    word = s["word"]
    values = [handed((word, 1)), handed({"a": (word,)}), handed({1: word}), handed({word})]
    first, _ = values[0]
    s += f"{values}" + first + same((word, [(1,)]))[0]
    s["mapped"] = sgl.map(handed((word, "b")), lambda item: item + "!")
    return values, same((word, [(1,)]))


@sgl.function
def views_and_ranges(s: Any) -> Any:
    s += sgl.gen("data", regex=KEYED)
    data = json.loads(s["data"])
    s += f"{data.keys()} {data.items()} {data.values()} {range(data['a'])} {len(data.items())}"
    s += f"{sorted(data.keys())} {[k for k, _ in data.items()]} {'a' in (k for k in data)}"
    s["keys"] = data.keys()
    return data.items(), range(data["a"]), {"k": s["data"]}.items()


@sgl.function
def views_of_an_argument(s: Any, data: dict[str, Any]) -> Any:
    s += f"{data.keys()} {data.items()} {[*data.values()]} {len(data.items())}"
    for key, value in data.items():
        s += f"{key}={value}"
    return data.items()


@sgl.function
def what_is_not_gone_through(s: Any) -> Any:
    s += sgl.gen("word")
    words = deque(["a", "b"], maxlen=2)
    words.append(s["word"])
    found = str({"a": 1}.keys()), repr(deque([1])), bool(iter("")), str({"a": s["word"]}.keys())
    return list(words), found


@sgl.function
def iterators_are_returned(s: Any) -> Any:
    s += sgl.gen("word")
    return reversed([s["word"]])


@sgl.function
def error_has_a_context(s: Any) -> Any:
    s += sgl.gen("word")
    try:
        try:
            raise KeyError("one")
        except KeyError:
            raise ValueError("other")  # noqa: B904  # what this is about
    except ValueError as error:
        s += f"{error!r} {error.__context__!r} {error.__cause__!r}"


@sgl.function
def inner(s: Any, first: Any, /, second: Any, *others: Any, key: Any = "k", **more: Any) -> Any:
    s += f"{first} {second} {others} {key} {more}" + sgl.gen("word")
    return first, second, others, key, more


@sgl.function
def called_with_more_arguments(s: Any) -> Any:
    s += sgl.gen("word")
    made = inner(s["word"], 2, 3, (4,), key=s["word"], more=[5])
    s += f"{made.ret_value}"
    return made.ret_value, inner("a", s["word"]).ret_value


# -- what is no copy, and no iterator, and stays a plan ----------------------------------------------


@sgl.function
def numbers_are_added_up(s: Any) -> Any:
    total, sums = 0, []
    for number in range(3):
        s += sgl.gen("word")
        total += handed(number)
        sums.append(total)
    before = total
    total -= len(s["word"])
    text = {"a": s["word"]}["a"]
    texts = [text]
    text += "!"
    s += f"{sums} {before} {total} {texts} {text}"
    return sums


@sgl.function
def new_containers_are_extended(s: Any) -> Any:
    s += sgl.gen("listed", regex=LISTED)
    words = json.loads(s["listed"])
    found: dict[str, Any] = {}
    first = words[:1]
    first += ["end"]
    for key in ("a", "b"):
        s += sgl.gen("word")
        found |= {key: s["word"]}
    s += f"{words} {first} {found}"
    return words, found


@sgl.function
def lists_are_whole_before_they_are_gone_through(s: Any) -> Any:
    def made(words: Any) -> Any:
        return [handed(word) for word in words]

    s += sgl.gen("word")
    words = s["word"].split()
    behind = list(chain(map(handed, words), map(handed, words)))
    again = [handed(word) for word in made(words)]
    pairs = dict(zip(words, sgl.map(words, lambda word: handed(word + "!"))))  # noqa: B905
    placed = [f"{number}{word}" for number, word in enumerate(handed(word) for word in words)]
    return again, pairs, placed, behind, any(made(words)), "a" in made(words)


@sgl.function
def error_is_raised_again(s: Any) -> Any:
    s += sgl.gen("word")
    try:
        try:
            raise KeyError("one")
        except KeyError as error:
            try:
                raise ValueError("other") from None
            except ValueError as other:
                hidden = other.__suppress_context__
                raise error  # noqa: B904  # what this is about
    except KeyError as error:
        return hidden, repr(error.__context__), repr(error.__context__.__context__)


@sgl.function
def keywords_have_any_name(s: Any, template: Any) -> Any:
    s += sgl.gen("word")
    s += "{kind}: {word}".format(kind="fruit", word=s["word"])
    s += template["text"].format(name=s["word"], value="v", self="s", kind="k", tracer="t")
    s += "{name}".format(**template)
    return same(value={"name": s["word"], "kind": 1})


@sgl.function
def lists_of_lists_are_gone_through(s: Any) -> Any:
    s += sgl.gen("word")
    split = [part.split(" ") for part in s["word"].splitlines()]
    found = {first: len(last) for first, _, last in (part.partition(" ") for part in s["word"].splitlines())}
    pairs = [[word, word + "!"] for word in s["word"].split()]
    s += f"{pairs} {split}"
    return found, [b for _, b in pairs], [row[0].upper() for row in split], sum(len(row) for row in pairs)


@sgl.function
def lists_are_put_together(s: Any) -> Any:
    s += sgl.gen("word") + sgl.gen("keyed", regex=KEYED)
    words, data = s["word"].split(), json.loads(s["keyed"])
    s += f"{['first', *words, *s['word'][:2]]} {(*words, 1)} {sorted({*words, 'a'})}"
    s += str({"b": 1, **data, "c": words})
    pattern = re.compile(r"[aeo](?P<next>.)")
    found = [match["next"] for match in pattern.finditer(s["word"])]
    first = next((word for word in words if "e" in word), None), next(word for word in words)
    each = [*map(str.upper, words)], [*map(str, data["b"])], [*filter(None, data["b"])], [*map(int, "12")]
    pairs = [f"{a}{b}" for a in words if a != "a" for b in [*a, "."] if b], {c for part in words for c in part}
    return (
        [word + "!" for word in [*words, "end"]],
        found,
        first,
        each,
        pairs,
        list(dict.fromkeys(words)),
        {**data},
    )


@sgl.function
def branches_are_gone_through_by_words(s: Any) -> Any:
    forks = s.fork(2)
    forks += sgl.gen("word")
    words = [f"{number}{word}" for number, f in enumerate(forks) for word in f["word"].split() if word != "a"]
    told = [handed(number + word) for number in "12" for word in forks[0]["word"].split()]
    s += f"{words} { {word: len(word) for f in forks for word in f['word'].split()} }"
    last = [made() for made in [lambda: (one, two) for one in "12" for two in "34"]]  # noqa: B023  # what this is about
    return words, told, {c for f in forks for c in f["word"]}, last


@sgl.function
def first_of_none(s: Any) -> Any:
    s += sgl.gen("word")
    return next(word for word in s["word"].split() if word == "nothing")


@sgl.function
def what_is_behind_the_first_is_not_asked(s: Any) -> Any:
    s += sgl.gen("word")
    return next((1 // (len(word) - 1) for word in ["12", *s["word"].split()]), None), len(s["word"]) in range(
        3, 9
    )


@sgl.function
def tools_stand_between_items(s: Any) -> Any:
    s += sgl.gen("word")
    return next((word for word in s["word"].split() if handed(word)), None)


@sgl.function
def branches_are_chosen_by_arguments(s: Any, number: Any, label: Any, role: Any) -> Any:
    forks = s.fork(["a", "b"])
    forks += sgl.gen("word")
    s += getattr(sgl, role)(forks[number]["word"]) + sgl.assistant(sgl.select("mood", ["a", "b"]))
    return forks[label]["word"], forks[-number].text(), forks[s["mood"]]["word"]


@sgl.function
def characters_of_a_text(s: Any) -> Any:
    s += sgl.gen("word")
    s += sgl.select("mood", ["ab", "c"])
    text = s["word"]
    digits = "".join(c for c in text if c.isdigit())
    for c in [c.upper() for c in s["mood"]]:
        s += c
    return digits, [c + "!" for c in f"<{text}>"], {c: text.count(c) for c in text}, any(c == "e" for c in text)


@sgl.function
def list_is_no_iterator(s: Any) -> Any:
    s += sgl.gen("word")
    return next(s["word"].split(), 1)  # type: ignore[call-overload]


@sgl.function
def text_is_no_iterator(s: Any) -> Any:
    s += sgl.gen("word")
    return next(s["word"], 1)


@sgl.function
def sorted_list_is_no_iterator(s: Any) -> Any:
    s += sgl.gen("word")
    return next(sorted(c for c in s["word"]))  # type: ignore[call-overload]


@sgl.function
def nothing_is_called_for_each(s: Any) -> Any:
    s += sgl.gen("word")
    return list(map(None, [s["word"], "b"]))  # type: ignore[call-overload]


@sgl.function
def nothing_is_called_for_each_word(s: Any) -> Any:
    s += sgl.gen("word")
    return list(map(None, s["word"].split()))  # type: ignore[call-overload]


@sgl.function
def value_of_keys_is_changed(s: Any) -> Any:
    s += sgl.gen("word")
    held = [s["word"]]
    made = dict.fromkeys(s["word"], held)
    held.append("end")
    return made


@sgl.function
def default_of_next_is_changed(s: Any) -> Any:
    s += sgl.gen("word")
    held: list[int] = []
    made = next((c for c in s["word"] if c == "$"), held)
    held.append(1)
    return made


@sgl.function
def default_of_get_is_changed(s: Any) -> Any:
    s += sgl.gen("word")
    held = [s["word"]]
    made = {"$": [""]}.get(s["word"], held)
    held.append("end")
    return made


@sgl.function
def default_of_max_is_changed(s: Any) -> Any:
    s += sgl.gen("word")
    held: list[int] = []
    made = max((c for c in s["word"] if c == "$"), default=held)
    held.append(1)
    return made


@sgl.function
def tool_stands_behind_no_list(s: Any) -> Any:
    s += sgl.gen("number", regex=r'(7|\["a"\])')
    return [handed("a"), *json.loads(s["number"]), handed("b")]


@sgl.function
def tool_stands_behind_no_mapping(s: Any) -> Any:
    s += sgl.gen("number", regex=r'(7|\{"a":1\})')
    return {handed("a"): 1, **json.loads(s["number"]), handed("b"): handed("c")}


@sgl.function
def generation_stands_behind_no_list(s: Any) -> Any:
    s += sgl.gen("number", regex=r'(7|\["a"\])')

    def more(state: Any, name: str) -> Any:
        state += sgl.gen(name)
        return state[name]

    return (more(s, "a"), *json.loads(s["number"]), more(s, "b"))


@sgl.function
def tool_stands_behind_what_no_set_holds(s: Any) -> Any:
    s += sgl.gen("number", regex=r"\[(7|\[7\])\]")
    return {handed("a"), *json.loads(s["number"]), handed("b")}


@sgl.function
def value_of_keys_is_made_before_them(s: Any) -> Any:
    s += sgl.gen("word")
    return dict.fromkeys(map(handed, s["word"].split()), handed("z"))


@sgl.function
def start_of_numbers_is_made_before_the_items(s: Any) -> Any:
    s += sgl.gen("word")
    return list(enumerate(map(handed, s["word"].split()), handed(1)))


@sgl.function
def default_is_made_before_the_items(s: Any) -> Any:
    s += sgl.gen("word")
    return max(map(handed, s["word"].split()), default=handed("z"))


@sgl.function
def default_is_made_before_what_fails(s: Any) -> Any:
    s += sgl.gen("word")
    return next((1 // (len(word) - 1) for word in s["word"].split()), handed("z"))


@sgl.function
def containers_are_the_programs_own(s: Any) -> Any:
    s += sgl.gen("word") + sgl.gen("rows", regex=r"\[\[1,2\],\[3\]\]") + sgl.select("mood", ["ab", "cde"])
    found, mood = frozenset(c for c in s["word"]), s["mood"]
    for c in [*mood, *{*"a"}, *(*mood,)]:
        s += c
    rows = [[str(number) for number in row] for row in json.loads(s["rows"])]
    word = s["word"]
    try:
        keyed: Any = dict.fromkeys(["a", "b"], word)
    except TypeError:
        keyed = None
    keyed["a"] = 1
    keyed.update({"c": 2})
    for key in (*keyed, *dict.fromkeys(s["mood"])):
        s += key + sgl.gen("more")
    shared: dict[str, list[Any]] = dict.fromkeys(["a", "b"], [])  # noqa: RUF024  # what this is about
    shared["b"].append(s["word"])
    listed = [handed("a"), *s["word"].split(), handed("b")], {"a": 1, **dict(rows[:0]), "b": handed("c")}
    return (
        type(found).__name__,
        type(rows).__name__,
        found | {"a"},
        found.union("b"),
        rows,
        keyed,
        shared,
        listed,
    )


@sgl.function
def generator_is_kept_and_not_gone_through(s: Any) -> Any:
    s += sgl.gen("word")
    digits = (c for c in s["word"] if c.isdigit())
    return list(digits) if s["word"] == "nothing" else []


# -- what fails where it is caught -------------------------------------------------------------------

NUMBER = r"[1-9][0-9]?|[a-c]"
FORM = r'\{"a":([1-9]|"x")\}|\{"b":1\}|\[1\]|nope'


def as_number(text: Any, default: Any = None) -> Any:
    try:
        return int(text)
    except (ValueError, TypeError):
        return default


@sgl.function
def list_has_two_names(s: Any) -> Any:
    s += sgl.gen("listed", regex=LISTED)
    words = same = ["a"]
    words += json.loads(s["listed"])
    return words, same


@sgl.function
def numbers_or_not(s: Any) -> Any:
    found = []
    for turn in range(3):
        s += f"{turn}: " + sgl.gen("word", regex=NUMBER)
        try:
            number = int(s["word"])
        except ValueError as error:
            s += f" is none ({error}) " + sgl.gen("why")
            continue
        else:
            s += f" is {number + 1} "
        found.append(number)
    words = sgl.gen("words", regex="[0-9a]( [0-9a]){3}")
    s += words
    return found, [as_number(word, -1) for word in s["words"].split()]


@sgl.function
def forms_are_asked_for_again(s: Any) -> Any:
    data = None
    for _ in range(3):
        s += sgl.gen("form", regex=FORM)
        try:
            data = json.loads(s["form"])
            break
        except ValueError:
            s += "That is no JSON, again:"
    s += sgl.gen("word")
    return data


@sgl.function
def errors_are_told_apart(s: Any) -> Any:
    s += sgl.gen("form", regex=FORM)
    text = s["form"]
    try:
        try:
            made: Any = 7 // (int(json.loads(text)["a"]) % 3)
        except json.JSONDecodeError as error:
            made = str(error)
        finally:
            s += "inner "
    except KeyError:
        s += "no such key " + sgl.gen("key")
        made = None
    except (ArithmeticError, TypeError):
        made = -1
    except ValueError as error:
        return f"{error!s}"
    s += sgl.gen("word")
    return made, {"yes": 1}.get(text)


@sgl.function
def errors_are_raised_from_others(s: Any) -> Any:
    s += sgl.gen("first", regex=NUMBER) + sgl.gen("second", regex=NUMBER)
    try:
        one = int(s["first"])
    except ValueError as error:
        s += "none "
        raise LookupError(f"no number: {error}") from error
    try:
        other = int(s["second"])
    except ValueError:
        s += "none " + sgl.gen("word")
        raise
    return one, other


@sgl.function
def an_error_is_looked_into(s: Any) -> Any:
    s += sgl.gen("word", regex=NUMBER)
    try:
        return int(s["word"])
    except ValueError as error:
        return error.args


@sgl.function
def looked_up(s: Any) -> Any:
    s += sgl.gen("word", regex="[a-d]( [a-d]){1,3}")
    words = s["word"].split()
    try:
        place: Any = words.index("b")
    except ValueError as error:
        place = str(error)
    try:
        third, number = words[2], {"a": "1", "b": "2"}[words[0]]
    except LookupError as error:
        third = number = f"{error}"
    return place, third, number


@sgl.pure
def checked(text: str) -> str:
    if "e" in text:
        raise ValueError(text)
    return text


@sgl.function
def declared_functions_are_not_asked(s: Any) -> Any:
    s += sgl.gen("word")
    text = s["word"]
    try:
        made = checked(text)
    except ValueError:
        s += "caught "
        made = ""
    s += sgl.gen("next")
    return made


MIXED = r'"x"|\["b",1\]|\{"a":1\}|3'


def asked_for(s: Any, form: str = MIXED) -> Any:
    s += sgl.gen("form", regex=form)
    return json.loads(s["form"])


@sgl.function
def numbers_are_added_in_place(s: Any) -> Any:
    given, made = asked_for(s), 1
    try:
        made += given
    except TypeError as error:
        s += f"{error}" + sgl.gen("why")
    return made


@sgl.function
def lists_are_extended_by_what_is_generated(s: Any) -> Any:
    given = asked_for(s)
    held: dict[str, Any] = {"own": ["a"]}
    other = held["own"]
    try:
        held["own"] += given
    except TypeError as error:
        s += f"{error}"
    return held, other


@sgl.function
def fields_are_changed_in_place(s: Any) -> Any:
    given, point = asked_for(s), Point(7)
    try:
        point.x -= given
        point.x |= given
    except TypeError as error:
        s += f"{error}"
    return point.x


@sgl.function
def texts_and_numbers_are_added_in_place(s: Any) -> Any:
    total, text = 0, ""
    for _ in range(3):
        s += sgl.gen("word", regex=NUMBER)
        try:
            total += int(s["word"])
            text += s["word"]
        except ValueError as error:
            s += f"{error}"
    return total, text


@sgl.function
def keys_have_no_hash(s: Any) -> Any:
    given = asked_for(s)
    try:
        return given in {"x": 1}
    except TypeError as error:
        return f"{error}"


@sgl.function
def members_have_no_hash(s: Any) -> Any:
    given = asked_for(s)
    try:
        return given in {"x", 1}
    except TypeError as error:
        return f"{error}"


@sgl.function
def errors_are_in_tuples_of_tuples(s: Any) -> Any:
    s += sgl.gen("word", regex=NUMBER)
    kinds: Any = None
    try:
        try:
            return int(s["word"])
        except ((KeyError,), ValueError):  # type: ignore[misc]  # noqa: B030
            kinds = "caught"
    except TypeError as error:
        return f"{error}"
    return kinds


@sgl.function
def a_known_error_is_in_a_tuple_of_tuples(s: Any) -> Any:
    s += sgl.gen("word", regex=NUMBER)
    try:
        try:
            return {"a": 1}["b"]
        except ((KeyError,), ValueError):  # type: ignore[misc]  # noqa: B030
            return "caught"
    except TypeError as error:
        return f"{error}"


@sgl.function
def arguments_of_methods_fail(s: Any) -> Any:
    given = asked_for(s)
    found: list[Any] = []
    for each in (
        lambda: "x1".removeprefix(given),
        lambda: "x1".strip(given),
        lambda: "x1".expandtabs(given),
        lambda: str.upper(given),
    ):
        try:
            found.append(each())
        except TypeError as error:
            found.append(f"{error}")
    return found


@sgl.function
def places_in_lists_are_generated(s: Any) -> Any:
    s += sgl.gen("word")
    given = s["word"]
    words = ["a", "b"]
    try:
        return words.pop(given)
    except (TypeError, IndexError) as error:
        return f"{error}"


@sgl.function
def places_to_insert_are_generated(s: Any) -> Any:
    s += sgl.gen("word")
    given = s["word"]
    words = ["a", "b"]
    try:
        words.insert(given, "c")
    except TypeError as error:
        s += f"{error}"
    return words


@sgl.function
def places_to_delete_are_generated(s: Any) -> Any:
    s += sgl.gen("word")
    given = s["word"]
    words = ["a", "b"]
    try:
        del words[given]
    except (TypeError, IndexError) as error:
        s += f"{error}"
    return words


@sgl.function
def containers_keep_what_is_generated(s: Any) -> Any:
    given = asked_for(s, '[0-3]|"x"')
    words: list[Any] = ["a"]
    held: dict[str, Any] = {}
    try:
        words.append(given)
        words.insert(0, given)
        words.extend([given])
        held.update({"a": given})
        held.setdefault("b", given)
        held["c"] = int(given)
    except ValueError as error:
        s += f"{error}"
    return words, held


PLAN, PYTHON = {"plan"}, {"python"}
PROGRAMS = [
    (joined_list_is_changed, PLAN),
    (returned_list_is_changed, PYTHON),
    (object_is_changed, PYTHON),
    (stored_list_is_changed, PYTHON),
    (list_is_changed_where_it_was_stored, PLAN),
    (mapped_list_is_changed, PYTHON),
    (carried_list_is_changed, PYTHON),
    (list_in_a_sorted_list_is_changed, PYTHON),
    (tool_changes_what_an_arm_gave, PYTHON),
    (tool_changes_what_was_stored, PYTHON),
    (variable_is_changed_in_an_arm, PLAN | PYTHON),
    (field_is_changed_in_an_arm, PYTHON),
    (default_is_changed_in_an_arm, PLAN | PYTHON),
    (closure_is_changed_in_an_arm, PLAN | PYTHON),
    (iterator_goes_on_in_an_arm, PLAN | PYTHON),
    (other_name_of_a_list, PYTHON),
    (stored_list_is_extended, PYTHON),
    (item_is_extended, PYTHON),
    (set_is_extended, PYTHON),
    (argument_is_extended, PYTHON),
    (any_ends_early, PYTHON),
    (membership_ends_early, PYTHON),
    (conditions_stand_between_items, PYTHON),
    (items_are_made_one_by_one, PYTHON),
    (items_are_made_all_at_once, PLAN),
    (tuples_of_arms, PLAN),
    (forms_are_traced_once_more, PLAN),
    (tuple_or_list_is_stored, PLAN),
    (what_tools_give, PLAN),
    (views_and_ranges, PLAN),
    (views_of_an_argument, PLAN),
    (what_is_not_gone_through, PLAN),
    (iterators_are_returned, PYTHON),
    (error_has_a_context, PLAN),
    (called_with_more_arguments, PLAN),
    (numbers_are_added_up, PLAN),
    (new_containers_are_extended, PLAN),
    (lists_are_whole_before_they_are_gone_through, PLAN),
    (error_is_raised_again, PLAN),
    (keywords_have_any_name, PLAN),
    (lists_of_lists_are_gone_through, PLAN),
    (lists_are_put_together, PLAN),
    (branches_are_gone_through_by_words, PLAN),
    (first_of_none, PYTHON),
    (what_is_behind_the_first_is_not_asked, PLAN | PYTHON),
    (tools_stand_between_items, PYTHON),
    (branches_are_chosen_by_arguments, PLAN),
    (characters_of_a_text, PLAN),
    (list_is_no_iterator, PYTHON),
    (text_is_no_iterator, PYTHON),
    (sorted_list_is_no_iterator, PYTHON),
    (nothing_is_called_for_each, PYTHON),
    (nothing_is_called_for_each_word, PYTHON),
    (value_of_keys_is_changed, PYTHON),
    (default_of_next_is_changed, PYTHON),
    (default_of_get_is_changed, PYTHON),
    (default_of_max_is_changed, PYTHON),
    (tool_stands_behind_no_list, PYTHON),
    (tool_stands_behind_no_mapping, PYTHON),
    (generation_stands_behind_no_list, PYTHON),
    (tool_stands_behind_what_no_set_holds, PYTHON),
    (value_of_keys_is_made_before_them, PYTHON),
    (start_of_numbers_is_made_before_the_items, PYTHON),
    (default_is_made_before_the_items, PYTHON),
    (default_is_made_before_what_fails, PYTHON),
    (containers_are_the_programs_own, PLAN),
    (generator_is_kept_and_not_gone_through, PLAN),
    (list_has_two_names, PYTHON),
    (numbers_or_not, PLAN),
    (forms_are_asked_for_again, PLAN),
    (errors_are_told_apart, PLAN),
    (errors_are_raised_from_others, PLAN | PYTHON),
    (an_error_is_looked_into, PLAN | PYTHON),
    (looked_up, PLAN),
    (declared_functions_are_not_asked, PYTHON),
    (numbers_are_added_in_place, PYTHON),
    (lists_are_extended_by_what_is_generated, PYTHON),
    (fields_are_changed_in_place, PYTHON),
    (texts_and_numbers_are_added_in_place, PLAN),
    (keys_have_no_hash, PYTHON),
    (members_have_no_hash, PLAN),
    (errors_are_in_tuples_of_tuples, PYTHON),
    (a_known_error_is_in_a_tuple_of_tuples, PYTHON),
    (arguments_of_methods_fail, PLAN),
    (places_in_lists_are_generated, PYTHON),
    (places_to_insert_are_generated, PYTHON),
    (places_to_delete_are_generated, PYTHON),
    (containers_keep_what_is_generated, PLAN),
]


def arguments_of(program: Any) -> Iterator[dict[str, Any]]:
    if program is argument_is_extended:
        yield {"words": ["a"]}
    elif program is views_of_an_argument:
        yield {"data": {"a": 1, "b": [2]}}
    elif program is keywords_have_any_name:
        yield {"template": {"text": "{name} {value} {self} {kind} {tracer}", "name": "n"}}
    elif program is branches_are_chosen_by_arguments:
        yield {"number": 1, "label": "b", "role": "user"}
    else:
        yield {}


@pytest.mark.parametrize(("program", "modes"), PROGRAMS, ids=[made.__name__ for made, _ in PROGRAMS])
def test_a_plan_gives_what_python_gives(program: Any, modes: set[str]) -> None:
    ran, whys = set[str](), set[str]()
    for seed in SEEDS:
        outcomes = []
        for mode in ("python", "auto"):
            CALLS.clear()
            (given,) = arguments_of(program)

            def run(backend: Any, mode: Any = mode, given: Any = given, seed: int = seed) -> list[Result]:
                return [program.run(**given, backend=backend, mode=mode, seed=seed)]

            def more(result: Result, mode: str = mode) -> dict[str, Any]:
                if mode == "auto":
                    ran.add(result.mode)
                    whys.add(str(result.why_python))
                return {"calls of tools": list(CALLS)}

            outcomes.append(seen(run, None, given, more))
        aspects = (*RESULT, *ASKED, "calls of tools", "arguments")
        assert differences(outcomes[0], outcomes[1], aspects) == {}
    assert ran == modes, whys
