"""Random regexes, JSON schemas and grammars: of every size, for texts of every length, and made to cost."""

from __future__ import annotations

from random import Random
from typing import Any

_LETTERS = "abcxyz01 .-"
_BOUNDS = ("*", "+", "?", "{0,3}", "{2,40}", "{,9}", "{5}", "{0,999}", "{100000}", "{1000000000}")
_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")


def regex(random: Random, depth: int = 4) -> str:
    """A pattern of `re`; often one that no automaton does, or that many texts match in many ways."""
    if depth == 0 or random.random() < 0.2:
        return random.choice(("a", "[a-z]", "[^x]", ".", "\\d", "\\w", "\\.", "é", "😀", "(?:)", "", "[0-9]"))
    inner = regex(random, depth - 1)
    match random.randrange(8):
        case 0 | 1:
            return f"({inner}){random.choice(_BOUNDS)}"
        case 2:
            return f"({inner}|{regex(random, depth - 1)})"
        case 3 | 4 | 5:
            return inner + regex(random, depth - 1)
        case 6:
            return random.choice(("^{}$", "(?i:{})", "(?={})", "(?<!{})", "\\b{}", "({})\\1", "(?>{})")).format(
                inner
            )
    return f"({inner}){random.choice(_BOUNDS)}{random.choice(('', '?', '+'))}"


def schema(random: Random, depth: int = 4) -> Any:
    """A JSON schema; its bounds and patterns may be of any size, and it may refer to itself."""
    if depth == 0 or random.random() < 0.1:
        return random.choice((True, {}, {"type": random.choice(_TYPES)}, {"$ref": "#"}, {"const": None}, False))
    match random.randrange(9):
        case 0:
            most = random.choice((0, 3, 70, 100_000, 10**9, -1))
            return {"type": "string", "minLength": random.choice((0, 1, most)), "maxLength": most}
        case 1:
            return {"type": "string", "pattern": f"^{regex(random, 3)}$"}
        case 2:
            numbers = random.choice((1, 7, 10**6, 10**30, -5, 0.1))
            return {
                "type": random.choice(("integer", "number")),
                random.choice(("minimum", "multipleOf")): numbers,
            }
        case 3:
            return {
                "enum": [
                    random.choice((1, "a", None, "é" * 99, [1, {}])) for _ in range(random.choice((0, 2, 500)))
                ]
            }
        case 4:
            bounds = {"minItems": random.choice((0, 1, 9, 10**6)), "maxItems": random.choice((9, 10**7))}
            return {"type": "array", "items": schema(random, depth - 1), **random.choice((bounds, {}))}
        case 5:
            kind = random.choice(("anyOf", "allOf", "oneOf"))
            return {kind: [schema(random, depth - 1) for _ in range(random.randrange(4))]}
        case 6:
            return {"$ref": "#/$defs/a", "$defs": {"a": schema(random, depth - 1), "b": {"$ref": "#/$defs/a"}}}
    names = [random.choice(("a", "b", "next", 'q"\\', "é", f"k{i}")) for i in range(random.choice((1, 3, 60)))]
    properties = {name: schema(random, depth - 2 if depth > 1 else 0) for name in names}
    required = [name for name in properties if random.random() < 0.5]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": random.random() < 0.3,
    }


def grammar(random: Random) -> str:
    """A grammar in GBNF whose rules name each other at will: its texts may have no end, or many readings."""
    if random.random() < 0.4:  # all of it has to follow, without end
        return random.choice(
            ('root ::= "a" root', 'root ::= "b" x\nx ::= "c" y\ny ::= "d" x | "d" y', "root ::= (root)+")
        )
    rules = ["root", *(f"r{i}" for i in range(random.choice((1, 3, 12))))]

    def part(depth: int) -> str:
        match random.randrange(7) if depth else random.randrange(3):
            case 0:
                return f'"{random.choice(_LETTERS)}"'
            case 1:
                return random.choice(("[a-z]", "[^a]", '""', "[0-9]", '"\\""', '"é"'))
            case 2 | 3:
                return random.choice(rules)
            case 4:
                return f"({alternatives(depth - 1)}){random.choice(_BOUNDS)}"
        return f"({alternatives(depth - 1)})"

    def alternatives(depth: int) -> str:
        sequences = (
            " ".join(part(depth) for _ in range(random.randrange(1, 4))) for _ in range(random.randrange(1, 4))
        )
        return " | ".join(sequences)

    return "\n".join(f"{rule} ::= {alternatives(2)}" for rule in rules)


def costly_regex(random: Random) -> str:
    """A pattern that is small, and whose automaton is not."""
    many = random.randrange(10, 60)
    return random.choice(
        (
            f"(a|b)*a(a|b){{{many}}}",
            f"(([a-z]{{0,{many}}},){{0,{many}}};){{0,{many}}}",
            "(" * 4_000 + "a" + ")" * 4_000,
            f"(.{{0,{many}}}x){{{many}}}",
            "|".join(f"{i:x}" * 9 for i in range(many * 300)),
            f"({'a?' * many}){{{many}}}",
        )
    )


def costly_schema(random: Random) -> Any:
    """A schema that is large, or means much."""
    many = random.randrange(10, 60)
    match random.randrange(8):
        case 0:
            return {"enum": [f"{i:x}" * 40 for i in range(many * 1_000)]}
        case 1:
            return {"type": "object", "description": "x" * 5_000_000, "properties": {"a": {"type": "null"}}}
        case 2:
            return {"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(many * 1_000)}}
        case 3:
            return {"type": "string", "pattern": f"^([a-z]{{0,{many}}},){{0,{many}}}$"}
        case 4:
            return {"type": "string", "minLength": 10**6, "maxLength": 10**9}
        case 5:
            return {"type": "array", "items": {"type": "integer"}, "minItems": 10**many}
        case 6:
            deep: Any = True
            for _ in range(many * 10):
                deep = {"type": "array", "items": deep, "maxItems": many}
            return deep
    return {"allOf": [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{i}}}$"} for i in range(2, many)]}


def costly_grammar(random: Random) -> str:
    """A grammar that takes long to compile, or at some token."""
    many = random.randrange(10, 60)
    match random.randrange(8):
        case 0:
            return "root ::= " + " | ".join(f'[a-z]{{{i},{i + 15 * many}}} "{i}"' for i in range(1, 9 * many))
        case 1:
            return f'root ::= ((([a-z]{{0,{many}}}){{0,{many}}}){{0,{many}}}){{0,{many}}} "."'
        case 2:
            return "root ::= " + "[a-z]? " * (many * 50) + '"."'
        case 3:
            return 'root ::= s "."\ns ::= s s s | s s | [a-z]'
        case 4:
            rules = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(many))
            return f'root ::= r0 "."\n{rules}\nr{many} ::= [a-z]?'
        case 5:
            texts = (
                f'x{i} ::= "a" | x{(i + 1) % many} x{i * 3 % many} | x{i * 5 % many} "a"' for i in range(many)
            )
            return "root ::= x0 x0 | x1 x7\n" + "\n".join(texts)
        case 6:
            return f'root ::= "{"x" * many * 10}" ((([a-z]{{0,50}}){{0,50}}){{0,50}}){{0,{many}}} "."'
    return (
        'root ::= x{0,2000} "."\nx ::= y{0,2000}\ny ::= [a-z]?' if many % 2 else f"root ::= {'(' * many * 999}"
    )
