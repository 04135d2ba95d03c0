"""SGLang's scheduler service: its answers are those of `/generate`, and who gets in is told the same."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto import sglang_scheduler_pb2 as pb
from smg_grpc_proto import sglang_scheduler_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from sglc.backends.local import LocalBackend
from sglc.passes.chat.tool_markup import rendered
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer, load_tokenizer
from sglc.serve import scheduler_service
from sglc.serve.door import Access
from sglc.serve.service import Service
from tests import last_steps
from tests.serving import Server, serving
from tests.test_serve_door import made_certificate
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.slow  # servers

IDS = [504, 3575, 282, 4649, 314]
STATUS = grpc.StatusCode


class Client:
    """A client of a server's gRPC port."""

    def __init__(self, server: Server, channel: grpc.Channel) -> None:
        self.server, self.channel = server, channel
        self.stub = sglang_scheduler_pb2_grpc.SglangSchedulerStub(channel)

    def generate(self, ids: list[int] = IDS, metadata: Any = (), **fields: Any) -> Any:
        """The messages of an answer, as they come. What is no field of the request is one of its sampling."""
        own = pb.GenerateRequest.DESCRIPTOR.fields_by_name
        sampling = {name: fields.pop(name) for name in set(fields) - set(own)}
        tokenized = pb.TokenizedInput(input_ids=ids)
        request = pb.GenerateRequest(
            tokenized=tokenized,
            sampling_params=pb.SamplingParams(**{"max_new_tokens": 6, **sampling}),
            **fields,
        )
        return self.stub.Generate(request, timeout=HANG_S, metadata=metadata)


def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        list(call)
    return error.value.code(), error.value.details()


@contextmanager
def connected(server: Server) -> Iterator[Client]:
    found = re.search(r"at grpc://(\S+)$", server.log.read_text(), re.MULTILINE)
    assert found is not None
    with grpc.insecure_channel(found[1]) as channel:
        yield Client(server, channel)


@pytest.fixture(scope="module")
def client(small_model: Path) -> Iterator[Client]:
    asked = ("--grpc-port", "0", "--access-log")
    with serving("--model", str(small_model), *asked) as server, connected(server) as client:
        yield client


# -- generation ------------------------------------------------------------------------------------


def seeded(seed: object) -> Struct:
    return custom(sampling_seed=seed if isinstance(seed, float | list) else str(seed))


def custom(**fields: object) -> Struct:
    made = Struct()
    made.update(fields)
    return made


