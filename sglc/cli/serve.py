"""`sglc serve`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sglc.cli.options import count, number
from sglc.errors import UsageError
from sglc.frontend.language.reasoning import MODELS as REASONING
from sglc.knobs import model as default_model
from sglc.serve.keys import Keys, is_key, read_keys

if TYPE_CHECKING:
    from sglc.serve.work import ServedBackend

_SCRIPTED = "scripted:"
_MODELS_OWN = (
    "--device", "--dtype", "--kv-dtype", "--kv-mib", "--max-rows", "--token-budget", "--max-len",
    "--compile-mib", "--compile-timeout",
)  # fmt: skip
_GATEWAY = "smg launch"
_NO_LIMIT = 1 << 20  # tokens: a script has none


def add_serve(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `serve` to the commands of `sglc`."""
    serve = commands.add_parser("serve", help="serve a model over HTTP", description="Serve a model over HTTP.")
    for title, options in _OPTIONS.items():
        group = serve.add_argument_group(title)
        for option in options:
            option.add_to(group)
    serve.add_argument("--access-log", action="store_true", help="a line of JSON on stderr for each request")
    behind = serve.add_argument_group("several servers")
    behind.add_argument(
        "--gateway", nargs="?", choices=("grpc", "http"), const="grpc",
        help="serve through a gateway, which asks the servers in this way (grpc, if none is said)",
    )  # fmt: skip
    behind.add_argument("--replicas", type=count, metavar="N", help="servers behind the gateway (default: 1)")
    behind.add_argument(
        "--gateway-command", metavar="COMMAND",
        help=f"its program, with options of its own (default: {_GATEWAY})",
    )  # fmt: skip
    serve.set_defaults(command=_serve)


# -- options ---------------------------------------------------------------------------------------


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"`{text}` is no port from 0 to 65535")
    return int(text)


def _key(text: str) -> str:
    if not is_key(text):
        raise argparse.ArgumentTypeError("a key is a text of printable ASCII characters without spaces")
    return text


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if text != "*" and (parts.scheme not in ("http", "https") or text != f"{parts.scheme}://{parts.netloc}"):
        raise argparse.ArgumentTypeError(f"`{text}` is no origin, such as `https://a.example:8080`")
    return text.lower()


def _host(text: str) -> str:
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]", text):
        raise argparse.ArgumentTypeError(f"`{text}` is no host, such as `a.example`; ports do not count")
    return text


