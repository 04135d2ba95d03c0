"""`sglc serve --gateway`: replicas of a server, and a gateway before them, each in a process of its own.

A replica that ends is begun again where it was, so the gateway finds it there. When the command is to end, the
gateway ends first, with the answers that it has begun, and then the replicas.
"""

from __future__ import annotations

import http.client
import math
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TypeAlias

from sglc.cli.batch.listening import free_port
from sglc.cli.options import say
from sglc.errors import BackendError, UsageError
from sglc.runtime.engine.own_process import end_with_parent
from sglc.serve.server import bound_socket

_SERVES = re.compile(r"sglc: serving (.*) at ((?:http|grpc)://\S+)")
_AGAIN_S = (1.0, 30.0)  # before a replica that has ended is begun anew: at first, and at last
_LOOK_S = 0.2  # between looks whether the gateway answers
_ASK_S = 5.0
_READY_S = 300.0  # that a gateway may take to have a server to ask, when all of them serve


@dataclass(frozen=True, slots=True)
class Replicas:
    """What runs behind a gateway.

    Fields:
        words: `sglc serve`'s options of each, without an address.
        environments: what differs from ours, one for each replica.
        way: `grpc` or `http`: how the gateway asks them.
    """

    words: Sequence[str]
    environments: Sequence[Mapping[str, str]]
    way: str


# A signal, or what has come of a process: it `serves`, is `late`, has `ended`, or is to be begun `again`.
_Told: TypeAlias = "int | tuple[str, _Child]"


@dataclass(eq=False)
class _Child:
    """A process, whose lines are told behind its name. `urls`: where it serves, once it has said so."""

    name: str
    words: list[str]
    told: SimpleQueue[_Told]
    environment: Mapping[str, str] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    model: str = ""
    serves: bool = False
    wait_s: float = _AGAIN_S[0]
    process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Start it; raises BackendError (SGLC550) if it cannot be."""
        try:
            self.process = subprocess.Popen(
                self.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment}, process_group=0,  # Ctrl-C is for us to pass on
                preexec_fn=end_with_parent, text=True, errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise BackendError("SGLC550", f"`{self.words[0]}` does not start: {error.strerror}") from None
        threading.Thread(target=self._listen, args=(self.process,), name=self.name, daemon=True).start()

    def runs(self) -> bool:
        """Whether it has been started, and has not ended."""
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        if self.process is not None:
            self.process.send_signal(number)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if (found := _SERVES.fullmatch(line.rstrip())) is not None:
                    self.model, url = found.groups()
                    self.urls[url.partition(":")[0]] = url
                    if url.startswith("http:"):  # the last
                        self.told.put(("serves", self))
                say(f"{self.name}: {line.rstrip()}")
        process.wait()
        self.told.put(("ended", self))


def program_of(command: str) -> list[str]:
    """The words of a gateway's command.

    Raises:
        UsageError: SGLC010, it is no command; SGLC039, there is no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError("SGLC010", f"argument --gateway-command: {error}") from None
    if not words:
        raise UsageError("SGLC010", "argument --gateway-command: it is empty")
    if shutil.which(words[0]) is None:
        raise UsageError(
            "SGLC039", f"`sglc serve --gateway` needs a program that is not here: {words[0]}",
            hint="`pip install 'smg~=1.13.0'` in an environment of its own, and say where with "
            "`--gateway-command 'FOLDER/bin/smg launch'`",
        )  # fmt: skip
    return words


def serve_behind_gateway(
    replicas: Replicas, command: Sequence[str], host: str, port: int, drain_s: float
) -> int:
    """Answer at this address until a signal ends it; gives the exit status.

    Raises:
        UsageError: SGLC038, it cannot be listened there.
        BackendError: SGLC550, the gateway has ended, or does not come to serve, or a replica has ended before
            it served anything.
    """
    reserved = bound_socket(host, port)
    port = reserved.getsockname()[1]
    told: SimpleQueue[_Told] = SimpleQueue()
    gateway = _Child("gateway", [*command, *_options(command, host, port, drain_s)], told)
    served = [
        _Child(f"replica {number}", _server(replicas), told, environment)
        for number, environment in enumerate(replicas.environments)
    ]
    ends = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: told.put(number)) for number in ends]
    try:
        for child in served:
            child.begin()
        return _watch(gateway, served, replicas.way, _address(host, port), told, reserved)
    finally:
        reserved.close()
        for child in (gateway, *served):
            child.signal(signal.SIGKILL)
        for number, handler in zip(ends, before, strict=True):
            signal.signal(number, handler)