def test_a_stream_does_not_wait_behind_its_last_message(
    local: LocalBackend, default_tokenizer: LocalTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does behind others, for those that other streams have: here without end."""
    monkeypatch.setattr(scheduler_service, "_MESSAGE_S", 10 * HANG_S)
    service = Service(local, default_tokenizer, "smollm2", 64)
    request = pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=IDS),
        sampling_params=pb.SamplingParams(max_new_tokens=0),
        stream=True,
    )

    async def asked() -> list[str]:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((scheduler_service.SchedulerService(service, Access()).handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = sglang_scheduler_pb2_grpc.SglangSchedulerStub(channel)
                call = stub.Generate(request, timeout=HANG_S)
                return [str(message.WhichOneof("response")) async for message in call]
        finally:
            await server.stop(None)

    assert asyncio.run(asked()) == ["complete"]


@pytest.mark.parametrize(
    ("sampling", "over_http"),
    [
        ({}, {"temperature": 0}),
        (
            {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "custom_params": seeded(2**63 + 5)},
            {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "sampling_seed": 2**63 + 5},
        ),
        (
            {"regex": "[ a-z]{4}", "custom_params": custom(regex="[ a-z]{4}", max_new_tokens=6)},
            {"temperature": 0, "regex": "[ a-z]{4}"},
        ),
        ({"json_schema": '{"enum": [12, "x"]}'}, {"temperature": 0, "json_schema": '{"enum": [12, "x"]}'}),
        (
            {"repetition_penalty": 1.3, "min_new_tokens": 5, "ignore_eos": True, "logit_bias": {"7042": -0.3}},
            {
                "temperature": 0,
                "repetition_penalty": 1.3,
                "min_new_tokens": 5,
                "ignore_eos": True,
                "logit_bias": {"7042": -0.3},
            },
        ),
        (
            {"n": 3, "temperature": 1.0, "custom_params": seeded(9)},
            {"n": 3, "temperature": 1.0, "sampling_seed": 9},
        ),
    ],
)
def test_ids_and_log_probabilities_are_those_of_http(
    client: Client, sampling: dict[str, Any], over_http: dict[str, Any]
) -> None:
    asked = {
        "sampling_params": {"max_new_tokens": 6, **over_http},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    status, expected = client.server.ask(
        "POST", "/generate", {"input_ids": [IDS], **asked, "logprob_start_len": 2}
    )
    assert status == 200, expected
    told = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 2}
    whole = [each.complete for each in client.generate(**sampling, **told)]
    streamed = list(client.generate(stream=True, **sampling, **told))
    ends = sorted((each.complete for each in streamed if each.HasField("complete")), key=lambda end: end.index)
    for number, answer in enumerate(expected):
        meta, chunks = answer["meta_info"], [e.chunk for e in streamed if e.HasField("chunk")]
        own = [chunk for chunk in chunks if chunk.index == number]
        made = [id_ for _, id_, _ in meta["output_token_logprobs"]]
        for end in (whole[number], ends[number]):
            assert list(end.output_ids) == list(end.output_logprobs.token_ids) == made
            assert list(end.output_logprobs.token_logprobs) == pytest.approx(
                [logprob for logprob, _, _ in meta["output_token_logprobs"]], abs=1e-4
            )
            assert [list(top.token_ids) for top in end.output_logprobs.top_logprobs] == [
                [id_ for _, id_, _ in top] for top in meta["output_top_logprobs"]
            ]
            assert list(end.input_logprobs.token_ids) == IDS[2:]
            assert (end.index, end.prompt_tokens, end.finish_reason) == (
                number,
                5,
                meta["finish_reason"]["type"],
            )
        assert [id_ for chunk in own for id_ in chunk.token_ids] == made
        assert [id_ for chunk in own for id_ in chunk.output_logprobs.token_ids] == made
        assert list(own[0].input_logprobs.token_ids) == IDS[2:]
        assert [list(chunk.input_logprobs.token_ids) for chunk in own[1:]] == [[]] * len(own[1:])
        assert own[-1].completion_tokens == len(made)
        # What was made within one step may be told before it is known.
        assert {chunk.cached_tokens for chunk in own} <= {0, ends[number].cached_tokens}


def test_a_text_is_cut_at_a_stop_string_that_begins_inside_of_a_token(
    client: Client, small_model: Path
) -> None:
    tokenizer = load_tokenizer(small_model)
    (free,) = client.generate(max_new_tokens=8)
    text = tokenizer.decode(free.complete.output_ids)
    stop = text.strip()[1:4]
    for answer in (list(client.generate(stop=[stop])), list(client.generate(stop=[stop], stream=True))):
        end = answer[-1].complete
        assert tokenizer.decode(end.output_ids) == text[: text.index(stop)]
        assert (end.finish_reason, end.matched_stop_str) == ("stop", stop)
    told = [id_ for each in answer for id_ in each.chunk.token_ids]
    assert tokenizer.decode(told) == text[: text.index(stop)]
    (end,) = client.generate(stop_token_ids=[free.complete.output_ids[2]])
    assert list(end.complete.output_ids) == list(free.complete.output_ids[:2])
    assert end.complete.matched_token_id == free.complete.output_ids[2]


def test_an_answer_is_called_by_its_request(client: Client) -> None:
    assert {each.request_id for each in client.generate(request_id="mine", stream=True)} == {"mine"}
    call = client.generate(metadata=[("x-request-id", "yours")])
    assert [each.request_id for each in call] == ["yours"]
    assert ("x-request-id", "yours") in [(key, value) for key, value in call.trailing_metadata()]


@pytest.mark.parametrize(
    ("request_id", "header", "logged"),
    [
        ("in-it", None, "in-it"),
        ("in-it", "above-it", "above-it"),
        ("in-it", "a" * 129, "in-it"),
        ("a b", None, None),
        ("a" * 129, None, None),
        ("", None, None),
    ],
)
def test_the_access_log_has_the_clients_own_id(
    client: Client, request_id: str, header: str | None, logged: str | None
) -> None:
    metadata = [] if header is None else [("x-request-id", header)]
    call = client.generate(request_id=request_id, metadata=metadata)
    list(call)
    told = dict(call.trailing_metadata())["x-request-id"]
    assert told == logged or (logged is None and re.fullmatch("[0-9a-f]{32}", str(told)))
    until(lambda: f'"id": "{told}"' in client.server.log.read_text(), "no such line")


def test_an_id_can_say_how_a_text_is_sampled(client: Client) -> None:
    """As our own client has it pass a gateway, which knows nothing of seeds."""
    name = f"sglc-{'0' * 32}:"
    asked = '{"temperature": 0.9, "sampling_seed": 3, "max_new_tokens": 5}'
    list(client.generate())  # else the first of the two would be the one that fills the cache
    (named,) = client.generate(request_id=name + asked)
    (told,) = client.generate(temperature=0.9, custom_params=seeded(3), max_new_tokens=5)
    assert (named.request_id, named.complete) == (name + asked, told.complete)
    for wrong, said in (
        ("{]}", "`request_id` is no JSON"),
        ('{"seed": 3}', "there is no field `sampling_params.seed`"),
    ):
        code, why = refused(client.generate(request_id=name + wrong))
        assert (code, why[: len(said)]) == (STATUS.INVALID_ARGUMENT, said)


def begun(client: Client, **fields: Any) -> Any:
    """A long answer that has begun."""
    call = client.generate(stream=True, ignore_eos=True, max_new_tokens=4_000, **fields)
    next(call)
    return call


def test_an_answer_can_be_aborted(client: Client) -> None:
    call = begun(client, request_id="long")
    assert client.stub.Abort(pb.AbortRequest(request_id="long")).success
    code, said = refused(call)
    assert (code, "aborted" in said) == (STATUS.FAILED_PRECONDITION, True)
    assert ("x-should-retry", "false") in [(key, value) for key, value in call.trailing_metadata()]
    until(client.server.idle)
    assert not client.stub.Abort(pb.AbortRequest(request_id="long")).success
    with pytest.raises(grpc.RpcError, match="`request_id` is missing"):
        client.stub.Abort(pb.AbortRequest())


def test_an_answer_ends_with_its_client(client: Client) -> None:
    calls = [begun(client) for _ in range(3)]
    assert client.server.info()["running_rows"] == 3
    for call in calls:
        call.cancel()
    until(client.server.idle)
    with connected(client.server) as other:
        begun(other)
    until(client.server.idle)


def test_at_most_one_more_step_is_made_for_an_answer_that_has_ended(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the one that was being made: by whom it was ended does not matter."""
    for name, value in last_steps.SHOWN.items():
        monkeypatch.setenv(name, value)
    model = ("--model", str(smollm2), "--grpc-port", "0", *last_steps.OPTIONS)
    with serving(*model) as server, connected(server) as client:

        def abort() -> None:
            assert client.stub.Abort(pb.AbortRequest(request_id="long")).success

        for stream in (True, False):
            for cancels in (True, False):
                for _ in range(3):
                    call = client.generate(
                        stream=stream, ignore_eos=True, max_new_tokens=4_000, request_id="long"
                    )
                    until(lambda: server.info()["running_rows"] == 1)
                    assert last_steps.steps_behind(server, call.cancel if cancels else abort) <= 2


# -- what is refused -------------------------------------------------------------------------------


def test_every_call_is_answered_or_refused_by_its_name(client: Client) -> None:
    refused_by_name = {
        "Embed",
        "LoadLoRAAdapter",
        "StartProfile",
        "StopProfile",
        "UnloadLoRAAdapter",
    }
    service = pb.DESCRIPTOR.services_by_name["SglangScheduler"]
    assert len(service.methods) == 15
    for method in service.methods:
        call = getattr(client.stub, method.name)
        request = GetMessageClass(method.input_type)()
        if method.name in refused_by_name:
            asked = call(request) if method.server_streaming else (call(request) for _ in range(1))
            assert refused(asked) == (STATUS.UNIMPLEMENTED, f"`{method.name}` is not supported")
        elif method.name not in ("Generate", "Abort", "SubscribeKvEvents"):
            answer = call(request, timeout=HANG_S)
            assert list(answer) if method.server_streaming else answer is not None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ids": []}, "`input_ids`"),
        ({"ids": [49_152_000]}, "`input_ids` has the token id 49152000"),
        ({"ids": [1] * 9_000}, "a prompt of 9000 tokens is longer than the model's"),
        ({"top_p": 1.5}, "`sampling_params.top_p`"),
        ({"temperature": -1.0}, "`sampling_params.temperature`"),
        ({"temperature": float("nan")}, "`sampling_params.temperature`"),
        ({"n": 129}, "`sampling_params.n`"),
        ({"top_logprobs_num": 21}, "`top_logprobs_num`"),
        ({"repetition_penalty": -1.0}, "`sampling_params.repetition_penalty`"),
        ({"no_stop_trim": True}, "`sampling_params.no_stop_trim` is not supported"),
        ({"regex": "("}, "`(` is no regular expression"),
        ({"json_schema": "{"}, "`json_schema` is no JSON"),
        ({"lora_id": "x"}, "`lora_id` is not supported"),
        ({"return_hidden_states": True}, "`return_hidden_states` is not supported"),
        ({"token_ids_logprob": [1]}, "`token_ids_logprob` is not supported"),
        ({"input_embeds": [0.5]}, "`input_embeds` is not supported"),
        ({"mm_inputs": pb.MultimodalInputs(image_urls=["x"])}, "`mm_inputs` is not supported"),
        ({"disaggregated_params": pb.DisaggregatedParams()}, "`disaggregated_params` is not supported"),
        ({"custom_params": seeded(2**64)}, "`sampling_params.sampling_seed`"),
        ({"custom_params": seeded("9" * 5_000)}, "`sampling_params.sampling_seed`"),  # too long for `int`
        ({"custom_params": seeded("\u0663")}, "`sampling_params.sampling_seed`"),  # a digit, but none of ours
        ({"custom_params": seeded(float("inf"))}, "`sampling_params.custom_params` has a number"),
        ({"custom_params": seeded([1.0] * 10_000)}, "`sampling_params.custom_params` has more than"),
        ({"regex": "aaa", "custom_params": custom(regex="bbb")}, "`sampling_params.regex`: `custom_params`"),
        ({"custom_params": custom(max_new_tokens=2)}, "`sampling_params.max_new_tokens`: `custom_params`"),
        ({"ebnf_grammar": "x", "custom_params": custom(ebnf="y")}, "`sampling_params.ebnf`: `custom_params`"),
        ({"top_p": 0.7, "custom_params": custom(top_p=0.71)}, "`sampling_params.top_p`: `custom_params`"),
        ({"custom_params": custom(**{"f" * 30_000: 1})}, "there is no field `sampling_params.fff"),
        ({"custom_params": custom(**{"\U0001f600" * 9_000: 1})}, "there is no field"),
        ({"request_id": "x" * 40_000}, "`request_id` has more than"),
    ],
)
def test_what_is_wrong_is_refused_by_name(client: Client, fields: dict[str, Any], said: str) -> None:
    for stream in (False, True):
        code, why = refused(client.generate(**fields, stream=stream))
        assert (code, why[: len(said)]) == (STATUS.INVALID_ARGUMENT, said)
    assert len(list(client.generate())) == 1