def _priority(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise argparse.ArgumentTypeError(f"`{text}` is no priority, such as 10")
    return int(text)


_seconds = number("number of seconds", below=86_400)


@dataclass(frozen=True, slots=True)
class _Option:
    """An option with a value; `read` makes it of its text, or names all that it may be."""

    name: str
    read: Callable[[str], Any] | tuple[str, ...]
    default: Any
    metavar: str | None
    told: str
    several: bool = False  # it may be given again and again; nothing given is `()`

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        """Have it parsed."""
        told = self.told if self.default is None else f"{self.told} (default: %(default)s)"
        given: Any = {"choices": self.read} if isinstance(self.read, tuple) else {"type": self.read}
        if self.several:
            given["action"] = "append"
        group.add_argument(self.name, default=self.default, metavar=self.metavar, help=told, **given)


_OPTIONS = {
    "address": (
        _Option("--host", str, "127.0.0.1", "H", "where to listen"),
        _Option("--port", _port, 8000, "P", "0: any that is free"),
        _Option("--grpc-port", _port, None, "P", "speak SGLang's scheduler protocol here, as gateways do"),
    ),
    "model": (
        _Option("--model", str, None, "M", "what `local:` takes, or scripted:FILE"),
        _Option("--name", str, None, "NAME", "what requests call the model; M if it is not said"),
        _Option(
            *("--reasoning-parser", tuple(sorted(REASONING)), None, None),
            "have reasoning apart from answers, as models of this name write it",
        ),
        _Option("--device", ("auto", "cpu", "cuda"), "auto", None, "where it runs"),
        _Option("--dtype", ("auto", "float32", "bfloat16", "float16"), "auto", None, "in which it computes"),
        _Option("--kv-dtype", ("auto", "fp8"), "auto", None, "of keys and values"),
        _Option("--kv-mib", count, None, "MIB", "memory for keys and values"),
        _Option("--max-rows", count, None, "N", "texts in the making at once, at most"),
        _Option("--token-budget", count, None, "N", "tokens of a step, at most"),
        _Option("--max-len", count, None, "N", "tokens of prompt and answer, if fewer than the model's"),
    ),
    "who gets in": (
        _Option(
            "--api-key", _key, None, "KEY", "answer only who sends one of these as bearer token", several=True
        ),
        _Option("--api-key-file", str, None, "FILE", "likewise, with a key a line", several=True),
        _Option("--admin-key", _key, None, "KEY", "for what changes or shows the server", several=True),
        _Option("--admin-key-file", str, None, "FILE", "likewise, with a key a line", several=True),
        _Option(
            *("--cors", _origin, None, "ORIGIN"),
            "pages whose scripts may ask, as https://a.example; or *",
            several=True,
        ),
        _Option(
            *("--allowed-host", _host, None, "HOST"),
            "names to be asked by, as a.example or *.a.example",
            several=True,
        ),
    ),
    "https": (
        _Option("--tls-cert", str, None, "FILE", "certificate in PEM form, with those between it and its root"),
        _Option("--tls-key", str, None, "FILE", "its key, if it is not there as well"),
    ),
    "bounds": (
        _Option("--max-tokens", count, 4096, "N", "tokens of an answer in a chat that names no limit"),
        _Option("--max-body", count, 16, "MIB", "most of a request"),
        _Option("--max-form", count, 1024, "KIB", "most of a regex, schema, grammar or structural tag"),
        _Option("--max-prompts", count, 256, "N", "most prompts of a request"),
        _Option("--max-samples", count, 128, "N", "most samples of a prompt"),
        _Option(
            *("--max-connections", count, 4096, "N"),
            "most connections open at once; who comes on another one gets a 503",
        ),
        _Option(
            *("--max-queue", count, 1024, "N"),
            "most texts being made or waiting, of all requests; who wants more gets a 429",
        ),
        _Option(
            *("--max-priority", _priority, 0, "N"),
            "highest `priority` that a request may claim, but for those with an admin key",
        ),
        _Option("--max-plan", count, 1024, "KIB", "most of the plan of a program"),
        _Option("--max-row-tokens", count, 1 << 20, "N", "most tokens that a row of a program generates"),
        _Option(
            *("--max-program-blocks", count, 100_000, "N"),
            "most turns, items, calls and generations of all rows of a program",
        ),
        _Option("--max-program-mib", count, 64, "MIB", "most characters of all rows of a program"),
        _Option(
            *("--max-hint-tokens", partial(count, least=0), 0, "N"),
            "most tokens that the hints of one key may ask to keep, but for admin keys; 0: hints are ignored",
        ),
        _Option("--compile-mib", count, 2048, "MIB", "memory that compiling a constraint may take"),
    ),
    "patience, in seconds": (
        _Option("--request-timeout", _seconds, 600, "S", "from a request's head to the end of its answer"),
        _Option("--body-timeout", _seconds, 60, "S", "from a request's head to the end of its body"),
        _Option("--compile-timeout", _seconds, 10, "S", "that compiling a constraint may take"),
        _Option("--stall-timeout", _seconds, 60, "S", "that a client may leave a stream unread"),
        _Option("--keep-alive", _seconds, 75, "S", "that a connection may wait for the head of a request"),
        _Option("--drain-timeout", _seconds, 30, "S", "that answers may go on when the server is to end"),
    ),
}


# -- what they say ---------------------------------------------------------------------------------


def _serve(options: argparse.Namespace) -> int:
    grpc = options.grpc_port is not None or options.gateway == "grpc"
    try:
        from sglc.serve.door import Access
        from sglc.serve.limits import Limits
        from sglc.serve.prompts import load_template
        from sglc.serve.server import ServerTimeouts, bound_socket, serve
        from sglc.serve.service import Service
        from sglc.serve.tls import Certificate

        if grpc:
            from sglc.serve.grpc_server import GrpcServer
    except ImportError as error:
        raise UsageError(
            "SGLC039", f"`sglc serve` needs a package that is not here: {error.name}",
            hint=f"install `sglc[{'grpc' if grpc else 'server'}]`",
        ) from None  # fmt: skip
    if options.gateway is not None:
        return _serve_behind_gateway(options)
    for name in ("replicas", "gateway_command"):
        if getattr(options, name) is not None:
            raise UsageError("SGLC010", f"argument --{name.replace('_', '-')}: comes with `--gateway`")
    if options.grpc_port and options.grpc_port == options.port:
        raise UsageError(
            "SGLC038", f"`--port` and `--grpc-port` are both {options.port}",
            hint="`--grpc-port 0` takes any port that is free",
        )  # fmt: skip
    model = options.model or default_model()
    access = Access(
        _keys(options.api_key, options.api_key_file),
        _keys(options.admin_key, options.admin_key_file),
        tuple(options.cors or ()),
        tuple(options.allowed_host or ()),
        options.access_log,
    )
    certificate = None
    if options.tls_cert is not None:
        certificate = Certificate(options.tls_cert, options.tls_key)
        certificate.check()
    elif options.tls_key is not None:
        raise UsageError("SGLC010", "argument --tls-key: comes with `--tls-cert`")
    # Before the model is loaded: that may take long.
    with ExitStack() as bound:
        listening = bound.enter_context(bound_socket(options.host, options.port))
        reserved = None
        if options.grpc_port is not None:
            reserved = bound.enter_context(bound_socket(options.host, options.grpc_port))
        backend = _backend(options, model)
        try:
            backend.start()
            tokenizer: Any = backend.target.tokenizer
            load_template(tokenizer)
            max_len = backend.server_info().get("max_len", _NO_LIMIT)  # loaded
            timeouts = ServerTimeouts(options.keep_alive, options.drain_timeout)
            limits = Limits(
                body=options.max_body << 20,
                form=options.max_form << 10,
                prompts=options.max_prompts,
                samples=options.max_samples,
                connections=options.max_connections,
                queue=options.max_queue,
                priority=options.max_priority,
                hint_tokens=options.max_hint_tokens,
                characters=max_len * max(64, *map(len, tokenizer.token_bytes())),  # a script's are words
                chat_tokens=options.max_tokens,
                plan=options.max_plan << 10,
                row_tokens=options.max_row_tokens,
                rows_blocks=options.max_program_blocks,
                rows_size=options.max_program_mib << 20,
                request_s=options.request_timeout,
                body_s=options.body_timeout,
            )
            tags = REASONING.get(options.reasoning_parser)
            name = options.name or model
            service = Service(
                backend, tokenizer, name, max_len, options.stall_timeout, tags, limits, folder=backend.folder
            )
            beside = None
            if reserved is not None:
                beside = GrpcServer(service, access, reserved, certificate)
            serve(service, options.host, listening, timeouts, access, certificate, beside)
        finally:
            backend.close()
    return 0


_GATEWAYS_OWN = (
    "--grpc-port", "--api-key", "--api-key-file", "--admin-key", "--admin-key-file", "--cors", "--allowed-host",
    "--tls-cert", "--tls-key",
)  # fmt: skip


def _serve_behind_gateway(options: argparse.Namespace) -> int:
    from sglc.cli.gateway import Replicas, program_of, serve_behind_gateway

    given = _given(options)
    parser = ("--reasoning-parser",) if options.gateway == "grpc" else ()  # it reads texts itself
    for name in (*_GATEWAYS_OWN, *parser):
        if name in given:
            raise UsageError(
                "SGLC010", f"argument {name}: it is the gateway's, with `--gateway`",
                hint=f"give the gateway options of its own: `--gateway-command '{_GATEWAY} ...'`",
            )  # fmt: skip
    if options.gateway == "grpc" and (options.model or default_model()).startswith(_SCRIPTED):
        raise UsageError(
            "SGLC010", "argument --gateway: over gRPC it needs the files of a tokenizer, and a script has none",
            hint="`--gateway http`",
        )  # fmt: skip
    words = [f"{name}={value}" for name, value in given.items() if name not in ("--host", "--port")]
    if options.access_log:
        words.append("--access-log")
    command = program_of(_GATEWAY if options.gateway_command is None else options.gateway_command)
    replicas = Replicas(words, _gpus(options, options.replicas or 1), options.gateway)
    return serve_behind_gateway(replicas, command, options.host, options.port, options.drain_timeout)


def _gpus(options: argparse.Namespace, servers: int) -> list[dict[str, str]]:
    """What each of these servers has to be told of GPUs: which one is its own."""
    if options.device == "cpu" or (options.model or "").startswith(_SCRIPTED):
        return [{}] * servers
    from sglc.backends.local.local_backend import gpus

    found = gpus()
    if found and len(found) < servers and options.kv_mib is None:
        raise UsageError(
            "SGLC010", f"argument --replicas: {servers}, and there are {len(found)} GPUs",
            hint="say with `--kv-mib` what each takes of the memory that they share",
        )  # fmt: skip
    return [{"CUDA_VISIBLE_DEVICES": found[number % len(found)]} if found else {} for number in range(servers)]


def _keys(given: Sequence[str] | None, files: Sequence[str] | None) -> Keys:
    return Keys.of([*(given or ()), *(key for path in files or () for key in read_keys(path))])


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """What is said otherwise than it is by default, by the names of the options."""
    return {
        option.name: value
        for group in _OPTIONS.values()
        for option in group
        if (value := getattr(options, option.name[2:].replace("-", "_"))) != option.default
    }


def _backend(options: argparse.Namespace, model: str) -> ServedBackend:
    if model.startswith(_SCRIPTED):
        given = _given(options)
        for name in _MODELS_OWN:
            if name in given:
                raise UsageError("SGLC010", f"argument {name}: a script has no use for it")
        from sglc.backends.scripted import read_script

        return read_script(model.removeprefix(_SCRIPTED))
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
            max_len=options.max_len,
            compile_s=options.compile_timeout,
            compile_bytes=options.compile_mib << 20,
            process=True,  # HTTP and the model must not wait for each other
            with_constraints=True,
        )
    )
