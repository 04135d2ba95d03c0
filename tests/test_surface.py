"""What a user writes beyond plain text: typed values, retries, reasoning, pictures, sections, other back ends,
budgets. On scripted answers, so that every text is known."""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.errors import LegalizeError, MissingVariable, RunError, SglcError, TraceError, UsageError
from sglc.frontend.language.reasoning import MODELS, Splitter, split
from tests.oracle_backend import OracleBackend


def says(**answers: str | Sequence[str]) -> ScriptedBackend:
    """Answers by the generation's name; of several the one of its occurrence."""

    def answer(asked: Asked) -> str | None:
        text = answers.get(asked.site.name)
        return text if text is None or isinstance(text, str) else text[asked.site.occurrence]

    return ScriptedBackend(answer)


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad (very)"


@dataclass
class Point:
    x: int
    y: float = 0.5


@dataclass
class City:
    name: str
    mood: Mood
    size: Literal["small", 3]
    places: list[Point]
    nick: str | None = None


class Row(TypedDict, total=False):
    a: int


# -- typed values ----------------------------------------------------------------------------------


@sgl.function
def typed(s: Any, dtype: Any, n: int = 1) -> Any:
    s += "It is " + sgl.gen("x", dtype=dtype, n=n) + "."
    return s["x"]


CITY = '{"name": "Rome", "mood": "bad (very)", "size": 3, "places": [{"x": 1}, {"x": 2, "y": 3}]}'
VALUES = [
    (Mood, "bad (very)", Mood.BAD),
    (Literal["yes", 7, True], "7", 7),
    (Point, '{"x": 3}', Point(3)),
    (City, CITY, City("Rome", Mood.BAD, 3, [Point(1), Point(2, 3.0)])),
    (Row, "{}", {}),
    (list[int], "[1, 2]", [1, 2]),
    (dict[str, Point], '{"a": {"x": 1}}', {"a": Point(1)}),
    (int | None, "null", None),
    (int, "42", "42"),
    ("bool", "True", "True"),
]


@pytest.mark.parametrize(("dtype", "text", "value"), VALUES)
def test_a_typed_value_is_an_object_everywhere(dtype: Any, text: str, value: Any) -> None:
    result = typed.run(dtype, backend=says(x=text))
    assert result.ret_value == value
    assert result["x"] == value
    assert type(result["x"]) is type(value)
    assert result.variables["x"] == value
    assert result.text() == f"It is {text}."


def test_typed_samples_are_a_list_of_objects() -> None:
    backend = ScriptedBackend(lambda asked: ("good", "bad (very)")[asked.sample])
    result = typed.run(Mood, 2, backend=backend)
    assert result["x"] == result.ret_value == [Mood.GOOD, Mood.BAD]
    assert result.text() == "It is good."


def test_typed_values_of_branches_are_joined() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        forks = s.fork(2)
        forks += sgl.gen("x", dtype=Mood)
        return s.join(forks)

    result = program.run(backend=ScriptedBackend(lambda asked: ("good", "bad (very)")[asked.site.fork[0]]))
    assert result.ret_value == {"x": [Mood.GOOD, Mood.BAD]}
    assert result["x"] == [Mood.GOOD, Mood.BAD]


def test_objects_become_plain_data_in_json() -> None:
    shown = typed.run(City, backend=says(x=CITY)).as_json()
    assert shown["error"] is None
    assert shown["value"] == shown["vars"]["x"] == {
        "name": "Rome", "mood": "bad (very)", "size": 3, "nick": None,
        "places": [{"x": 1, "y": 0.5}, {"x": 2, "y": 3.0}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "text", "reason"),
    [
        (Point, '{"x": 1', "no JSON"),
        (Point, '{"x": "1"}', "no integer"),
        (Point, '{"x": true}', "no integer"),
        (Point, "{}", "`x` is missing"),
        (Point, '{"x": 1, "z": 2}', "no field `z`"),
        (Point, '{"x": 1, "y": NaN}', "`NaN` is no JSON"),
        (City, CITY.replace("3,", "4,"), "is no `Literal"),
        (City, CITY.replace("bad (very)", "BAD"), "is no `Mood`"),
        (list[int], '{"a": 1}', "is no list"),
        (int | None, "[1]", "is no `int"),
    ],
)
def test_a_text_that_spells_no_value_is_an_error_where_it_is_read(dtype: Any, text: str, reason: str) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x", dtype=dtype)
        s += "!" + sgl.gen("y")
        return s["x"]

    result = program.run(backend=says(x=text, y="more"))
    with pytest.raises(RunError, match=reason) as caught:
        result["x"]
    assert caught.value.code == "SGLC410"
    assert "test_surface.py" in str(caught.value.loc)
    line = program.definition.loc.line
    assert f"test_surface.py:{line + 1}:" in caught.value.note
    assert repr(text)[:40] in caught.value.note
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC410"
    assert error.loc is not None
    assert error.loc.line == line + 3
    assert result["y"] == "more"
    assert "x" not in result


@dataclass
class Odd:
    x: int

    def __post_init__(self) -> None:
        assert self.x % 2, "it is even"


@pytest.mark.parametrize(
    ("text", "retries", "hint"),
    [
        ('{"x": 2}', 0, "`retries=2` makes it again"),
        ('{"x": 2}', 3, "more `retries` make it again"),
        ('{"x"', 0, "`retries=2` makes it again; a larger `max_tokens` leaves room for the end"),
        ('{"x"', 3, "more `retries` make it again; a larger `max_tokens` leaves room for the end"),
    ],
)
def test_the_advice_for_a_text_without_a_value_can_help(text: str, retries: int, hint: str) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x", dtype=Odd, retries=retries)
        return s["x"]

    error = program.run(backend=says(x=text)).error()
    assert isinstance(error, RunError)
    assert (error.code, error.hint) == ("SGLC410", hint)


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_a_value_that_no_line_reads_has_its_place_where_it_was_made(mode: str) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x", dtype=Point)

    result = program.run(backend=says(x="{"), mode=mode)
    with pytest.raises(RunError, match="SGLC410") as caught:
        result["x"]
    assert "test_surface.py" in str(caught.value.loc)


