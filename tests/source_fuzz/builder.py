"""A Python module in the making: the lines of one program, what is in scope, and what it uses of the prelude.

A production is a function of a `Builder` that writes statements; its name is the feature that is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

# How far a program goes: 0 what any tracer takes, 1 what the rules of tracing take, 2 anything Python has.
BASIC, RULED, ANYTHING = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Production:
    """One feature. `where` it may stand: anywhere, or only at the top level of the body."""

    name: str
    level: int
    write: Callable[[Builder], None]
    top: bool = False
    weight: float = 1.0


PRODUCTIONS: dict[str, Production] = {}


def production(
    level: int, *, top: bool = False, weight: float = 1.0
) -> Callable[[Callable[[Builder], None]], Callable[[Builder], None]]:
    """Register the function as the production of its name."""

    def made(write: Callable[[Builder], None]) -> Callable[[Builder], None]:
        assert write.__name__ not in PRODUCTIONS
        PRODUCTIONS[write.__name__] = Production(write.__name__, level, write, top, weight)
        return write

    return made


@dataclass
class Builder:
    """`texts` are expressions that are a `str` here, `results` those that the program may return."""

    random: Random
    level: int
    lines: list[str] = field(default_factory=list)
    features: dict[str, int] = field(default_factory=dict)
    prelude: dict[str, None] = field(default_factory=dict)
    indent: int = 1
    state: str = "s"
    texts: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    ints: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)  # of texts, known when the program begins
    depth: int = 0
    role: bool = False  # whether a chat turn is open
    loop: int = 0
    names: int = 0

    def line(self, text: str) -> None:
        """Write a statement."""
        self.lines.append("    " * self.indent + text)

    def fresh(self, stem: str) -> str:
        """A name that is used nowhere else."""
        self.names += 1
        return f"{stem}{self.names}"

    def need(self, *snippets: str) -> None:
        """The module has these definitions of the prelude."""
        self.prelude.update(dict.fromkeys(snippets))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, *options: str) -> str:
        return self.random.choice(options)

    @contextmanager
    def block(self, header: str, *, loop: bool = False) -> Iterator[None]:
        """An indented block; what is defined inside is not in scope behind it."""
        before = {name: list(getattr(self, name)) for name in ("texts", "results", "ints", "lists")}
        state = self.state
        self.line(header)
        self.indent += 1
        self.depth += 1
        self.loop += loop
        lines = len(self.lines)
        yield
        if len(self.lines) == lines:
            self.line("pass")
        self.indent -= 1
        self.depth -= 1
        self.loop -= loop
        self.state = state
        for name, value in before.items():
            setattr(self, name, value)

    # -- pieces ----------------------------------------------------------------------------------

    def words(self) -> str:
        """The inside of a literal that stands in the prompt."""
        return (
            self.pick("Q", "Say", "Next", "It is", "One, two,", "<|im_end|>", "Then", "So")
            + f" {self.fresh('')}"
        )

    def text(self) -> str:
        """An expression that is a text."""
        if self.texts and self.chance(0.85):
            # The newest most of all, so that a program is one chain of what depends on each other.
            return self.texts[-1] if self.chance(0.4) else self.random.choice(self.texts)
        return repr(self.pick("alpha", "Beta", "yes", "a b"))

    def append(self, expression: str) -> None:
        """The prompt goes on with an expression that is a text or a number."""
        state = self.state
        match self.random.randrange(4):
            case 0:
                self.line(f'{state} += f"[{{{in_fstring(expression)}}}]"')
            case 1:
                self.line(f'{state} += "(" + str({expression}) + ")"')
            case _:
                self.line(f'{state} += f"{self.words()} {{{in_fstring(expression)}}}\\n"')

    def observe(self, expression: str) -> None:
        """Somebody sees what `expression` is: the prompt, the result, or both."""
        chosen = self.random.random()
        if chosen < 0.6:
            self.append(expression)
        if chosen > 0.4:
            self.results.append(expression)

    def local(self, stem: str, expression: str) -> str:
        """A new local name for the value."""
        name = self.fresh(stem)
        self.line(f"{name} = {expression}")
        return name

    def gen(self, name: str | None = None, more: str = "") -> str:
        """A generation; gives the expression that reads it."""
        name = name or self.fresh("g")
        if self.chance(0.3):
            limit = self.random.choice((2, 3, 16))
            if limit < 16 and self.ints:
                more += f", max_tokens=1 + abs({self.ints[-1]}) % 9"
            else:
                more += f", max_tokens={limit}"
        if self.chance(0.15) and "stop" not in more and "seed" not in more:
            more += f", stop={self.pick(repr('.'), repr(['stop', 'no']))}"
        prompt = f'"{self.words()}: " + ' if self.chance(0.7) else ""
        self.line(f'{self.state} += {prompt}sgl.gen("{name}"{more})')
        read = f'{self.state}["{name}"]'
        self.texts.append(read)
        return read

    def step(self) -> None:
        """Any production that may stand here."""
        fitting = [
            production
            for production in PRODUCTIONS.values()
            if production.level <= self.level and not (production.top and self.depth)
        ]
        weights = [_weight(production, self) for production in fitting]
        (chosen,) = self.random.choices(fitting, weights)
        self.features[chosen.name] = self.features.get(chosen.name, 0) + 1
        chosen.write(self)

    def steps(self, least: int = 1, most: int = 2) -> None:
        """A few of them, none inside the third block."""
        for _ in range(self.random.randint(least, most)):
            if self.depth < 4:
                self.step()
            else:
                self.gen()


def _weight(production: Production, builder: Builder) -> float:
    """What a program is allowed to have it has more often."""
    if production.level == builder.level:
        return production.weight
    return production.weight * (0.35 if production.level == BASIC else 0.6)


def in_fstring(expression: str) -> str:
    """As it may stand in an f-string of double quotes (of Python 3.11)."""
    single = expression.replace('"', "'")
    return single if "\\" not in single and "{" not in single else "'odd'"
