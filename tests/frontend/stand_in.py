"""A prompt state in forty lines, to execute a program's plain Python body without any of the recording.

What a model would answer is decided by a script, so that every combination of answers can be run, on the
plain body and in the reference interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Self

import sglc as sgl
from sglc.frontend.language import expr
from sglc.frontend.outputs.finite_regex import texts_of
from sglc.frontend.recorder.form import BODY, Body
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.ir.core import Program, Site, walk
from sglc.ir.ops import Gen
from sglc.ir.sampling import Sampling
from tests.reference.interpret import Meaning, Model, meaning


@dataclass
class Answers:
    """Which of several answers is given, question by question; afterwards how many there were to each."""

    script: tuple[int, ...]
    asked: list[int] = field(default_factory=list)

    def pick(self, count: int) -> int:
        number = len(self.asked)
        self.asked.append(count)
        return self.script[number] if number < len(self.script) else 0

    def following(self) -> tuple[int, ...] | None:
        """The next script in the order of the digits; None after the last."""
        digits = [*self.script, *[0] * (len(self.asked) - len(self.script))]
        for number in reversed(range(len(digits))):
            if digits[number] + 1 < self.asked[number]:
                return (*digits[:number], digits[number] + 1)
        return None


def free_text(site: Site, prefix: str) -> str:
    return blake2b(f"{site}|{prefix}".encode(), digest_size=2).hexdigest()


class StandIn:
    """Executes appends at once. `calls` are (site, prefix, text) in the order in which they are made."""

    def __init__(self, function: str, answers: Answers) -> None:
        self.places = OpRecorder(function, Sampling(), symbolic=False)  # gives sites, and records nothing
        self.answers = answers
        self.content = ""
        self.variables: dict[str, str] = {}
        self.calls: dict[Site, tuple[str, str]] = {}

    def __iadd__(self, item: Any) -> Self:
        match item:
            case str():
                self.content += item
            case expr.ConcatExpr():
                for part in item.parts:
                    self += part  # type: ignore[assignment]
            case expr.GenExpr():
                texts = texts_of(Sampling(**item.overrides))
                self._store(item.name or "gen", texts)
            case expr.SelectExpr():
                self._store(item.name or "select", tuple(str(choice) for choice in item.choices))
            case expr.RoleOpenExpr():
                self.content += f"<{item.role}>"
            case expr.RoleCloseExpr():
                self.content += f"</{item.role}>"
            case _:
                raise AssertionError(item)
        return self

    def _store(self, name: str, texts: tuple[str, ...] | None) -> None:
        site = self.places.reserve((), name)
        text = free_text(site, self.content) if texts is None else texts[self.answers.pick(len(texts))]
        self.calls[site] = (self.content, text)
        self.variables[name] = text
        self.content += text

    def __getitem__(self, name: str) -> str:
        return self.variables[name]

    def __setitem__(self, name: str, value: str) -> None:
        self.variables[name] = value

    def user(self, text: str) -> Self:
        self.content += f"<user>{text}</user>"
        return self

    def __contains__(self, name: str) -> bool:
        return name in self.variables


def interpreted(program: Program, answers: Answers, declared: Callable[..., Any], **args: str) -> Meaning:
    """The program's meaning with scripted answers."""
    forms = {op.site.name: texts_of(op.sampling) for op in walk(program.ops) if isinstance(op, Gen)}

    def generate(site: Site, prefix: str) -> str:
        texts = forms[site.name]
        return free_text(site, prefix) if texts is None else texts[answers.pick(len(texts))]

    def choose(site: Site, prefix: str, choices: tuple[str, ...]) -> int:
        return answers.pick(len(choices))

    return meaning(program, Model(generate, choose, declared=declared), args)


def scripts(run: Callable[[Answers], Any]) -> Iterator[tuple[Answers, Any]]:
    """`run` under every combination of answers."""
    script: tuple[int, ...] | None = ()
    while script is not None:
        answers = Answers(script)
        yield Answers(script), run(answers)
        script = answers.following()


def data(item: Any) -> Any:
    """A value as the interpreter gives it: lists as tuples."""
    match item:
        case list() | tuple():
            return tuple(data(part) for part in item)
        case dict():
            return {str(key): data(part) for key, part in item.items()}
        case _:
            return item


def same_on_every_path(function: sgl.Function, **args: str) -> int:
    """Compare the recorded program with the plain body, answer by answer; gives the number of runs."""
    program = function.trace()
    runs = 0
    tools: list[tuple[Any, ...]] = []

    def body(answers: Answers) -> tuple[StandIn, Any, list[tuple[Any, ...]]]:
        tools.clear()
        state = StandIn(function.__name__, answers)
        token = BODY.set(Body(state.places))
        try:
            returned = function.definition.call(state, **args)
        finally:
            BODY.reset(token)
        return state, returned, list(tools)

    def declared(name: str, given: tuple[Any, ...], named: Any) -> Any:
        from sglc.frontend.tracing.tools import tools_of

        return tools_of()[name](*given, **named)

    for answers, (state, returned, _) in scripts(body):
        found = interpreted(program, answers, declared, **args)
        assert found.calls == state.calls
        assert found.returns == data(returned)
        runs += 1
    return runs
