"""Random programs that are full of branches, most of whose arms could meet behind them.

What an arm does beside its prompt (locals, containers, variables, turns, returns, tools, forks), and what the
program asks behind it of what the arms know, comes often enough that every reason not to join is met.
"""

from __future__ import annotations

from random import Random

_HEAD = """from typing import Any

import sglc as sgl

SEEN: list[str] = []


@sgl.tool
def note(text: str) -> str:
    SEEN.append(text)
    return f"<{len(text)}>"


@sgl.pure
def short(text: str) -> str:
    return text[:3]


def asks(s: Any, name: str) -> bool:
    s += f"|{name}?" + sgl.select(name, choices=["yes", "no"])
    return s[name] == "yes"


@sgl.function
def program(s: Any, text: str, word: str) -> Any:
    found: list[str] = []
    local = "l"
"""


class _Body:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.names = 0
        self.perhaps: list[str] = []  # variables that some arm makes
        self.known: list[tuple[str, bool]] = []  # surely made so far, and whether of few texts

    def name(self) -> str:
        """A new name, or sometimes one that was used before."""
        if self.known and self.rng.random() < 0.1:
            return self.rng.choice(self.known)[0]
        self.names += 1
        return f"x{self.names}"

    def block(self, depth: int, count: int) -> list[str]:
        lines = [line for _ in range(count) for line in self.statement(depth)]
        return lines or ["pass"]

    def arm(self, depth: int) -> list[str]:
        """Statements whose variables are not surely there behind them."""
        before = list(self.known)
        lines = self.block(depth + 1, self.rng.choice((0, 1, 1, 2)))
        made, self.known = [each for each in self.known if each not in before], before
        self.perhaps += [name for name, _ in made]
        if made and self.rng.random() < 0.05:
            self.known = [*before, self.rng.choice(made)]  # asked behind the branch all the same
        return ["    " + line for line in lines]

    def condition(self) -> str:
        rng = self.rng
        few = [name for name, finite in self.known if finite]
        texts = [name for name, _ in self.known]
        kinds = ["word"]
        if few:
            kinds += ["few"] * 6 + ["both", "has", "has"]
        if texts:
            kinds += ["free"] * 4 + ["contains", "not", "strip"]
        match rng.choice(kinds):
            case "few":
                return f's["{rng.choice(few[-3:])}"] == "{rng.choice(("yes", "no"))}"'
            case "both":
                other = f's["{rng.choice(texts)}"] == "b"'
                return f's["{rng.choice(few)}"] == "yes" {rng.choice(("and", "or"))} {other}'
            case "has":
                return f'"{rng.choice(self.perhaps or few)}" in s'
            case "free":
                return f's["{rng.choice(texts[-3:])}"] {rng.choice(("==", "!="))} "{rng.choice("ab")}"'
            case "contains":
                return f'"a" in s["{rng.choice(texts)}"]'
            case "not":
                return f'not s["{rng.choice(texts)}"] == "a"'
            case "strip":
                return f's["{rng.choice(texts)}"].strip() == "a"'
            case _:
                return f'word {rng.choice(("==", "!="))} "w"'

    def statement(self, depth: int) -> list[str]:
        rng = self.rng
        branches = 9 if depth < 2 else 2
        kinds = ["text"] * 4 + ["gen"] * 4 + ["select"] * 5 + ["if"] * branches + ["else"] * branches + [
            "elif", "match", "asked", "loop", "read", "local", "append", "store", "tool", "pure", "return",
            "turn", "fork", "scope", "either", "raise", "try", "walrus", "item",
        ]  # fmt: skip
        match rng.choice(kinds):
            case "gen":
                name = self.name()
                self.known.append((name, False))
                return [f's += "{rng.choice("uvw")}" + sgl.gen("{name}", max_tokens=3)']
            case "select":
                name = self.name()
                self.known.append((name, True))
                return [f's += sgl.select("{name}", choices=["yes", "no"])']
            case "if":
                return [f"if {self.condition()}:", *self.arm(depth)]
            case "else":
                return [f"if {self.condition()}:", *self.arm(depth), "else:", *self.arm(depth)]
            case "elif":
                lines = [f"if {self.condition()}:", *self.arm(depth), f"elif {self.condition()}:"]
                return [*lines, *self.arm(depth), "else:", *self.arm(depth)]
            case "match" if self.known:
                lines = [f's["{rng.choice(self.known)[0]}"]:', '    case "yes" | "a":']
                arms = [*(["    " + line for line in self.arm(depth)]), "    case _:"]
                return [f"match {lines[0]}", lines[1], *arms, *("    " + line for line in self.arm(depth))]
            case "asked":
                self.names += 1
                return [f'if asks(s, "q{self.names}"):', *self.arm(depth)]
            case "loop":
                self.names += 1
                name = f"y{self.names}"
                lines = [f's += f"{{i}}" + sgl.select(f"{name}{{i}}", choices=["yes", "no"])']
                lines.append(f'if s[f"{name}{{i}}"] == "yes":')
                lines += self.arm(depth)
                if rng.random() < 0.2:
                    lines.append(f"    {rng.choice(('break', 'continue'))}")
                return ["for i in range(2):", *("    " + line for line in lines)]
            case "read" if self.known:
                return [f's += "(" + s["{rng.choice(self.known)[0]}"] + ")"']
            case "local":
                return [f"local = {rng.choice(('word', repr('m'), 'local + text'))}", "s += local"]
            case "append":
                return ['found.append("f")', 's += ",".join(found)']
            case "store" if self.known:
                value = rng.choice((f's["{rng.choice(self.known)[0]}"]', '"stored"', "[text]"))
                return [f's["v{rng.randint(1, 2)}"] = {value}']
            case "tool" if self.known:
                return [f's += note(s["{rng.choice(self.known)[0]}"])']
            case "pure" if self.known:
                return [f's += short(s["{rng.choice(self.known)[0]}"])']
            case "return" if depth:
                return ["return local"]
            case "turn":
                return ['s += sgl.user("u")']
            case "fork":
                self.names += 1
                name = f"z{self.names}"
                lines = [
                    "forks = s.fork(2)",
                    "for fork in forks:",
                    f'    fork += sgl.gen("{name}", max_tokens=2)',
                ]
                return [*lines, "forks.join()", f's += ";".join(s["{name}"])']
            case "scope":
                self.names += 1
                lines = self.block(depth + 1, 1)
                return [f'with s.var_scope("w{self.names}"):', *("    " + line for line in lines)]
            case "either":
                return [f's += "p" if {self.condition()} else "q"']
            case "raise" if depth:
                return ['raise ValueError("stopped")'] if rng.random() < 0.3 else ['s += "."']
            case "try":
                lines = self.block(depth + 1, 1)
                return ["try:", *("    " + line for line in lines), "except ValueError:", '    s += "!"']
            case "walrus" if self.known:
                return [f'if (local := s["{rng.choice(self.known)[0]}"]) == "a":', '    s += "1"']
            case "item":
                return ['found[:] = ["n"]', f"if {self.condition()}:", '    found.append("k")']
            case _:
                return [f"s += {rng.choice((repr('t.'), 'text', 'word'))}"]


def branching_source(seed: int) -> str:
    """The text of a module whose `program(text, word)` branches a lot."""
    rng = Random(f"branches {seed}")
    body = _Body(rng)
    lines = [
        *body.block(0, rng.randint(4, 9)),
        f"return {rng.choice(('local', 'found', 'None', 'len(found)'))}",
    ]
    return _HEAD + "\n".join("    " + line for line in lines) + "\n"
