"""What clients are answered through a gateway before our servers. `make gateway` has one to run these with."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.backends.registry import connect
from sglc.cli import gateway as cli_gateway
from sglc.cli import main
from sglc.execution.result import Result
from tests import last_steps
from tests.api_programs import PROGRAMS
from tests.fused_programs import RECORDS
from tests.gateway import SMG, gateway, workers_of
from tests.gateway_cases import CASES, MODEL, WAYS, clients, table
from tests.processes import alive, descendants
from tests.serving import Server, serving
from tests.test_serve_door import made_certificate
from tests.test_server_backend import sampled
from tests.waiting import HANG_S, until

TWENTY = {
    "other sites": sampled,
    **{name: asked.program for name, asked in PROGRAMS.items() if name != "picture"},
    **{name: record.program for name, record in RECORDS.items()},
}
PAGE = Path(__file__).parent.parent / "docs" / "gateway.md"
with_gateway = pytest.mark.skipif(not SMG, reason="there is no gateway here: `make gateway`")


@dataclass(frozen=True)
class Fleet:
    """Servers, and a gateway before them at `url`."""

    url: str
    way: str
    servers: list[Server]

    def idle(self) -> bool:
        return all(server.idle() for server in self.servers)


def address(server: Server, way: str) -> str:
    (found,) = re.findall(rf"at ({way}://\S+)$", server.log.read_text(), re.MULTILINE)
    return str(found)


@contextmanager
def fleet(way: str, count: int, *options: str, model: Sequence[str] = ("--model", MODEL)) -> Iterator[Fleet]:
    with ExitStack() as stack:
        own = [stack.enter_context(serving(*model, "--grpc-port", "0")) for _ in range(count)]
        asked = ("--tool-call-parser", "qwen", *options)
        yield Fleet(stack.enter_context(gateway([address(one, way) for one in own], *asked)), way, own)


@pytest.fixture(scope="module", params=[(way, count) for count in (1, 2) for way in WAYS], ids=str)
def running(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with fleet(*request.param) as found:
        yield found


def test_the_page_has_the_table() -> None:
    begin, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- made by tests/gateway_cases.py -->\n")
    assert begin
    assert rest.startswith(table() + "\n"), table()


@with_gateway
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.client} {case.name}")
def test_what_a_client_is_answered(running: Fleet, case: Any) -> None:
    with clients(running.url) as found:
        if running.way in case.fails:
            with pytest.raises(Exception, match=case.fails[running.way].split()[1].rstrip(":")):
                case.ask(found[case.client])
        else:
            case.ask(found[case.client])
    until(running.idle)


def made(backend: Any, **options: Any) -> dict[str, Result]:
    return {name: program.run(backend=backend, seed=7, **options) for name, program in TWENTY.items()}


@with_gateway
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8}], ids=["greedy", "seeded"])
def test_programs_have_the_ids_and_log_probabilities_of_local(
    running: Fleet, local: LocalBackend, options: dict[str, Any]
) -> None:
    """Through the gateway, and where there is one server also without it."""
    here = made(local, **options)
    own = [address(server, running.way) for server in running.servers]
    for url in (running.url, *(own if len(own) == 1 else ())):
        backend = connect(url)
        try:
            for name, there in made(backend, **options).items():
                assert there.error() is None, name
                assert there.text() == here[name].text(), name
                for mine, its in zip(*map(by_site, (there, here[name])), strict=True):
                    for one, other in zip(mine.samples, its.samples, strict=True):
                        assert (one.ids, one.finish) == (other.ids, other.finish), name
                        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3), name
                    assert mine.scores == pytest.approx(its.scores, abs=1e-3), name
        finally:
            backend.close()
        until(running.idle)


@sgl.function
def counted(s: Any, number: int) -> None:
    s += f"{number}: " + sgl.gen("a", max_tokens=8, ignore_eos=True, temperature=1)


ROWS = [{"number": number} for number in range(16)]


def by_site(result: Result) -> list[Any]:
    return sorted(result.calls, key=lambda call: str(call.site))


@with_gateway
def test_an_answer_ends_with_its_client(running: Fleet) -> None:
    with clients(running.url) as found:
        ask = found["openai"].completions.create
        for _ in range(3):
            asked = {"ignore_eos": True}
            stream = ask(model=MODEL, prompt="1, 2, 3,", max_tokens=4_000, stream=True, extra_body=asked)
            next(stream)
            assert sum(server.info()["running_rows"] for server in running.servers) == 1
            stream.close()
            until(running.idle)


@with_gateway
@pytest.mark.parametrize("way", WAYS)
def test_at_most_one_more_step_is_made_for_a_client_that_has_gone(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the one that was being made. Before gRPC the gateway finds out with the next message: one more."""
    for name, value in last_steps.SHOWN.items():
        monkeypatch.setenv(name, value)
    with fleet(way, 1, model=("--model", MODEL, *last_steps.OPTIONS)) as found, clients(found.url) as asking:
        for _ in range(5):
            stream = asking["openai"].completions.create(
                model=MODEL, prompt="1, 2,", max_tokens=4_000, stream=True, extra_body={"ignore_eos": True}
            )
            next(stream)
            made = last_steps.steps_behind(found.servers[0], stream.close, noticed=way == "http")
            assert made <= (2 if way == "http" else 3)


