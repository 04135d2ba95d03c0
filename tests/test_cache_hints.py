"""Cache keys on their way to an API: through a plan and through an ordinary run, by the real SDK over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.models.vendor_rules import openai_model
from sglc.backends.openai import OpenAIBackend, OpenAIOptions
from sglc.execution.plan.executor import run_plan
from sglc.execution.session import Session
from sglc.ir.ops import Gen
from sglc.ir.plan.events import Event
from sglc.ir.plan.plan_json import plan_from_json, plan_to_json
from sglc.ir.plan.segment import GenNode, Segment
from sglc.ir.target import Takes, Target
from sglc.ir.text.printer import from_text
from sglc.passes.base import run_pipeline
from tests.backend_matrix import traced
from tests.openai_server import Api, serving
from tests.source_fuzz.answers import HashBackend

MANUAL = "Every rule of the manual is to be kept, and this is one of them. " * 80  # 5,120 characters
TAKES = replace(openai_model("openai:gpt-4o", own_server=False).takes, prompt_logprobs=False)


@sgl.function
def ask(s: Any, question: str) -> None:
    s += sgl.system(MANUAL)
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=8))
    s += sgl.user("And in one word?")
    s += sgl.assistant(sgl.select("word", ["YES", "NO"]))


@sgl.function
def brief(s: Any, question: str) -> None:
    s += sgl.system("Be brief.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=8))


def said(body: dict[str, Any]) -> str:
    return json.dumps({"value": "NO"}) if "response_format" in body else "fine"


@pytest.fixture
def api() -> Iterator[Api]:
    with serving(said) as made:
        yield made


def backend(api: Api, takes: Takes | None) -> OpenAIBackend:
    client = {"base_url": api.url, "api_key": "k"}
    return OpenAIBackend(OpenAIOptions(model="gpt-4o", takes=takes, client=client))


def keys(api: Api) -> list[str | None]:
    return [body.get("prompt_cache_key") for body in api.bodies]


def test_rows_of_a_program_send_one_key(api: Api) -> None:
    made = backend(api, TAKES)
    results = ask.run_batch([{"question": "Why?"}, {"question": "What for?"}], backend=made)
    assert [result["word"] for result in results] == ["NO", "NO"]
    assert len(api.bodies) == 4
    (key,) = set(keys(api))
    assert key is not None
    assert key.startswith("sglc-")
    assert len(key) <= 64  # OpenAI's limit
    made.close()


def test_a_plan_sends_the_key_that_its_program_does(api: Api) -> None:
    made = backend(api, TAKES)
    compiled = ask.compile(made)
    plan = plan_from_json(json.loads(json.dumps(plan_to_json(compiled.plan))))
    run_plan(plan, {"question": "Why?"}, Session(made, 0))
    ask.run("Why?", backend=made).sync()
    assert len(api.bodies) == 4
    assert len(set(keys(api))) == 1
    assert None not in keys(api)
    assert [remark.source for remark in compiled.remarks] == ["legalize", "cache_hints", "hoist_prefix"]
    made.close()


@sgl.function
def each(s: Any, question: str, outer: bool = True) -> Any:
    if outer:
        s += sgl.system(MANUAL)
    else:
        s += sgl.system("Another text. " * 400)
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=8))
    return sgl.map(["1", "2"], lambda one: each(one, False).ret_value) if outer else "done"


class Keyed(HashBackend):
    """Keeps the keys of generations by their prompts' programs."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, str] = {}

    @cached_property
    def target(self) -> Target:
        return replace(HashBackend().target, takes=TAKES)

    async def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        self.keys.update(
            (str(node.site), node.cache_key) for node in segment.nodes if isinstance(node, GenNode)
        )
        async for event in super().submit(segment, streams=streams):
            yield event


@pytest.mark.parametrize("mode", ["python", "plan"])
def test_what_a_program_calls_leaves_it_its_own_key(mode: Any) -> None:
    made = Keyed()
    each.run("why", backend=made, mode=mode).sync()
    own = made.keys.pop("each.answer#0")
    assert len(made.keys) == 2
    assert own not in ("", *made.keys.values())
    alone = Keyed()
    ask.run("why", backend=alone).sync()
    assert own == alone.keys["ask.answer#0"]