def test_what_is_not_read_does_not_have_to_spell_a_value() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x", dtype=Point)

    result = program.run(backend=says(x="{"))
    assert result.error() is None
    assert dict(result.variables) == {}


@sgl.function
def unread(s: Any) -> None:
    forks = s.fork(2)
    forks += sgl.gen("x", dtype=Point)
    s.join(forks)
    s += sgl.gen("y", dtype=Point) + sgl.gen("z")


@sgl.function
def caught(s: Any) -> Any:
    s += sgl.gen("x", dtype=Point)
    try:
        return s["x"].x
    except RunError:
        return "none"


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_json_reads_all_values(mode: str) -> None:
    result = unread.run(backend=says(x=["{"] * 2, y="{", z="end"), mode=mode)
    shown = result.as_json()
    assert result.error() is None
    assert result.error_if_read() is result.failures[0].error
    assert (shown["error"]["code"], shown["vars"]) == ("SGLC410", {"x": [None, None], "z": "end"})
    sites = ["unread[0].x#0", "unread[1].x#0", "unread.y#0"]
    assert [(one["site"], one["code"]) for one in shown["failures"]] == [(site, "SGLC410") for site in sites]
    result["x"] = result["y"] = "mine"
    assert result.as_json()["error"] is None
    asked = unread.run(backend=says(x=["{"] * 2, y="{", z="end"), mode=mode, outputs=["z"])
    assert (asked.as_json()["error"], asked.failures) == (None, ())


def test_a_text_whose_error_was_caught_is_no_error_in_json() -> None:
    shown = caught.run(backend=says(x="{")).as_json()
    assert (shown["value"], shown["vars"], shown["error"]) == ("none", {}, None)
    assert [one["site"] for one in shown["failures"]] == ["caught.x#0"]


@sgl.tool
def broken(text: str) -> str:
    raise LookupError(text)


@sgl.function
def raises(s: Any) -> None:
    s += sgl.gen("x")
    s += broken(s["x"])


@sgl.function
async def raises_later(s: Any) -> None:
    s += sgl.gen("x")
    raise LookupError(s["x"])


@pytest.mark.parametrize(("program", "line"), [(raises, -4), (raises_later, 2)])
def test_an_exception_of_the_program_has_its_place_in_json(program: Any, line: int) -> None:
    error = program.run(backend=says(x="gone")).as_json()["error"]
    assert (error["code"], error["message"]) == ("LookupError", "gone")
    assert f"test_surface.py:{program.definition.loc.line + line}:" in error["loc"]


class Node:
    pass


@dataclass
class Chain:
    next: Chain | None


class Nothing(enum.Enum):
    pass


@pytest.mark.parametrize(
    ("dtype", "code", "message"),
    [
        (complex, "SGLC112", "`dtype` is `complex`"),
        ("complex", "SGLC112", "`dtype` is `complex`"),
        (Node, "SGLC112", "`dtype` is `Node`"),
        (Chain, "SGLC115", "it holds itself"),
        (list[bytes], "SGLC115", "`bytes` in `list"),
        (Nothing, "SGLC115", "has no values"),
        (Literal["a", ""], "SGLC115", "written as nothing"),
        (Literal["1", 1], "SGLC115", "two values that are written `1`"),
    ],
)
def test_classes_without_a_form_are_refused(dtype: Any, code: str, message: str) -> None:
    with pytest.raises(TraceError, match=message.replace("[", r"\[")) as caught:
        sgl.gen("x", dtype=dtype)
    assert caught.value.code == code


def test_pydantic_models() -> None:
    pydantic = pytest.importorskip("pydantic")
    Model = pydantic.create_model("Model", a=(int, ...), b=(list[str], []))
    result = typed.run(Model, backend=says(x='{"a": 1, "b": ["c"]}'))
    assert result["x"] == Model(a=1, b=["c"])
    assert result.as_json()["vars"]["x"] == {"a": 1, "b": ["c"]}
    with pytest.raises(RunError, match="SGLC410"):
        typed.run(Model, backend=says(x='{"a": "word"}'))["x"]


# -- retries ---------------------------------------------------------------------------------------


@sgl.function
def stubborn(s: Any, retries: int = 2) -> Any:
    s += "Point:" + sgl.gen("x", dtype=Point, retries=retries) + "!" + sgl.gen("y")
    return s["x"]


def test_a_text_that_misses_its_form_is_made_again() -> None:
    backend = says(x=["{", '{"x": "no"}', '{"x": 3}'], y="end")
    result = stubborn.run(backend=backend)
    assert result.ret_value == result["x"] == Point(3)
    assert result.text() == 'Point:{"x": 3}!end'
    assert [(call.site.name, call.site.occurrence) for call in result.calls] == [
        ("x", 0), ("x", 1), ("x", 2), ("y", 0),
    ]  # fmt: skip
    assert result.usage.calls == 4
    assert backend.kept == 0


def test_retries_are_bounded() -> None:
    backend = says(x=["{", '{"x": "no"}', '{"x": 3}'], y="end")
    result = stubborn.run(1, backend=backend)
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC410"
    assert "in the last of 2 attempts" in error.note
    assert backend.calls == 2
    assert backend.kept == 0


def test_retries_sample_anew() -> None:
    oracle = OracleBackend()

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", regex="[a-z]+9", max_tokens=3, retries=4, temperature=1.0)

    result = program.run(backend=oracle, seed=5)
    assert result.error() is None or "in the last of 5 attempts" in result.error().note  # type: ignore[union-attr]
    texts = [call.samples[0].text for call in result.calls]
    assert len(texts) > 1
    assert len(set(texts)) == len(texts)
    oracle.close()