@with_gateway
@pytest.mark.parametrize("way", WAYS)
def test_requests_of_one_routing_key_go_to_one_server(way: str) -> None:
    used = set()
    with fleet(way, 2, "--policy", "consistent_hashing") as found, clients(found.url) as asking:
        for number in range(16):
            headers = {"x-smg-routing-key": f"sglc-{number}"}
            before = [server.info()["steps"] for server in found.servers]
            for _ in range(3):
                asking["openai"].completions.create(
                    model=MODEL, prompt=f"{number}", max_tokens=2, extra_headers=headers
                )
            ran = [server.info()["steps"] > was for server, was in zip(found.servers, before, strict=True)]
            assert sum(ran) == 1
            used.add(ran.index(True))
    assert used == {0, 1}


def questions(documents: int, each: int) -> list[tuple[int, str]]:
    """Shuffled questions, with the numbers of their documents."""
    rng = random.Random(1)
    words = ["alpha", "beta", "gamma", "delta", "river", "stone", "cloud", "tea", "house", "sky"]
    texts = [f"Document {number}. {' '.join(rng.choices(words, k=300))}" for number in range(documents)]
    asks = [(number, f"{text} Question {ask}?") for number, text in enumerate(texts) for ask in range(each)]
    rng.shuffle(asks)
    return asks


def computed(url: str, servers: list[Server], asks: list[tuple[int, str]], at_once: int, pause_s: float) -> int:
    """Tokens of prompts that `servers` compute for what is asked at `url`; each document has a routing key."""
    left = iter(asks)

    async def some(client: httpx2.AsyncClient) -> None:
        for number, prompt in left:
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
            key = {"x-smg-routing-key": f"document-{number}"}
            answer = await client.post(f"{url}/v1/completions", json=body, headers=key)
            assert answer.status_code == 200, answer.text
            await asyncio.sleep(pause_s)

    async def all_of_them() -> None:
        async with httpx2.AsyncClient(timeout=HANG_S) as client:
            await asyncio.gather(*(some(client) for _ in range(at_once)))

    asyncio.run(all_of_them())
    names = ("sglang:prompt_tokens_total{", "sglang:cached_tokens_total{")
    pages = [server.ask("GET", "/metrics")[1].splitlines() for server in servers]
    sums = [sum(float(line.split()[-1]) for page in pages for line in page if line.startswith(name))
            for name in names]  # fmt: skip
    return int(sums[0] - sums[1])


# What is stored is told some 50 ms later: who asks for a new document meanwhile may have it computed again.
@with_gateway
@pytest.mark.parametrize(("documents", "each", "at_once", "pause_s"), [(6, 4, 1, 0.2), (50, 100, 4, 0.0)])
def test_questions_go_where_their_document_is_cached(
    small_model: Path, documents: int, each: int, at_once: int, pause_s: float
) -> None:
    """By keys, or because the gateway follows the caches: two servers compute what one alone would."""
    asks = questions(documents, each)
    model = ("--model", str(small_model), "--name", MODEL)
    with serving(*model) as alone:
        most = 1.05 * computed(alone.url, [alone], asks, at_once, 0.0)
    for way, policy in (
        ("http", "consistent_hashing"),
        ("grpc", "consistent_hashing"),
        ("grpc", "cache_aware"),
    ):
        with fleet(way, 2, "--policy", policy, model=model) as found:
            assert computed(found.url, found.servers, asks, at_once, pause_s) <= most, (way, policy)
            assert all(server.info()["steps"] for server in found.servers)