def test_no_message_is_too_large_or_too_wrong(client: Client) -> None:
    with pytest.raises(grpc.RpcError, match="`tokenized` is missing"):
        list(client.stub.Generate(pb.GenerateRequest(), timeout=HANG_S))
    raw = client.channel.unary_stream("/sglang.grpc.scheduler.SglangScheduler/Generate")
    # A map of the latter size takes long to read, and all that is said of an answer is much shorter.
    for data, code in ((b"\xff" * 64, STATUS.INVALID_ARGUMENT), (bytes(3 << 20), STATUS.RESOURCE_EXHAUSTED)):
        assert refused(raw(data, timeout=HANG_S))[0] == code
    other = client.channel.unary_unary("/sglang.grpc.scheduler.SglangScheduler/NoSuchCall")
    with pytest.raises(grpc.RpcError) as error:
        other(b"", timeout=HANG_S)
    assert error.value.code() == STATUS.UNIMPLEMENTED
    assert len(list(client.generate())) == 1
    assert client.server.idle()


def test_calls_that_come_together_are_all_answered(client: Client) -> None:
    """gRPC would drop some of more than 1,000, without a status of ours."""
    address = re.search(r"at grpc://(\S+)$", client.server.log.read_text(), re.MULTILINE)
    assert address is not None

    async def asked() -> list[Any]:
        async with grpc.aio.insecure_channel(address[1]) as channel:
            stub = sglang_scheduler_pb2_grpc.SglangSchedulerStub(channel)
            calls = [stub.Abort(pb.AbortRequest(request_id="nobody"), timeout=HANG_S) for _ in range(3_000)]
            return await asyncio.gather(*calls)

    assert not any(answer.success for answer in asyncio.run(asked()))