def test_a_short_prefix_sends_none(api: Api) -> None:
    made = backend(api, TAKES)
    brief.run("Why?", backend=made).sync()
    assert keys(api) == [None]
    made.close()


def test_other_servers_are_sent_none_unless_one_says_so(api: Api) -> None:
    made = backend(api, None)
    assert not made.target.takes.cache_key
    ask.run("Why?", backend=made).sync()
    assert keys(api) == [None, None]
    made.close()


@pytest.mark.parametrize(
    ("model", "takes"),
    [("gpt-4o", True), ("gpt-4.1-mini", True), ("o3", True), ("gpt-6", True), ("unheard-of", True),
     ("gpt-4", False), ("gpt-3.5-turbo", False), ("gpt-3.5-turbo-instruct", False), ("davinci-002", False)],
)  # fmt: skip
def test_models_of_the_official_api(model: str, takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chat models that keep prompts; completions have no field for it."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert OpenAIBackend(OpenAIOptions(model=model)).target.takes.cache_key == takes


def test_a_key_is_that_of_the_text_however_it_is_cut() -> None:
    target = OpenAIBackend(OpenAIOptions(model="gpt-4o", takes=TAKES)).target
    half = len(MANUAL) // 2

    def key(*lines: str) -> str:
        body = "".join(f"    {line}\n" for line in lines)
        program = from_text(f"def f(a):\n    s0 = root()\n{body}    return\n", "f.sglir")
        after, _ = run_pipeline(program, target, ["cache_hints"])
        return str(getattr(after.ops[-1], "cache_key", None))

    whole = key(f"s1 = append(s0, {MANUAL!r})", "s2 = append(s1, a)", "s3, t0 = gen(s2, 'x')")
    cut = key(
        f"s1 = append(s0, {MANUAL[:half]!r})", f"t1 = format(({MANUAL[half:]!r}, a))",
        "s2 = append(s1, t1)", "s3, s4 = fork(s2)", "s5, t0 = gen(s4, 'y')",
    )  # fmt: skip
    other = key(f"s1 = append(s0, {MANUAL + '!'!r})", "s2 = append(s1, a)", "s3, t0 = gen(s2, 'x')")
    turn = key("s1 = role_open(s0, 'user')", f"s2 = append(s1, {MANUAL!r})", "s3, t0 = gen(s2, 'x')")
    late = key("s1 = append(s0, a)", f"s2 = append(s1, {MANUAL!r})", "s3, t0 = gen(s2, 'x')")
    assert whole == cut
    assert len({whole, other, turn, late}) == 4
    assert late == ""


PICTURE = b"\x89PNG\r\n\x1a\n"


def keyed(picture: Any, behind: str = MANUAL) -> set[str]:
    """The cache keys of a program with a picture before a long text."""

    @sgl.function
    def seen(s: Any, question: str, path: str = "") -> None:
        s += sgl.user("See " + sgl.image(path if picture is None else picture) + behind)
        s += sgl.assistant(sgl.gen("seen")) + sgl.user(question) + sgl.assistant(sgl.gen("answer"))

    target = Target("openai:gpt-4o", images=True, protocol="chat", takes=TAKES)
    after, _ = run_pipeline(traced(seen), target, ["cache_hints"])
    return {op.cache_key for op in after.ops if isinstance(op, Gen)}


def test_a_picture_that_a_program_names_stands_in_the_prefix() -> None:
    found = [keyed(picture) for picture in (PICTURE, "https://example.org/a.png", "a.png", "b.png")]
    assert all(len(keys) == 1 and "" not in keys for keys in found)
    assert len(set(map(str, found))) == 4
    assert keyed(None) == {""}  # an argument names it
    assert keyed(PICTURE, "short") == {""}  # as a picture is counted, whatever its base64 is long
    assert keyed(PICTURE + b"A" * 40_000, "short") == {""}
