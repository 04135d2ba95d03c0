"""The automata that hold a program's generations, drawn: each run of forced bytes is one edge with its text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sglc.errors import LegalizeError, printable, shown
from sglc.ir.core import Program
from sglc.ir.depth import with_room
from sglc.ir.grammar.dfa import ByteDfa, Edge, compressed, forced_moves
from sglc.ir.grammar.fsm_summary import automaton_of_choices, summary
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.grammar.schema_regex import schema_regex
from sglc.ir.ops import Gen, Select
from sglc.ir.rewrite import everywhere

_MOST_EDGES = 500  # of an automaton that is drawn
_MOST_CHARACTERS = 120  # of a form in a title


@dataclass(frozen=True, slots=True)
class HeldSites:
    """An automaton, what it was made of, and the names of the generations that it holds."""

    form: str
    dfa: ByteDfa
    names: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Names, form and size in one line."""
        return f"{', '.join(self.names)}: {shown(self.form, _MOST_CHARACTERS)}: {summary(self.dfa)}"


@with_room
def automata_of(program: Program) -> list[HeldSites]:
    """The automata of a program, each once, those of called programs too.

    Raises:
        LegalizeError: a regex of the program has no automaton; see `compile_regex`.
    """
    found: dict[object, HeldSites] = {}
    for op in everywhere(program.ops):
        match op:
            case Gen() if op.sampling.regex is not None:
                key: object = op.sampling.regex
                if key not in found:
                    found[key] = HeldSites(
                        f"/{_text(op.sampling.regex.encode('utf-8', 'replace'))}/",
                        compile_regex(op.sampling.regex),
                    )
            case Gen() if (held := _of_schema(op.sampling.json_schema)) is not None:
                key = held.form
                found.setdefault(key, held)
            case Select() if (dfa := automaton_of_choices(op.choices)) is not None:
                key = op.choices
                found.setdefault(key, HeldSites(" | ".join(map(repr, op.choices)), dfa))
            case _:
                continue
        if op.site.name not in found[key].names:
            found[key].names.append(op.site.name)
    return list(found.values())


def _of_schema(schema: str | None) -> HeldSites | None:
    """What holds the documents of a schema, if that is an automaton, and not too large a one."""
    with suppress(LegalizeError):
        pattern = None if schema is None else schema_regex(schema)
        if schema is not None and pattern is not None:
            return HeldSites(_text(schema.encode("utf-8", "replace")), compile_regex(pattern))
    return None


def to_fsm_dot(program: Program) -> str:
    """The automata for Graphviz; what a parser reads, a grammar and some schemas, has none.

    States where a text may end have a double border, and what is forced is bold.

    Raises:
        LegalizeError: as `automata_of`.
    """
    lines = [f"digraph {quoted(program.name)} {{", "  rankdir=LR;", '  node [fontname="monospace"];']
    for number, held in enumerate(automata_of(program)):
        lines += _cluster(number, held)
    return "\n".join([*lines, "}"]) + "\n"


def _cluster(number: int, held: HeldSites) -> list[str]:
    drawn = drawing(held)
    lines = [f"  subgraph cluster_{number} {{", f"    label={quoted(drawn['title'])};"]
    if drawn["left_out"]:
        return [*lines, f'    f{number}_0 [label="too many edges to draw"];', "  }"]
    for state, may_end in drawn["states"]:
        shape = "doublecircle" if may_end else "circle"
        lines.append(f'    f{number}_{state} [label="{state}", shape={shape}];')
    for source, target, label, forced in drawn["edges"]:
        bold = ", style=bold" if forced else ""
        lines.append(f"    f{number}_{source} -> f{number}_{target} [label={quoted(label)}{bold}];")
    return [*lines, "  }"]


def drawing(held: HeldSites) -> dict[str, Any]:
    """An automaton as plain data; one with too many edges is `left_out`.

    `states` are (number, whether a text may end there), `edges` (from, to, what is read, whether it is forced).
    """
    too_large = summary(held.dfa).runs is None
    edges = () if too_large else compressed(held.dfa)
    left_out = too_large or len(edges) > _MOST_EDGES
    drawn: Sequence[Edge] = () if left_out else edges
    forced = forced_moves(held.dfa)
    states = sorted({0, *(state for edge in drawn for state in (edge.source, edge.target))})
    return {
        "title": held.title,
        "names": held.names,
        "states": [[state, held.dfa.accepting[state]] for state in states],
        "edges": [
            [edge.source, edge.target, _spelled(edge), bool(edge.rest) or forced[edge.source] is not None]
            for edge in drawn
        ],
        "left_out": left_out,
    }


def _spelled(edge: Edge) -> str:
    """The bytes of an edge: `[a-z]` where there is a choice, then text, bytes that are none as \\xNN."""
    if all(first == last for first, last in edge.first) and len(edge.first) == 1:
        return _text(bytes([edge.first[0][0]]) + edge.rest)
    ranges = [
        _text(bytes([first])) + (f"-{_text(bytes([last]))}" if last > first else "")
        for first, last in edge.first
    ]
    return f"[{''.join(ranges)}]{_text(edge.rest)}"


def _text(data: bytes) -> str:
    return printable(data.decode("utf-8", "backslashreplace"))


def quoted(text: str) -> str:
    """A text as Graphviz reads it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