# -- what the server says of itself ----------------------------------------------------------------


def test_the_model_and_the_load(client: Client, small_model: Path) -> None:
    model = client.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (model.served_model_name, model.is_generation) == (str(small_model), True)
    assert list(model.eos_token_ids) == list(load_tokenizer(small_model).eos_ids)
    assert client.stub.HealthCheck(pb.HealthCheckRequest()).healthy
    server = client.stub.GetServerInfo(pb.GetServerInfoRequest())
    assert server.max_total_num_tokens > 0
    assert server.scheduler_info["used_pages"] == 0
    call = begun(client)
    (load,) = client.stub.GetLoads(pb.GetLoadsRequest(include=["core"])).loads
    assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (1, 0, 1)
    assert load.num_used_tokens > 0
    assert not load.HasField("memory")
    call.cancel()
    until(client.server.idle)
    for wrong in (pb.GetLoadsRequest(include=["all", "everything"]), pb.GetLoadsRequest(dp_rank=1)):
        with pytest.raises(grpc.RpcError) as error:
            client.stub.GetLoads(wrong)
        assert error.value.code() == STATUS.INVALID_ARGUMENT


def test_the_cache_can_be_flushed(client: Client) -> None:
    list(client.generate())
    assert client.server.info()["cached_pages"] > 0
    assert client.stub.FlushCache(common_pb2.FlushCacheRequest()).success
    assert client.server.info()["cached_pages"] == 0


