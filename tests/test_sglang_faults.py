"""The faults of SGLang's frontend (0.5.23) that a user of it knows, each shown to be absent here.

B1, B2, B8, B9 are in test_run_surface.py, B3 and B4 in test_streaming.py; B24 is what
benchmarks/frontend.py measures, and its thread count is here.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.errors import SglcError, TraceError, UsageError
from sglc.ir.core import walk
from sglc.ir.ops import Cond, Gen, HostCall
from tests.oracle_backend import OracleBackend


class Recording(ScriptedBackend):
    """Scripted answers, and every prompt that was asked with."""

    def __init__(self, answer: Callable[[Asked], str | None] = lambda asked: f"<{asked.site.name}>") -> None:
        self.prompts: dict[str, list[str]] = {}
        super().__init__(self._remember)
        self._given = answer

    def _remember(self, asked: Asked) -> str | None:
        self.prompts.setdefault(asked.site.name, []).append(asked.prompt)
        return self._given(asked) if not asked.choices else asked.choices[0]


@pytest.fixture
def scripted() -> Recording:
    return Recording()


@pytest.fixture
def oracle() -> Iterator[OracleBackend]:
    backend = OracleBackend()
    yield backend
    backend.close()


def test_b5_branches_are_appended_as_text(scripted: Recording) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "All:"
        forks = s.fork(2)
        forks += lambda i: f" {i}" + sgl.gen("x")
        forks.join(mode="concate_and_append")
        s += "." + sgl.gen("y")

    assert program.run(backend=scripted).text() == "All: 0<x> 1<x>.<y>"


def test_b6_several_samples_are_a_list(scripted: Recording) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x", n=3) + "!" + sgl.gen("y")

    backend = Recording(lambda asked: f"{asked.site.name}{asked.sample}")
    result = program.run(backend=backend)
    assert result["x"] == ["x0", "x1", "x2"]
    assert result.text() == "x0!y0"


def test_b7_a_fork_computes_its_prefix_once(oracle: OracleBackend) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "the beginning that all fifty of them share, " * 4
        for i, fork in enumerate(s.fork(50)):
            fork += f"{i:02}" + sgl.gen("x", max_tokens=2)

    shared = len("the beginning that all fifty of them share, " * 4)
    usage = program.run(backend=oracle).usage
    assert usage.calls == 50
    assert usage.computed <= shared + 50 * 8  # a page of four and the two digits behind it, each


def test_b10_a_system_turn_stands_before_every_generation(scripted: Recording) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.system("Be brief.")
        for name in ("a", "b", "c"):
            s += sgl.user("Next?") + sgl.assistant(sgl.gen(name))

    program.run(backend=scripted).sync()
    assert [("Be brief." in prompt) for prompts in scripted.prompts.values() for prompt in prompts] == [
        True
    ] * 3


def test_b11_text_in_an_open_turn_is_kept(scripted: Recording) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Weather?")
        s += sgl.assistant("In short: " + sgl.gen("x") + ", and " + sgl.gen("y"))

    result = program.run(backend=scripted)
    assert result.messages()[-1] == {"role": "assistant", "content": "In short: <x>, and <y>"}
    assert scripted.prompts["x"][0].endswith("assistant\nIn short: ")
    assert scripted.prompts["y"][0].endswith("In short: <x>, and ")


@pytest.mark.parametrize("argument", ["tempreture", "best_of", "lora_path"])
def test_b12_what_is_unknown_is_refused(scripted: Recording, argument: str) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x")

    with pytest.raises(UsageError, match=f"`{argument}`"):
        program.run(backend=scripted, **{argument: 1})
    with pytest.raises(TypeError, match=argument):
        sgl.gen("x", **{argument: 1})


def test_b13_a_chat_turn_of_several_generations_is_right_in_every_row() -> None:
    @sgl.function(num_api_spec_tokens=256)
    def character(s: Any, who: str) -> None:
        s += sgl.user(f"Invent {who}.")
        s += sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job"))

    backend = Recording(lambda asked: f" {asked.site.name} of {asked.prompt.split('Invent ')[1][:1]}\nmore")
    results = character.run_batch([("A",), ("B",), ("C",)], backend=backend)
    assert [(one["name"], one["job"]) for one in results] == [
        (f" name of {who}", f" job of {who}\nmore") for who in "ABC"
    ]
    assert [one.messages()[-1]["content"] for one in results] == [
        f"Name: name of {who}\nJob: job of {who}\nmore" for who in "ABC"
    ]


def test_b14_a_program_for_speculation_runs_anywhere_and_keeps_its_limits(scripted: Recording) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: Any) -> None:
        s += "Name:" + sgl.gen("name", max_tokens=2) + "\nJob:" + sgl.gen("job", stop="\n")

    backend = Recording(lambda asked: " one two three" if asked.site.name == "name" else " none\nmore")
    result = program.run(backend=backend)
    assert (result["name"], result["job"]) == (" one two", " none")
    assert result.text() == "Name: one two\nJob: none"


def test_b15_open_scopes_and_turns(scripted: Recording) -> None:
    seen: list[Any] = []

    @sgl.function
    def program(s: Any) -> None:
        with s.var_scope("v"):
            s += "a"
            seen.append("v" in s)
            with s.var_scope("w"):
                s += "b" + sgl.gen("x")
        seen.append((s["v"], s["w"]))
        try:
            with s.user():
                s += "half"
                raise KeyError("x")
        except KeyError:
            pass
        s += sgl.assistant(sgl.gen("y"))

    result = program.run(backend=scripted)
    assert result.error() is None
    assert seen == [False, ("ab<x>", "b<x>")]
    assert [turn["role"] for turn in result.messages()] == ["user", "assistant"]

    @sgl.function
    def unopened(s: Any) -> None:
        s += "text"
        s += sgl.assistant_end()

    error = unopened.run(backend=scripted).error()
    assert isinstance(error, TraceError)
    assert error.loc is not None


def test_b16_a_fork_goes_on_in_the_open_turn(scripted: Recording) -> None:
    @sgl.function(num_api_spec_tokens=8)
    def program(s: Any) -> None:
        with s.user():
            s += "Begin"
            fork = s.fork(1)[0]
            fork += ", and end."
        fork += sgl.user_end()
        fork += sgl.assistant(sgl.gen("x"))
        s.join([fork])
        assert fork.messages()[0] == {"role": "user", "content": "Begin, and end."}

    result = program.run(backend=scripted)
    assert result.error() is None
    assert result["x"] == ["<x>"]


PIXEL = "data:image/png;base64,iVBORw0KGgo="


def test_b16_a_fork_in_an_open_turn_keeps_its_pictures(scripted: Recording) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.user_begin()
        s += sgl.image(PIXEL) + "What is it?"
        fork = s.fork(1)[0]
        fork += sgl.user_end() + sgl.assistant(sgl.gen("x"))
        return fork.messages()[0]["content"]

    content = program.run(backend=scripted).ret_value
    assert [part["type"] for part in content] == ["image_url", "text"]
    assert "<image>What is it?" in scripted.prompts["x"][0]


def test_b19_several_pictures_in_one_request(scripted: Recording) -> None:
    @sgl.function
    def program(s: Any, one: str, two: str) -> None:
        s += sgl.user("Compare " + sgl.image(one) + " with " + sgl.image(two))
        s += sgl.assistant(sgl.gen("x"))

    result = program.run(PIXEL, "https://example.org/two.png", backend=scripted)
    parts = result.messages()[0]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "text", "image_url"]
    assert parts[1]["image_url"]["url"] == PIXEL
    assert "Compare <image> with <image>" in scripted.prompts["x"][0]


def test_b18_reasoning_leaves_the_text_beside_it(scripted: Recording) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Well?")
        s += sgl.assistant(
            sgl.separate_reasoning(
                "Answer: " + sgl.gen("x") + ", and " + sgl.gen("y") + ".", model_type="qwen3"
            )
        )

    backend = Recording(lambda asked: f"<think>about {asked.site.name}</think>{asked.site.name}!")
    result = program.run(backend=backend)
    assert result.messages()[-1]["content"] == "Answer: x!, and y!."
    assert result["x"] == "x!"
    assert result["y_reasoning_content"] == "about y"
    assert "think" not in backend.prompts["y"][0]


def test_b17_a_choice_behind_one_token_and_of_one_token(oracle: OracleBackend) -> None:
    @sgl.function
    def program(s: Any, method: Any) -> None:
        s += "Q"
        s += sgl.select("x", choices=["a", "ab", "b"], choices_method=method)

    for method in (
        sgl.token_length_normalized,
        sgl.greedy_token_selection,
        sgl.unconditional_likelihood_normalized,
    ):
        result = program.run(method, backend=oracle)
        assert result["x"] in ("a", "ab", "b")
        call = result.calls[0]
        assert [len(logprobs) for logprobs in call.logprobs] == [1, 2, 1]
        if method is sgl.token_length_normalized:
            means = [sum(logprobs) / len(logprobs) for logprobs in call.logprobs]
            assert result["x"] == ["a", "ab", "b"][means.index(max(means))]


def test_b20_the_model_s_own_template_is_used(local: LocalBackend) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("x", max_tokens=1))

    text = program.run(backend=local).text()
    assert "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" in text
    assert "USER:" not in text


def test_b21_everything_can_be_traced() -> None:
    @sgl.function
    def expand(s: Any, tip: str) -> None:
        s += "Expand: " + tip + sgl.gen("more")

    @sgl.function
    def program(s: Any, topic: str) -> None:
        with s.user():
            s += f"Tips for {topic}"
        s.assistant(sgl.gen("tip"))
        s.user("More")
        with s.assistant(), s.var_scope("both"):
            forks = s.fork(2)
            forks += "x" + sgl.gen("part")
            forks.join()
            s += sgl.gen("end")
        s.set_var("set", "by hand")
        branch = expand(tip=s["tip"])
        s += sgl.user("So: " + branch["more"])
        return s["both"]

    traced = program.trace()
    assert not [op for op in walk(traced.ops) if isinstance(op, HostCall)]
    names = [op.site.name for op in walk(traced.ops) if isinstance(op, Gen)]
    assert names == ["tip", "part", "part", "end"]


def test_b22_control_flow_is_never_guessed() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "Well?" + sgl.gen("x")
        if s["x"] == "yes":
            s += "Good." + sgl.gen("y")
        else:
            s += "Bad." + sgl.gen("z")

    traced = program.trace()
    assert [op.site.name for op in walk(traced.ops) if isinstance(op, Gen)] == ["x", "y", "z"]
    (branch,) = [op for op in walk(traced.ops) if isinstance(op, Cond)]
    assert branch.loc.line == program.definition.loc.line + 2
    for answer, name in (("yes", "y"), ("no", "z")):
        backend = Recording(lambda asked, answer=answer: answer)  # type: ignore[misc]
        assert list(program.run(backend=backend).variables) == ["x", name]


def test_b23_a_body_runs_once_a_row(scripted: Recording) -> None:
    prompts = {"en": "Hello", "fr": "Bonjour"}
    runs: list[str] = []

    @sgl.function
    def program(s: Any, lang: str) -> None:
        runs.append(lang)
        s += prompts[lang] * 100
        s += sgl.gen("x")

    rows = [{"lang": random.Random(i).choice(["en", "fr"])} for i in range(20)]
    results = program.run_batch(rows, backend=scripted)
    assert [result["x"] for result in results] == ["<x>"] * 20
    assert sorted(runs) == sorted(row["lang"] for row in rows)


def test_b24_branches_take_no_threads(scripted: Recording) -> None:
    peak = [0]

    @sgl.function
    def program(s: Any, i: int) -> None:
        forks = s.fork(8)
        forks += f"{i}" + sgl.gen("x")
        forks.join()
        peak[0] = max(peak[0], threading.active_count())

    before = threading.active_count()
    results = program.run_batch([{"i": i} for i in range(300)], backend=scripted, num_threads=16)
    assert [result.error() for result in results] == [None] * 300
    assert peak[0] <= before + 16 + 2  # the window, the executor, and what watches the window


def test_errors_name_the_site(scripted: Recording) -> None:
    backend = Recording(lambda asked: None if asked.site.fork == (1,) else "fine")

    @sgl.function
    def program(s: Any) -> Any:
        forks = s.fork(3)
        forks += "x" + sgl.gen("x")
        forks.join()
        return s["x"]

    result = program.run(backend=backend)
    error = result.error()
    assert isinstance(error, SglcError)
    assert "program[1].x" in error.message
    assert result.variables["x"] == ["fine", None, "fine"]  # a failed branch leaves the others where they are
