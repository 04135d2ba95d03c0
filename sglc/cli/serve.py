"""`sglc serve`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sglc.errors import UsageError
from sglc.knobs import model as default_model

if TYPE_CHECKING:
    from sglc.serve.work import ServedBackend

_SCRIPTED = "scripted:"
_NO_LIMIT = 1 << 20  # tokens: a script has none
_WAITS = (
    ("--stall-timeout", 60.0, "that a client may leave a stream unread"),
    ("--keep-alive", 75.0, "that a connection may wait for its next request"),
    ("--compile-timeout", 10.0, "that compiling a regex, schema or grammar may take"),
    ("--drain-timeout", 30.0, "that answers may go on when the server is told to end"),
)


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
        "--compile-mib", type=_count, default=2048, metavar="MIB",
        help="memory that compiling a regex, schema or grammar may take (default: 2048)",
    )  # fmt: skip
    for option, default, what in _WAITS:
        serve.add_argument(
            option, type=_seconds, default=default, metavar="S", help=f"seconds {what} (default: {default:.0f})"
        )
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
        from sglc.serve.app import Service
        from sglc.serve.server import Patience, bound_socket, serve
    except ImportError as error:
        raise UsageError(
            "SGLC039", f"`sglc serve` needs a package that is not here: {error.name}",
            hint="install `sglc[server]`",
        ) from None  # fmt: skip
    model = options.model or default_model()
    listening = bound_socket(options.host, options.port)  # before the model is loaded: that may take long
    with listening:
        backend = _backend(options, model)
        try:
            backend.start()
            tokenizer: Any = backend.target.tokenizer
            max_len = backend.server_info().get("max_len", _NO_LIMIT)  # loaded
            patience = Patience(options.stall_timeout, options.keep_alive, options.drain_timeout)
            service = Service(
                backend, tokenizer, options.name or model, max_len, options.api_key, patience.stall_s
            )
            serve(service, options.host, listening, patience)
        finally:
            backend.close()
    return 0


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
            compile_s=options.compile_timeout,
            compile_bytes=options.compile_mib << 20,
            process=True,  # HTTP and the model must not wait for each other
        )
    )
