"""The layout of a package, read from its imports: which folder may import which, and what breaks that.

`python -m tests.layout` prints the figures. Every import counts: in functions, under TYPE_CHECKING, and those
of a package's `__init__`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parent.parent / "sglc"

# The root, from the ground up. What stands on one floor does not import each other.
LAYERS = (
    ("errors",),
    ("knobs",),
    ("ir",),
    ("frontend", "passes", "runtime"),
    ("backends", "compile"),
    ("execution",),
    ("observe", "explain"),
    ("api",),
    ("lang", "bench", "serve"),
    ("cli",),
    ("__init__", "__main__"),
)
# The same inside the layers that are large.
INSIDE = {
    "frontend": (
        *(("locate",), ("outputs",), ("values",), ("language",), ("source",), ("recorder",), ("program",)),
        *(("tracing",), ("analysis",)),
    ),
    "runtime": (
        *(
            ("model_files", "ids", "step", "histogram"),
            ("choice_trie",),
            ("tokenizer",),
            ("model",),
            ("attention",),
        ),
        *(("kernels",), ("executor",), ("constraints", "cache"), ("scheduler",), ("engine",)),
    ),
}
IN_THE_ROOT = {"__init__.py", "__main__.py", "errors.py", "knobs.py"}
# What the runtime sees of the IR: plain data of segments and samplings, how such is made, the text forms of
# constraints, and how much is remembered of texts.
PLAIN_IR = (
    "made_often",
    "plan.segment",
    "plan.events",
    "plan.dataflow",
    "plan.hints",
    "sampling",
    "grammar",
    "target",
    "choice_scoring",
    "remembered",
)


@dataclass(frozen=True, slots=True)
class Import:
    """One import: both ends are paths inside the package, without `.py` (`ir/plan/segment`, `errors`)."""

    importer: str
    line: int
    imported: str

    def __str__(self) -> str:
        return f"{self.importer}.py:{self.line}: imports {self.imported}"


def modules(root: Path) -> list[str]:
    """The modules of the package at `root`; a package's `__init__` is its folder's name."""
    return sorted(_name(root, path) for path in root.rglob("*.py"))


def _name(root: Path, path: Path) -> str:
    name = path.relative_to(root).with_suffix("").as_posix()
    return name.removesuffix("/__init__")


def imports(root: Path) -> list[Import]:
    """Every import of the package by itself, once for each name that is a module."""
    known = {*modules(root)}
    found = []
    for path in sorted(root.rglob("*.py")):
        importer = _name(root, path)
        for line, dotted in dotted_imports(path):
            if dotted == root.name:
                found.append(Import(importer, line, "__init__"))
            elif dotted.startswith(f"{root.name}."):
                parts = dotted.split(".")[1:]
                # `from sglc.ir import core` names a module, `from sglc.ir.core import Op` what is in one.
                while parts and "/".join(parts) not in known:
                    parts.pop()
                found.append(Import(importer, line, "/".join(parts) or "__init__"))
            elif dotted.startswith("."):
                found.append(Import(importer, line, dotted))
    return found


def dotted_imports(path: Path) -> tuple[tuple[int, str], ...]:
    """The lines and dotted names of the imports of a file; relative ones begin with a dot."""
    return _dotted_imports(path.read_text(encoding="utf-8"))


@cache
def _dotted_imports(source: str) -> tuple[tuple[int, str], ...]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            found.append((node.lineno, "." * node.level + (node.module or "")))
        elif isinstance(node, ast.ImportFrom):
            found += ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    return tuple(found)


def violations(root: Path) -> list[str]:
    """What breaks the layout: a line for each, with file and line of the import."""
    found = imports(root)
    bad = [f"{name}: no file of its own in the root" for name in _strangers(root)]
    for one in found:
        if one.imported.startswith("."):
            bad.append(f"{one}, by a relative name")
        elif why := _upward(one):
            bad.append(f"{one}, {why}")
    bad += [f"a circle: {' -> '.join(circle)}" for circle in circles(found)]
    bad += [f"{' and '.join(twins)} share a name" for twins in _namesakes(modules(root))]
    return bad


def _strangers(root: Path) -> list[str]:
    folders = {name for layer in LAYERS for name in layer}
    return sorted(
        path.name
        for path in root.iterdir()
        if (path.suffix == ".py" and path.name not in IN_THE_ROOT)
        or ((path / "__init__.py").exists() and path.name not in folders)
    )


def _upward(one: Import) -> str:
    """Why `one` may not be, or nothing."""
    importer, imported = one.importer.split("/"), one.imported.split("/")
    if importer[0] != imported[0]:
        return _against(LAYERS, importer[0], imported[0]) or _not_plain(one)
    inside = INSIDE.get(importer[0])
    if inside is None or len(importer) < 2 or len(imported) < 2 or importer[1] == imported[1]:
        return ""
    return _against(inside, importer[1], imported[1])


def _against(order: tuple[tuple[str, ...], ...], importer: str, imported: str) -> str:
    floors = {name: floor for floor, names in enumerate(order) for name in names}
    if missing := {importer, imported} - floors.keys():
        return f"and {sorted(missing)[0]} has no place in the order"
    if floors[imported] > floors[importer]:
        return f"{importer} is below {imported}"
    return f"{importer} is beside {imported}" if floors[imported] == floors[importer] else ""


def _not_plain(one: Import) -> str:
    if one.importer.startswith("runtime/") and one.imported.startswith("ir"):
        inside = one.imported.removeprefix("ir/").replace("/", ".")
        if not any(inside == plain or inside.startswith(f"{plain}.") for plain in PLAIN_IR):
            return "and the runtime sees plain data alone"
    return ""


def circles(found: list[Import]) -> list[list[str]]:
    """The circles between files, and those that only folders close: what each holds, in order."""
    files: nx.DiGraph[str] = nx.DiGraph()
    folders: dict[str, nx.DiGraph[str]] = {}
    for one in found:
        files.add_edge(one.importer, one.imported)
        importer, imported = one.importer.split("/"), one.imported.split("/")
        depth = next((i for i, (a, b) in enumerate(zip(importer, imported, strict=False)) if a != b), None)
        if depth is not None:
            graph = folders.setdefault("/".join(importer[:depth]), nx.DiGraph())
            graph.add_edge("/".join(importer[: depth + 1]), "/".join(imported[: depth + 1]))
    of_files = _rings(files)
    return of_files + [
        ring
        for graph in folders.values()
        for ring in _rings(graph)
        if not any({*ring} <= {*own} for own in of_files)
    ]


def _rings(graph: nx.DiGraph[str]) -> list[list[str]]:
    return sorted(sorted(ring) for ring in nx.strongly_connected_components(graph) if len(ring) > 1)


def _namesakes(names: list[str]) -> list[list[str]]:
    """Modules of one layer that have one name."""
    by_name: dict[tuple[str, str], list[str]] = {}
    for name in names:
        layer, _, rest = name.partition("/")
        if rest:
            by_name.setdefault((layer, rest.rpartition("/")[2]), []).append(name)
    return [twins for twins in by_name.values() if len(twins) > 1 and not _own_folder(twins)]


def _own_folder(twins: list[str]) -> bool:
    """`scheduler/scheduler` is the first thing that a reader of `scheduler` opens."""
    return any(other == f"{one}/{one.rpartition('/')[2]}" for one in twins for other in twins)


def figures(root: Path) -> Mapping[str, int]:
    """Rooms (folders and files of the root), imports between them, floors, circles."""
    found = imports(root)
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(name.split("/")[0] for name in modules(root))
    graph.add_edges_from(
        (one.importer.split("/")[0], one.imported.split("/")[0])
        for one in found
        if one.importer.split("/")[0] != one.imported.split("/")[0]
    )
    return {
        "files": len(modules(root)),
        "rooms": graph.number_of_nodes(),
        "imports between rooms": graph.number_of_edges(),
        "floors": len([*nx.topological_generations(nx.condensation(graph))]),
        "circles": len(circles(found)),
        "folders of frontend": _folders(root / "frontend"),
        "folders of runtime": _folders(root / "runtime"),
    }


def _folders(folder: Path) -> int:
    return sum((path / "__init__.py").exists() for path in folder.iterdir())


def main() -> None:
    for name, number in figures(ROOT).items():
        print(f"{name:>22} {number}")
    print(*violations(ROOT), sep="\n")


if __name__ == "__main__":
    main()
