"""gRPC beside HTTP: SGLang's scheduler service, the standard health service, and reflection."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sglc.errors import UsageError
from sglc.serve.door import Access
from sglc.serve.scheduler_service import SERVICE, SchedulerService
from sglc.serve.service import Service
from sglc.serve.tls import Certificate

_ID_BYTES = 5  # of an id of a prompt, at most
_BESIDE_BYTES = 1 << 20  # what a message may have beside them: to read a map of a million entries takes seconds
_PING_MS = 10_000  # gateways look every 30 s whether we are there; gRPC itself would hang up on who does
_LAST_S = 1.0  # for what is left to be sent behind the end of all answers


@dataclass
class GrpcServer:
    """Answers where `reserved` is bound, until `stop`.

    Args:
        reserved: is closed when it begins: gRPC binds sockets of its own.
        certificate: of TLS; plain without.
    """

    service: Service
    access: Access
    reserved: socket.socket
    certificate: Certificate | None = None
    _health: health.aio.HealthServicer = field(default_factory=health.aio.HealthServicer)

    async def start(self) -> str:
        """Begin; gives the address.

        Raises:
            UsageError: SGLC038, another program has come to have it.
        """
        most, longest = self.service.limits, _BESIDE_BYTES + _ID_BYTES * self.service.max_len
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", min(most.body, longest)),
                ("grpc.max_send_message_length", -1),  # an answer is as long as was asked for
                ("grpc.max_concurrent_streams", most.connections),
                # Calls that come together wait to be taken; of more than 1,000 gRPC would drop some, without a
                # word of why.
                ("grpc.server.max_pending_requests", most.connections),
                ("grpc.server.max_pending_requests_hard_limit", most.connections),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.so_reuseport", 0),
            ),
            maximum_concurrent_rpcs=most.connections,
        )
        self._server.add_generic_rpc_handlers((SchedulerService(self.service, self.access).handler,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for name in ("", SERVICE.full_name):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        names = (SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        host, port, *_ = self.reserved.getsockname()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.reserved.close()
        try:
            if self.certificate is None:
                self._server.add_insecure_port(address)
            else:
                cert, key = self.certificate.cert, self.certificate.key or self.certificate.cert
                pair = (Path(key).read_bytes(), Path(cert).read_bytes())
                self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            raise UsageError("SGLC038", f"`{host}` port {port} cannot be listened at: {error}") from None
        await self._server.start()
        return f"{'grpc' if self.certificate is None else 'grpcs'}://{address}"

    async def drain(self) -> None:
        """Say that nothing new is to come here."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """End, and with it what is left."""
        await self._server.stop(_LAST_S)