def test_retries_of_branches_run_side_by_side() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += "Go: "
        forks = s.fork(3)
        forks += sgl.gen("x", dtype=Mood, retries=1)
        forks += "."
        s.join(forks)
        return s["x"]

    backend = ScriptedBackend(lambda asked: "good", word_s=0.0)
    result = program.run(backend=backend)
    assert result.ret_value == [Mood.GOOD] * 3
    assert backend.submits <= 3  # the common beginning, the three branches, what is given back


def test_retries_without_a_form_are_refused() -> None:
    with pytest.raises(TraceError, match="SGLC116"):
        sgl.gen("x", retries=1)
    with pytest.raises(TraceError, match="SGLC103"):
        sgl.gen("x", regex="a", retries=-1)
    with pytest.raises(TraceError, match="SGLC103"):
        sgl.gen("x", regex="a", retries=1000)


# -- reasoning -------------------------------------------------------------------------------------

THOUGHT = "<think>Hm, two and two.</think>4"


@sgl.function
def thinker(s: Any, model_type: str = "qwen3") -> Any:
    s += sgl.user("2+2?")
    s += sgl.assistant(
        sgl.separate_reasoning("Answer: " + sgl.gen("a") + "; " + sgl.gen("b") + ".", model_type=model_type)
    )
    s += sgl.user("Sure?") + sgl.assistant(sgl.gen("c"))
    return s["a"], s["a_reasoning_content"]


def test_b18_reasoning_leaves_the_prompt_and_everything_else_stays() -> None:
    prompts: dict[str, str] = {}
    answers = {"a": THOUGHT, "b": "five", "c": "yes"}

    def answer(asked: Asked) -> str:
        prompts[asked.site.name] = asked.prompt
        return answers[asked.site.name]

    result = thinker.run(backend=ScriptedBackend(answer))
    assert result.ret_value == ("4", "Hm, two and two.")
    assert (result["b"], result["b_reasoning_content"]) == ("five", "")
    assert result.messages() == [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "Answer: 4; five."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "yes"},
    ]
    assert "Hm" not in result.text()
    assert prompts["b"].endswith("assistant\nAnswer: 4; ")
    assert "Answer: 4; five.<|im_end|>" in prompts["c"]
    assert result.calls[0].samples[0].text == THOUGHT


def test_reasoning_as_it_streams() -> None:
    backend = ScriptedBackend(lambda asked: "<think>one two three</think> four five", word_s=0.01)
    result = thinker.run(backend=backend, stream=True)
    reasoning = list(result.text_iter("a_reasoning_content"))
    answer = list(result.text_iter("a"))
    assert reasoning == ["one", " two", " three"]
    assert "".join(answer) == " four five"
    assert len(answer) == 2
    assert "".join(thinker.run(backend=backend, stream=True).text_iter()) == result.text()


def test_b4_reading_reasoning_first_of_all_does_not_hang() -> None:
    result = thinker.run(backend=says(a=THOUGHT, b="x", c="y"), stream=True)
    assert result["b_reasoning_content"] == ""
    assert result["a_reasoning_content"] == "Hm, two and two."


@pytest.mark.parametrize(
    ("model_type", "text", "reasoning", "answer"),
    [
        ("qwen3", "<think>a</think>b", "a", "b"),
        ("qwen3", "\n<think>a</think>b", "a", "b"),
        ("qwen3", "b", "", "b"),
        ("qwen3", "b <think>", "", "b <think>"),
        ("qwen3", "<think>a", "a", ""),
        ("qwen3", "<thi", "", "<thi"),
        ("qwen3", "<think>a</thi", "a</thi", ""),
        ("qwen3", "<think>a < b</think>c</think>", "a < b", "c</think>"),
        ("deepseek-r1", "a</think>b", "a", "b"),
        ("deepseek-r1", "<think>a</think>b", "a", "b"),
        ("DeepSeek-R1", "a", "a", ""),
        ("kimi", "◁think▷a◁/think▷b", "a", "b"),
        ("mistral", "[THINK]a[/THINK]b", "a", "b"),
    ],
)
def test_the_tags_of_models(model_type: str, text: str, reasoning: str, answer: str) -> None:
    tags = MODELS[model_type.lower()]
    assert split(tags, [text]) == (reasoning, answer)
    assert split(tags, text) == (reasoning, answer)  # character by character
    splitter = Splitter(tags)
    parts = [*map(splitter.feed, (text[:2], text[2:5], text[5:])), splitter.end()]
    assert tuple(map("".join, zip(*parts, strict=True))) == (reasoning, answer)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sgl.separate_reasoning(sgl.gen("x"), "gpt-oss"), "knows no tags of `gpt-oss`"),
        (lambda: sgl.separate_reasoning(sgl.gen("x")), "knows no tags of `None`"),
        (lambda: sgl.separate_reasoning("text", "qwen3"), "needs a generation"),
        (lambda: sgl.separate_reasoning(sgl.gen(), "qwen3"), "with a name"),
        (lambda: sgl.separate_reasoning(sgl.gen("x", dtype=int), "qwen3"), "no reasoning before it"),
    ],
)
def test_reasoning_that_cannot_be_separated(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        make()
    assert caught.value.code == "SGLC117"
    assert caught.value.loc is not None


# -- pictures --------------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n" + b"rest"
PNG_URI = "data:image/png;base64,iVBORw0KGgpyZXN0"


@sgl.function
def look(s: Any, *pictures: Any) -> Any:
    with s.user():
        s += "What is "
        for picture in pictures:
            s += sgl.image(picture)
        s += "this?"
    messages = s.messages()
    s += sgl.assistant(sgl.gen("x"))
    return messages


def test_pictures_in_messages(tmp_path: Any) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)

    @sgl.function
    def program(s: Any) -> None:
        with s.user():
            s += "What is "
            s += sgl.image(str(path)) + sgl.image(PNG) + " and " + sgl.image("https://example.org/a.jpg")

    assert program.run(backend=says()).messages() == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is "},
                {"type": "image_url", "image_url": {"url": PNG_URI}},
                {"type": "image_url", "image_url": {"url": PNG_URI}},
                {"type": "text", "text": " and "},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.jpg"}},
            ],
        }
    ]


