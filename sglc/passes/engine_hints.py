"""What engines ask programs to say ahead: what each generation makes, and what comes behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sglc.ir.core import Op, Program, Region, Type, Value, inputs, regions, values_in, walk, with_regions
from sglc.ir.grammar.text_lengths import text_lengths
from sglc.ir.ops import Append, Call, Cond, Gen, HostCall, Loop, Map, Select, Switch, Tool
from sglc.ir.remark import Remark, place
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Kind, Rewrite, register

_KINDS = ("gen", "tool", "later", "never")  # the soonest first


@register("engine_hints", Exactness.TOKENS, "an engine is told what comes behind each request", Kind.ENABLING)
def engine_hints(program: Program, target: Target) -> Rewrite:
    """Say of every generation how much it makes, what comes behind it, and what its prompt is used for next.

        s1, t0 = gen(s0, 'call'); t1 = tool('search', (t0,)); s2 = append(s1, t1); s3, t2 = gen(s2, 'x')
            -> s1, t0 = gen(s0, 'call', next_use='tool search', most=128, behind=128); ...;
               s3, t2 = gen(s2, 'x', next_use='never', most=128)

    `most` is the limit, or less where a regex has no longer text (a token is a byte at least, and one ends it).
    `behind` adds up the generations of the longest chain that waits for this one; bodies of loops count once.
    The next use of its stream is `gen`, `tool NAME` where the program waits for that call before, `later` where
    it hands the stream back or may go on as Python, and `never` where nothing begins with it: the engine may
    let it go. Engines that are told nothing (`Takes.hints`) have programs as they are. No prompt changes.
    """
    if not target.takes.hints:
        return program
    left = any(isinstance(op, HostCall) and not op.error for op in walk(program.ops))
    return _hinted(program, "later" if left else "never")


@dataclass(frozen=True, slots=True)
class _Use:
    """What comes behind a value: its next use, and the tokens of the longest chain of generations."""

    kind: str
    tool: str = ""
    tokens: int = 0

    def beside(self, other: _Use) -> _Use:
        """Both of them."""
        first = min(self, other, key=lambda use: _KINDS.index(use.kind))
        return replace(first, tokens=max(self.tokens, other.tokens))


def _hinted(program: Program, unused: str) -> tuple[Program, tuple[Remark, ...]]:
    walker = _Walker(program, _Use(unused))
    for value in values_in(program.returns):
        walker.read(value, _Use("later"))
    ops = walker.block(program.ops)
    return replace(program, ops=ops), tuple(reversed(walker.remarks))


class _Walker:
    """Goes through blocks from their ends, with what comes behind each value."""

    def __init__(self, program: Program, unused: _Use) -> None:
        self.remarks: list[Remark] = []
        self._unused = unused
        self._uses: dict[Value, _Use] = {}
        self._tools = dict(_from_tools(walk(program.ops)))
        self._called: set[str] = set()  # tools behind here

    def read(self, value: Value, use: _Use) -> None:
        """`value` is used so, too."""
        known = self._uses.get(value)
        self._uses[value] = use if known is None else known.beside(use)

    def block(self, ops: Sequence[Op]) -> tuple[Op, ...]:
        """The ops of a block, hinted."""
        return tuple([self.op(op) for op in reversed(ops)][::-1])

    def op(self, op: Op) -> Op:
        behind = self._unused
        for result in op.results:
            behind = behind.beside(self._uses.get(result, self._unused))
        match op:
            case Gen() | Select():
                return self.asked(op, behind)
            case Append() if isinstance(op.text, Value) and behind.kind == "gen" and op.text in self._tools:
                self.read(op.stream, replace(behind, kind="tool", tool=self._tools[op.text]))
                self.read(op.text, behind)
                return op
            case Call():
                made, said = _hinted(op.program, "later")
                self.remarks += reversed(said)
                asked = [inner for inner in walk(made.ops) if isinstance(inner, Gen | Select)]
                longest = max((inner.most + inner.behind for inner in asked), default=0)
                behind = _Use("gen", tokens=behind.tokens + longest)
                op = replace(op, program=made)
            case HostCall() if not op.error:
                behind = _Use("later")
            case Tool():
                self._called.add(op.name)
            case _ if any(regions(op)):
                return self.held(op, behind)
        for value in inputs(op):
            self.read(value, behind)
        return op

    def asked(self, op: Gen | Select, behind: _Use) -> Gen | Select:
        """A generation or a choice. Its stream's next use is what counts, not that of its text."""
        use = self._uses.get(op.results[0], self._unused)
        if use.kind == "tool" and use.tool not in self._called:
            use = replace(use, kind="gen", tool="")  # it was over before
        kind = f"{use.kind} {use.tool}" if use.tool else use.kind
        most = _most(op.sampling) if isinstance(op, Gen) else 0
        for value in inputs(op):
            self.read(value, _Use("gen", tokens=most + behind.tokens))
        said = f"`{op.site.name}` makes {most} tokens at most, {behind.tokens} come behind it; next use: {kind}"
        self.remarks.append(Remark("engine_hints", said, place(op.loc)))
        return replace(op, next_use=kind, most=most, behind=behind.tokens)

    def held(self, op: Op, behind: _Use) -> Op:
        """An op with blocks. What a loop yields, its next turn uses as this one does."""
        said = len(self.remarks)
        for _ in range(2 if isinstance(op, Loop) else 1):
            del self.remarks[said:]
            changed = with_regions(op, lambda region: self.region(op, region))
        for value in inputs(op):
            self.read(value, behind)
        return changed

    def region(self, op: Op, region: Region) -> Region:
        carried = region.results[1:] if isinstance(op, Loop) else region.results
        for index, value in enumerate(carried):
            if index < len(op.results) and not isinstance(op, Map):
                self.read(value, self._uses.get(op.results[index], self._unused))
            if isinstance(op, Loop):
                again = self._uses.get(region.params[index], self._unused)
                self.read(value, replace(again, tokens=0))
        ops = self.block(region.ops)
        given = op.init if isinstance(op, Loop) else ()
        for param, value in zip(region.params, given, strict=False):
            self.read(value, self._uses.get(param, self._unused))
        return replace(region, ops=ops)


def _from_tools(ops: Iterable[Op]) -> Iterator[tuple[Value, str]]:
    """The values that tools give, and what is made of them, with the tools' names."""
    known: dict[Value, str] = {}
    for op in ops:
        name = op.name if isinstance(op, Tool) else next((known[v] for v in inputs(op) if v in known), "")
        if not name or isinstance(op, Gen | Select | Cond | Switch | Loop):
            continue
        for result in op.results:
            if result.type is not Type.STREAM:
                known[result] = name
                yield result, name


def _most(sampling: Sampling) -> int:
    if sampling.regex is None or (held := text_lengths(sampling.regex)) is None or held[1] is None:
        return sampling.max_tokens
    return min(sampling.max_tokens, held[1] + 1)
