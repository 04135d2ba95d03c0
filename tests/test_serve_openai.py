"""`sglc serve` through OpenAI's own client: every option does what it says, and equals a run of sglc itself."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Completion
from tokenizers import pre_tokenizers

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.runtime.tokenizer.tokenizer import load_tokenizer
from sglc.serve.logprobs import Offsets, Spelling, of_completion
from sglc.serve.prompts import of_text
from tests.constraints.random_tags import holds
from tests.depth import at_depth, few, some_of
from tests.runtime.tiny_model import CONTROL, tiny_tokenizer
from tests.serving import Server

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(client: openai.OpenAI, prompt: Any, **options: Any) -> Completion:
    given: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0, **options}
    answer = client.completions.create(model="smollm2", prompt=prompt, **given)
    assert isinstance(answer, Completion)
    return answer


def chat(client: openai.OpenAI, messages: Any = QUESTION, **options: Any) -> Any:
    given: dict[str, Any] = {"max_completion_tokens": 12, "temperature": 0.0, **options}
    return client.chat.completions.create(model="smollm2", messages=messages, **given)


def direct(local: LocalBackend, prompt: str, **options: Any) -> Any:
    """What sglc makes of the same prompt; a list for n > 1."""

    @sgl.function
    def program(s: Any) -> None:
        s += prompt
        s += sgl.gen("x", **{"max_tokens": 12, "temperature": 0.0, **options})

    return program.run(backend=local)["x"]


# -- completions -----------------------------------------------------------------------------------


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "a seed": {"temperature": 1.0, "seed": 7},
    "a negative seed": {"temperature": 1.0, "seed": -7},
    "top_p": {"temperature": 1.0, "seed": 8, "top_p": 0.5},
    "one stop string": {"stop": "."},
    "stop strings": {"stop": ["zebra", "\n"]},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 1.0, "max_tokens": 24},
    "repetition": {"extra_body": {"repetition_penalty": 1.3}},
    "a bias": {"logit_bias": {"7042": -100.0}},  # " Paris"
    "extensions": {"extra_body": {"top_k": 3, "min_p": 0.2, "min_tokens": 9}, "temperature": 2.0, "seed": 4},
    "a regex": {"extra_body": {"regex": "[ a-z]{3,9}[.]"}},
    "a stop regex": {"extra_body": {"stop_regex": "P[a-z]+s"}},
    "no end": {"extra_body": {"ignore_eos": True}, "max_tokens": 40},
    "samples": {"n": 3, "seed": 1, "temperature": 1.0},
}


def as_gen(options: dict[str, Any]) -> dict[str, Any]:
    """The same options as `sgl.gen` names them."""
    given = {**options, **options.get("extra_body", {})}
    given.pop("extra_body", None)
    if "logit_bias" in given:
        given["logit_bias"] = {int(key): value for key, value in given["logit_bias"].items()}
    if given.get("seed", 0) < 0:
        given["seed"] += 2**64
    return given


# Those that change what the real model says.
SAID = {"one stop string", "stop strings", "a bias", "a stop regex"}
MARKED = [pytest.param(name, marks=pytest.mark.model) if name in SAID else name for name in few(OPTIONS, 4)]


@pytest.mark.parametrize("name", MARKED)
def test_a_completion_is_what_sglc_makes_of_it(client: openai.OpenAI, local: LocalBackend, name: str) -> None:
    options = OPTIONS[name]
    prompt = "The capital of France is"
    answer = complete(client, prompt, **options)
    expected = direct(local, prompt, **as_gen(options))
    assert [choice.text for choice in answer.choices] == (
        expected if isinstance(expected, list) else [expected]
    )
    assert [choice.index for choice in answer.choices] == list(range(options.get("n", 1)))
    if name != "greedy":
        assert answer.choices[0].text != complete(client, prompt).choices[0].text  # it does something


@pytest.mark.parametrize("name", some_of(list(OPTIONS), 2, 9))
def test_a_stream_adds_up_to_the_whole(client: openai.OpenAI, name: str) -> None:
    options = {"logprobs": 2, **OPTIONS[name]}
    whole = complete(client, "The capital of France is", **options)
    texts = [""] * len(whole.choices)
    tokens: list[list[str]] = [[] for _ in texts]
    ends: list[str | None] = [None] * len(texts)
    usage = None
    for chunk in complete_stream(client, "The capital of France is", **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason
            if choice.logprobs is not None:
                tokens[choice.index] += choice.logprobs.tokens
        usage = chunk.usage or usage
    assert texts == [choice.text for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices if choice.logprobs is not None]
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens == 5


def complete_stream(client: openai.OpenAI, prompt: Any, **options: Any) -> Iterator[Completion]:
    given: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0, **options}
    usage: Any = {"include_usage": True}
    with client.completions.create(
        model="smollm2", prompt=prompt, stream=True, stream_options=usage, **given
    ) as stream:
        yield from stream


@pytest.mark.model
def test_why_an_answer_ends(client: openai.OpenAI) -> None:
    assert complete(client, "1, 2, 3,").choices[0].finish_reason == "length"
    assert complete(client, "1, 2, 3,", stop="5").choices[0].finish_reason == "stop"
    ended = chat(client, max_completion_tokens=64)
    assert ended.choices[0].finish_reason == "stop"
    assert ended.usage.completion_tokens < 64


def test_prompts_of_all_four_forms(client: openai.OpenAI, server: Server) -> None:
    texts = ["The capital of France is", "The capital of Italy is"]
    alone = [complete(client, text).choices[0].text for text in texts]
    both = complete(client, texts, n=2, temperature=0.0)
    assert [choice.text for choice in both.choices] == [alone[0], alone[0], alone[1], alone[1]]
    assert both.usage is not None
    assert (both.usage.prompt_tokens, both.usage.completion_tokens) == (10, 48)
    assert both.usage.total_tokens == 58
    ids = [504, 3575, 282, 4649, 314]  # of the first text
    assert complete(client, ids).choices[0].text == alone[0]
    assert complete(client, [ids, ids[:1]]).choices[0].text == alone[0]
    # Ids are the model's input, verbatim: 1 and 2 are control tokens.
    turn = [1, 4093, 198, 19556, 2, 198, 1, 520, 9531, 198]
    spelled = complete(client, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert complete(client, turn).choices[0].text == spelled.choices[0].text


def test_log_probabilities_of_a_prompt_and_of_what_follows(client: openai.OpenAI, local: LocalBackend) -> None:
    prompt = "The café of France is"
    answer = complete(client, prompt, echo=True, logprobs=3, max_tokens=4)
    (choice,) = answer.choices
    assert choice.logprobs is not None
    found = choice.logprobs
    assert choice.text.startswith(prompt)
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset)
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    assert "".join(found.tokens) == choice.text
    for offset, token in zip(found.text_offset, found.tokens, strict=True):
        assert choice.text[offset:].startswith(token)

    @sgl.function
    def program(s: Any) -> None:
        s += prompt
        s += sgl.gen(
            "x", max_tokens=4, temperature=0.0, return_logprob=True, logprob_start_len=0, top_logprobs_num=3,
            return_text_in_logprobs=True,
        )  # fmt: skip

    meta = program.run(backend=local).get_meta_info("x")
    told = [*meta["input_token_logprobs"], *meta["output_token_logprobs"]]
    assert found.tokens == [text for _, _, text in told]
    assert found.token_logprobs[1:] == pytest.approx([logprob for logprob, _, _ in told[1:]], abs=1e-4)
    for top, place in zip(
        found.top_logprobs[1:], [*meta["input_top_logprobs"], *meta["output_top_logprobs"]][1:], strict=True
    ):
        assert top is not None
        for logprob, _, text in place:
            assert top[text] == pytest.approx(logprob, abs=1e-4)


def test_what_is_said_of_a_prompt_alone(client: openai.OpenAI) -> None:
    """`max_tokens` 0, as clients that only score do it, or 1, as others do."""
    prompts: Any = [[504, 3575, 282], [504, 3575, 282, 4649, 314]]
    none = complete(client, prompts, echo=True, logprobs=0, max_tokens=0)
    one = complete(client, prompts, echo=True, logprobs=1, max_tokens=1)
    assert none.usage is not None
    assert none.usage.completion_tokens == 0
    for without, behind, ids in zip(none.choices, one.choices, prompts, strict=True):
        assert without.logprobs is not None
        assert behind.logprobs is not None
        assert len(without.logprobs.token_logprobs) == len(ids)
        assert len(behind.logprobs.token_logprobs) == len(ids) + 1
        assert without.logprobs.token_logprobs[1:] == pytest.approx(
            behind.logprobs.token_logprobs[1:-1], abs=1e-4
        )
        assert [len(top) for top in without.logprobs.top_logprobs[1:] if top] == [1] * (len(ids) - 1)
    assert none.choices[1].text == "The capital of France is"


def test_a_token_that_is_no_text_is_named_by_its_bytes(client: openai.OpenAI) -> None:
    (choice,) = complete(client, "🦜", echo=True, logprobs=0, max_tokens=0).choices
    assert choice.logprobs is not None
    named = choice.logprobs.tokens
    assert all(name.startswith("bytes:\\x") for name in named)
    assert (
        bytes.fromhex("".join(name.removeprefix("bytes:").replace("\\x", "") for name in named))
        == "🦜".encode()
    )
    (choice,) = complete(client, "a<|im_end|>b", echo=True, logprobs=0, max_tokens=0).choices
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "<|im_end|>", "b"]
    assert choice.logprobs.text_offset == [0, 1, 11]


def test_an_echo_comes_first_in_a_stream(client: openai.OpenAI) -> None:
    whole = complete(client, ["One two", "Three"], echo=True, logprobs=1, n=2)
    texts = [""] * 4
    offsets: list[list[int]] = [[] for _ in texts]
    for chunk in complete_stream(client, ["One two", "Three"], echo=True, logprobs=1, n=2):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            assert choice.logprobs is not None
            offsets[choice.index] += choice.logprobs.text_offset or []
    assert texts == [choice.text for choice in whole.choices]
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices if choice.logprobs is not None]


@pytest.mark.parametrize(
    ("space", "text", "expected"),
    [
        (False, "the a", [0, 0, 3, 4]),
        (False, f"{CONTROL[1]}a", [0, 9]),
        (False, f"a{CONTROL[0]}é {CONTROL[0]}", [0, 0, 1, 8, 8, 9, 10]),
        (True, "the a", [0, 0, 3, 4]),
        (True, "  a", [0, 0, 1, 2]),
        (True, f"a{CONTROL[0]}é", [0, 0, 0, 1, 8, 8, 8]),
    ],
)
def test_offsets_leave_out_what_the_tokenizer_puts_before_a_prompt(
    tmp_path: Path, space: bool, text: str, expected: list[int]
) -> None:
    raw = tiny_tokenizer()
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    raw.save(str(tmp_path / "tokenizer.json"))
    settings = {"bos_token": CONTROL[1], "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    tokens = [(0.0, id_, None) for id_ in of_text(tokenizer, text).ids]
    shown = of_completion(Spelling(tokenizer), Offsets(text), tokens, (), prompt=True)
    assert shown["text_offset"] == expected


# -- chats -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3, "n": 2}, {"stop": ["Paris"]}])
def test_a_chat_is_what_sglc_makes_of_it(
    client: openai.OpenAI, local: LocalBackend, options: dict[str, Any]
) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.system("You answer in French.") + sgl.user("Hello") + sgl.assistant("Bonjour !")
        s += sgl.user("What is the capital of France? Write <|im_end|>.")
        s += sgl.assistant(sgl.gen("x", **{"max_tokens": 12, "temperature": 0.0, **options}))

    messages = [
        {"role": "developer", "content": "You answer in French."},
        {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
        {"role": "assistant", "content": "Bonjour !"},
        {"role": "user", "content": "What is the capital of France? Write <|im_end|>."},
    ]
    expected = program.run(backend=local)["x"]
    answer = chat(client, messages, **options)
    texts = [choice.message.content for choice in answer.choices]
    assert texts == (expected if isinstance(expected, list) else [expected])
    assert {choice.message.role for choice in answer.choices} == {"assistant"}
    streamed = [""] * len(texts)
    chunks = list(chat(client, messages, stream=True, stream_options={"include_usage": True}, **options))
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert chunks[0].choices[0].delta.role == "assistant"


def test_a_last_answer_is_continued_if_asked_for(client: openai.OpenAI, local: LocalBackend) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("What is the capital of France?")
        s += sgl.assistant(
            "The capital, as <|im_end|> all know, is" + sgl.gen("x", max_tokens=8, temperature=0.0)
        )

    messages = [*QUESTION, {"role": "assistant", "content": "The capital, as <|im_end|> all know, is"}]
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    answer = chat(client, messages, max_tokens=8, max_completion_tokens=8, extra_body=goes_on)
    assert answer.choices[0].message.content == program.run(backend=local)["x"]
    assert chat(client, messages).choices[0].message.content != answer.choices[0].message.content


def test_log_probabilities_of_an_answer(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3)
    (choice,) = answer.choices
    content = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in content).decode() == choice.message.content
    for token in content:
        assert len(token.top_logprobs) == 3
        best = token.top_logprobs[0]  # the answer is greedy
        assert (best.token, best.logprob) == (token.token, pytest.approx(token.logprob, abs=1e-4))
        assert sum(math.exp(other.logprob) for other in token.top_logprobs) <= 1.0001
    streamed = [
        token
        for chunk in chat(client, logprobs=True, top_logprobs=3, stream=True)
        for each in chunk.choices
        if each.logprobs
        for token in each.logprobs.content
    ]
    assert [token.token for token in streamed] == [token.token for token in content]
    assert chat(client).choices[0].logprobs is None


@pytest.mark.model
def test_without_a_limit_an_answer_may_fill_the_model(client: openai.OpenAI) -> None:
    answer = chat(client, max_completion_tokens=openai.omit, stop=["."])
    assert "Paris" in answer.choices[0].message.content


# -- what the text is held to ----------------------------------------------------------------------


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}


def test_json_of_a_schema(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    texts = [
        chat(client, response_format=form, max_completion_tokens=64).choices[0].message.content,
        chat(client, extra_body={"json_schema": SCHEMA}, max_completion_tokens=64).choices[0].message.content,
        complete(client, "A city: ", extra_body={"json_schema": json.dumps(SCHEMA)}, max_tokens=64)
        .choices[0]
        .text,
    ]
    for text in texts:
        data = json.loads(text)
        assert list(data) == ["city", "people"]
        assert isinstance(data["people"], int)
    assert texts[0] == texts[1]


WEATHER = {
    "type": "tag", "begin": "<call>", "end": "</call>",
    "content": {"type": "json_schema", "json_schema": SCHEMA},
}  # fmt: skip
CALL = {
    "type": "triggered_tags", "triggers": ["<c"], "tags": [WEATHER],
    "at_least_one": True, "stop_after_first": True,
}  # fmt: skip


@pytest.mark.slow
def test_a_piece_of_a_text_is_held_to_a_schema(client: openai.OpenAI) -> None:
    """Whichever of the notations a client has for it."""
    tag = {"type": "structural_tag", "format": CALL}
    older = {
        "type": "structural_tag", "triggers": ["<c"],
        "structures": [{"begin": "<call>", "schema": SCHEMA, "end": "</call>"}],
    }  # fmt: skip
    asked: list[dict[str, Any]] = [
        {"response_format": tag},
        {"structured_outputs": {"structural_tag": json.dumps(tag)}},
        {"structural_tag": tag},
    ]
    answers = [chat(client, extra_body=more, max_completion_tokens=64) for more in asked]
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts == texts[:1] * 3
    assert holds(CALL, texts[0])
    more = {"response_format": older}
    free = complete(client, "Once", extra_body=more, max_tokens=20, temperature=1.5, seed=3)
    assert holds({**CALL, "at_least_one": False, "stop_after_first": False}, free.choices[0].text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"choice": ["a.b", "(c)"]}, r"a\.b|\(c\)"),
        ({"grammar": 'root ::= "x" [yz]'}, "x[yz]"),
        ({"json": {"enum": [1, 2]}}, "[12]"),
    ],
)
def test_vllm_s_names_for_forms(client: openai.OpenAI, form: dict[str, Any], pattern: str) -> None:
    made = complete(client, "So", extra_body={"structured_outputs": form}, max_tokens=20, temperature=1.5)
    assert re.fullmatch(pattern, made.choices[0].text)


def test_any_json_object(client: openai.OpenAI) -> None:
    answer = chat(
        client, response_format={"type": "json_object"}, max_completion_tokens=at_depth(40, 200, 200), seed=1
    )
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.choices[0].message.content.startswith("{")
    free = chat(client, response_format={"type": "text"})
    assert free.choices[0].message.content == chat(client).choices[0].message.content


def test_a_grammar_and_a_regex(client: openai.OpenAI) -> None:
    grammar = 'root ::= ("yes" | "no") ", " [a-z]+ "."'
    text = chat(client, extra_body={"ebnf": grammar}, max_completion_tokens=40).choices[0].message.content
    assert re.fullmatch(r"(yes|no), [a-z]+\.?", text)
    text = chat(client, extra_body={"regex": r"\d{4}-\d{2}"}).choices[0].message.content
    assert re.fullmatch(r"\d{4}-\d{2}", text)


@pytest.mark.model
def test_pydantic_models_through_the_client(client: openai.OpenAI) -> None:
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        large: bool

    answer = client.chat.completions.parse(
        model="smollm2",
        messages=QUESTION,
        response_format=City,
        max_completion_tokens=64,
        temperature=0.0,  # type: ignore[arg-type]
    )
    assert isinstance(answer.choices[0].message.parsed, City)


# -- the rest --------------------------------------------------------------------------------------


def test_a_prompt_that_was_read_before_is_cached(client: openai.OpenAI, server: Server) -> None:
    text = "Once upon a time there was a king who had three sons. " * 8
    first = complete(client, text + "One").usage
    again = complete(client, text + "Two").usage
    assert first is not None
    assert again is not None
    assert first.prompt_tokens_details is not None
    assert again.prompt_tokens_details is not None
    assert first.prompt_tokens_details.cached_tokens < 16
    assert again.prompt_tokens_details.cached_tokens == again.prompt_tokens - 1
    assert server.ask("POST", "/flush_cache") == (200, {"flushed": True})
    third = complete(client, text + "Three").usage
    assert third is not None
    assert third.prompt_tokens_details is not None
    assert third.prompt_tokens_details.cached_tokens == 0


def test_many_at_once_are_what_they_are_alone(server: Server) -> None:
    async def ask() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:

            async def one(i: int) -> str:
                answer = await client.completions.create(
                    model="smollm2", prompt=f"{i} and {i} is", max_tokens=8, temperature=0.0, seed=i
                )
                return answer.choices[0].text

            async def streamed(i: int) -> str:
                stream = await client.chat.completions.create(
                    model="smollm2", messages=[{"role": "user", "content": f"{i}?"}], max_completion_tokens=8,
                    temperature=0.0, stream=True,
                )  # fmt: skip
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            alone = [await one(i) for i in range(4)] + [await streamed(i) for i in range(4)]
            together = await asyncio.gather(*map(one, range(4)), *map(streamed, range(4)))
            return alone, list(together)

    alone, together = asyncio.run(ask())
    assert together == alone
    assert len(set(together)) > 4


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]


def test_errors_are_the_client_s_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-5", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="longer than the model's 8192") as long:
        complete(client, "a", max_tokens=8192)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as unknown:
        complete(client, "a", extra_body={"tempratur": 1})
    assert (unknown.value.param, unknown.value.code) == ("tempratur", "unknown_field")
    with pytest.raises(openai.BadRequestError) as streamed:  # before the stream begins, too
        list(complete_stream(client, "a", max_tokens=8192))
    assert streamed.value.code == "context_length_exceeded"


def test_the_token_that_ends_a_text_has_its_log_probability_too(client: openai.OpenAI) -> None:
    """Clients that score a prompt ask for one token behind it, and drop its entry, whatever token it is."""
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!"
    biased: dict[str, Any] = {"logit_bias": {"2": 100.0}, "max_tokens": 1, "logprobs": 2, "echo": True}
    (choice,) = complete(client, prompt, **biased).choices
    assert (choice.text, choice.finish_reason) == (prompt, "stop")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens[-2:] == ["!", "<|im_end|>"]
    assert choice.logprobs.text_offset[-1] == len(prompt)
    assert choice.logprobs.top_logprobs[-1]["<|im_end|>"] == choice.logprobs.token_logprobs[-1]
    chunks = [each for chunk in complete_stream(client, prompt, **biased) for each in chunk.choices]
    told = [token for each in chunks if each.logprobs is not None for token in each.logprobs.tokens or []]
    assert told == choice.logprobs.tokens


def test_nothing_is_left_behind(server: Server, client: openai.OpenAI) -> None:
    complete(client, "The end")
    assert server.idle()