def test_a_picture_for_a_model_of_texts_is_refused_where_it_stands() -> None:
    oracle = OracleBackend()
    result = look.run(PNG, backend=oracle)
    error = result.error()
    assert isinstance(error, LegalizeError)
    assert error.code == "SGLC308"
    assert error.loc is not None
    assert error.loc.line == look.definition.loc.line + 4
    with pytest.raises(LegalizeError):
        result["x"]
    oracle.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/no/such/file.png", "cannot be read"),
        (b"text", "is no picture that is known"),
        ("data:text/plain,a", "is no picture"),
        ("data:image/png,notbase64", "is no base64"),
        ("data:image/png;base64,no!base64", "is no base64"),
        ("data:image/png;base64,\u00e9", "is no base64"),
        ("data:image/png;base64,", "is no base64"),
        ("data:image/png;base64", "is no base64"),
        (7, "takes no `int`"),
        (None, "takes no `NoneType`"),
    ],
)
def test_what_is_no_picture(source: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        sgl.image(source)
    assert caught.value.code == "SGLC118"


def data_of(picture: Any) -> str:
    return str(picture.data)


@pytest.mark.parametrize("data", ["-_8=", "+/8", "%2B%2f8%3D", " +/\r\n8=\n"])
def test_a_data_uri_goes_to_apis_in_one_form(data: str) -> None:
    assert data_of(sgl.image(f"data:image/png;base64,{data}")) == "data:image/png;base64,+/8="


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (PNG, "png"), (b"\xff\xd8\xff\xe0", "jpeg"), (b"GIF89a", "gif"), (b"BM", "bmp"),
        (b"RIFF0000WEBPVP8 ", "webp"),
    ],
)  # fmt: skip
def test_the_kind_of_a_picture_is_in_its_first_bytes(content: bytes, kind: str) -> None:
    assert data_of(sgl.image(content)).startswith(f"data:image/{kind};base64,")


def test_a_pil_image_becomes_a_png() -> None:
    image = pytest.importorskip("PIL.Image")
    assert data_of(sgl.image(image.new("RGB", (2, 2)))).startswith("data:image/png;base64,iVBORw0KGgo")


def test_video_is_refused_where_it_is_called() -> None:
    from sglc import video

    with pytest.raises(TraceError, match="SGLC119") as caught:
        video("a.mp4", 4)
    assert "test_surface.py" in str(caught.value.loc)


# -- sections and scopes ---------------------------------------------------------------------------


def test_sections_are_scopes_of_the_program() -> None:
    from sglc.ir.ops import ScopeBegin, ScopeEnd

    @sgl.function
    def program(s: Any, q: str) -> None:
        s += sgl.section("Rules: be brief.\n", name="rules", movable=True)
        s += sgl.section("Q: " + q + sgl.gen("x"))

    scopes = [op for op in program.trace().ops if isinstance(op, ScopeBegin | ScopeEnd)]
    assert [(type(op).__name__, op.name, getattr(op, "movable", None)) for op in scopes] == [
        ("ScopeBegin", "rules", True), ("ScopeEnd", "rules", None),
        ("ScopeBegin", "section", False), ("ScopeEnd", "section", None),
    ]  # fmt: skip
    assert program.run("why", backend=says(x="!")).text() == "Rules: be brief.\nQ: why!"


def test_b15_a_scope_stores_nothing_before_it_ends() -> None:
    seen: list[Any] = []

    @sgl.function
    def program(s: Any) -> None:
        for round_ in range(2):
            with s.var_scope("v"):
                s += f"{round_}:" + sgl.gen("x")
                seen.append("v" in s)
                try:
                    s["v"]
                except MissingVariable:
                    seen.append("missing")
            seen.append(s["v"])

    program.run(backend=says(x=["a", "b"])).sync()
    assert seen == [False, "missing", "0:a", False, "missing", "1:b"]


# -- another back end for one call -----------------------------------------------------------------


@sgl.function
def two_models(s: Any, other: Any) -> Any:
    s += sgl.system("Be brief.") + sgl.user("Name a city.")
    s += sgl.assistant("It is " + sgl.gen("draft") + ".")
    s += sgl.user("Check.")
    s += sgl.assistant("Hm: " + sgl.gen("check", backend=other, max_tokens=9) + "!")
    s += sgl.user("So?") + sgl.assistant(sgl.gen("end"))
    return s["check"]


def test_one_call_on_another_back_end() -> None:
    prompts: dict[str, list[str]] = {}

    def teller(**answers: str) -> ScriptedBackend:
        def answer(asked: Asked) -> str:
            prompts.setdefault(asked.site.name, []).append(asked.prompt)
            return answers[asked.site.name]

        return ScriptedBackend(answer)

    own, other = teller(draft="Rome", end="Rome."), teller(check="good")
    result = two_models.run(other, backend=own, seed=1)
    assert result.ret_value == result["check"] == "good"
    # The other model got the whole conversation, in turns.
    (seen,) = prompts["check"]
    assert seen.count("<|im_start|>") == 5
    assert "It is Rome.<|im_end|>" in seen
    assert seen.endswith("<|im_start|>assistant\nHm: ")
    assert prompts["end"][0].startswith(seen + "good!<|im_end|>")
    assert result.messages()[4] == {"role": "assistant", "content": "Hm: good!"}
    assert [call.site.name for call in result.calls] == ["draft", "check", "end"]
    assert result.usage.calls == 3
    assert (own.calls, other.calls) == (2, 1)
    assert own.kept == other.kept == 0


def test_samples_on_another_back_end_have_seeds_of_their_site() -> None:
    own, other = OracleBackend(), OracleBackend()

    @sgl.function
    def program(s: Any, backend: Any) -> None:
        s += "ab" + sgl.gen("x", max_tokens=8, ignore_eos=True)
        s += sgl.gen("x", max_tokens=8, ignore_eos=True, backend=backend)

    texts = [[call.samples[0].text for call in program.run(other, backend=own, seed=7).calls] for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]
    own.close()
    other.close()


