"""Plans that nobody's compiler made: what a server has to refuse before anything runs, the same for one seed.

A case is the body of `POST /v1/programs`, and the code that it is refused with ("" is any).
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sglc as sgl
from sglc.ir.plan.plan_file import plan_to_text
from sglc.ir.plan.plan_json import PLAN_VERSION
from sglc.ir.target import Target
from sglc.passes.compile import compile_program
from tests.oracle_backend import Characters

Json = Any
TARGET = Target(
    "local", Characters(), scores_tokens=True, continues_text=True, whole_answers=True, concurrency=8
)
ROWS = [{"topic": "tea"}]


@dataclass(frozen=True)
class Hostile:
    """One case."""

    name: str
    body: bytes
    code: str = ""


@sgl.function
def plain(s: Any, topic: str) -> None:
    s += "About " + topic + ": " + sgl.gen("answer", max_tokens=8, stop="x")
    forks = s.fork(2)
    for fork in forks:
        fork += " and " + sgl.gen("more", max_tokens=4)
    s.join(forks)
    s += sgl.select("verdict", choices=["good", "bad"])


@sgl.function
def branching(s: Any, topic: str) -> None:
    s += topic + sgl.gen("kind", choices=["a", "b"])
    if s["kind"] == "a":
        s += " yes " + sgl.gen("yes", max_tokens=4)
    else:
        s += " no " + sgl.gen("no", max_tokens=4)

    def again() -> Any:
        nonlocal s
        s += ", " + sgl.gen("again", max_tokens=2)
        return s["again"] != "stop"

    sgl.loop(again, max_iters=3)


def valid() -> list[Json]:
    """Plans that a server runs."""
    made = [compile_program(program.trace(), TARGET).plan for program in (plain, branching)]
    return [json.loads(plan_to_text(plan)) for plan in made]


def unhashed(plan: Json) -> Json:
    """A copy without the hash, which a change would be noticed by."""
    return {key: copy.deepcopy(value) for key, value in plan.items() if key != "hash"}


def everywhere(data: Json) -> Iterator[tuple[Any, Any, Any]]:
    """Every value in JSON, with what holds it, and under which key."""
    stack = [data]
    while stack:
        holder = stack.pop()
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            yield holder, key, value
            if isinstance(value, dict | list):
                stack.append(value)


def of_kind(plan: Json, kind: str) -> list[Json]:
    return [value for _, _, value in everywhere(plan) if isinstance(value, dict) and value.get("is") == kind]


LOC = {"is": "loc", "file": "p.py", "line": 1, "column": 1, "end_column": 0}


def _changed(change: Callable[[Json], None], which: int = 0) -> Json:
    plan = unhashed(_VALID[which])
    change(plan)
    return plan


def _asking(plan: Json, rows: Json = ROWS) -> bytes:
    return json.dumps({"plan": plan, "rows": rows}).encode()


_VALID = valid()
_LOC = of_kind(_VALID[0], "loc")[0]


def _function(name: str, **fields: Any) -> Json:
    return {
        "is": "function", "name": "odd", "function": name, "args": [], "named": {"is": "map", "items": {}},
        "gives": "json", "effects": False, "order": "overlap", "loc": _LOC, **fields,
    }  # fmt: skip


def _nested(depth: int) -> Json:
    made: Json = "x"
    for _ in range(depth):
        made = [made]
    return made


def _block(steps: Json) -> Json:
    return {"is": "block", "params": [], "steps": steps, "results": [], "variables": []}


def _cond(block: int) -> Json:
    return {"is": "cond", "pred": True, "then": block, "orelse": block, "gives": [], "loc": _LOC}


def _loop(block: int, turns: int) -> Json:
    return {"is": "loop", "init": [], "max_iters": turns, "body": block, "gives": [], "loc": _LOC}


def _with_blocks(steps: Json, *blocks: Json) -> Json:
    return _changed(lambda plan: plan.update(steps=steps, blocks=list(blocks), variables=[], returns=None))


def _sampling(**fields: Any) -> Json:
    def change(plan: Json) -> None:
        of_kind(plan, "sampling")[0].update(fields)

    return _changed(change)


def _calling(name: str, **fields: Any) -> Json:
    return _changed(lambda plan: plan["steps"].append(_function(name, **fields)))


def _part(part: Json) -> Json:
    return _changed(lambda plan: of_kind(plan, "extend")[0]["parts"].append(part))


def _node(change: Callable[[Json], Any], kind: str) -> Json:
    return _changed(lambda plan: change(of_kind(plan, kind)[0]))


def named() -> Iterator[Hostile]:
    """One of each kind that somebody would think of."""
    again = {**_block([]), "results": [True]}
    deep = [_block([])]
    for number in range(40):
        deep.append(_block([{**_cond(number), "orelse": number}]))
    wide = [_block([])]
    for number in range(40):
        call = {"is": "call", "site": of_kind(_VALID[0], "site")[0], "args": [], "body": number, "gives": []}
        wide.append(_block([{**call, "loc": _LOC}, {**call, "loc": _LOC}]))
    many = [_changed(lambda plan: None)["steps"][0]] * 400
    plans: dict[str, tuple[Json, str]] = {
        "a block holds itself": (_with_blocks([_loop(0, 2)], _block([_loop(0, 2)])), "SGLC221"),
        "a block holds a later one": (
            _with_blocks([_loop(1, 2)], _block([_loop(1, 2)]), _block([])), "SGLC221"
        ),
        "a block that is not there": (_with_blocks([_cond(7)]), "SGLC221"),
        "a block twice": (_with_blocks([_cond(0)], _block([])), "plan_bounds"),
        "blocks forty deep": (_with_blocks([_cond(40)], *deep), "plan_bounds"),
        "calls that double forty times": (_with_blocks([], *wide), "plan_bounds"),
        "a billion turns": (_with_blocks([_loop(0, 10**9)], again), "plan_bounds"),
        "no turn": (_with_blocks([_loop(0, 0)], again), "SGLC221"),
        "a literal of 2 MiB": (_part("x" * (2 << 20)), "plan_bounds"),
        "a million items": (_part([1] * 1_000_000), "plan_bounds"),
        "too many generations": (_changed(lambda plan: plan.update(steps=many)), ""),
        "ten thousand variables": (
            _changed(lambda p: p.update(variables=[{"is": "named", "name": "v", "value": 1}] * 10_000)),
            "plan_bounds",
        ),
        "Python": (
            _changed(
                lambda p: p["steps"].append(
                    {"is": "host", "reason": "because", "loc": _LOC, "reads": [], "error": ""}
                )
            ),
            "plan_host",
        ),
        "raises": (
            _changed(
                lambda p: p["steps"].append(
                    {"is": "host", "reason": "x", "loc": _LOC, "reads": [], "error": "SystemExit"}
                )
            ),
            "plan_host",
        ),
        **{
            f"calls {name}": (_calling(name), "plan_host")
            for name in (
                "os.system", "builtins.eval", "print", "logging", "operator.pow", "operator.mul", "re.search",
                "str.format", "str.join", "sglc.range", "sglc.method", "math.factorial", "itertools.product",
                "tests.hostile_plans.valid", "hash", "sglc.image",
            )
        },
        "calls x, stored": (_calling("x, stored", args=["x"]), "plan_host"),
        "reads no text": (_calling("x, stored"), "SGLC221"),
        "calls with names": (
            _calling("str", named={"is": "map", "items": {"object": 1}}), "plan_host"
        ),
        "a guard": (
            _changed(
                lambda p: p.update(
                    guards=[{"is": "guard", "fact": "operator.pow(9, 9**9)", "expected": "1", "loc": _LOC}]
                )
            ),
            "plan_guards",
        ),
        "a class": (_changed(lambda p: p["params"][0].update(kind="os.PathLike")), "plan_host"),
        "the version before": (_changed(lambda p: p.update(version=PLAN_VERSION - 1)), "SGLC220"),
        "the version to come": (_changed(lambda p: p.update(version=PLAN_VERSION + 1)), "SGLC220"),
        "the version as a text": (_changed(lambda p: p.update(version=str(PLAN_VERSION))), "SGLC220"),
        "another tokenizer": (_changed(lambda p: p.update(tokenizer="0" * 32)), "SGLC015"),
        "another back end": (_changed(lambda p: p.update(tokenizer="", target="openai:gpt")), "SGLC046"),
        "another hash": ({**_VALID[0], "hash": "0" * 32}, "SGLC040"),
        "a changed program": ({**_VALID[0], "program": "other"}, "SGLC040"),
        "brackets": (_changed(lambda p: p.update(returns=_nested(70))), "plan_bounds"),
        "a thousand brackets": (_changed(lambda p: p.update(returns=_nested(900))), ""),
        "a large number": (_changed(lambda p: p.update(returns=10**400)), ""),
        "somebody's stream": (_node(lambda node: node.update(handle=1), "open"), "SGLC221"),
        "gives back somebody's stream": (
            _changed(lambda p: p["steps"][0]["nodes"].append({"is": "release", "handle": 1})), "SGLC221"
        ),
        "keeps under a number": (
            _changed(lambda p: p["steps"][0]["nodes"].append({"is": "keep", "stream": 0, "handle": 1})),
            "SGLC221",
        ),
        "an id that the model lacks": (_part({"is": "control", "text": "x", "ids": [10**6]}), "invalid_value"),
        "no id": (_part({"is": "control", "text": "x", "ids": []}), "invalid_value"),
        "a negative id": (_part({"is": "control", "text": "x", "ids": [-1]}), "invalid_value"),
        "a picture": (_part({"is": "image", "data": "file:///etc/passwd"}), "invalid_value"),
        "a turn": (_part({"is": "role", "role": "system", "begins": True}), "invalid_value"),
        "reads a later node": (_part({"is": "result", "node": 99}), "SGLC221"),
        "reads nothing": (_part({"is": "slot", "name": "nothing"}), "SGLC221"),
        "no choices": (_node(lambda node: node.update(choices=[]), "select"), "invalid_value"),
        "1,000 choices": (_node(lambda node: node.update(choices=["x"] * 1000), "select"), "invalid_value"),
        "an odd method": (_node(lambda node: node.update(method="guess"), "select"), "invalid_value"),
        **{
            f"{name}={str(value)[:20]}": (_sampling(**{name: value}), "invalid_value")
            for name, value in (
                ("n", 0), ("n", 10**6), ("max_tokens", -1), ("max_tokens", 2**40), ("min_tokens", -5),
                ("temperature", -1.0), ("top_p", 0.0), ("top_p", 2.0), ("top_k", 0), ("top_k", 2**31),
                ("min_p", 7.0),
                ("frequency_penalty", 3.0), ("repetition_penalty", 0.0), ("seed", -1), ("stop", [""]),
                ("stop", ["x"] * 65), ("stop", ["x" * 5000]), ("stop_regex", ["x" * 5000]),
                ("stop_token_ids", [-1]), ("stop_token_ids", list(range(2000))), ("top_logprobs", 21),
                ("logprobs_from", -1), ("tools", "[]"), ("logit_bias", [[-1, 0.5]]),
                ("logit_bias", [[2**33, 1.0]]),
                ("strict", True),
            )
        },
    }  # fmt: skip
    for name, (plan, code) in plans.items():
        yield Hostile(name, _asking(plan), code)
    plan = _VALID[0]
    rows: dict[str, tuple[Json, str]] = {
        "no rows": ([], "invalid_value"),
        "rows that are none": ("tea", "invalid_type"),
        "too many rows": (ROWS * 257, "too_many"),
        "no argument": ([{}], "SGLC014"),
        "an argument too many": ([{"topic": "tea", "more": "x"}], "SGLC014"),
        "a number for a text": ([{"topic": 5}], "SGLC047"),
        "a deep argument": ([{"topic": _nested(70)}], "plan_bounds"),
        "null": ([{"topic": None}], "SGLC047"),
    }
    for name, (given, code) in rows.items():
        yield Hostile(name, _asking(plan, given), code)
    bodies: dict[str, tuple[Json, str]] = {
        "no plan": ({"rows": ROWS}, "missing_field"),
        "a text for a plan": ({"plan": "plan", "rows": ROWS}, "invalid_type"),
        "an empty plan": ({"plan": {}, "rows": ROWS}, "SGLC221"),
        "a pickle": ({"plan": plan, "rows": ROWS, "pickle": "gASVBQAAAAAAAABLAS4="}, "unknown_field"),
        "another model": ({"plan": plan, "rows": ROWS, "model": "other"}, "model_not_found"),
    }
    for name, (body, code) in bodies.items():
        yield Hostile(name, json.dumps(body).encode(), code)


_ODD: tuple[Json, ...] = (
    None,
    True,
    -1,
    0.5,
    "odd",
    [],
    {},
    [[]],
    {"is": "plan"},
    {"is": "odd"},
    10**30,
    ["x", 1],
)


def of_odd_types(rng: random.Random) -> Hostile:
    """A plan in which something is of another type; perhaps it is a plan all the same."""
    plan = unhashed(rng.choice(_VALID))
    holder, key, value = rng.choice(list(everywhere(plan)))
    odd = rng.choice([odd for odd in _ODD if type(odd) is not type(value)])
    holder[key] = odd
    return Hostile(f"{key} is {str(odd)[:20]}", _asking(plan))


def of_changed_bytes(rng: random.Random) -> Hostile:
    """The file of a plan, hash and all, with some bytes changed, so that it is no JSON, or another one."""
    text = json.dumps(rng.choice(_VALID))
    made = bytearray(text.encode())
    while True:
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(1, len(made) - 1)
            if rng.random() < 0.3:
                del made[place]
            else:
                made[place] = rng.randrange(256)
        try:
            same = json.loads(made) == json.loads(text)
        except ValueError:
            same = False
        if not same:
            return Hostile("bytes", b'{"rows": [{"topic": "tea"}], "plan": ' + bytes(made) + b"}")


def of_changed_tree(rng: random.Random) -> Hostile:
    """A plan with parts left out, doubled, and put elsewhere; perhaps it is a plan all the same."""
    plan = unhashed(rng.choice(_VALID))
    for _ in range(rng.randint(1, 3)):
        places = list(everywhere(plan))
        holder, key, _value = rng.choice(places)
        match rng.randrange(3):
            case 0:
                del holder[key]
            case 1:
                holder[key] = copy.deepcopy(rng.choice(places)[2])
            case _ if isinstance(holder, list):
                holder.append(copy.deepcopy(rng.choice(places)[2]))
            case _:
                holder[f"{key}_"] = 1
    return Hostile("tree", _asking(plan))


_NUMBERS: tuple[Json, ...] = (-1, 0, 1, 65_536, 2**31, 2**63, 2**64, 10**30, -0.5, 1e300, None)
_REFERRING = ("stream", "node", "handle", "name", "body", "then", "orelse", "gives")


def of_changed_references(rng: random.Random) -> Hostile:
    """A plan whose numbers, and what its parts refer to, are others, or with much more of something."""
    plan = unhashed(rng.choice(_VALID))
    for _ in range(rng.randint(1, 3)):
        places = list(everywhere(plan))
        match rng.randrange(3):
            case 0:
                holder, key, value = rng.choice([place for place in places if type(place[2]) in (int, float)])
                holder[key] = rng.choice((*_NUMBERS, value + 1, value - 1))
            case 1:
                one, two = rng.sample([place for place in places if place[1] in _REFERRING], 2)
                one[0][one[1]], two[0][two[1]] = two[2], one[2]
            case _:
                holder, key, value = rng.choice([place for place in places if isinstance(place[2], list)])
                holder[key] = value * rng.choice((2, 3, 300))
    return Hostile("references", _asking(plan))


def for_any_model(rng: random.Random) -> Hostile:
    """A plan of any kind, which names no tokenizer: more of it is looked at."""
    make = rng.choice((of_odd_types, of_changed_bytes, of_changed_tree, of_changed_references))
    case = rng.choice(list(named())) if rng.random() < 0.4 else make(rng)
    return Hostile(case.name, case.body.replace(b'"tokenizer": "characters"', b'"tokenizer": ""'))


def hostile(count: int, seed: int = 0) -> list[Hostile]:
    """So many: all that have names, and random ones behind them."""
    rng = random.Random(seed)
    made = list(named())
    while len(made) < count:
        made.append(rng.choice((of_odd_types, of_changed_bytes, of_changed_tree))(rng))
    return made[:count]