def test_the_tokenizer_s_files_come_whole(client: Client, small_model: Path, tmp_path: Path) -> None:
    pieces = list(client.stub.GetTokenizer(common_pb2.GetTokenizerRequest()))
    data = b"".join(piece.data for piece in pieces)
    assert [piece.sha256 for piece in pieces] == [""] * (len(pieces) - 1) + [hashlib.sha256(data).hexdigest()]
    again = client.stub.GetTokenizer(common_pb2.GetTokenizerRequest())
    assert b"".join(piece.data for piece in again) == data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(tmp_path)
    own, its = load_tokenizer(small_model), load_tokenizer(tmp_path)
    talk = [{"role": "user", "content": "?"}]
    tools = [{"type": "function", "function": {"name": "clock", "description": "?"}}]
    for offered in ([], tools):  # a template that knows none of them is handed out with what tells them
        shown = rendered(own, talk, generate=True, tools=offered)
        assert its.render(talk, generate=True, tools=offered or None) == shown
    (tmp_path / "chat_template.jinja").unlink()
    assert load_tokenizer(tmp_path).hash == own.hash


def test_health_and_reflection_are_the_standard_ones(client: Client) -> None:
    health = health_pb2_grpc.HealthStub(client.channel)
    for name in ("", "sglang.grpc.scheduler.SglangScheduler"):
        assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == 1
    with pytest.raises(grpc.RpcError):
        health.Check(health_pb2.HealthCheckRequest(service="another"))
    reflection = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    (listed,) = reflection.ServerReflectionInfo(iter([asked]))
    assert {each.name for each in listed.list_services_response.service} == {
        "sglang.grpc.scheduler.SglangScheduler",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    asked = reflection_pb2.ServerReflectionRequest(
        file_containing_symbol="sglang.grpc.scheduler.SglangScheduler"
    )
    (described,) = reflection.ServerReflectionInfo(iter([asked]))
    assert described.file_descriptor_response.file_descriptor_proto


def test_calls_are_counted_as_requests_are(client: Client) -> None:
    asked = (
        'sglang:http_requests_total{endpoint="/sglang.grpc.scheduler.SglangScheduler/Generate",method="POST"}'
    )
    made = "sglang:generation_tokens_total{"

    def counted() -> list[int]:
        _, page = client.server.ask("GET", "/metrics")
        lines = page.splitlines()
        return [
            int(float(line.split()[-1])) for name in (asked, made) for line in lines if line.startswith(name)
        ]

    list(client.generate())
    before = counted()
    list(client.generate())
    list(client.generate(stream=True))
    assert counted() == [before[0] + 2, before[1] + 12]


def test_every_call_is_a_post(client: Client) -> None:
    client.stub.HealthCheck(pb.HealthCheckRequest())
    _, page = client.server.ask("GET", "/metrics")
    (line,) = (line for line in page.splitlines() if "http_requests_total" in line and "/HealthCheck" in line)
    assert 'method="POST"' in line


# -- who gets in, and for how long -----------------------------------------------------------------


def test_the_keys_and_bounds_are_those_of_http(small_model: Path) -> None:
    asked = (
        "--api-key",
        "one",
        "--admin-key",
        "two",
        "--max-queue",
        "2",
        "--max-body",
        "1",
        "--grpc-port",
        "0",
    )
    with serving("--model", str(small_model), *asked) as server, connected(server) as client:
        key, admin = [("authorization", "Bearer one")], [("authorization", "Bearer two")]
        assert refused(client.generate())[0] == STATUS.UNAUTHENTICATED
        assert refused(client.generate(metadata=[("authorization", "Bearer no")]))[0] == STATUS.UNAUTHENTICATED
        assert len(list(client.generate(metadata=key))) == 1
        assert client.stub.HealthCheck(pb.HealthCheckRequest()).healthy
        for metadata, code in (((), STATUS.UNAUTHENTICATED), (key, STATUS.PERMISSION_DENIED)):
            with pytest.raises(grpc.RpcError) as error:
                client.stub.FlushCache(common_pb2.FlushCacheRequest(), metadata=metadata)
            assert error.value.code() == code
        assert client.stub.FlushCache(common_pb2.FlushCacheRequest(), metadata=admin).success
        assert refused(client.generate(n=3, metadata=key))[0] == STATUS.INVALID_ARGUMENT
        call = begun(client, n=2, metadata=key)
        late = client.generate(metadata=key)
        assert refused(late)[0] == STATUS.RESOURCE_EXHAUSTED
        assert "retry-after" in dict(late.trailing_metadata())
        call.cancel()
        until(lambda: server.ask("GET", "/get_server_info", authorization="Bearer two")[1]["running_rows"] == 0)
        assert refused(client.generate([1] * 2_000_000, metadata=key))[0] == STATUS.RESOURCE_EXHAUSTED
        assert len(list(client.generate(n=2, metadata=key))) == 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
def test_the_certificate_is_shown_here_too(small_model: Path, tmp_path: Path) -> None:
    cert, key = made_certificate(tmp_path, "one")
    with serving(
        "--model", str(small_model), "--grpc-port", "0", "--tls-cert", cert, "--tls-key", key
    ) as server:
        found = re.search(r"at grpcs://(\S+)$", server.log.read_text(), re.MULTILINE)
        assert found is not None
        trusting = grpc.ssl_channel_credentials(Path(cert).read_bytes())
        with grpc.secure_channel(found[1], trusting) as channel:
            assert len(list(Client(server, channel).generate())) == 1
        with grpc.insecure_channel(found[1]) as channel:
            assert refused(Client(server, channel).generate())[0] == STATUS.UNAVAILABLE


def test_a_server_that_ends_says_so_and_ends_what_it_began(small_model: Path) -> None:
    with serving("--model", str(small_model), "--grpc-port", "0") as server, connected(server) as client:
        watched = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        call = client.generate(stream=True, ignore_eos=True, max_new_tokens=300)
        next(call)
        os.kill(server.process.pid, signal.SIGTERM)
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert refused(client.generate())[0] == STATUS.UNAVAILABLE
        *_, last = call
        assert last.complete.completion_tokens == 300
        assert server.process.wait(HANG_S) == 0  # before the block ends: another signal would end it at once


def test_an_answer_that_takes_too_long_is_ended(small_model: Path) -> None:
    asked = ("--request-timeout", "0.5", "--grpc-port", "0")
    with serving("--model", str(small_model), *asked) as server, connected(server) as client:
        code, said = refused(client.generate(ignore_eos=True, max_new_tokens=8_000, stream=True))
        assert (code, "--request-timeout" in said) == (STATUS.DEADLINE_EXCEEDED, True)
        until(server.idle)


def test_it_is_loaded_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys, sglc.cli.serve, sglc.serve.server; print({'grpc', 'google'} & sys.modules.keys())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "set()\n"
    from sglc.cli import main

    monkeypatch.setitem(sys.modules, "grpc", None)
    for name in ("sglc.serve.grpc_server", "sglc.serve.scheduler_service"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert main(["serve", "--port", "0", "--grpc-port", "0"]) == 2
    err = capsys.readouterr().err
    assert "error[SGLC039]: `sglc serve` needs a package that is not here: grpc" in err
    assert "hint: install `sglc[grpc]`" in err