def test_branches_ask_another_back_end_side_by_side() -> None:
    @sgl.function
    def program(s: Any, other: Any) -> Any:
        s += "Vote: "
        forks = s.fork(4)
        forks += sgl.gen("v", backend=other) + "."
        forks.join()
        return s["v"]

    other = ScriptedBackend(lambda asked: f"yes {asked.site.fork[0]}", word_s=0.05)
    result = program.run(other, backend=says())
    assert result.ret_value == ["yes 0", "yes 1", "yes 2", "yes 3"]
    starts = [call.started_s for call in result.calls]
    assert max(starts) < min(call.ended_s for call in result.calls)


def test_typed_values_choices_and_retries_on_another_back_end() -> None:
    @sgl.function
    def program(s: Any, other: Any) -> Any:
        s += sgl.gen("x", dtype=Point, retries=1, backend=other)
        s += sgl.select("c", choices=["a", "b"], backend=other)
        return s["x"], s["c"]

    result = program.run(says(x=["{", '{"x": 1}'], c="b"), backend=says())
    assert result.ret_value == (Point(1), "b")
    assert result.text() == '{"x": 1}b'
    assert result.get_meta_info("c") is not None


def test_a_failure_on_another_back_end_is_the_run_s() -> None:
    result = two_models.run(says(), backend=says(draft="Rome", end="."))
    with pytest.raises(SglcError, match="the script has nothing for"):
        result["check"]
    assert result["draft"] == "Rome"


def test_streaming_of_another_back_end() -> None:
    other = ScriptedBackend(lambda asked: "one two three", word_s=0.01)
    result = two_models.run(other, backend=says(draft="Rome", end="."), stream=True)
    assert list(result.text_iter("check")) == ["one", " two", " three"]


def test_while_recording_another_back_end_is_a_boundary() -> None:
    from sglc.ir.ops import HostCall

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x") + sgl.gen("y", backend="local") + sgl.gen("z")

    ops = program.trace().ops
    assert isinstance(ops[-1], HostCall)
    assert "another `backend`" in ops[-1].reason
    assert sum(type(op).__name__ == "Gen" for op in ops) == 1


# -- budgets ---------------------------------------------------------------------------------------


@sgl.function
def chatty(s: Any, rounds: int = 3) -> Any:
    for i in range(rounds):
        s += f"{i}" + sgl.gen(f"x{i}", max_tokens=9)
        s[f"x{i}"]
    return "done"


def test_a_budget_of_calls_is_exact() -> None:
    backend = says(x0="a", x1="b", x2="c")
    assert chatty.run(backend=backend, max_calls=3).ret_value == "done"
    result = chatty.run(backend=backend, max_calls=2)
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC408"
    assert "`x2` passes the run's budget of 2 calls" in error.message
    assert error.loc is not None
    assert (result["x0"], result["x1"]) == ("a", "b")
    assert result.partial_text.startswith("0a1b")
    assert backend.calls == 5


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_a_budget_of_calls_counts_in_the_order_of_the_program(mode: Any) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x0") + sgl.gen("x1")

    backend = says(x0="a", x1="b")
    result = program.run(backend=backend, max_calls=1, mode=mode)
    assert result.error().code == "SGLC408"  # type: ignore[union-attr]
    assert (result["x0"], backend.calls) == ("a", 1)

    @sgl.function
    def gives_a_list(s: Any) -> Any:
        s += sgl.gen("x0") + sgl.gen("x1")
        return [s["x1"] + "!"]

    assert gives_a_list.run(backend=says(x0="a"), max_calls=1, mode=mode).error().code == "SGLC408"  # type: ignore[union-attr]


def test_a_budget_of_tokens() -> None:
    backend = says(x0="a b c", x1="d e f", x2="g")
    result = chatty.run(backend=backend, max_tokens=5)
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC408"
    assert "`x1` passes the run's budget of 5 generated tokens" in error.message
    assert result["x0"] == "a b c"
    with pytest.raises(RunError, match="SGLC408"):
        result["x1"]
    assert result.usage.completion <= 6
    assert chatty.run(backend=says(x0="a b", x1="c d", x2="e"), max_tokens=5).error() is None


STORED: list[str] = []


@sgl.tool
def store(text: str) -> None:
    STORED.append(text)


@sgl.function
def tells(s: Any) -> str:
    s += sgl.gen("told")
    return str(s["told"])


@sgl.function
def stores_first(s: Any) -> None:
    told = tells().ret_value
    store("first")
    store("second " + told)
    s += "q" + sgl.gen("last")
    store(s["last"])


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_a_budget_of_tokens_leaves_the_tools_before_it(mode: Any) -> None:
    for _ in range(10):
        STORED.clear()
        result = stores_first.run(backend=says(told="a b", last="c d e"), max_tokens=4, mode=mode)
        assert "`last` passes the run's budget of 4" in str(result.error())
        assert (result.mode, STORED) == (mode, ["first", "second a b"])


def test_a_budget_bounds_a_generation_that_does_not_end() -> None:
    oracle = OracleBackend()

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=2_000, ignore_eos=True)

    result = program.run(backend=oracle, max_tokens=20)
    assert result.error().code == "SGLC408"  # type: ignore[union-attr]
    assert result.usage.completion == 21
    oracle.close()


def test_retries_count() -> None:
    backend = says(x=["{", "{", '{"x": 1}'], y="")
    result = stubborn.run(backend=backend, max_calls=2)
    assert result.error().code == "SGLC408"  # type: ignore[union-attr]
    assert backend.calls == 2


def test_every_row_has_a_budget_of_its_own() -> None:
    results = chatty.run_batch(
        [{"rounds": 1}, {"rounds": 3}], backend=says(x0="a", x1="b", x2="c"), max_calls=2
    )
    assert [result.error() is None for result in results] == [True, False]


