"""Runs tests/golden/*.md: an `ir` block with what to do, and behind it the block that must come out.

The first line of the input block names passes (or `verify`, or `plan`, `explain` or `run` last), and `@style` a
chat template of tests/templates.py, or `=model` a model of OpenAI's. `run` is the reference interpreter,
for what fails in a run.
`pytest --bless` rewrites the second block of each pair.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from sglc.backends.openai import OpenAIBackend, OpenAIOptions
from sglc.backends.registry import connect
from sglc.errors import SglcError, render
from sglc.explain.explanation import explained_compiled
from sglc.ir.plan.plan_text import plan_text
from sglc.ir.target import EVERYTHING, Takes, Target
from sglc.ir.text.printer import from_text, to_text
from sglc.ir.verify.verify import verify
from sglc.passes.base import run_pipeline
from sglc.passes.compile import Compiled
from sglc.passes.lowering.lower_plan import lower_plan
from tests.depth import few
from tests.reference.interpret import Model, meaning
from tests.reference.numbering import canonical
from tests.templates import TEMPLATES, ByteTokenizer

FOLDER = Path(__file__).parent / "golden"
_PAIR = re.compile(
    r"^```ir (\S.*?)\n(.*?)^```\n(?:\s*)^```(ir|error|plan|explain)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Case:
    file: str
    number: int
    orders: tuple[str, ...]
    source: str
    kind: str
    expected: str


def cases() -> list[Case]:
    found = []
    for path in sorted(FOLDER.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        pairs = list(_PAIR.finditer(text))
        assert text.count("```") == 4 * len(pairs), f"{path.name}: blocks come in pairs"
        for number, pair in enumerate(pairs):
            orders, source, kind, expected = pair.groups()
            found.append(Case(path.name, number, tuple(orders.split()), source, kind, expected))
    return found


@pytest.mark.parametrize("case", few(cases(), 120), ids=lambda case: f"{case.file}-{case.number}")
def test_golden(case: Case, request: pytest.FixtureRequest) -> None:
    kind, found = outcome(case)
    if request.config.getoption("--bless"):
        path = FOLDER / case.file
        text = path.read_text(encoding="utf-8")
        pair = list(_PAIR.finditer(text))[case.number]
        block = f"{text[: pair.start(3)]}{kind}\n{found}```{text[pair.end() :]}"
        path.write_text(block, encoding="utf-8")
        return
    assert (kind, found) == (case.kind, case.expected)


def api_target(model: str) -> Target:
    """That of a back end's name, or of a model of OpenAI's or of a server of one's own (`m@server`)."""
    if ":" in model:
        return connect(model).target
    name, _, server = model.partition("@")
    url = {"base_url": "http://127.0.0.1:9/v1"} if server else {}
    chat = False if server == "completions" else None
    return OpenAIBackend(OpenAIOptions(model=name, chat=chat, client=url)).target


def outcome(case: Case) -> tuple[str, str]:
    styles = [order[1:] for order in case.orders if order.startswith("@")]
    tokenizer = ByteTokenizer(TEMPLATES[styles[0]], bos="llama3" in styles) if styles else None
    models = [order[1:] for order in case.orders if order.startswith("=")]
    takes = Takes(hints=True) if "told" in models else EVERYTHING
    target = api_target(models[0]) if models and not takes.hints else Target("local", tokenizer, takes=takes)
    passes = [
        order
        for order in case.orders
        if order[0] not in "@=" and order not in ("verify", "plan", "run", "explain")
    ]
    # The source is no file: this is where carets are drawn from.
    linecache.cache["program.sglir"] = (len(case.source), None, case.source.splitlines(True), "program.sglir")
    try:
        program = from_text(case.source, "program.sglir")
        if "verify" in case.orders:
            verify(program)
        after, remarks = run_pipeline(program, target, passes)
        if "explain" in case.orders:
            return "explain", explained_compiled(
                Compiled(program, after, lower_plan(after, target), remarks, {}), target
            ).text() + "\n"
        if "plan" in case.orders:
            return "plan", plan_text(lower_plan(after, target))
        if "run" in case.orders:
            meaning(after, Model(lambda site, prefix: prefix, lambda *_: 0, declared=lambda *_: 12.5), {})
    except SglcError as error:
        return "error", render(error) + "\n"
    text = to_text(after).removeprefix("# sglir 2\n")
    assert to_text(from_text(text, "again.sglir")) == f"# sglir 2\n{text}"
    assert canonical(after) == from_text(text, "again.sglir")
    return "ir", text + "".join(f"# {remark}\n" for remark in remarks)
