"""`sglc serve`: its options, and the server's life from the first socket to the last answer."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from sglc.errors import UsageError
from sglc.knobs import model as default_model

if TYPE_CHECKING:
    from sglc.serve.work import ServedBackend

_SCRIPTED = "scripted:"
_SEND_BYTES = 1 << 18  # of a connection that the kernel holds for a client who does not read
_END_S = 5  # how long answers may go on when the server is told to end
_BACKLOG = 2048  # connections that wait to be taken
_NO_LIMIT = 1 << 20  # tokens: a script has none
_STALL_S = 60.0


def add_serve(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `serve` to the commands of `sglc`."""
    serve = commands.add_parser("serve", help="serve a model over HTTP", description="Serve a model over HTTP.")
    serve.add_argument("--model", metavar="M", help="what `local:` takes, or scripted:FILE")
    serve.add_argument("--name", help="what requests call the model (default: M)")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    serve.add_argument("--port", type=_port, default=8000, help="0: any that is free (default: 8000)")
    serve.add_argument("--api-key", type=_key, metavar="KEY", help="answer only who sends it as bearer token")
    serve.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    serve.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    serve.add_argument("--kv-dtype", choices=("auto", "fp8"), default="auto")
    serve.add_argument("--kv-mib", type=_count, metavar="MIB", help="memory for keys and values")
    serve.add_argument("--max-rows", type=_count, metavar="N", help="texts in the making at once, at most")
    serve.add_argument("--token-budget", type=_count, metavar="N", help="tokens of a step, at most")
    serve.add_argument(
        "--stall-timeout", type=_seconds, default=_STALL_S, metavar="S",
        help=f"seconds that a client may leave a stream unread (default: {_STALL_S:.0f})",
    )  # fmt: skip
    serve.set_defaults(command=_serve)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"`{text}` is no port from 0 to 65535")
    return int(text)


def _key(text: str) -> str:
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise argparse.ArgumentTypeError("a key is a text of printable ASCII characters")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is no number from 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise argparse.ArgumentTypeError(f"`{text}` is no number of seconds")
    return seconds


def _serve(options: argparse.Namespace) -> int:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "SGLC039", f"`sglc serve` needs a package that is not here: {error.name}",
            hint="install `sglc[server]`",
        ) from None  # fmt: skip
    model = options.model or default_model()
    listening = _bound(options.host, options.port)  # before the model is loaded: that may take long
    with listening:
        backend = _backend(options, model)
        try:
            _run(options, model, backend, listening)
        finally:
            backend.close()
    return 0


def _bound(host: str, port: int) -> socket.socket:
    """A socket that does not listen yet.

    Raises:
        UsageError: SGLC038, there is no such address, or another program has it.
    """
    try:
        ((family, _, _, _, address), *_) = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)  # connections inherit it
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            "SGLC038", f"`{host}` port {port} cannot be listened at: {why.lower()}",
            hint="`--port 0` takes any port that is free",
        ) from None  # fmt: skip
    return bound


def _backend(options: argparse.Namespace, model: str) -> ServedBackend:
    if model.startswith(_SCRIPTED):
        from sglc.backends.scripted import ScriptedBackend, read_script

        answer, word_s = read_script(model.removeprefix(_SCRIPTED))
        return ScriptedBackend(answer, word_s=word_s)
    from sglc.backends.local import LocalBackend, LocalOptions

    return LocalBackend(
        LocalOptions(
            model,
            device=options.device,
            dtype=options.dtype,
            kv_dtype=options.kv_dtype,
            kv_bytes=None if options.kv_mib is None else options.kv_mib << 20,
            max_rows=options.max_rows,
            token_budget=options.token_budget,
            process=True,  # HTTP and the model must not wait for each other
        )
    )


def _run(options: argparse.Namespace, model: str, backend: ServedBackend, listening: socket.socket) -> None:
    import uvicorn

    from sglc.serve.app import Service, make_app

    backend.start()
    tokenizer: Any = backend.target.tokenizer
    max_len = backend.server_info().get("max_len", _NO_LIMIT)  # loaded
    service = Service(
        backend, tokenizer, options.name or model, max_len, options.api_key, options.stall_timeout
    )
    # A connection that was given up must not stay for what its client never reads.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * options.stall_timeout))
    config = uvicorn.Config(
        make_app(service), log_level="warning", access_log=False, lifespan="off",
        timeout_graceful_shutdown=_END_S,
    )  # fmt: skip
    server = uvicorn.Server(config)
    listening.listen(_BACKLOG)
    print(f"sglc: serving {service.name} at {_url(options.host, listening)}", file=sys.stderr, flush=True)
    # The server ends its answers when it is told to end, and then raises the signal again, for these.
    before = {number: signal.signal(number, _ended) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(*_: object) -> None:
    """There is nothing left to do for a signal."""


def _url(host: str, listening: socket.socket) -> str:
    port = listening.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