@pytest.mark.parametrize("budget", [{"max_calls": 0}, {"max_tokens": "9"}, {"max_calls": True}])
def test_what_is_no_budget(budget: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="SGLC026"):
        chatty.run(backend=says(), **budget)


# -- arguments of `gen` and `run` ------------------------------------------------------------------


TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


class Dumped:
    def model_dump(self, *, mode: str) -> dict[str, Any]:
        return TAG if mode == "json" else {}


DUMPED = Dumped()


def fields_of(program: sgl.Function, **kwargs: Any) -> list[Any]:
    return [op.sampling for op in program.trace(**kwargs).ops if type(op).__name__ == "Gen"]  # type: ignore[attr-defined]


def test_every_argument_of_gen_reaches_the_generation() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen(
            "x", 9, 2, 3, ["a"], [7], "b+", 0.5, 0.9, 40, 0.1, 0.3, -0.4, True, True, 4, 5, True,
            None, None, None, "[ab]+", None, repetition_penalty=1.1, logit_bias={9: -1, 3: 100},
            seed=12,
        )  # fmt: skip
        s += sgl.gen("y", json_schema={"type": "object"}, stop_regex=["a", "b"])
        s += sgl.gen("z", ebnf='root ::= "a"', logprob_start_len=-1, top_logprobs_num=2)
        s += sgl.gen("t", structural_tag=TAG)
        s += sgl.gen("u", structural_tag=DUMPED)

    x, y, z, t, u = fields_of(program)
    assert x == sampling(
        max_tokens=9, min_tokens=2, n=3, stop=("a",), stop_token_ids=(7,), stop_regex=("b+",), temperature=0.5,
        top_p=0.9, top_k=40, min_p=0.1, frequency_penalty=0.3, presence_penalty=-0.4, ignore_eos=True,
        logprobs_from=4, top_logprobs=5, logprob_text=True, logprobs=True, regex="[ab]+", seed=12,
        repetition_penalty=1.1, logit_bias=((3, 100.0), (9, -1.0)),
    )  # fmt: skip
    assert y == sampling(json_schema='{"type": "object"}', stop_regex=("a", "b"))
    assert z == sampling(ebnf='root ::= "a"', top_logprobs=2)
    assert t == u == sampling(structural_tag=json.dumps(TAG))


def sampling(**fields: Any) -> Any:
    from sglc.ir.sampling import Sampling

    return Sampling(**fields)


def test_every_keyword_of_a_run_is_a_default_of_its_generations() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x") + sgl.gen("y", temperature=0.2, frequency_penalty=0.0, return_logprob=False)

    given: dict[str, Any] = {
        "max_new_tokens": 5, "n": 2, "stop": "a", "stop_token_ids": [3], "stop_regex": "b", "temperature": 0.7,
        "top_p": 0.8, "top_k": 9, "min_p": 0.2, "frequency_penalty": 1.0, "presence_penalty": 0.5,
        "ignore_eos": True, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1,
        "return_text_in_logprobs": True,
    }  # fmt: skip
    shared: dict[str, Any] = {
        "max_tokens": 5, "n": 2, "stop": ("a",), "stop_token_ids": (3,), "stop_regex": ("b",), "top_p": 0.8,
        "top_k": 9, "min_p": 0.2, "presence_penalty": 0.5, "ignore_eos": True,
    }  # fmt: skip
    x, y = fields_of(program, **given)
    reports: dict[str, Any] = {"logprobs_from": 0, "top_logprobs": 1, "logprob_text": True, "logprobs": True}
    assert x == sampling(**shared, **reports, temperature=0.7, frequency_penalty=1.0)
    assert y == sampling(**shared, temperature=0.2, frequency_penalty=0.0)
    recorded = program.run(backend=says(x="t", y="u"), **given)
    assert recorded["x"] == ["t", "t"]


def test_a_list_of_stops_stays_the_user_s() -> None:
    """B8: SGLang extends it in place."""
    stops = ["a"]
    sgl.gen("x", stop=stops, dtype=int)
    assert stops == ["a"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"frequency_penalty": 3}, {"presence_penalty": "1"}, {"repetition_penalty": 0}, {"stop_regex": "("},
        {"stop_regex": [""]}, {"stop_regex": 7}, {"stop": [1]}, {"stop_token_ids": ["a"]},
        {"logprob_start_len": -2}, {"top_logprobs_num": -1}, {"return_logprob": 1},
        {"return_text_in_logprobs": "yes"}, {"json_schema": "{"}, {"json_schema": "[1]"},
        {"json_schema": Point}, {"json_schema": {"a": {1}}},
        {"ebnf": ""}, {"structural_tag": "{"}, {"structural_tag": 1},
        {"logit_bias": [1]}, {"logit_bias": {"a": 1}}, {"logit_bias": {1: "a"}},
        {"logit_bias": {-1: 1}}, {"logit_bias": {1: float("nan")}},
        {"logit_bias": {1: 10**400}}, {"temperature": 1e39}, {"temperature": 10**400},
        {"return_logprob": False, "top_logprobs_num": 3}, {"seed": -1}, {"retries": "2"},
        {"regex": "a|\ud800"}, {"ebnf": '# \ud800\nroot ::= "a"'}, {"stop": ["a", "\ud800"]},
        {"stop_regex": "\udfff"}, {"json_schema": {"type": "null", "description": "\ud800"}},
        {"json_schema": '{"$defs": {"\ud800": true}}'},
        {"structural_tag": {"format": {"type": "json_schema", "json_schema": {"title": "\ud800"}}}},
        {"dtype": Literal["\ud800"]},
    ],
)  # fmt: skip
def test_values_out_of_range(arguments: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match="SGLC103") as caught:
        sgl.gen("x", **arguments)
    name = next(iter(arguments)) if len(arguments) == 1 else "return_logprob"
    assert f"`{name}`" in caught.value.message
    assert caught.value.loc is not None


