"""Programs in the style of SGLang's own suite, on the default model. The answers are a small model's;
what is checked is the language: variables, messages, control flow, constraints."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from sglc.lang.ir import REGEX_INT
from tests.small_default import says


@pytest.fixture(autouse=True)
def on_local(local: LocalBackend) -> Iterator[None]:
    sgl.set_default_backend(local)
    yield
    sgl.set_default_backend(None)


@pytest.mark.model
def test_few_shot_qa() -> None:
    @sgl.function
    def few_shot_qa(s, question):
        s += "The following are questions with answers.\n\n"
        s += "Q: What is the capital of France?\nA: Paris\n"
        s += "Q: What is the capital of Germany?\nA: Berlin\n"
        s += "Q: " + question + "\n"
        s += "A:" + sgl.gen("answer", stop="\n", temperature=0)

    state = few_shot_qa.run(question="What is the capital of Italy?", max_new_tokens=16)
    assert "rome" in state["answer"].lower()
    states = few_shot_qa.run_batch(
        [{"question": "What is the capital of Japan?"}, {"question": "What is the capital of Italy?"}],
        temperature=0.1,
        max_new_tokens=16,
    )
    assert [len(state["answer"]) > 0 for state in states] == [True, True]
    assert "rome" in states[1]["answer"].lower()


@pytest.mark.parametrize("spelling", ["expression", "method", "context"])
def test_mt_bench(spelling: str) -> None:
    @sgl.function
    def answer_mt_bench(s, question_1, question_2):
        s += sgl.system("You are a helpful assistant.")
        for question, name in ((question_1, "answer_1"), (question_2, "answer_2")):
            if spelling == "expression":
                s += sgl.user(question)
                s += sgl.assistant(sgl.gen(name))
            elif spelling == "method":
                s.user(question)
                s.assistant(sgl.gen(name))
            else:
                with s.user():
                    s += question
                with s.assistant():
                    s += sgl.gen(name)

    state = answer_mt_bench.run("Name a colour.", "Name another.", temperature=0, max_new_tokens=12)
    roles = [message["role"] for message in state.messages()]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert state.messages()[2]["content"] == state["answer_1"]
    assert state.messages()[4]["content"] == state["answer_2"]


def test_select() -> None:
    @sgl.function
    def true_or_false(s, statement):
        s += "Determine whether the statement below is True, False, or Unknown.\n"
        s += "Statement: The capital of France is Pairs.\nAnswer: True\n"
        s += "Statement: " + statement + "\n"
        s += "Answer:" + sgl.select("answer", ["True", "False", "Unknown"])

    state = true_or_false.run(statement="The capital of Germany is Berlin.")
    assert state["answer"] in ("True", "False", "Unknown")
    assert state.get_meta_info("answer")["normalized_prompt_logprobs"][0] < 0
    assert state.text().endswith("Answer:" + state["answer"])


def test_decode_int() -> None:
    @sgl.function
    def decode_int(s):
        s += "The number of hours in a day is " + sgl.gen_int("hours", max_tokens=4, temperature=0) + "\n"
        s += "The number of days in a week is " + sgl.gen_int("days", max_tokens=4, temperature=0)

    state = decode_int.run()
    assert re.fullmatch(REGEX_INT, state["hours"])
    assert int(state["hours"]) >= 0
    assert isinstance(int(state["days"]), int)


def test_decode_json_by_regex() -> None:
    @sgl.function
    def decode_json(s):
        s += "Generate a JSON object to describe the basic city information of Paris.\n"
        with s.var_scope("json_output"):
            s += "{\n"
            s += '  "name": "Paris",\n'
            s += '  "population": ' + sgl.gen(regex=REGEX_INT, max_tokens=8, temperature=0, stop="\n") + ",\n"
            s += '  "latitude": ' + sgl.gen(regex=r"[0-9]{1,2}\.[0-9]{2}", max_tokens=8, temperature=0) + "\n}"

    import json

    state = decode_json.run()
    found = json.loads(state["json_output"])
    assert found["name"] == "Paris"
    assert isinstance(found["population"], int)
    assert isinstance(found["latitude"], float)


@pytest.mark.model
def test_decode_json_by_dtype() -> None:
    @sgl.function
    def decode_json(s):
        s += "A city as JSON:\n"
        with s.var_scope("json_output"):
            s += '{"name": ' + sgl.gen_string(max_tokens=12, temperature=0) + ", "
            s += '"population": ' + sgl.gen_int(max_tokens=8, temperature=0) + "}"

    import json

    found = json.loads(decode_json.run()["json_output"])
    assert isinstance(found["name"], str)
    assert isinstance(found["population"], int)


def test_expert_answer() -> None:
    @sgl.function
    def expert_answer(s, question):
        s += "Question: " + question + "\n"
        s += (
            "A good person to answer this question is"
            + sgl.gen("expert", stop=[".", "\n"], max_tokens=8)
            + ".\n"
        )
        s += f"For example,{s['expert']} would answer that " + sgl.gen("answer", stop=".", max_tokens=12) + "."

    state = expert_answer.run(question="What is the capital of France?", temperature=0.1)
    assert state.text().count(state["expert"]) >= 2
    assert state.text().endswith(f"would answer that {state['answer']}.")


def test_tool_use() -> None:
    calls = []

    def calculate(expression: str) -> str:
        calls.append(expression)
        return f"{eval(expression, {'__builtins__': {}})}"  # of a text that a regex has bounded

    @sgl.function
    def tool_use(s, lhs, rhs):
        s += "Please perform computations using a calculator.\n"
        s += "calculate(1+2)=3\ncalculate(12+30)=42\n"
        with s.var_scope("call"):
            s += f"calculate({lhs}" + sgl.gen("rest", regex=r"\+[0-9]{1,3}", max_tokens=6, temperature=0) + ")"
        expression = re.search(r"\((.*)\)", s["call"]).group(1)
        s += f"={calculate(expression)}"

    text = tool_use.run(lhs=5, rhs=53).text()
    assert len(calls) == 1
    assert text.endswith(f"calculate({calls[0]})={eval(calls[0])}")


def test_react() -> None:
    @sgl.function
    def react(s, question):
        s += f"Question: {question}\n"
        for i in range(1, 4):
            s += f"Thought {i}:" + sgl.gen(f"thought_{i}", stop="\n", max_tokens=10, temperature=0) + "\n"
            s += f"Action {i}: " + sgl.select(f"action_{i}", choices=["Search", "Finish"]) + "\n"
            if s[f"action_{i}"] == "Search":
                s += f"Observation {i}: nothing found\n"
            elif s[f"action_{i}"] == "Finish":
                s += "Answer:" + sgl.gen("answer", stop="\n", max_tokens=8, temperature=0) + "\n"
                break

    state = react.run(question="What country does the creator of Linux live in?")
    rounds = sum(name.startswith("action_") for name in state.variables)
    finished = state[f"action_{rounds}"] == "Finish"
    assert ("answer" in state) == finished
    assert all(state[f"action_{i}"] == "Search" for i in range(1, rounds))
    assert rounds == 3 or finished


def test_parallel_decoding() -> None:
    @sgl.function
    def parallel_decoding(s, topic):
        s += f"Act as a helpful assistant. Give a tip about {topic}.\n"
        forks = s.fork(5)
        forks += lambda i: f"Tip {i + 1}:" + sgl.gen("tip", max_tokens=8, stop=["\n"], temperature=0.7)
        forks.join()
        s += "Summary:"
        for i in range(5):
            s += f"\n{i + 1}.{s['tip'][i]}"
        s += "\nIn short," + sgl.gen("summary", max_tokens=8)

    state = parallel_decoding.run(topic="writing a good blog post")
    assert len(state["tip"]) == 5
    for i, tip in enumerate(state["tip"]):
        assert f"\n{i + 1}.{tip}" in state.text()


def test_parallel_encoding() -> None:
    @sgl.function
    def answer(s, question, contexts):
        s += "Context:\n"
        forks = s.fork(len(contexts))
        forks += lambda i: contexts[i] + "\n"
        forks.join(mode="concate_and_append")
        s += "Question: " + question + "\nAnswer:" + sgl.gen("answer", stop="\n", max_tokens=10, temperature=0)

    contexts = ["The sky over Oz is green.", "Oz has two moons."]
    state = answer.run(question="What colour is the sky over Oz?", contexts=contexts)
    assert state.text().startswith("Context:\n" + "\n".join(contexts) + "\nQuestion:")
    assert says(state["answer"], "green")


def test_regex_of_an_address() -> None:
    regex = r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"

    @sgl.function
    def regex_gen(s):
        s += "Q: What is the IP address of the Google DNS servers?\n"
        s += "A: " + sgl.gen("answer", temperature=0, regex=regex, max_tokens=20)

    assert re.match(regex, regex_gen.run()["answer"])


def test_dtype_gen() -> None:
    @sgl.function
    def dtype_gen(s):
        s += "Q: What is the full name of DNS?\nA: The full name is " + sgl.gen(
            "str_res", dtype=str, max_tokens=14
        )
        s += "\nQ: Which port does DNS use?\nA: " + sgl.gen("int_res", dtype=int, max_tokens=6)
        s += "\nQ: What is the square root of 2?\nA: " + sgl.gen("float_res", dtype=float, max_tokens=8)
        s += "\nQ: Is the earth flat?\nA: " + sgl.gen("bool_res", dtype=bool)

    state = dtype_gen.run(temperature=0)
    assert state["str_res"].startswith('"')
    int(state["int_res"])
    float(state["float_res"])
    assert state["bool_res"] in ("True", "False")


def test_gen_min_new_tokens() -> None:
    @sgl.function
    def convo(s, name):
        s.user("Hi!")
        s.assistant(sgl.gen(name, min_tokens=24, max_tokens=32, temperature=0))

    state = convo.run("long")
    assert len(state.calls[0].samples[0].ids) >= 24


def test_stream() -> None:
    @sgl.function
    def qa(s, question):
        s += sgl.system("You are a helpful assistant.")
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=12, temperature=0))

    state = qa.run(question="What is the capital of France?", stream=True)
    everything = "".join(state.text_iter())
    assert everything == state.text()
    state = qa.run(question="What is the capital of France?", stream=True)
    pieces = list(state.text_iter("answer"))
    assert "".join(pieces) == state["answer"]
    assert len(pieces) > 3


def test_stream_with_meta_data() -> None:
    import asyncio

    @sgl.function
    def qa(s, question):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=8, temperature=0, return_logprob=True))

    async def collect() -> tuple[str, int]:
        state = qa.run(question="Name a colour.", stream=True)
        text, logprobs = "", 0
        async for chunk, meta in state.text_async_iter("answer", return_meta_data=True):
            text += chunk
            logprobs += len(meta["output_token_logprobs"])
        assert text == state["answer"]
        return text, logprobs

    text, logprobs = asyncio.run(collect())
    assert text
    assert logprobs > 0


def test_n_samples() -> None:
    @sgl.function
    def several(s):
        s += "A name for a cat:" + sgl.gen("name", n=3, max_tokens=4, temperature=1.0)

    state = several.run(seed=3)
    assert len(state["name"]) == 3
    assert state.text() == "A name for a cat:" + state["name"][0]


def test_bind() -> None:
    @sgl.function
    def greet(s, greeting, name):
        s += f"{greeting}, {name}!" + sgl.gen("x", max_tokens=2)

    hello = greet.bind(greeting="Hello")
    rows = [{"name": "Ann"}, {"name": "Bob"}]
    states = hello.run_batch(rows)
    assert [
        state.text().startswith(f"Hello, {name}!") for state, name in zip(states, ("Ann", "Bob"), strict=True)
    ]
    assert rows == [{"name": "Ann"}, {"name": "Bob"}]


def test_a_method_of_choosing_of_one_s_own() -> None:
    seen: list[dict[str, object]] = []

    class Worst(ChoicesSamplingMethod):
        requires_unconditional_logprobs = True

        def __call__(self, **scored):
            seen.append(scored)
            scores = list(scored["normalized_prompt_logprobs"])
            return ChoicesDecision(scored["choices"][scores.index(min(scores))])

    @sgl.function
    def capital(s):
        s += "The capital of France is"
        s += sgl.select("city", choices=[" Paris", " a banana"], choices_method=Worst())
        s += "!" + sgl.gen("more", max_tokens=2)

    state = capital.run()
    assert state["city"] == " a banana"
    assert state.text().startswith("The capital of France is a banana!")
    (scored,) = seen
    means = [sum(lp for lp, _, _ in tokens) / len(tokens) for tokens in scored["input_token_logprobs"]]  # type: ignore[attr-defined]
    assert means == pytest.approx(scored["normalized_prompt_logprobs"])
    assert [[id_ for _, id_, _ in tokens] for tokens in scored["unconditional_token_logprobs"]] == [  # type: ignore[attr-defined]
        [id_ for _, id_, _ in tokens]
        for tokens in scored["input_token_logprobs"]  # type: ignore[attr-defined]
    ]


def test_a_look_at_the_next_token() -> None:
    @sgl.function
    def paths(s, question, ways):
        s += sgl.user(question)
        s += sgl.assistant_begin()
        look = s.fork(1)[0]
        forks = s.fork(ways)
        look += sgl.gen(
            "look", max_tokens=0, return_logprob=True, top_logprobs_num=ways, return_text_in_logprobs=True
        )
        tops = look.get_meta_info("look")["output_top_logprobs"][0]
        for fork, (_, _, text) in zip(forks, tops, strict=True):
            fork += text + sgl.gen("answer", max_tokens=4, temperature=0)
            assert str(fork) == f"ProgramState({fork.text()})"
        forks.join()
        return look["look"], tops

    state = paths.run("What is 2 + 2?", 3)
    text, tops = state.ret_value
    assert text == ""
    assert [logprob for logprob, _, _ in tops] == sorted((logprob for logprob, _, _ in tops), reverse=True)
    assert len({first for _, _, first in tops}) == len(state["answer"]) == 3
