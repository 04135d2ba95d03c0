"""SGLang's scheduler service, which its gateway speaks, on the runtime.

Its calls pass the door that requests over HTTP pass, with the same keys, bounds, deadlines and counts; what is
refused there has the status of gRPC that means the same. Calls of the service that are not here are refused by
name.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import time
import zipfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from time import perf_counter
from typing import Any
from urllib.parse import unquote

import grpc
import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from smg_grpc_proto import sglang_scheduler_pb2 as pb
from smg_grpc_proto.generated import common_pb2
from starlette.types import Message, Receive, Scope, Send

from sglc.errors import BackendError, SglcError
from sglc.passes.chat.tool_markup import template_format, template_with_tools
from sglc.runtime.model.registry import text_files
from sglc.runtime.model_files import read_json
from sglc.serve import sampling
from sglc.serve.access_log import REQUEST_ID, name_request
from sglc.serve.cache_messages import kv_batches
from sglc.serve.door import Access, guarded
from sglc.serve.keys import share_of
from sglc.serve.problems import Refusal, as_response, bad, of_any
from sglc.serve.prompts import ServedTokenizer
from sglc.serve.scheduler_messages import Answering, body_of
from sglc.serve.sending import StallTimer
from sglc.serve.service import Service, prompts_of
from sglc.serve.state import HEALTH_S, Shared, load_of
from sglc.serve.work import Choices, Work, done
from sglc.serve.writing import Writing

SERVICE = pb.DESCRIPTOR.services_by_name["SglangScheduler"]
_CALL, _ANSWER = "sglc.grpc.call", "sglc.grpc.answer"  # of a call's scope: what answers it, and the answer
_PIECE_BYTES = 1 << 16  # of the tokenizer's files in one message
# A message costs more than a token: what a stream says while each other one may have sent one is sent together,
# unless it says nothing for as long anyway.
_MESSAGE_S = 0.0002
_FOLLOW_S = 0.05  # between two looks at the cache
_FOLLOWERS = 16  # of the cache, at most
_LAST_NUMBER = 2**63 - 1  # that events can be counted from: their counts have 64 bits
_SECTIONS = {"core", "memory", "spec", "lora", "disagg", "queues", "all"}
_LONGEST_SAID = 600  # characters: each may take 12 bytes of the 8 KiB that clients read of a status
_TRAILING = ("x-request-id", "retry-after", "x-should-retry")
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # equal files make equal archives
_STATUSES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,  # gateways ask again at `CANCELLED`
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}

_Answer = Callable[[Any, Scope, Writing], Awaitable[Any]]  # the message, or None where all were written


class SchedulerService:
    """The service, for whom `access` lets in. Methods that are named as its calls answer them."""

    def __init__(self, service: Service, access: Access) -> None:
        self._service = service
        self._began_s = time.time()
        self._info = Shared(lambda: asyncio.to_thread(service.backend.server_info))
        self._flush = Shared(lambda: asyncio.to_thread(service.backend.flush_cache))
        self._files = Shared(lambda: asyncio.to_thread(_archive, service))
        self._followers = 0  # of the cache
        # Names and origins guard against pages in browsers, which do not speak gRPC.
        self._guarded = guarded(
            _called, replace(access, hosts=(), origins=()), service.limits, service.drain, service.queue,
            service.metrics,
        )  # fmt: skip
        service.metrics.paths |= {path_of(method.name) for method in SERVICE.methods}

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """All calls of the service, by their names."""
        handlers = {}
        for method in SERVICE.methods:
            kind = grpc.unary_unary_rpc_method_handler
            if method.server_streaming:
                kind = grpc.unary_stream_rpc_method_handler
            handlers[method.name] = kind(self._through_the_door(method))
        return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)

    def _through_the_door(self, method: Any) -> Callable[[bytes, Any], Awaitable[Any]]:
        name, parse = method.name, GetMessageClass(method.input_type).FromString
        answer: _Answer | None = getattr(self, name, None)

        async def call(data: bytes, context: Any) -> Any:
            async def answered(scope: Scope) -> Any:
                if answer is None:
                    raise Refusal(501, f"`{name}` is not supported", code="not_found")
                try:
                    request = parse(data)
                except DecodeError:
                    message = f"the message is no `{method.input_type.name}`"
                    raise Refusal(400, message, code="bad_request") from None
                return await answer(request, scope, writing)

            scope: Scope = {
                "type": "http",
                "method": "POST",
                "path": path_of(name),
                "headers": [_header(key, value) for key, value in context.invocation_metadata() or ()],
                "client": _client(context.peer()),
                _CALL: answered,
            }
            told = _Told()
            try:
                with StallTimer(self._service.stall_s) as timer, Writing(context.write, timer) as writing:
                    await self._guarded(scope, _nothing, told.hear)
                    if told.refusal is None:
                        await writing.end()
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the client does not read")
            if told.refusal is not None:
                code, message = told.refusal
                await context.abort(code, message, told.trailing)
            context.set_trailing_metadata(told.trailing)
            message = scope[_ANSWER]
            return None if message is None else message.SerializeToString()

        async def stream(data: bytes, context: Any) -> None:
            await call(data, context)

        return stream if method.server_streaming else call

    # -- generation ----------------------------------------------------------------------------------

    async def Generate(self, request: Any, scope: Scope, writing: Writing) -> None:
        service = self._service
        name_request(scope, request.request_id)
        most = lambda size: max(1, min(service.limits.chat_tokens, service.max_len - size))  # noqa: E731
        body = body_of(request, most, service.max_len)
        field, given = body.prompts
        prompts = await prompts_of(service, given, field, body.sampling_params.n)
        asked = sampling.of_generate(body, service.limits)
        work = Work("generate", prompts, asked, 0, share_of(scope), body.cache_salt)
        request_id = request.request_id or scope[REQUEST_ID]
        service.queue.let_in(scope, work.choices, service.limits.queue)
        service.drain.name(scope, request_id, scope[REQUEST_ID])
        answering = Answering(request_id, body, work, service.tokenizer)
        if not body.stream:
            for message in answering.whole(await done(service.backend, work)):
                await writing.write(message)
            return
        # Each message wakes what waits for it: here that is one task, and not all that is behind the door.
        await asyncio.create_task(self._stream(Choices(work), answering, writing))

    async def _stream(self, choices: Choices, answering: Answering, writing: Writing) -> None:
        metrics = self._service.metrics
        async with aclosing(choices.begin(self._service.backend)) as batches:
            waits_s = perf_counter()
            async for batch in batches:
                made, refusal = choices.pieces(batch)
                for message in answering.chunks(made):
                    await writing.write(message)
                if refusal is not None:
                    await writing.end()
                    raise refusal
                if choices.left and choices.last_s - waits_s < (pause_s := _MESSAGE_S * metrics.active):
                    await asyncio.sleep(pause_s)
                waits_s = perf_counter()

    async def Abort(self, request: Any, scope: Scope, writing: Writing) -> Any:
        if not request.request_id:
            raise bad("request_id", "is missing", "missing_field")
        found = self._service.drain.abort(request.request_id)
        message = f"{found} requests were ended" if found else "no such request is being answered"
        return pb.AbortResponse(success=bool(found), message=message)

    # -- what there is, and how it is ----------------------------------------------------------------

    async def HealthCheck(self, request: Any, scope: Scope, writing: Writing) -> Any:
        try:
            async with asyncio.timeout(HEALTH_S):
                await self._info.ask()
        except TimeoutError:
            return pb.HealthCheckResponse(healthy=False, message="the runtime does not answer")
        return pb.HealthCheckResponse(healthy=True, message="ok")

    async def GetModelInfo(self, request: Any, scope: Scope, writing: Writing) -> Any:
        service, tokenizer = self._service, self._service.tokenizer
        config = {} if service.folder is None else read_json(service.folder / "config.json")
        ids = {text: id_ for id_, text in tokenizer.control.items()}
        return pb.GetModelInfoResponse(
            model_path=service.name,
            tokenizer_path=f"sha256:{tokenizer.hash}",  # no path of the gateway's: it asks for the files
            served_model_name=service.name,
            is_generation=True,
            max_context_length=service.max_len,
            max_req_input_len=service.max_len,
            vocab_size=len(tokenizer.token_bytes()),
            model_type=str(config.get("model_type", "")),
            architectures=config.get("architectures") or (),
            eos_token_ids=tokenizer.eos_ids,
            bos_token_id=tokenizer.bos_id,
            pad_token_id=ids.get(tokenizer.named.get("pad_token", "")),
        )

    async def GetServerInfo(self, request: Any, scope: Scope, writing: Writing) -> Any:
        info, service = await self._info.ask(), self._service
        made = pb.GetServerInfoResponse(
            active_requests=service.metrics.active,
            uptime_seconds=time.time() - self._began_s,
            sglang_version=f"sglc {version('sglc')}",
            server_type="grpc",
            max_total_num_tokens=load_of(info, service.limits.queue)["max_total_num_tokens"],
        )
        made.server_args.update({"served_model_name": service.name, **asdict(service.limits)})
        made.scheduler_info.update(msgspec.to_builtins(info))
        made.start_time.FromSeconds(int(self._began_s))
        return made

    async def GetLoads(self, request: Any, scope: Scope, writing: Writing) -> Any:
        if unknown := sorted(set(request.include) - _SECTIONS):
            raise bad("include", f"has no section `{unknown[0]}`")
        if request.dp_rank:
            raise bad("dp_rank", "can only be 0")
        service = self._service
        load, metrics = load_of(await self._info.ask(), service.limits.queue), service.metrics
        running, waiting = load["num_running_reqs"], load["num_waiting_reqs"]
        busy = running / load["max_running_requests"] if load["max_running_requests"] else 0.0
        own = pb.SchedulerLoad(
            **load,
            num_total_reqs=running + waiting,
            cache_hit_rate=metrics.cached_tokens / metrics.prompt_tokens if metrics.prompt_tokens else 0.0,
            utilization=busy,
        )
        if not request.include or {"queues", "all"} & set(request.include):
            own.queues.waiting = waiting
        if not request.include or {"memory", "all"} & set(request.include):
            own.memory.token_capacity = load["max_total_num_tokens"]
        return pb.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(),
            version=f"sglc {version('sglc')}",
            dp_rank_count=1,
            loads=[own],
            aggregate=pb.AggregateMetrics(
                total_running_reqs=running,
                total_waiting_reqs=waiting,
                total_reqs=running + waiting,
                avg_token_usage=load["token_usage"],
                avg_utilization=busy,
            ),
        )

    async def FlushCache(self, request: Any, scope: Scope, writing: Writing) -> Any:
        await self._flush.ask()
        return common_pb2.FlushCacheResponse(success=True, message="flushed")

    async def GetTokenizer(self, request: Any, scope: Scope, writing: Writing) -> None:
        if self._service.folder is None:
            raise Refusal(501, "this back end's tokenizer has no files", code="not_found")
        data = await self._files.ask()
        for begin in range(0, len(data), _PIECE_BYTES):
            last = begin + _PIECE_BYTES >= len(data)
            digest = hashlib.sha256(data).hexdigest() if last else ""
            chunk = common_pb2.GetTokenizerChunk(data=data[begin : begin + _PIECE_BYTES], sha256=digest)
            await writing.write(chunk.SerializeToString())

    async def SubscribeKvEvents(self, request: Any, scope: Scope, writing: Writing) -> None:
        """All that is cached, and then what changes, until the client goes away or the server is to end.

        A client that reads too slowly, or goes on with a number, is told everything anew.
        """
        follow = getattr(self._service.backend, "follow_cache", None)
        if follow is None:
            raise Refusal(501, "this back end has no cache to tell of", code="not_found")
        if self._followers >= _FOLLOWERS:
            raise Refusal(429, f"{_FOLLOWERS} clients follow the cache already", code="queue_full")
        if request.start_sequence_number > _LAST_NUMBER:
            raise bad("start_sequence_number", "is above 2^63-1")
        self._service.drain.stay(scope)
        self._followers += 1
        count, number = -1, request.start_sequence_number or 1
        try:
            while not self._service.drain.begun:
                told = await asyncio.to_thread(follow, count)
                if told["changes"]:
                    for batch in kv_batches(told["changes"], told["page_size"], number):
                        await writing.write(batch.SerializeToString())
                        number += 1
                count = told["count"]
                await asyncio.sleep(_FOLLOW_S)
        finally:
            self._followers -= 1
            if not self._followers:
                asyncio.get_running_loop().run_in_executor(None, _end_log, follow)

    async def ListLoadedLoRAAdapters(self, request: Any, scope: Scope, writing: Writing) -> Any:
        return pb.ListLoadedLoRAAdaptersResponse()


def path_of(name: str) -> str:
    """The path of a call of the service, which its counts go by."""
    return f"/{SERVICE.full_name}/{name}"


async def _called(scope: Scope, receive: Receive, send: Send) -> None:
    """Behind the door: have the call answered. All that it says by way of HTTP is how it ended."""
    try:
        scope[_ANSWER] = await scope[_CALL](scope)
    except Exception as error:
        await as_response(of_any(error), scope["path"])(scope, receive, send)
        if not isinstance(error, Refusal | SglcError):
            raise  # into the server's log
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _nothing() -> Message:
    raise AssertionError("a call comes whole")


def _end_log(follow: Callable[[int | None], Any]) -> None:
    with suppress(SglcError):  # the runtime is gone, and the log with it
        follow(None)


class _Told:
    """What the door says to a call: a refusal, if it is one, and what goes with either."""

    def __init__(self) -> None:
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.trailing: tuple[tuple[str, str], ...] = ()
        self._status = 200

    async def hear(self, message: Message) -> None:
        """As `send` of every ASGI application."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            named = [(name.decode().lower(), value.decode()) for name, value in message["headers"]]
            self.trailing = tuple(each for each in named if each[0] in _TRAILING)
        elif self._status >= 400:
            error = msgspec.json.decode(message["body"])["error"]
            late = error["code"] == "timed_out"
            code = grpc.StatusCode.DEADLINE_EXCEEDED if late else _STATUSES.get(self._status)
            said = error["message"]
            if len(said) > _LONGEST_SAID:
                said = said[:_LONGEST_SAID] + "..."
            self.refusal = code or grpc.StatusCode.INTERNAL, said


def _header(key: str, value: str | bytes) -> tuple[bytes, bytes]:
    return key.encode(), value.encode("latin-1", "replace") if isinstance(value, str) else value


def _client(peer: str) -> tuple[str, int] | None:
    """Address and port of `ipv4:127.0.0.1:50123` or `ipv6:[::1]:50123`."""
    address, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return (address.strip("[]"), int(port)) if port.isdecimal() else None


def _archive(service: Service) -> bytes:
    """The files of a model that say how texts become ids, as an archive; equal ones make the same.

    A template that knows no tools has them told as chats over HTTP have: the peer fills it in.
    """
    folder, tokenizer = service.folder, service.tokenizer
    assert folder is not None
    files = text_files(folder)
    if tokenizer.template is not None and _knows_no_tools(tokenizer):
        files["chat_template.jinja"] = template_with_tools(tokenizer.template).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), content)
    return made.getvalue()


def _knows_no_tools(tokenizer: ServedTokenizer) -> bool:
    try:
        return template_format(tokenizer) is None
    except BackendError:  # it knows them in another way, or refuses them
        return False