def _watch(
    gateway: _Child, replicas: Sequence[_Child], way: str, address: str, told: SimpleQueue[_Told],
    reserved: socket.socket,
) -> int:  # fmt: skip
    ending = False
    while True:
        match told.get():
            case int(number) if ending:  # the second
                return 128 + number
            case int():
                ending = True
                if gateway.runs():
                    gateway.signal(signal.SIGTERM)
                else:
                    _end(replicas)
            case "serves", child if child is gateway:
                (url,) = gateway.urls.values()
                say(f"sglc: serving {replicas[0].model} at {url}")
            case "late", _ if not ending:
                raise BackendError(
                    "SGLC550", f"the gateway has no server to ask {_READY_S:g} s after all of them have begun",
                    note="what it said stands above",
                    hint="it says more with `--log-level info` in `--gateway-command`",
                )  # fmt: skip
            case "serves", child:
                child.serves, child.wait_s = True, _AGAIN_S[0]
                if gateway.process is None and not ending and all(each.serves for each in replicas):
                    gateway.words += ["--worker-urls", *(each.urls[way] for each in replicas)]
                    reserved.close()
                    gateway.begin()
                    threading.Thread(target=_await, args=(gateway, address), daemon=True).start()
            case "ended", child if ending:
                if child is gateway:
                    _end(replicas)
                if not any(each.runs() for each in (gateway, *replicas)):
                    return 0
            case "ended", child if child is gateway or not child.serves:
                raise BackendError(
                    "SGLC550", f"{child.name} has ended: {_why(child)}", note="what it said stands above"
                )
            case "ended", child:
                say(f"sglc: {child.name} has ended: {_why(child)}; it is begun again in {child.wait_s:g} s")
                child.words = _where(child)
                later = threading.Timer(child.wait_s, told.put, (("again", child),))
                later.daemon = True
                later.start()
                child.wait_s = min(2 * child.wait_s, _AGAIN_S[1])
            case "again", child if not ending:
                child.begin()


def _end(replicas: Sequence[_Child]) -> None:
    for each in replicas:
        each.signal(signal.SIGTERM)


def _why(child: _Child) -> str:
    assert child.process is not None
    status = child.process.returncode
    return f"status {status}" if status >= 0 else f"signal {-status}"


def _server(replicas: Replicas) -> list[str]:
    words = [sys.executable, "-m", "sglc.cli", "serve", *replicas.words, "--host=127.0.0.1", "--port=0"]
    return [*words, "--grpc-port=0"] if replicas.way == "grpc" else words


def _where(child: _Child) -> list[str]:
    """The words that begin it again where it was."""
    options = {"http": "--port", "grpc": "--grpc-port"}
    ports = {options[way]: url.rpartition(":")[2] for way, url in child.urls.items()}
    return [f"{name}={ports[name]}" if (name := word.partition("=")[0]) in ports else word
            for word in child.words]  # fmt: skip


def _options(command: Sequence[str], host: str, port: int, drain_s: float) -> list[str]:
    """The options of a gateway that are ours to say, and those that its command leaves to us."""
    ours = {
        "--prometheus-host": "127.0.0.1",
        "--prometheus-port": str(free_port()),
        "--health-check-interval-secs": "5",  # a replica that was begun again is asked 10 s later
        "--shutdown-grace-period-secs": str(math.ceil(drain_s)),
        "--log-level": "warn",
    }
    said = {word.partition("=")[0] for word in command}
    left = [word for name, value in ours.items() if name not in said for word in (name, value)]
    return [*left, "--host", host, "--port", str(port)]


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _await(gateway: _Child, address: str) -> None:
    """Tell when the gateway has a server to ask, or that it does not come to have one."""
    reached = re.sub(r"^(0\.0\.0\.0|\[::\]):", "localhost:", address)
    last = time.monotonic() + _READY_S
    while gateway.runs():
        if scheme := _ready(reached):
            gateway.urls[scheme] = f"{scheme}://{address}"
            gateway.told.put(("serves", gateway))
            return
        if time.monotonic() > last:
            gateway.told.put(("late", gateway))
            return
        time.sleep(_LOOK_S)


def _ready(address: str) -> str:
    """What a gateway speaks that says at `address` that it has a server to ask: `http`, or `https`; else ""."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # we have begun it, whoever its certificate is of
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    ways = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting)
    asking = urllib.request.build_opener(*ways)
    for scheme in ("http", "https"):
        with suppress(OSError, http.client.HTTPException):
            asking.open(f"{scheme}://{address}/readiness", timeout=_ASK_S).close()
            return scheme
    return ""
