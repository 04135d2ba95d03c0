"""`grpc://`: a server's scheduler service as a back end gives what `local` gives, and says what goes wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.grpc import GrpcBackend
from sglc.backends.http import ServerOptions
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.backends.registry import connect, disconnect
from sglc.backends.retry import Patience
from sglc.cli import main
from sglc.errors import BackendError, RunError
from tests.api_programs import PROGRAMS, brief
from tests.serving import Server, serving

# What holds of `http://` holds here, too, where `remote` is another one.
from tests.test_server_backend import both, greet, same_samples
from tests.test_server_backend import test_a_text_that_is_cut_says_so as test_a_text_that_is_cut_says_so
from tests.test_server_backend import test_pieces_come_as_they_are_made as test_pieces_come_as_they_are_made
from tests.waiting import until

pytestmark = pytest.mark.slow

NAMED = ("--name", "smollm2", "--grpc-port", "0")  # by which a client finds the tokenizer
QUICK = Patience(attempts=2, first_wait_s=0.01, longest_wait_s=0.02)


def address(server: Server) -> str:
    found = re.search(r"at (grpc://\S+)$", server.log.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def server(small_model: Path) -> Iterator[Server]:
    with serving("--model", str(small_model), "--max-rows", "16", *NAMED) as server:
        yield server


@pytest.fixture(scope="module")
def local(small_model: Path) -> Iterator[LocalBackend]:
    backend = LocalBackend(LocalOptions(str(small_model)))
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def remote(server: Server) -> Iterator[GrpcBackend]:
    backend = GrpcBackend(ServerOptions(url=address(server), patience=QUICK))
    yield backend
    backend.close()


def test_ids_and_log_probabilities_are_those_of_local(local: LocalBackend, remote: GrpcBackend) -> None:
    assert (remote.target.protocol, remote.target.name) == ("tokens", remote.options.url)
    assert same_samples(local, remote).usage.calls == 5


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": 0.8123456789}], ids=["greedy", "seeded"]
)
@pytest.mark.parametrize("name", ["fields", "nested", "react", "judge"])
def test_programs(local: LocalBackend, remote: GrpcBackend, name: str, options: dict[str, Any]) -> None:
    there, here = (
        PROGRAMS[name].program.run(backend=one, seed=7, **brief(name), **options) for one in (remote, local)
    )
    assert there.error() is None
    assert there.text() == here.text()
    assert dict(there.variables) == dict(here.variables)


@pytest.mark.parametrize(
    "method", [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized]
)
def test_choices_are_scored(local: LocalBackend, remote: GrpcBackend, method: Any) -> None:
    @sgl.function
    def choose(s: Any) -> None:
        s += "The capital of France is"
        s += sgl.select("city", choices=[" Paris", " Paris, France", "ians", " Rome"], choices_method=method)

    there, here = both(local, remote, choose)
    (one,), (two,) = there.calls, here.calls
    assert one.choice_ids == two.choice_ids
    assert one.scores == pytest.approx(two.scores, abs=1e-4)


def test_likeliest_tokens_and_those_of_the_prompt(local: LocalBackend, remote: GrpcBackend) -> None:
    @sgl.function
    def told(s: Any) -> None:
        s += "The capital of France is"
        s += sgl.gen(
            "x", max_tokens=4, temperature=0, return_logprob=True, logprob_start_len=1, top_logprobs_num=2
        )

    for live in (False, True):
        there, here = (told.run(backend=one, stream=live).sync() for one in (remote, local))
        found = [result.get_meta_info("x") for result in (there, here)]
        assert found[0] is not None
        assert found[1] is not None
        for key in (
            "input_token_logprobs",
            "output_token_logprobs",
            "input_top_logprobs",
            "output_top_logprobs",
        ):
            mine, its = ([_rounded(place) for place in each[key]] for each in found if each is not None)
            assert mine == its

    @sgl.function
    def texts(s: Any) -> None:
        s += "The" + sgl.gen("x", max_tokens=2, return_text_in_logprobs=True)

    error = texts.run(backend=remote).error()
    assert isinstance(error, BackendError)
    assert error.code == "SGLC544"


def _rounded(place: Any) -> Any:
    if isinstance(place, list | tuple):
        return [_rounded(each) for each in place]
    return round(place, 3) if isinstance(place, float) else place


def test_the_server_says_how_it_stands(remote: GrpcBackend) -> None:
    assert sgl.get_server_info(remote)["max_rows"] == 16
    sgl.flush_cache(remote)
    assert sgl.get_server_info(remote)["cached_pages"] == 0


def test_a_run_that_is_stopped_leaves_nothing(server: Server, remote: GrpcBackend) -> None:
    results = [endless.run(backend=remote, seed=number, stream=bool(number % 2)) for number in range(4)]
    until(lambda: server.info()["running_rows"] == 4)
    for result in results:
        result.stop()
        assert isinstance(result.error(), RunError)
    until(server.idle)


@sgl.function
def endless(s: Any) -> None:
    s += "#" + sgl.gen("text", max_tokens=3_000, ignore_eos=True)


def test_what_is_aborted_is_not_asked_again(server: Server, remote: GrpcBackend) -> None:
    result = endless.run(backend=remote)
    until(lambda: server.ask("POST", "/abort_request", {"abort_all": True})[1] == {"aborted": 1})
    error = result.error()
    assert isinstance(error, BackendError)
    assert (error.code, error.note) == ("SGLC542", "1 attempt")
    assert "/abort_request" in error.message
    until(server.idle)


def test_what_takes_too_long_is_not_asked_again(small_model: Path) -> None:
    with serving("--model", str(small_model), *NAMED, "--request-timeout", "1") as late:
        backend = GrpcBackend(ServerOptions(url=address(late), patience=QUICK))
        error = endless.run(backend=backend).error()
        assert isinstance(error, BackendError)
        assert (error.code, error.note) == ("SGLC542", "1 attempt")
        assert "DEADLINE_EXCEEDED" in error.message
        backend.close()


def test_by_name(server: Server, small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert connect(address(server)) is connect(address(server))
        said = []
        for backend in (address(server), f"local:{small_model}"):
            assert main(["run", "examples/quickstart.py", "--backend", backend, "--arg", "question=Why?"]) == 0
            said.append(capsys.readouterr().out)
        assert said[0] == said[1]
    finally:
        disconnect()


def test_what_the_server_refuses_is_said(remote: GrpcBackend) -> None:
    @sgl.function
    def long(s: Any) -> None:
        s += "x" + sgl.gen("x", max_tokens=10**6)

    error = long.run(backend=remote).error()
    assert isinstance(error, BackendError)
    assert error.code == "SGLC542"
    assert "INVALID_ARGUMENT: a request of 1000001 tokens" in error.message


def test_no_server() -> None:
    with pytest.raises(BackendError, match="SGLC547"):
        _ = GrpcBackend(ServerOptions(url="grpc://127.0.0.1:9")).target


@pytest.mark.parametrize(
    ("verify", "said"), [(False, "cannot do without"), ("no-such.pem", "`no-such.pem` cannot be read")]
)
def test_certificates_that_cannot_be_checked(verify: str | bool, said: str) -> None:
    with pytest.raises(BackendError, match=said) as refused:
        _ = GrpcBackend(ServerOptions(url="grpcs://127.0.0.1:9", verify=verify)).target
    assert refused.value.code == "SGLC547"


def test_no_key(small_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("--model", str(small_model), *NAMED, "--api-key", "one") as guarded:
        backend = GrpcBackend(ServerOptions(url=address(guarded), api_key="one", patience=QUICK))
        assert greet.run(backend=backend, seed=1)["x"]
        backend.close()
        with pytest.raises(BackendError, match="key") as refused:
            _ = GrpcBackend(ServerOptions(url=address(guarded))).target
        assert "`SGLC_API_KEY`" in refused.value.hint
        monkeypatch.setenv("SGLC_API_KEY", "one")
        backend = GrpcBackend(ServerOptions(url=address(guarded), patience=QUICK))
        assert greet.run(backend=backend, seed=1)["x"]
        backend.close()


def test_a_server_that_ends_is_noticed(small_model: Path) -> None:
    with serving("--model", str(small_model), *NAMED) as server:
        backend = GrpcBackend(ServerOptions(url=address(server), patience=QUICK))
        assert greet.run(backend=backend, seed=1)["x"]
    error = greet.run(backend=backend, seed=1).error()
    assert isinstance(error, BackendError)
    assert (error.code, error.note) == ("SGLC543", "2 attempts")
    backend.close()