@pytest.mark.parametrize(
    "forms",
    [
        {"dtype": int, "regex": "a"},
        {"regex": "a", "ebnf": "b"},
        {"json_schema": {}, "dtype": Point},
        {"structural_tag": TAG, "ebnf": "b"},
    ],
)
def test_two_forms_at_once(forms: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match="SGLC112"):
        sgl.gen("x", **forms)


@pytest.mark.parametrize(
    "beside",
    [
        {"max_tokens": 5}, {"temperature": 0.5}, {"regex": "a"}, {"n": 2}, {"stop": "a"}, {"dtype": int},
        {"seed": 1}, {"retries": 1}, {"logit_bias": {1: 1}}, {"json_schema": {}}, {"ignore_eos": True},
    ],
)  # fmt: skip
def test_nothing_beside_choices_is_dropped(beside: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match="SGLC114"):
        sgl.gen("x", choices=["a", "b"], **beside)
    assert sgl.gen("x", choices=["a", "b"], temperature=0.0, return_logprob=True) is not None
    for choices in ([], ["a", "\ud800"]):
        with pytest.raises(TraceError, match="SGLC104"):
            sgl.gen("x", choices=choices)
    with pytest.raises(TraceError, match="SGLC114"):
        sgl.gen("x", choices_method=sgl.greedy_token_selection)


def test_the_same_text_ends_the_same_in_every_spelling() -> None:
    """The fields of a class as `dtype` are those of its schema given by hand."""

    schema = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "number"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    by_class: Any = sgl.gen("x", dtype=Point)
    by_hand: Any = sgl.gen("x", json_schema=json.dumps(schema))
    assert by_class.overrides == by_hand.overrides
    mood: Any = sgl.gen("x", dtype=Mood)
    assert mood.overrides["regex"] == r"(good|bad \(very\))"


# -- functions -------------------------------------------------------------------------------------


def test_the_decorator_in_all_its_forms() -> None:
    def plain(state: Any) -> None:
        state += "a"

    for program in (sgl.function(plain), sgl.function()(plain)):
        assert program.definition.num_api_spec_tokens is None
        assert program.run(backend=says()).text() == "a"
    spec = sgl.function(num_api_spec_tokens=64, fullgraph=True)(plain)
    assert spec.definition.num_api_spec_tokens == 64
    assert spec.definition.fullgraph
    assert spec.bind().definition == spec.definition
    with pytest.raises(UsageError, match="SGLC028"):
        sgl.function(num_api_spec_tokens=0)


def test_tokens_of_one_request_are_a_remark_where_requests_cost_nothing() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=4)

    remarks = program.compile(says()).remarks
    assert any("num_api_spec_tokens" in remark.message for remark in remarks)
    assert program.run(backend=says(x="b"), stream=True).text() == "ab"


def test_b37_parameters_with_names_of_options_are_the_program_s() -> None:
    @sgl.function
    def program(s: Any, temperature: str, stream: str, seed: str = "none", max_tokens: int = 0) -> Any:
        s += sgl.gen("x")
        return temperature, stream, seed, max_tokens

    backend = says(x="a")
    assert program.run(temperature="hot", stream="river", seed="oak", backend=backend).ret_value == (
        "hot", "river", "oak", 0,
    )  # fmt: skip
    # Given by position, the names are free for what they say elsewhere.
    result = program.run(
        "cold", "brook", "elm", 5, temperature=0.5, stream=True, seed=3, max_tokens=9, backend=backend
    )
    assert result.ret_value == ("cold", "brook", "elm", 5)
    assert result.seed == 3
    rows = [{"temperature": "t", "stream": "s", "seed": "x"}]
    (row,) = program.run_batch(rows, seed=8, backend=backend)
    assert row.ret_value == ("t", "s", "x", 0)
    assert row.seed == 8


def test_without_a_thread_the_program_runs_before_run_returns() -> None:
    import threading

    seen: list[Any] = []

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x")
        seen.append((s["x"], threading.current_thread()))

    program.run(backend=says(x="a"), use_thread=False)
    assert seen == [("a", threading.current_thread())]
    assert "".join(program.run(backend=says(x="a"), use_thread=False, stream=True).text_iter()) == "a"


def test_a_turn_that_an_exception_leaves_is_closed() -> None:
    @sgl.function
    def program(s: Any) -> None:
        try:
            with s.user():
                s += "a"
                raise ValueError("no")
        except ValueError:
            s += sgl.user("b")

    assert [m["content"] for m in program.run(backend=says()).messages()] == ["a", "b"]


def test_choices_that_python_makes_in_branches_are_asked_side_by_side() -> None:
    from sglc.lang.choices import ChoicesDecision, ChoicesSamplingMethod

    class Last(ChoicesSamplingMethod):
        def __call__(self, **scored: Any) -> ChoicesDecision:
            return ChoicesDecision(scored["choices"][-1])

    @sgl.function
    def program(s: Any) -> Any:
        forks = s.fork(3)
        forks += sgl.user("a") + sgl.assistant(sgl.select("c", choices=["x", "y"], choices_method=Last()))
        forks.join()
        s += str(s["c"])
        return [fork.text() for fork in s.fork(2)]

    oracle = OracleBackend()
    result = program.run(backend=oracle)
    assert result["c"] == ["y", "y", "y"]
    assert result.ret_value == ["['y', 'y', 'y']"] * 2
    starts = [call.started_s for call in result.calls]
    assert max(starts) - min(starts) < 1e-3
    oracle.close()


def test_a_run_in_a_coroutine_reads_reasoning_as_it_comes() -> None:
    async def collect() -> str:
        backend = ScriptedBackend(lambda asked: "<think>one two</think>three", word_s=0.01)
        result = thinker.run(backend=backend, stream=True)
        return "".join([piece async for piece in result.text_async_iter("a_reasoning_content")])

    assert asyncio.run(collect()) == "one two"


