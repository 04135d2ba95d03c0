"""A random module: a prelude, one program `program`, and `rows()`, which makes its arguments anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tests.source_fuzz import locals as _locals
from tests.source_fuzz import outside as _outside
from tests.source_fuzz import prompts as _prompts
from tests.source_fuzz.builder import ANYTHING, BASIC, PRODUCTIONS, RULED, Builder
from tests.source_fuzz.prelude import SNIPPETS, with_what_they_need

__all__ = ["FEATURES", "Module", "random_module"]

_REGISTERED = (_locals, _outside, _prompts)  # importing them registers their productions
_STANDARD = (
    "collections", "contextlib", "dataclasses", "enum", "functools", "html", "io", "itertools", "json",
    "logging", "math", "pydantic", "random", "re", "string", "sys", "textwrap", "threading",
)  # fmt: skip
_LEVELS = (BASIC, RULED, RULED, RULED, ANYTHING)

# The types of arguments: what they need, their values in two rows, a default or "", what is done with them.
_Kind = tuple[tuple[str, ...], tuple[str, str], str, tuple[str, ...]]
_ARGUMENTS: dict[str, _Kind] = {
    "str": ((), ('"alpha"', '"Beta two"'), '"gamma"', ("{x}", "{x}.upper()", "len({x})", "'a' in {x}")),
    "int": ((), ("2", "3"), "4", ("{x} + 1", "{x} > 2", "'n' * {x}", "range({x})", "{x}")),
    "float": ((), ("0.5", "2.0"), "1.25", ("{x} * 2", "{x}", "round({x})")),
    "bool": ((), ("True", "False"), "True", ("{x}", "'on' if {x} else 'off'", "not {x}")),
    "none": ((), ("None", '"some"'), "None", ("{x}", "{x} is None", "{x} or 'or'")),
    "enum": (
        ("Color",), ("Color.RED", "Color.BLUE"), "Color.GREEN",
        ("{x}.value", "{x}.name", "{x} is Color.RED", "{x}"),
    ),
    "list": (
        (), ('["p", "q"]', '["p", "q", "r"]'), '["d"]',
        ("{x}", "{x}[0]", "len({x})", "{x}[-1:]", "sorted({x})"),
    ),
    "dict": (
        (), ('{"a": "x", "n": 1}', '{"a": "y", "n": 1}'), "",
        ("{x}['a']", "{x}", "{x}.get('zz', 0)", "len({x})"),
    ),
    "nested": (
        (), ('[{"k": ["x"]}, (1, 2.5)]', '[{"k": ["x", "y"]}, (3, None)]'), "",
        ("{x}", "{x}[0]['k'][-1]", "{x}[1][0]"),
    ),
    "dataclass": (
        ("Point",), ("Point(1)", 'Point(2, "l")'), "", ("{x}.label", "{x}.shown()", "{x}.x + 1", "{x}"),
    ),
    "pydantic": (
        ("Person",), ('Person(name="Ann")', 'Person(name="Bo", age=9)'), "",
        ("{x}.name", "{x}.age", "{x}.age + 1", "{x}.name.upper()", "{x}"),
    ),
    "tuple": ((), ('("t", 1)', '("u", 2)'), '("d", 0)', ("{x}[0]", "{x}", "{x} + (1,)")),
    "object": (("Quiet",), ("Quiet()", "Quiet()"), "", ("{x}.name", "{x}.line('o')", "{x}.size + 1")),
}  # fmt: skip

_SELDOM_WHOLE = ("pydantic", "none")  # these come twice as often

FEATURES = (
    *PRODUCTIONS,
    *(f"argument: {kind}" for kind in _ARGUMENTS),
    "default",
    "default taken",
    "keyword-only argument",
)


@dataclass(frozen=True, slots=True)
class Module:
    """`alone`: whether a plan of the program runs without the module: no tool and no class is its own."""

    name: str
    source: str
    features: Mapping[str, int]
    alone: bool


def random_module(seed: int, number: int) -> Module:
    """The module of a number: the same one for one seed everywhere."""
    random = Random(f"{seed}/{number}")
    b = Builder(random, random.choice(_LEVELS))
    parameters, rows = _arguments(b)
    if random.random() < 0.3:
        b.append(b.text())
    b.gen()
    for _ in range(random.randint(1, 6)):
        b.step()
    if random.random() < 0.8:
        b.line(f"return {_returned(b)}")
    source = _source(b, parameters, rows)
    alone = (
        not re.search(r"sgl\.tool|namedtuple", source)
        and "sgl.pure" not in source
        and not re.search(r"^class ", source, re.M)
    )
    return Module(f"fuzzed_{seed}_{number}", source, dict(b.features), alone)


def _source(b: Builder, parameters: str, rows: str) -> str:
    body = "\n".join(b.lines)
    pieces = [SNIPPETS[name][1] for name in with_what_they_need(b.prelude)]
    program = f"@sgl.function\ndef program(s{parameters}):\n{body}"
    definitions = "\n\n\n".join([*pieces, program, rows])
    imports = [f"import {name}" for name in _STANDARD if re.search(rf"\b{name}\.", definitions)]
    if "Literal[" in definitions:
        imports.append("from typing import Literal")
    return "\n".join([*imports, "", "import sglc as sgl", "", "", definitions, ""])


def _arguments(b: Builder) -> tuple[str, str]:
    """The parameters, and `rows()`; what is done with them at the beginning of the body."""
    random = b.random
    kinds = ["str"] if random.random() < 0.6 else []
    usual = ("str",) if b.level == BASIC and random.random() < 0.8 else (*_ARGUMENTS, *_SELDOM_WHOLE)
    kinds += random.choices(usual, k=random.choice((0, 1, 2, 2)))
    needed, with_default, only_named = [], [], []
    rows: list[list[str]] = [[], []]
    for kind in kinds:
        needs, values, default, uses = _ARGUMENTS[kind]
        b.need(*needs)
        name = b.fresh("a")
        _count(b, f"argument: {kind}")
        taken = False
        if default and random.random() < (0.15 if b.level == BASIC else 0.4):
            _count(b, "default")
            taken = random.random() < 0.5
            with_default.append(f"{name}={default}")
            if taken:
                _count(b, "default taken")
        elif random.random() < 0.15:
            _count(b, "keyword-only argument")
            only_named.append(name)
        else:
            needed.append(name)
        for row, value in zip(rows, values, strict=True):
            if not taken:
                row.append(f'"{name}": {value}')
        if kind == "str":
            b.texts.append(name)
        if kind == "int":
            b.ints.append(name)
        if kind == "list":
            b.lists.append(name)
        _used(b, name, uses)
    listed = [*needed, *with_default, *(["*", *only_named] if only_named else [])]
    made = ",\n        ".join("{" + ", ".join(row) + "}" for row in rows)
    return "".join(
        f", {parameter}" for parameter in listed
    ), f"def rows():\n    return [\n        {made},\n    ]"


def _used(b: Builder, name: str, uses: tuple[str, ...]) -> None:
    for use in b.random.sample(uses, b.random.choice((1, 1, 2))):
        chosen = uses[0] if b.level == BASIC and b.chance(0.7) else use
        b.observe(chosen.format(x=name))


def _count(b: Builder, feature: str) -> None:
    b.features[feature] = b.features.get(feature, 0) + 1


def _returned(b: Builder) -> str:
    """What the program returns: some of what is in scope."""
    chosen = b.random.sample(b.results, min(len(b.results), b.random.choice((1, 2, 4))))
    chosen = chosen or [b.text()]
    match b.random.randrange(5):
        case 0:
            return chosen[0]
        case 1:
            return f"[{', '.join(chosen)}]"
        case 2:
            return f"({', '.join(chosen)}, 7)"
        case 3:
            return "{" + ", ".join(f'"r{i}": {one}' for i, one in enumerate(chosen)) + "}"
        case _:
            return f'{{"nested": [({chosen[0]}, 1.5), None], "flag": True}}'
