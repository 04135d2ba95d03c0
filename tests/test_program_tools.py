"""Generations of programs that call tools: typed calls on every kind of back end, run once and in order."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.backends.openai import OpenAIBackend, OpenAIOptions
from sglc.backends.registry import connect
from sglc.backends.scripted import Rule, ScriptedBackend, by_rules
from sglc.errors import LegalizeError, RunError, TraceError
from sglc.frontend.outputs.called_tools import ToolAnswer, ToolCall
from sglc.ir.grammar.call_format import HERMES
from sglc.ir.text.printer import to_text
from sglc.observe.replay.tape import FILE
from sglc.passes.compile import compile_program
from tests.api_targets import HERE, at
from tests.openai_server import serving
from tests.serving import Server
from tests.test_record import REFUSING
from tests.vendor_shapes import anthropic_whole, check_body, gemini_whole

CALLED: list[tuple[Any, ...]] = []


@sgl.tool
def forecast(city: str, unit: Literal["C", "F"] = "C", days: int = 1) -> str:
    """The weather in a city."""
    CALLED.append(("forecast", city, unit, days))
    return f"20 {unit} in {city}"


@sgl.tool
def clock() -> dict[str, int]:
    CALLED.append(("clock",))
    return {"hour": 12}


TOOLS = (forecast, clock)


@sgl.function
def agent(s: Any, question: str) -> Any:
    s += sgl.system(sgl.describe_tools(TOOLS))
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("step", tools=TOOLS, max_tokens=80))
    answer = s["step"]
    if answer.calls:
        s += sgl.user(sgl.run_tools(answer))
        s += sgl.assistant(sgl.gen("end", max_tokens=8))


TWO = "\n".join([HERMES.written("forecast", {"city": "Köln", "days": 2}), HERMES.written("clock", {})])
RESULTS = '<tool_response>\n20 C in Köln\n</tool_response>\n<tool_response>\n{"hour": 12}\n</tool_response>'
EXPECTED = ToolAnswer("I look.", (ToolCall("forecast", {"city": "Köln", "days": 2}), ToolCall("clock", {})))


def scripted(text: str) -> ScriptedBackend:
    return ScriptedBackend(by_rules([Rule(name="step", text=text), Rule(name="end", text="It is warm.")]))


@sgl.function
def runs_them_itself(s: Any) -> Any:
    s += sgl.gen("step", tools=TOOLS, max_tokens=80)
    return [call.result(call.run()) for call in s["step"].calls]


def test_a_method_that_no_plan_may_call_is_a_graph_break_in_a_comprehension_too() -> None:
    backend = scripted(TWO)
    assert "`.run` needs a value" in runs_them_itself.explain(backend).text()
    CALLED.clear()
    assert len(runs_them_itself.run(backend=backend).ret_value) == 2
    assert CALLED == [("forecast", "Köln", "C", 2), ("clock",)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "plan", "python"])
def test_a_program_runs_what_the_model_calls(mode: Any) -> None:
    CALLED.clear()
    result = agent.run("Is it warm?", backend=scripted(f"I look.\n{TWO}"), mode=mode)
    assert result["step"] == EXPECTED
    assert result.messages()[-2:] == [
        {"role": "user", "content": RESULTS},
        {"role": "assistant", "content": "It is warm."},
    ]
    assert CALLED == [("forecast", "Köln", "C", 2), ("clock",)]
    CALLED.clear()
    alone = agent.run("Hello", backend=scripted("It is."), mode=mode)
    assert alone["step"] == ToolAnswer("It is.", ())
    assert CALLED == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "plan", "python"])
def test_a_recording_holds_what_was_called(mode: Any, tmp_path: Path) -> None:
    CALLED.clear()
    first = agent.run(
        "Is it warm?", backend=scripted(f"I look.\n{TWO}"), mode=mode, record=str(tmp_path)
    ).sync()
    again = agent.run("Is it warm?", backend=REFUSING, mode=mode, replay=str(tmp_path)).sync()
    assert (again["step"], again.messages()) == (first["step"], first.messages())
    assert again["step"] == EXPECTED
    assert CALLED == [("forecast", "Köln", "C", 2), ("clock",)]
    calls = [
        line for line in map(json.loads, (tmp_path / FILE).read_text().splitlines()) if line.get("is") == "call"
    ]
    assert [(line["function"], line["named"]) for line in calls] == [
        (f"{__name__}.forecast", {"city": "Köln", "days": 2}), (f"{__name__}.clock", {}),
    ]  # fmt: skip


@sgl.tool
async def tide(harbour: str) -> str:
    CALLED.append(("tide", harbour))
    return f"high in {harbour}"


@sgl.function
def sailor(s: Any) -> None:
    s += sgl.user("When?") + sgl.assistant(sgl.gen("step", tools=[tide]))
    s += sgl.user(sgl.run_tools(s["step"])) + sgl.assistant(sgl.gen("end"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plan", "python"])
def test_coroutine_functions_are_run_to_their_end(mode: Any, tmp_path: Path) -> None:
    CALLED.clear()
    backend = scripted(HERMES.written("tide", {"harbour": "Brest"}))
    first = sailor.run(backend=backend, mode=mode, record=str(tmp_path)).sync()
    again = sailor.run(backend=REFUSING, mode=mode, replay=str(tmp_path)).sync()
    assert "high in Brest" in first.messages()[-2]["content"]
    assert again.messages() == first.messages()
    assert CALLED == [("tide", "Brest")]


def test_in_a_coroutine_they_are_awaited() -> None:
    @sgl.function
    async def program(s: Any, by_hand: bool) -> None:
        s += sgl.user("When?") + sgl.assistant(sgl.gen("step", tools=[tide]))
        if by_hand:
            (call,) = s["step"].calls
            s += sgl.user(call.result(await call.run()))
        else:
            s += sgl.user(sgl.run_tools(s["step"]))

    backend = scripted(HERMES.written("tide", {"harbour": "Brest"}))
    assert "high in Brest" in program.run(by_hand=True, backend=backend, mode="python").text()
    error: Any = program.run(by_hand=False, backend=backend, mode="python").error()
    assert (error.code, "await call.run()" in error.hint) == ("SGLC103", True)


def test_a_coroutine_is_no_result() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("When?") + sgl.assistant(sgl.gen("step", tools=[tide]))
        (call,) = s["step"].calls
        s += sgl.user(call.result(call.run()))

    backend = scripted(HERMES.written("tide", {"harbour": "Brest"}))
    error: Any = program.run(backend=backend).error()
    assert (error.code, "await call.run()" in error.hint) == ("SGLC103", True)


@sgl.tool(ordered=False)
def dice(sides: int) -> str:
    CALLED.append(("dice", sides))
    return f"the {len(CALLED)}. throw"


@sgl.function
def player(s: Any) -> None:
    s += sgl.user("Throw") + sgl.assistant(sgl.gen("step", tools=[dice]))
    s += sgl.user(sgl.run_tools(s["step"]) + dice(6)) + sgl.assistant(sgl.gen("end"))


@sgl.function
def thrower(s: Any) -> None:
    s += dice(6) + dice(6) + sgl.gen("end")


@sgl.tool
def throws(how: str, folder: str) -> str:
    return thrower.run(backend=scripted(""), mode="python", seed=1, **{how: folder}).text()


@sgl.function
def around(s: Any, how: str, folder: str) -> None:
    s += throws(how, folder) + sgl.gen("end")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plan", "python"])
def test_equal_calls_are_apart_in_a_recording(mode: Any, tmp_path: Path) -> None:
    """Of one answer, beside the program's own, and of a program that a plan's function runs."""
    CALLED.clear()
    backend = scripted("\n".join(2 * [HERMES.written("dice", {"sides": 6})]))
    first = player.run(backend=backend, mode=mode, record=str(tmp_path / "a")).sync()
    again = player.run(backend=REFUSING, mode=mode, replay=str(tmp_path / "a")).sync()
    assert again.messages() == first.messages()
    inner = str(tmp_path / "b")
    texts = [
        around.run(how=how, folder=inner, backend=scripted(""), mode=mode).text()
        for how in ("record", "replay")
    ]
    assert texts[0] == texts[1]
    assert CALLED == 5 * [("dice", 6)]


@pytest.mark.slow
def test_a_recording_knows_calls_by_their_arguments(tmp_path: Path) -> None:
    agent.run("Is it warm?", backend=scripted(TWO), record=str(tmp_path)).sync()
    file = tmp_path / FILE
    file.write_text(file.read_text().replace('"named": {"city": "Köln"', '"named": {"city": "Rom"'))
    error: Any = agent.run("Is it warm?", backend=REFUSING, replay=str(tmp_path)).error()
    assert error.code == "SGLC425"
    assert 'city="Rom"' in error.note


def test_calls_come_from_the_cache_and_tools_run_as_always(tmp_path: Path) -> None:
    CALLED.clear()
    first, again = (
        agent.run("Is it warm?", backend=scripted(TWO), cache=str(tmp_path), seed=1).sync() for _ in range(2)
    )
    assert (again["step"], again.messages()) == (first["step"], first.messages())
    assert (again.usage.calls, again.usage.cache_hits) == (0, 2)
    assert CALLED == 2 * [("forecast", "Köln", "C", 2), ("clock",)]


def test_the_program_s_text_shows_tools_and_their_calls() -> None:
    text = to_text(agent.trace())
    assert 'tools=\'{"tools": [{"name": "forecast", "description": "The weather in a city."' in text
    assert "tool('sglc.run_tools', (" in text


def test_samples_are_read_one_by_one() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("step", tools=TOOLS, n=2))

    first, second = program.run(backend=scripted(TWO))["step"]
    assert first == second == ToolAnswer("", EXPECTED.calls)


BROKEN = {
    "no call": "Hello",
    "another type": HERMES.written("forecast", {"city": 5}),
    "not listed": HERMES.written("forecast", {"city": "Köln", "unit": "K"}),
    "missing": HERMES.written("forecast", {}),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_not_what_was_asked_for_fails_who_reads_it(case: str) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("step", tools=TOOLS, tool_choice="required"))

    with pytest.raises(RunError) as failed:
        program.run(backend=scripted(BROKEN[case]))["step"]
    assert failed.value.code == "SGLC410"


def unannotated(city) -> None:  # type: ignore[no-untyped-def]
    pass


SCHEMA = {"name": "clock", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"tools": []}, "SGLC103"),
    "no function": ({"tools": [5]}, "SGLC103"),
    "two of one name": ({"tools": [clock, SCHEMA]}, "SGLC103"),
    "a name that is none": ({"tools": [{"name": "a b"}]}, "SGLC103"),
    "another choice": ({"tools": [clock], "tool_choice": "forecast"}, "SGLC103"),
    "a parameter without a type": ({"tools": [unannotated]}, "SGLC115"),
    "two forms": ({"tools": [clock], "regex": "a"}, "SGLC112"),
    "a choice alone": ({"tool_choice": "required"}, "SGLC114"),
    "beside choices": ({"tools": [clock], "choices": ["a"]}, "SGLC114"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_tool_is_refused(case: str) -> None:
    given, code = REFUSED[case]
    with pytest.raises(TraceError) as refused:
        sgl.gen("x", **given)
    assert refused.value.code == code


@pytest.mark.parametrize("name", ["anthropic:none", "gemini:none", "litellm:ollama/llama3", "litellm:none"])
def test_back_ends_without_calls_refuse_them_by_name(name: str) -> None:
    with pytest.raises(LegalizeError, match="takes no `tools`"):
        compile_program(agent.trace(), connect(name).target)


# -- real models and real servers --------------------------------------------------------------------


@sgl.function
def must_call(s: Any, question: str) -> None:
    s += sgl.system(sgl.describe_tools(TOOLS)) + sgl.user(question)
    s += sgl.assistant(sgl.gen("step", tools=TOOLS, tool_choice="forecast", max_tokens=100, temperature=0))


def checked(result: Any) -> ToolAnswer:
    answer = result["step"]
    assert isinstance(answer, ToolAnswer)
    (call,) = answer.calls
    assert call.name == "forecast"
    assert isinstance(call.arguments["city"], str)
    assert call.arguments.get("unit", "C") in ("C", "F")
    return answer


@pytest.mark.model
def test_a_local_model_and_a_server_are_held_to_calls(local: LocalBackend, server: Server) -> None:
    alone = checked(must_call.run("Is it warm in Paris?", backend=local))
    served = checked(must_call.run("Is it warm in Paris?", backend=server.url))
    assert alone == served


@pytest.mark.model
def test_a_chat_server_is_asked_for_calls_as_such(server: Server) -> None:
    client = {"base_url": server.url + "/v1", "api_key": "none"}
    with closing(OpenAIBackend(OpenAIOptions(model="smollm2", client=client))) as backend:
        checked(must_call.run("Is it warm in Paris?", backend=backend))


CALLS = [("forecast", {"city": "Köln", "days": 2}), ("clock", {})]


def as_openai(body: dict[str, Any]) -> tuple[Any, list[str], Any]:
    """An answer with calls, and the tools and the choice that a body has."""
    message = {"role": "assistant", "content": "I look.", "tool_calls": [
        {"id": name, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for name, given in CALLS
    ]}  # fmt: skip
    answer = {"id": "a", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    choice = body["tool_choice"]
    asked = choice["function"]["name"] if isinstance(choice, dict) else choice
    return answer, [tool["function"]["name"] for tool in body["tools"]], asked


@sgl.function
def chosen(s: Any, choice: str) -> None:
    s += sgl.user("Is it warm?") + sgl.assistant(sgl.gen("step", tools=TOOLS, tool_choice=choice))


def as_anthropic(body: dict[str, Any]) -> tuple[Any, list[str], Any]:
    answer = anthropic_whole("I look.", body, "tool_use")
    answer["content"] += [
        {"type": "tool_use", "id": name, "name": name, "input": given} for name, given in CALLS
    ]
    choice = body["tool_choice"]
    asked = {"any": "required", "tool": choice.get("name")}.get(choice["type"], choice["type"])
    return answer, [tool["name"] for tool in body["tools"]], asked


def as_gemini(body: dict[str, Any]) -> tuple[Any, list[str], Any]:
    answer = gemini_whole(["I look."], body)
    answer["candidates"][0]["content"]["parts"] += [
        {"functionCall": {"name": name, "args": given}} for name, given in CALLS
    ]
    ((_, declared),) = body["tools"][0].items()
    config = body["toolConfig"]["functionCallingConfig"]
    (named,) = config.get("allowedFunctionNames", config.get("allowed_function_names", [None]))
    asked = named or {"ANY": "required", "AUTO": "auto"}[config["mode"]]
    return answer, [tool["name"] for tool in declared], asked


VENDORS = {
    "openai:gpt-4o": as_openai,
    "mistral:mistral-large-latest": as_openai,
    "anthropic:claude-opus-4-5": as_anthropic,
    "gemini:gemini-2.5-flash": as_gemini,
    "litellm:openai/gpt-4o": as_openai,
    "litellm:anthropic/claude-opus-4-5": as_anthropic,
    "litellm:gemini/gemini-2.5-flash": as_gemini,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VENDORS if name.partition(":")[0] in HERE])
def test_apis_are_asked_for_calls_in_their_own_words(name: str) -> None:
    CALLED.clear()
    said = VENDORS[name]
    api: Any
    with (
        serving(lambda body: said(body)[0] if "tools" in body else "It is warm.") as api,
        at(api, name) as backend,
    ):
        result = agent.run("Is it warm?", backend=backend).sync()
        assert (result["step"], result["end"]) == (EXPECTED, "It is warm.")
        for choice in ("required", "forecast"):
            assert chosen.run(choice, backend=backend)["step"] == EXPECTED
    first, second, *chose = api.bodies
    told = [said(body)[1:] for body in (first, *chose)]
    assert told == [(["forecast", "clock"], choice) for choice in ("auto", "required", "forecast")]
    assert "tools" not in second
    assert CALLED == [("forecast", "Köln", "C", 2), ("clock",)]
    assert json.dumps(RESULTS) in json.dumps(second)  # as a text of the user's, wherever the vendor has it
    if not name.startswith("litellm:"):
        for path, body in zip(api.paths, api.bodies, strict=True):
            check_body(path, body)
