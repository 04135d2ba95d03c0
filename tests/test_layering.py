"""Imports point down, function-level ones included, and light modules stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "sglc"

_BASE = {"errors", "knobs"}
_LOW = _BASE | {"ir"}
_MIDDLE = _LOW | {"frontend", "passes", "runtime"}
_DRIVE = {
    *(
        "batch",
        "batch_leads",
        "batch_order",
        "binding",
        "budget",
        "calls",
        "compile",
        "current",
        "deadline",
        "event_loop",
        "executor",
        "explain",
        "feed",
    ),
    *("plan_ready", "plan_row", "plan_run", "plan_scope", "plan_segments", "plan_values", "tools"),
    *("progress", "result", "row", "run_options", "streams", "warm"),
    *("inputs", "record", "recording", "replay", "spans", "trace", "watch"),
}
# A part of the package, and what it may import besides itself.
MAY_IMPORT = {
    "errors": set(),
    "knobs": {"errors"},
    "ir": {"errors"},
    "frontend": _LOW,
    "passes": _LOW,
    "runtime": _LOW,
    "settings": set(),
    "remote": {"errors", "ir", "frontend", "backends"},
    "backends": _MIDDLE,
    **dict.fromkeys(_DRIVE, _MIDDLE | {"backends", "settings"} | _DRIVE),
    "api": _MIDDLE | {"backends", "settings", "compiled"} | _DRIVE,
    "compiled": _MIDDLE | _DRIVE | {"api"},
    "together": _MIDDLE | _DRIVE | {"api"},
    "loaded_plan": _MIDDLE | _DRIVE | {"api"},
    "surface": _MIDDLE | {"backends", "settings", "api"} | _DRIVE,
    "bench": _MIDDLE | {"backends", "api"} | _DRIVE,
    "serve": _MIDDLE | {"backends"},
    "lang": {"frontend", "api", "current", "remote", "surface"},
}
TOP = {"__init__", "cli", "command", "program_file"}
# Parts that may import what a user without the extra `local` does not have, or what is slow to load.
HEAVY = {
    "torch": {"runtime", "backends", "bench"},
    "transformers": set(),
    "xgrammar": {"runtime"},
    "numpy": {"runtime", "backends", "bench"},
    "lark": {"ir"},
    "networkx": {"ir"},
    "fastapi": {"serve"},
    "pydantic": {"serve"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(level=0, module=str(module)):
                # `from sglc import ir` names a part in the alias.
                names = [f"{module}.{alias.name}" for alias in node.names] if module == "sglc" else [module]
                yield from ((node.lineno, name) for name in names)
            case ast.ImportFrom():
                yield node.lineno, "." * node.level
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)


def sources() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def test_every_part_has_a_place() -> None:
    parts = {part_of(path) for path in sources()}
    assert parts - TOP - MAY_IMPORT.keys() == set(), "give the new part a place in MAY_IMPORT"


def test_imports_point_down() -> None:
    bad = []
    for path in sources():
        here = part_of(path)
        if here in TOP:
            continue
        for line, name in imports(path):
            parts = name.split(".")
            wrong = name.startswith(".") or (
                parts[0] == "sglc" and (len(parts) == 1 or parts[1] not in MAY_IMPORT[here] | {here})
            )
            if wrong:
                bad.append(f"{path.relative_to(ROOT.parent)}:{line}: {here} imports {name}")
    assert not bad, "\n".join(bad)


def test_passes_do_not_import_each_other() -> None:
    passes = {
        path.stem for path in (ROOT / "passes").glob("*.py") if "@register(" in path.read_text(encoding="utf-8")
    }
    assert passes
    bad = [
        f"{path.name}:{line}: {name}"
        for path in sorted((ROOT / "passes").glob("*.py"))
        for line, name in imports(path)
        if path.stem != "__init__" and name.rpartition(".")[2] in passes
    ]
    assert not bad, "\n".join(bad)


# The runtime's parts from the ground: each may import those before it.
RUNTIME = (
    *("model_files", "ids", "step", "choice_trie"),
    *("tokenizer", "model", "attention", "kernels", "executor"),
    *("constraints", "cache", "scheduler"),
    "engine",
)


def test_the_parts_of_the_runtime_stand_on_each_other() -> None:
    bad = []
    for path in sorted((ROOT / "runtime").rglob("*.py")):
        here = path.relative_to(ROOT / "runtime").with_suffix("").parts[0]
        for line, name in imports(path):
            if here == "__init__" or not name.startswith("sglc.runtime."):
                continue
            part = name.split(".")[2]
            if part != here and part not in RUNTIME[: RUNTIME.index(here)]:
                bad.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert not bad, "\n".join(bad)


def test_the_runtime_sees_only_plain_data() -> None:
    allowed = {
        "sglc.ir.choice_scoring",
        "sglc.ir.plan.dataflow",
        "sglc.ir.plan.events",
        "sglc.ir.plan.segment",
        "sglc.ir.sampling",
        "sglc.ir.target",
    }
    bad = [
        f"{path.name}:{line}: {name}"
        for path in sorted((ROOT / "runtime").rglob("*.py"))
        for line, name in imports(path)
        if name.startswith("sglc.ir") and name not in allowed and not name.startswith("sglc.ir.grammar.")
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_stay_in_their_rooms(package: str) -> None:
    bad = [
        f"{path.relative_to(ROOT.parent)}:{line}"
        for path in sources()
        for line, name in imports(path)
        if name.split(".")[0] == package and part_of(path) not in HEAVY[package]
    ]
    assert not bad, "\n".join(bad)


def test_the_compiler_loads_no_torch() -> None:
    loaded = "print(*sorted({'torch', 'transformers'} & sys.modules.keys()))"
    code = f"import sys, sglc.passes.compile, sglc.explain.explanation; {loaded}"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "\n"


def test_the_rule_finds_what_it_should(tmp_path: Path) -> None:
    """An import inside a function, a relative one, and one through the package's name are all seen."""
    source = (
        "def f():\n    from sglc import passes\n    import sglc.runtime.engine.engine\n    from . import x\n"
    )
    path = tmp_path / "bad.py"
    path.write_text(source)
    assert sorted(imports(path)) == [(2, "sglc.passes"), (3, "sglc.runtime.engine.engine"), (4, ".")]