def test_samples_on_another_back_end_are_a_list() -> None:
    @sgl.function
    def program(s: Any, other: Any) -> Any:
        s += sgl.gen("x", n=2, backend=other)
        s += sgl.separate_reasoning(sgl.gen("y", n=2, backend=other), "qwen3") + "."
        return s["x"], s["y"], s["y_reasoning_content"]

    other = ScriptedBackend(lambda asked: f"<think>t{asked.sample}</think>a{asked.sample}")
    result = program.run(other, backend=says())
    assert result["x"] == ["<think>t0</think>a0", "<think>t1</think>a1"]
    assert result.ret_value == (result["x"], ["a0", "a1"], ["t0", "t1"])
    assert result.text() == "<think>t0</think>a0a0."


def test_a_branch_that_is_joined_before_it_is_settled_keeps_nothing() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += "a"
        forks = s.fork(2)
        forks += sgl.gen("x", dtype=Point, retries=2) + " and more"
        forks.join()
        s += "b" + sgl.gen("y")
        return s["x"]

    backend = says(x=["{", '{"x": 1}'], y="end")
    result = program.run(backend=backend)
    assert result.ret_value == [Point(1), Point(1)]
    assert result.text() == "abend"
    assert backend.kept == 0


def test_a_choice_fails_where_it_is_read_and_the_state_goes_on() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        with s.user():
            s += sgl.gen("x", dtype=Point, retries=1)
        try:
            s["x"]
        except RunError as error:
            s += sgl.user(error.code)
        return "x" in s

    result = program.run(backend=says(x=["{", "{"]))
    assert result.ret_value is False
    assert [m["content"] for m in result.messages()] == ["", "SGLC410"]


# -- compiled ahead of time ------------------------------------------------------------------------


def test_a_program_may_branch_on_an_enumeration_and_is_recorded_whole() -> None:
    @sgl.function
    def program(s: Any) -> str:
        s += sgl.gen("m", dtype=Mood)
        if s["m"] is Mood.GOOD:
            s += "yes" + sgl.gen("a")
            return "good"
        s += "no" + sgl.gen("b")
        return "bad"

    names = [type(op).__name__ for op in program.trace().ops]
    assert "HostCall" not in names
    assert "Switch" in names


def test_pictures_sections_and_reasoning_are_recorded_or_end_the_recording() -> None:
    @sgl.function
    def program(s: Any, q: str) -> None:
        with s.user():
            s += sgl.image(PNG) + sgl.section(q, name="question")
        s += sgl.assistant(sgl.gen("x"))
        s += sgl.separate_reasoning(sgl.gen("y"), "qwen3")

    ops = program.trace().ops
    assert [type(op).__name__ for op in ops] == [
        "Root", "RoleOpen", "Image", "ScopeBegin", "Append", "ScopeEnd", "RoleClose", "RoleOpen", "Gen",
        "RoleClose", "HostCall",
    ]  # fmt: skip
    assert "`separate_reasoning`" in str(getattr(ops[-1], "reason", ""))


def test_an_object_that_is_read_is_made_when_the_program_runs() -> None:
    @sgl.function(fullgraph=True)
    def program(s: Any) -> None:
        s += sgl.gen("m", dtype=Point)
        s += str(s["m"].x)

    made = [getattr(op, "name", "") for op in program.trace().ops if type(op).__name__ == "PureCall"]
    assert made[0].startswith("test_surface.Point of ")  # at the end, for the variable
    assert made[1].startswith("test_surface.Point of ")
    assert made[2:] == ["sglc.attribute", "str"]


@pytest.mark.parametrize(
    "add", [lambda s: s.__iadd__("more"), lambda s: s.__iadd__(sgl.gen("y")), lambda s: s.fork(2)]
)
def test_nothing_is_appended_to_a_state_whose_run_has_ended(add: Callable[[Any], Any]) -> None:
    kept = []

    @sgl.function
    def keeping(s: Any) -> None:
        s += "a" + sgl.gen("x")
        kept.append(s)

    result = keeping.run(backend=ScriptedBackend(lambda asked: "b"))
    assert result.text() == "ab"
    with pytest.raises(TraceError, match="the run of this state has ended") as refused:
        add(kept[0])
    assert refused.value.code == "SGLC157"
    assert (kept[0]["x"], kept[0].text()) == ("b", "ab")


class Debater:
    name = "Ann"

    @sgl.function
    def speak(s: Any, self: Any, topic: str) -> None:
        s += f"{self.name} on {topic}:" + sgl.gen("said")


def test_nothing_binds_the_self_of_a_program() -> None:
    with pytest.raises(UsageError, match="SGLC011") as refused:
        Debater().speak.run("tea", backend=says(said="x"))
    assert refused.value.hint == "nothing binds the `self` of a program: `Debater.speak.run(obj, ...)`"
    assert Debater.speak.run(Debater(), "tea", backend=says(said="x"))["said"] == "x"


@pytest.mark.parametrize("how", [{"max_paths": 500}, {"colour": "red"}])
def test_compile_refuses_what_nobody_knows(how: dict[str, Any]) -> None:
    @sgl.function
    def program(s: Any, q: str) -> None:
        s += q + sgl.gen("a")

    with pytest.raises(UsageError, match=f"SGLC011.*unexpected keyword argument `{next(iter(how))}`"):
        program.compile(ScriptedBackend(lambda asked: "x"), **how)
    assert program.compile(ScriptedBackend(lambda asked: "x"), seed=1, temperature=0.5, q="x") is not None


@pytest.mark.parametrize("how", [{"num_threads": 2}, {"ordered": False}, {"generator_style": False}])
def test_compile_takes_the_options_of_batches(how: dict[str, Any]) -> None:
    @sgl.function
    def program(s: Any, q: str) -> None:
        s += q + sgl.gen("a")

    compiled = program.compile(ScriptedBackend(lambda asked: "x"), **how)
    assert [result["a"] for result in compiled.run_batch([{"q": "1"}, {"q": "2"}])] == ["x", "x"]
