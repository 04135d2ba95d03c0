"""A program as a graph: who reads whom, what can run at once, drawings.

networkx does the algorithms on a view that is built on demand; the ops stay the truth.
"""

from __future__ import annotations

import re
from typing import Any

from sglc.ir.core import Op, Program, operands
from sglc.ir.depth import with_room
from sglc.ir.ops import Gen, Select
from sglc.ir.rewrite import everywhere
from sglc.ir.text.fsm_graph import quoted
from sglc.ir.text.printer import statement, value_names

Graph = Any  # networkx.DiGraph: the package has no types, and is not loaded before it is needed


@with_room
def dataflow(program: Program) -> Graph:
    """A node for each op (its position, parameters first; attribute `op`), an edge for each read."""
    import networkx as nx

    graph: Graph = nx.DiGraph()
    made: dict[int, int] = {}
    for position, op in enumerate((*program.params, *program.ops)):
        graph.add_node(position, op=op)
        graph.add_edges_from((made[value.id], position) for value in operands(op))
        made.update((value.id, position) for value in op.results)
    return graph


@with_room
def waves(program: Program) -> tuple[tuple[Op, ...], ...]:
    """Generations by how many others must be done before them: those of a wave can run at once.

    An op with generations in its blocks counts as one.
    """
    import networkx as nx

    graph = dataflow(program)
    depth: dict[int, int] = {}  # generations up to and including this op
    for position in nx.topological_sort(graph):
        before = max((depth[other] for other in graph.predecessors(position)), default=0)
        depth[position] = before + _generates(graph.nodes[position]["op"])
    ops = [(position, graph.nodes[position]["op"]) for position in sorted(graph)]
    calls = [(depth[position], op) for position, op in ops if _generates(op)]
    last = max((number for number, _ in calls), default=0)
    return tuple(tuple(op for number, op in calls if number == wave) for wave in range(1, last + 1))


@with_room
def to_dot(program: Program) -> str:
    """The dataflow graph for Graphviz; generations are boxes with a bold border."""
    lines = [
        f"digraph {quoted(program.name)} {{",
        "  rankdir=TB;",
        '  node [shape=box, fontname="monospace"];',
    ]
    graph, names = dataflow(program), value_names(program)
    for position, op in graph.nodes(data="op"):
        style = ", style=bold" if _generates(op) else ", color=gray"
        lines.append(f"  n{position} [label={quoted(_label(op, program, names))}{style}];")
    lines += [f"  n{before} -> n{after};" for before, after in graph.edges]
    return "\n".join([*lines, "}"]) + "\n"


@with_room
def to_mermaid(program: Program) -> str:
    """The dataflow graph for Mermaid; generations are rounded."""
    lines = ["flowchart TD"]
    graph, names = dataflow(program), value_names(program)
    for position, op in graph.nodes(data="op"):
        # Mermaid reads labels as Markdown with entities: anything else than plain characters is written as one.
        text = re.sub(r"[^\w\s(),.=:+-]", lambda m: f"#{ord(m[0])};", _label(op, program, names))
        left, right = ('(["', '"])') if _generates(op) else ('["', '"]')
        lines.append(f"  n{position}{left}{text}{right}")
    lines += [f"  n{before} --> n{after}" for before, after in graph.edges]
    return "\n".join(lines) + "\n"


def _generates(op: Op) -> bool:
    """Whether the op generates, by itself, in its blocks or in a program that it calls."""
    return any(isinstance(inner, Gen | Select) for inner in everywhere((op,)))


def _label(op: Op, program: Program, names: dict[int, str]) -> str:
    text = statement(op, program.name, names)
    return text if len(text) <= 100 else text[:97] + "..."
