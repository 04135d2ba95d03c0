"""`POST /generate`: SGLang's protocol, as its frontend and its other clients speak it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from tests.depth import few
from tests.serving import Server

PROMPT = "The capital of France is"
IDS = [504, 3575, 282, 4649, 314]
GREEDY = {"max_new_tokens": 6, "temperature": 0}


def generate(server: Server, **body: Any) -> Any:
    status, content = server.ask("POST", "/generate", body)
    assert status == 200, content
    return content


def events(server: Server, **body: Any) -> list[Any]:
    lines = [line for line in generate(server, stream=True, **body).split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize(
    "sampling",
    few(
        [
            {},
            {"temperature": 1.0, "sampling_seed": 5, "top_p": 0.9, "top_k": 20, "min_p": 0.01},
            {"stop": ["\n"], "stop_token_ids": [30]},
            {"regex": "[ a-z]{4}"},
            {"repetition_penalty": 1.3},
            {"frequency_penalty": 1.0, "presence_penalty": 0.5, "min_new_tokens": 5, "ignore_eos": True},
            {"n": 3, "temperature": 1.0, "sampling_seed": 9},
        ],
        3,
    ),
)
def test_a_text_is_what_sglc_makes_of_it(server: Server, local: LocalBackend, sampling: dict[str, Any]) -> None:
    names = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
    asked = {**GREEDY, **sampling}

    @sgl.function
    def program(s: Any) -> None:
        s += PROMPT
        s += sgl.gen("x", **{names.get(name, name): value for name, value in asked.items()})

    expected = program.run(backend=local)["x"]
    answer = generate(server, text=PROMPT, sampling_params=asked)
    texts = [each["text"] for each in answer] if isinstance(expected, list) else answer["text"]
    assert texts == expected
    if isinstance(expected, list):
        last = {event["index"]: event for event in events(server, text=PROMPT, sampling_params=asked)}
        assert [last[i]["text"] for i in range(3)] == expected
    else:
        assert events(server, text=PROMPT, sampling_params=asked)[-1]["text"] == expected


def test_one_prompt_gets_an_object_and_a_list_gets_a_list(server: Server) -> None:
    one = generate(server, text=PROMPT, sampling_params=GREEDY)
    assert one["meta_info"]["prompt_tokens"] == 5
    assert one["meta_info"]["completion_tokens"] == 6
    assert one["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    for given in ({"text": [PROMPT]}, {"input_ids": [IDS]}):
        (listed,) = generate(server, sampling_params=GREEDY, **given)
        assert listed["text"] == one["text"]
    assert generate(server, input_ids=IDS, sampling_params=GREEDY)["text"] == one["text"]
    several = generate(server, text=[PROMPT, "1, 2, 3,"], sampling_params={**GREEDY, "n": 2}, rid="mine")
    assert [each["text"] == one["text"] for each in several] == [True, True, False, False]
    assert {each["meta_info"]["id"] for each in several} == {"mine"}


def test_a_stream_has_all_the_text_so_far(server: Server) -> None:
    asked = {"text": PROMPT, "sampling_params": GREEDY, "return_logprob": True, "logprob_start_len": 3}
    told = events(server, **asked)
    whole = generate(server, **asked)
    for before, after in pairwise(told):
        assert after["text"].startswith(before["text"])
        assert after["meta_info"]["completion_tokens"] >= before["meta_info"]["completion_tokens"]
        assert before["meta_info"]["finish_reason"] is None
    assert told[-1]["text"] == whole["text"]
    for part in ("input_token_logprobs", "output_token_logprobs"):
        assert [id_ for _, id_, _ in told[-1]["meta_info"][part]] == [
            id_ for _, id_, _ in whole["meta_info"][part]
        ]
    assert [id_ for _, id_, _ in told[0]["meta_info"]["input_token_logprobs"]] == IDS[3:]


def test_a_stream_says_from_its_beginning_how_much_was_cached(server: Server) -> None:
    asked = {"text": PROMPT, "sampling_params": {**GREEDY, "n": 2}}
    generate(server, **asked)
    told = events(server, **asked)
    assert len(told) > 4
    assert {event["meta_info"]["cached_tokens"] for event in told} == {4}, "all but the last are not computed"


def test_log_probabilities(server: Server) -> None:
    asked = {"text": PROMPT, "sampling_params": GREEDY, "return_logprob": True, "top_logprobs_num": 2}
    meta = generate(server, **asked)["meta_info"]  # by default of what is made only
    assert meta["input_token_logprobs"] == []
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == 6
    for (logprob, id_, text), top in zip(
        meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True
    ):
        assert text is None
        assert top[0][1] == id_
        assert top[0][0] == pytest.approx(logprob, abs=1e-4)
    meta = generate(server, **asked, logprob_start_len=0, return_text_in_logprobs=True)["meta_info"]
    assert [(id_, text) for _, id_, text in meta["input_token_logprobs"]][:2] == [
        (504, "The"),
        (3575, " capital"),
    ]
    assert meta["input_token_logprobs"][0][0] is None
    assert meta["input_top_logprobs"][0] is None
    assert [len(top) for top in meta["input_top_logprobs"][1:]] == [2] * 4
    assert "input_token_logprobs" not in generate(server, text=PROMPT, sampling_params=GREEDY)["meta_info"]


def test_the_three_calls_of_sglang_s_select(server: Server, local: LocalBackend) -> None:
    """The prefix is cached, the choices scored behind it, and then alone; as its `RuntimeEndpoint` asks."""
    nothing = {"max_new_tokens": 0, "temperature": 0}
    choices = [" Paris", " London"]
    first = generate(server, text=PROMPT, sampling_params={"max_new_tokens": 0})
    assert first["text"] == ""
    assert first["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    length = first["meta_info"]["prompt_tokens"]
    scored = generate(
        server, text=[PROMPT + choice for choice in choices], sampling_params=nothing, return_logprob=True,
        return_text_in_logprobs=True, logprob_start_len=length - 2,
    )  # fmt: skip
    lists = [each["meta_info"]["input_token_logprobs"] for each in scored]
    assert [[text for _, _, text in each] for each in lists] == [[" France", " is", c] for c in choices]
    assert [each["meta_info"]["output_token_logprobs"] for each in scored] == [[], []]
    ids = [[id_ for _, id_, _ in each] for each in lists]
    alone = generate(server, input_ids=ids, sampling_params={"max_new_tokens": 0}, return_logprob=True)
    for each, behind in zip(alone, lists, strict=True):
        assert [id_ for _, id_, _ in each["meta_info"]["input_token_logprobs"]] == [id_ for _, id_, _ in behind]

    @sgl.function
    def program(s: Any) -> None:
        s += PROMPT + sgl.select("x", choices)

    meta = program.run(backend=local).get_meta_info("x")
    expected = [each[-1][0] for each in meta["input_token_logprobs"]]
    assert [each[-1][0] for each in lists] == pytest.approx(expected, abs=1e-4)


def test_what_a_client_needs_to_know_of_the_model(server: Server, local: LocalBackend) -> None:
    tokenizer = local.target.tokenizer
    assert isinstance(tokenizer, LocalTokenizer)
    status, info = server.ask("GET", "/get_model_info")
    assert status == 200
    assert server.ask("GET", "/model_info") == (200, info)
    assert info["model_path"] == "smollm2"
    assert info["tokenizer_hash"] == tokenizer.hash
    assert info["chat_template"] == tokenizer.template
    assert info["eos_ids"] == list(tokenizer.eos_ids)
    assert info["control_tokens"]["<|im_end|>"] == 2
    assert info["special_tokens"]["eos_token"] == "<|im_end|>"
    assert (info["vocab_size"], info["max_model_len"], info["is_generation"]) == (49152, 8192, True)
    info = server.info()
    assert (info["model"], info["device"], info["max_len"]) == ("smollm2", "cpu", 8192)
    assert server.ask("GET", "/server_info")[0] == 200
    assert server.ask("POST", "/flush_cache") == (200, {"flushed": True})
    assert server.info()["cached_pages"] == 0


def test_nothing_is_left_behind(server: Server) -> None:
    generate(server, text=PROMPT, sampling_params=GREEDY)
    assert server.idle()


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_of_many_ids_go_to_the_runtime_in_parts(server: Server, stream: bool) -> None:
    """What comes of them is what comes of each alone, in the order of the prompts."""
    prompts = [[*IDS * 900, *IDS[number:]] for number in range(3)]
    before = server.ask("GET", "/server_info")[1]["submits"]
    if stream:
        last = {event["index"]: event for event in events(server, input_ids=prompts, sampling_params=GREEDY)}
        together = [last[index]["text"] for index in range(3)]
    else:
        together = [each["text"] for each in generate(server, input_ids=prompts, sampling_params=GREEDY)]
    assert server.ask("GET", "/server_info")[1]["submits"] - before == 3
    assert together == [generate(server, input_ids=ids, sampling_params=GREEDY)["text"] for ids in prompts]
