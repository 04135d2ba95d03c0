"""A server by SGLang's scheduler service: what `http://` asks of `/generate`, as calls of `Generate`.

The model's tokenizer has to be on this machine: prompts go as ids, and the ids of answers become text here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from sglc.backends.http.http_backend import ServerBackend
from sglc.backends.http.http_trouble import KEY_HINT, address_of, missing
from sglc.backends.http.server_info import ServerModel, model_of
from sglc.backends.retry import Trouble, asked_wait_s
from sglc.errors import BackendError

_INFO_S = 30.0  # for what a server says of itself
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_AGAIN = (
    "ABORTED",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "UNKNOWN",
)
_HINTS = {
    "UNAUTHENTICATED": KEY_HINT,
    "PERMISSION_DENIED": "check what the API key may do",
    "UNIMPLEMENTED": "is it a server of SGLang's scheduler protocol?",
}


class GrpcBackend(ServerBackend):
    """Runs segments on a server; `options.url` is `grpc://HOST:PORT`, or `grpcs://` with TLS."""

    def __repr__(self) -> str:
        return f"<sglc gRPC back end {address_of(self.options.url)}>"

    @cached_property
    def model(self) -> ServerModel:
        """What the server says of its model. The first use asks it.

        Raises:
            BackendError: SGLC540 no package, SGLC547 no such server, or one whose tokenizer is not here.
        """
        pb = self._wire.pb
        info = self._call("GetModelInfo", pb.GetModelInfoRequest())
        loads = self._call("GetLoads", pb.GetLoadsRequest(include=["core"])).loads
        told = {
            "model_path": info.served_model_name or info.model_path,
            "tokenizer_hash": info.tokenizer_path.removeprefix("sha256:"),
            "concurrency": sum(load.max_running_requests for load in loads),
        }
        model = model_of(told, self.options.chat_template)
        if not model.exact:
            raise BackendError(
                "SGLC547", f"the server takes token ids for `{model.name}`, whose tokenizer is not here",
                hint=f"run `sglc models pull {model.name}`, or ask it over HTTP",
            )  # fmt: skip
        return model

    def flush_cache(self) -> None:
        """Have the server forget every cached prefix that no run uses now.

        Raises:
            BackendError: SGLC547, it does not answer.
        """
        from smg_grpc_proto.generated import common_pb2

        self._call("FlushCache", common_pb2.FlushCacheRequest())

    def server_info(self) -> dict[str, Any]:
        """What the server says of itself, as plain data.

        Raises:
            BackendError: SGLC547, it does not answer.
        """
        from google.protobuf.json_format import MessageToDict

        told = self._call("GetServerInfo", self._wire.pb.GetServerInfoRequest())
        return dict(MessageToDict(told.scheduler_info))

    # -- one request ---------------------------------------------------------------------------------

    async def _answered(
        self, client: Any, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> list[Mapping[str, Any]]:
        wire, model = self._wire, self.model

        async def asked(request: Any) -> list[Any]:
            call = client.Generate(request, metadata=self._metadata(headers))
            ended = [message.complete async for message in call]
            return sorted(ended, key=lambda complete: int(complete.index))

        made = await asyncio.gather(*map(asked, wire.requests_of(body)))
        return [wire.answer_of(complete, model.tokenizer) for each in made for complete in each]

    async def _told_by(
        self, client: Any, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[list[Mapping[str, Any]], None]:
        wire, model = self._wire, self.model
        (request,) = wire.requests_of(body, stream=True)
        so_far = wire.SoFar(model.tokenizer)
        async for message in client.Generate(request, metadata=self._metadata(headers)):
            yield [so_far.take(message)]

    def _trouble(self, error: Exception) -> Exception:
        import grpc

        if not isinstance(error, grpc.RpcError):
            return error
        name, details = error.code().name, error.details()
        told = dict(error.trailing_metadata() or ())
        waits, again = told.get("retry-after"), told.get("x-should-retry") != "false" and name in _AGAIN
        wait_s = asked_wait_s({"retry-after": waits}) if isinstance(waits, str) else None
        return Trouble(
            f"{name}: {details}", again=again, wait_s=wait_s, hint=_HINTS.get(name, ""),
            limited=name == "RESOURCE_EXHAUSTED",
        )  # fmt: skip

    # -- the connection ------------------------------------------------------------------------------

    def _client(self, most: int) -> tuple[Any, Callable[[], Coroutine[Any, Any, None]]]:
        import grpc.aio

        channel = self._channel(grpc.aio)
        return self._stub(channel), channel.close

    def _call(self, name: str, request: Any) -> Any:
        """What the server says of itself; waits for it."""
        import grpc

        with self._channel(grpc) as channel:
            try:
                call = getattr(self._stub(channel), name)
                return call(request, timeout=_INFO_S, metadata=self._metadata({}))
            except grpc.RpcError as error:
                hint = _HINTS.get(
                    error.code().name, "start one with `sglc serve --grpc-port`, and give its URL"
                )
                raise BackendError(
                    "SGLC547", f"`{address_of(self.options.url)}` does not say what it has: {error.details()}",
                    hint=hint,
                ) from None  # fmt: skip

    def _channel(self, kind: Any) -> Any:
        """A channel to the server, of `grpc` or `grpc.aio`.

        Raises:
            BackendError: SGLC547, its certificate cannot be checked as is said.
        """
        import grpc

        scheme, _, address = self.options.url.partition("://")
        if scheme != "grpcs":
            return kind.insecure_channel(address.rstrip("/"), _OPTIONS)
        credentials = grpc.ssl_channel_credentials(_root(self.options.verify))
        return kind.secure_channel(address.rstrip("/"), credentials, _OPTIONS)

    @staticmethod
    def _stub(channel: Any) -> Any:
        from smg_grpc_proto import sglang_scheduler_pb2_grpc

        return sglang_scheduler_pb2_grpc.SglangSchedulerStub(channel)

    def _metadata(self, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        key = self._key
        return (*headers.items(), *((("authorization", f"Bearer {key}"),) if key is not None else ()))

    @property
    def _wire(self) -> ModuleType:
        try:
            from sglc.backends.grpc import grpc_wire
        except ImportError as error:
            raise missing(error, "grpc") from None
        return grpc_wire


def _root(verify: str | bool) -> bytes | None:
    """The certificates to trust; None for those of gRPC."""
    if not verify:
        raise BackendError(
            "SGLC547", "gRPC cannot do without the check of a server's certificate",
            hint="give the file of its certificate: `verify=FILE`",
        )  # fmt: skip
    try:
        return Path(verify).read_bytes() if isinstance(verify, str) else None
    except OSError as error:
        raise BackendError("SGLC547", f"`{verify}` cannot be read: {error.strerror or error}") from None