@with_gateway
@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_dies_is_noticed_and_its_requests_go_elsewhere(way: str) -> None:
    with ExitStack() as stack:
        own = stack.enter_context(serving("--model", MODEL, "--grpc-port", "0"))
        other = stack.enter_context(serving("--model", MODEL, "--grpc-port", "0", status=-signal.SIGKILL))
        checks = ("--health-check-interval-secs", "1", "--health-failure-threshold", "1")
        url = stack.enter_context(gateway([address(one, way) for one in (own, other)], *checks))
        os.kill(other.process.pid, signal.SIGKILL)
        other.process.wait()
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        for number in range(12):
            answer = client.completions.create(model=MODEL, prompt=f"{number}, ", max_tokens=2)
            assert answer.choices[0].finish_reason == "length"
        until(lambda: sum(worker["is_healthy"] for worker in workers_of(url)) == 1)
        client.close()


@with_gateway
@pytest.mark.parametrize("way", WAYS)
def test_a_command_for_all_of_it(small_model: Path, way: str) -> None:
    """`--replicas` and `--gateway`: what is killed comes back, and all end together in good order."""
    command = (
        f"{SMG} launch --tool-call-parser qwen --health-check-interval-secs 1 --health-failure-threshold 1"
    )
    options = ("--model", str(small_model), "--name", MODEL, "--replicas", "2", "--gateway", way)
    with serving(*options, "--gateway-command", command) as all_of_it:

        def there() -> set[int]:
            return descendants(all_of_it.process.pid, "--host=127.0.0.1")

        def healthy() -> int:
            return sum(worker["is_healthy"] for worker in workers_of(all_of_it.url))

        until(lambda: healthy() == 2)
        backend = sgl.RuntimeEndpoint(all_of_it.url)
        said = [result["a"] for result in counted.run_batch(ROWS, backend=backend, seed=3)]
        first = there()
        assert len(first) == 2
        os.kill(min(first), signal.SIGKILL)
        assert [result["a"] for result in counted.run_batch(ROWS, backend=backend, seed=3)] == said
        until(lambda: "is begun again" in all_of_it.log.read_text())
        until(lambda: len(there() - first) == 1 and healthy() == 2)
        backend.close()
        last = there()
    assert not any(map(alive, last))


@with_gateway
@pytest.mark.parametrize("way", WAYS)
def test_no_row_is_lost_with_a_server_that_is_killed(small_model: Path, way: str) -> None:
    """Programs that are half done go on with the other server, and say what they say without a kill."""

    @sgl.function
    def two(s: Any, number: int) -> None:
        s += f"{number}: " + sgl.gen("a", max_tokens=24, ignore_eos=True, temperature=1)
        s += " so " + sgl.gen("b", max_tokens=24, ignore_eos=True, temperature=1)

    rows = [{"number": number} for number in range(64)]
    own = ("--model", str(small_model), "--name", MODEL, "--grpc-port", "0")
    with ExitStack() as stack:
        one = stack.enter_context(serving(*own))
        other = stack.enter_context(serving(*own, status=-signal.SIGKILL))
        checks = ("--health-check-interval-secs", "1", "--health-failure-threshold", "1")
        url = stack.enter_context(gateway([address(each, way) for each in (one, other)], *checks))

        def kill() -> None:
            until(lambda: other.info()["running_rows"] > 2)
            os.kill(other.process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        said = []
        for killed in (False, True):
            backend = sgl.RuntimeEndpoint(url)
            if killed:
                killer.start()
            results = two.run_batch(rows, backend=backend, seed=3, num_threads=16)
            said.append([(result["a"], result["b"]) for result in results])
            backend.close()
        killer.join()
        assert said[0] == said[1]
        until(one.idle)


# A gateway that says STATUS of itself: STATUS [CERT KEY] --host H --port P ...
ANOTHER = """
import http.server, ssl, sys

class Says(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[1]))
        self.end_headers()

    def log_message(self, *_):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Says)
if not sys.argv[2].startswith("--"):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[2:4])
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@pytest.fixture
def another(tmp_path: Path) -> list[str]:
    """Options of a script behind such a gateway; the last one begins its command."""
    (tmp_path / "gateway.py").write_text(ANOTHER)
    (tmp_path / "script.json").write_text('[{"text": "one"}]')
    options = ["--model", f"scripted:{tmp_path}/script.json", "--gateway", "http", "--gateway-command"]
    return [*options, f"{sys.executable} {tmp_path}/gateway.py"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
def test_a_gateway_with_tls_says_where_it_serves(tmp_path: Path, another: list[str]) -> None:
    *options, command = another
    with serving(*options, f"{command} 200 {' '.join(made_certificate(tmp_path, 'one'))}") as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_a_gateway_that_does_not_come_to_serve_is_an_error(
    another: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_gateway, "_READY_S", 0.5)
    *options, command = another
    assert main(["serve", "--port", "0", *options, f"{command} 503"]) == 1
    assert "error[SGLC550]: the gateway has no server to ask 0.5 s after" in capsys.readouterr().err
