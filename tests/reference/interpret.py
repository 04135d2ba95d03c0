"""The reference meaning of programs: a stream is a string, a generation a pure function.

Tests compare passes with it, and plans through `interpret_plan`. Two programs mean the same if every
generation sees the same text, the results are equal and ordinary Python is entered with the same
values; how texts are cut into appends or tokens has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from sglc.errors import RunError
from sglc.ir.core import Op, Program, Region, Site, Tree, Value, values_in
from sglc.ir.depth import with_room
from sglc.ir.ops import (
    Append,
    Arg,
    Call,
    Concat,
    Cond,
    Control,
    Eq,
    Fork,
    Format,
    Gen,
    HostCall,
    Image,
    In,
    Join,
    Loop,
    Lower,
    Map,
    Not,
    Pack,
    ParseJson,
    Prompt,
    PureCall,
    Resume,
    RoleClose,
    RoleOpen,
    Root,
    ScopeBegin,
    ScopeEnd,
    Select,
    Store,
    Strip,
    Switch,
    TextOf,
    Tool,
)
from sglc.ir.values import Plain, case_of, evaluate, returned
from tests.reference.python import as_plain, is_python, items_of, python_value

__all__ = ["Meaning", "Model", "Plain", "meaning"]

Generate = Callable[[Site, str], str]  # site, prefix -> the text
Choose = Callable[[Site, str, tuple[str, ...]], int]  # site, prefix, choices -> which
Render = Callable[[Sequence[Mapping[str, str]], bool], str]  # messages, open an answer? -> template text
Host = Callable[[str, tuple[Plain, ...]], Plain]  # reason, what it reads -> what the whole function returns
Declared = Callable[[str, tuple[Plain, ...], Mapping[str, Plain]], object]  # name, arguments -> its value

_END = "\ue0a3"  # stands behind a content whose turn is open, to find where the template ends it


def _nothing(reason: str, reads: tuple[Plain, ...]) -> Plain:
    del reason, reads
    return None


def _undeclared(name: str, args: tuple[Plain, ...], named: Mapping[str, Plain]) -> object:
    raise AssertionError(f"`{name}` is not declared")


@dataclass(frozen=True, slots=True)
class Model:
    """What a program runs on: the answers, the chat template (None: turns get plain marks), and Python.

    `host` goes on as ordinary Python; `declared` answers tools and pure functions.
    """

    generate: Generate
    choose: Choose
    render: Render | None = None
    host: Host = _nothing
    declared: Declared = _undeclared


@dataclass(frozen=True, slots=True)
class Meaning:
    """Every generation's (prefix, text) by its site at run time, and the return value, streams as strings.

    `hosts` has what was handed to ordinary Python, in order: of a tool its name, arguments and named
    arguments, of a `host_call` the reason and the values that it reads. `stored` are the variables that the
    program sets itself, and `prompt` is the text that its prompt ends as.
    """

    calls: Mapping[Site, tuple[str, str]]
    returns: Plain
    hosts: tuple[tuple[str, tuple[Plain, ...]], ...] = ()
    stored: Mapping[str, Plain] = field(default_factory=dict)
    prompt: str = ""


@with_room
def meaning(
    program: Program, model: Model, args: Mapping[str, str], streams: Mapping[str, str] | None = None
) -> Meaning:
    """Interpret a verified program with `args` as arguments and `streams` as resumed streams.

    A program that comes to a `host_call` returns what `model.host` answers. A picture is the text
    `picture(DATA)`.

    Raises:
        RunError: SGLC460 `parse_json` of a text that is no JSON; SGLC461 `map` over an item that is
            no text; SGLC462 a text that is no case of a `switch`; SGLC463 a function that gives
            something else than it was declared with; SGLC401 what a function of Python's own raises.
        ValueError: with a template, text between turns or a resumed turn, which it cannot render.
    """
    calls: dict[Site, tuple[str, str]] = {}
    hosts: list[tuple[str, tuple[Plain, ...]]] = []
    run = _Run(model, calls, hosts)
    for op in program.params:
        match op:
            case Arg():
                run.texts[op.results[0]] = args[op.name]
            case Resume():
                if model.render is not None and (op.turns or op.role):
                    raise ValueError("the contents of a resumed turn are unknown")
                run.prompts[op.results[0]] = _Prompt((streams or {})[op.name])
            case _:
                raise AssertionError(op.mnemonic)
    try:
        run.ops(program.ops)
    except _HandedOver as handed:
        answer = model.host(handed.reason, handed.reads)
        return Meaning(calls, answer, (*hosts, (handed.reason, handed.reads)))
    stored = {name: as_plain(value) for name, value in run.stored.items()}
    return Meaning(calls, as_plain(run.result(program.returns)), tuple(hosts), stored, run.ends)


class _HandedOver(Exception):
    """Ordinary Python has taken over."""

    def __init__(self, reason: str, reads: tuple[Plain, ...]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reads = reads


class _Run:
    """One run of one program: what its values are now. A loop gives the values of its block anew each time."""

    def __init__(
        self, model: Model, calls: dict[Site, tuple[str, str]], hosts: list[tuple[str, tuple[Plain, ...]]],
        call: str = "",
    ) -> None:  # fmt: skip
        self.model = model
        self.calls = calls
        self.hosts = hosts
        self.call = call  # the site of the `call` that runs this program
        self.iterations: tuple[int, ...] = ()
        self.prompts: dict[Value, _Prompt] = {}
        self.texts: dict[Value, Plain] = {}
        self.stored: dict[str, Plain] = {}
        self.ends = ""

    def ops(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self.op(op)

    def op(self, op: Op) -> None:
        match op:
            case (Root() | Append() | Control() | RoleOpen() | RoleClose() | Image() | Fork()
                  | ScopeBegin() | ScopeEnd()):  # fmt: skip
                self.prompts.update(dict.fromkeys(op.results, self.prompt(op)))
            case Gen() | Select():
                self.generate(op)
            case Cond() | Switch() | Loop() | Map() | Call():
                self.regions(op)
            case Tool() | PureCall():
                self.texts[op.results[0]] = self.declared(op)
            case HostCall(error=str(name)) if name:
                said = self.texts[op.reads[0]] if op.reads else op.reason
                raise RunError("SGLC401", f"`{name}`: {said}", op.loc)
            case Store():
                self.stored[op.name] = self.result(op.value)
            case Prompt():
                self.ends = self.prompts[op.stream].text(self.model)
            case HostCall():
                raise _HandedOver(op.reason, tuple(as_plain(self.result(value)) for value in op.reads))
            case _:
                self.texts[op.results[0]] = self.plain(op)

    def declared(self, op: Tool | PureCall) -> Plain:
        exact, exact_named = self.result(op.args), self.result(op.named)
        args, named = as_plain(exact), as_plain(exact_named)
        if isinstance(op, Tool):
            self.hosts.append((op.name, (args, named)))
        if is_python(op.name):
            return python_value(op.name, exact, exact_named, op.gives, op.loc)
        return returned(op.name, self.model.declared(op.name, args, named), op.gives, op.loc)

    def prompt(self, op: Op) -> _Prompt:
        match op:
            case Root():
                return _Prompt()
            case Append():
                return self.prompts[op.stream].plus(self.text(op.text), self.model)
            case Control():
                return self.prompts[op.stream].plus(op.text, self.model)
            case RoleOpen():
                return self.prompts[op.stream].opened(op.role, self.model)
            case RoleClose():
                return self.prompts[op.stream].closed(op.role, self.model)
            case Image():
                return self.prompts[op.stream].plus(f"picture({self.text(op.data)})", self.model)
            case Fork() | ScopeBegin() | ScopeEnd():
                return self.prompts[op.stream]
            case _:
                raise AssertionError(op.mnemonic)

    def generate(self, op: Gen | Select) -> None:
        before, site = self.prompts[op.stream], op.site.inside(self.call, self.iterations)
        prefix = before.text(self.model)
        if isinstance(op, Gen):
            made = self.model.generate(site, prefix)
        else:
            choices = tuple(self.text(choice) for choice in op.choices)
            made = choices[self.model.choose(site, prefix, choices)]
        assert site not in self.calls, site
        self.calls[site] = (prefix, made)
        after, value = op.results
        self.prompts[after], self.texts[value] = before.plus(made, self.model), made

    def plain(self, op: Op) -> Plain:
        match op:
            case Join():
                return tuple(None if value is None else self.texts[value] for value in op.values)
            case Pack():
                operands: tuple[Plain, ...] = (self.result(op.tree),)
            case Format():
                operands = tuple(self.text(part) for part in op.parts)
            case Concat():
                operands = tuple(item if isinstance(item, str) else self.texts[item] for item in op.items)
            case Strip() | Lower() | ParseJson():
                operands = (self.text(op.text),)
            case Eq():
                operands = (self.text(op.left), self.text(op.right))
            case In():
                operands = (self.text(op.part), self.text(op.text))
            case Not():
                operands = (self.texts[op.value],)
            case TextOf():
                before = "" if op.since is None else self.prompts[op.since].text(self.model)
                return self.prompts[op.stream].text(self.model)[len(before) :]
            case _:
                raise AssertionError(op.mnemonic)
        return evaluate(op.mnemonic, operands, op.loc)

    # -- regions -------------------------------------------------------------------------------------

    def regions(self, op: Cond | Switch | Loop | Map | Call) -> None:
        match op:
            case Cond():
                self.give(op.results, self.region(op.then if self.texts[op.pred] else op.orelse, ()))
            case Switch():
                arms = (*op.arms, op.default)
                number = case_of(self.text(op.value), op.cases, op.default is not None, op.loc)
                arm = arms[number]
                assert arm is not None
                self.give(op.results, self.region(arm, ()))
            case Loop():
                carried = self.values(op.init)
                for number in range(op.max_iters):
                    again, *carried = self.region(op.body, carried, number)
                    if not again:
                        break
                self.give(op.results, carried)
            case Map():
                lists: list[list[Plain]] = [[] for _ in op.results]
                for number, item in enumerate(items_of(self.texts[op.items], op.loc)):
                    for gathered, made in zip(lists, self.region(op.body, (item,), number), strict=True):
                        assert not isinstance(made, _Prompt)
                        gathered.append(made)
                self.give(op.results, [tuple(gathered) for gathered in lists])
            case Call():
                inner = _Run(
                    self.model, self.calls, self.hosts, str(op.site.inside(self.call, self.iterations))
                )
                for param, arg in zip(op.program.params, op.args, strict=True):
                    inner.give(param.results, (arg,) if isinstance(arg, str) else self.values((arg,)))
                inner.ops(op.program.ops)
                self.give(op.results, inner.values(tuple(values_in(op.program.returns))))
            case _:
                assert_never(op)

    def region(
        self, region: Region, given: Sequence[Plain | _Prompt], iteration: int | None = None
    ) -> list[Plain | _Prompt]:
        """Run a block once; `iteration` is its number if it may run again."""
        outside = self.iterations
        if iteration is not None:
            self.iterations = (*outside, iteration)
        self.give(region.params, given)
        self.ops(region.ops)
        self.iterations = outside
        return self.values(region.results)

    def values(self, values: Sequence[Value]) -> list[Plain | _Prompt]:
        return [self.prompts[value] if value in self.prompts else self.texts[value] for value in values]

    def give(self, values: Sequence[Value], given: Sequence[Plain | _Prompt]) -> None:
        for value, item in zip(values, given, strict=True):
            if isinstance(item, _Prompt):
                self.prompts[value] = item
            else:
                self.texts[value] = item

    # -- values --------------------------------------------------------------------------------------

    def text(self, item: Value | str) -> str:
        found = item if isinstance(item, str) else self.texts[item]
        assert isinstance(found, str), item
        return found

    def result(self, tree: Tree) -> Plain:
        match tree:
            case Value():
                return self.prompts[tree].text(self.model) if tree in self.prompts else self.texts[tree]
            case tuple():
                return tuple(self.result(part) for part in tree)
            case Mapping():
                return {key: self.result(part) for key, part in tree.items()}
            case _:
                return tree


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A stream: text, and behind it whole turns whose markup only the template knows."""

    head: str = ""
    turns: tuple[tuple[str, str], ...] = ()
    open: bool = False

    def plus(self, text: str, model: Model) -> _Prompt:
        if not self.turns:
            return replace(self, head=self.head + text)
        if not self.open:
            raise ValueError("a template cannot render text between turns")
        *before, (role, content) = self.turns
        return replace(self, turns=(*before, (role, content + text)))

    def opened(self, role: str, model: Model) -> _Prompt:
        if model.render is None:
            return self.plus(f"<{role}>", model)
        return replace(self, turns=(*self.turns, (role, "")), open=True)

    def closed(self, role: str, model: Model) -> _Prompt:
        return self.plus(f"</{role}>", model) if model.render is None else replace(self, open=False)

    def text(self, model: Model) -> str:
        if model.render is None or not self.turns:
            return self.head
        if not self.open:
            return self.head + model.render(_messages(self.turns), False)
        *before, (role, content) = self.turns
        if role == "assistant":
            return self.head + model.render(_messages(before), True) + content
        whole = model.render(_messages((*before, (role, content + _END))), False)
        return self.head + whole[: whole.index(_END)]


def _messages(turns: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]
