"""`POST /v1/programs`: programs are one request each and give what `local` gives; no plan is trusted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from pydantic import ValidationError

import sglc as sgl
from sglc.api.plan import LoadedPlan
from sglc.backends.http import server_info
from sglc.backends.local import LocalBackend
from sglc.cli import main
from sglc.errors import BackendError, RunError
from sglc.execution.plan.prepare import function_steps
from sglc.execution.result import Result
from sglc.ir.core import NOWHERE
from sglc.ir.plan.plan import Block, Joined, LoopStep, Named, Plan, ValueStep
from sglc.ir.plan.plan_json import plan_to_json
from sglc.ir.plan.segment import Slot
from sglc.ir.plan.without_host import generating
from sglc.passes.compile import compile_program
from sglc.serve import plan_bounds, programs
from sglc.serve.bodies import ProgramBody
from sglc.serve.problems import Refusal
from sglc.serve.service import Service
from tests.api_programs import PROGRAMS, brief
from tests.depth import at_depth
from tests.hostile_plans import Hostile, hostile, plain, valid
from tests.hostile_plans import named as named_plans
from tests.oracle_backend import Characters, OracleBackend
from tests.random_programs import ARGS, random_program
from tests.serving import Server, running, serving
from tests.test_plan_run import begun, from_text, to_text
from tests.test_plan_run import plain as known_characters
from tests.waiting import until

pytestmark = pytest.mark.slow

Events = list[dict[str, Any]]
KEY, ADMIN = "k" * 20, "a" * 20


@pytest.fixture(scope="module")
def oracle() -> Iterator[Server]:
    with running("tests.oracle_server", "oracle", "8") as server:
        yield server


@pytest.fixture(scope="module")
def here() -> Iterator[OracleBackend]:
    backend = OracleBackend()
    yield backend
    backend.close()


@pytest.fixture
def there(oracle: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[sgl.RuntimeEndpoint]:
    """The oracle's server, with its tokenizer on this machine."""
    monkeypatch.setattr(server_info, "_tokenizer_here", lambda name, wanted: Characters())
    backend = sgl.RuntimeEndpoint(oracle.url)
    yield backend
    backend.close()


def asked(server: Server) -> dict[str, int]:
    """How often each endpoint that makes text was asked."""
    status, text = server.ask("GET", "/metrics")
    assert status == 200
    found = {"/v1/programs": 0, "/generate": 0}
    for line in text.splitlines():
        if line.startswith("sglang:http_requests_total{"):
            for path in found:
                found[path] += int(float(line.split()[-1])) if f'endpoint="{path}"' in line else 0
    return found


def asking(server: Server, body: Any, **headers: str) -> tuple[int, Any]:
    """Status and answer: the events of a stream, else what it is."""
    status, content = server.ask("POST", "/v1/programs", body, **headers)
    if status != 200:
        return status, content
    lines = [line for line in content.split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    return status, [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def equal(there: Result, here: Result) -> None:
    assert str(there.error()) == str(here.error())
    assert there.partial_text == here.partial_text
    assert dict(there.variables) == dict(here.variables)
    if here.error() is None:
        assert there.text() == here.text()
        assert there.messages() == here.messages()
        assert there.ret_value == here.ret_value
    told = [(result.usage.completion, result.usage.unified) for result in (there, here)]
    assert told[0] == told[1]
    made = [sorted(result.calls, key=lambda call: str(call.site)) for result in (there, here)]
    assert [call.site for call in made[0]] == [call.site for call in made[1]]
    for mine, its in zip(*made, strict=True):
        assert [sample.ids for sample in mine.samples] == [sample.ids for sample in its.samples]


# -- programs of this process ------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "picture"])
def test_a_program_is_one_request(server: Server, local: LocalBackend, name: str) -> None:
    backend, program = sgl.RuntimeEndpoint(server.url), PROGRAMS[name].program
    before = asked(server)
    try:
        # As a plan from the first call on, whatever other tests have called it with.
        equal(*(program.run(backend=one, seed=7, mode="plan", **brief(name)) for one in (backend, local)))
    finally:
        backend.close()
    count = {path: number - before[path] for path, number in asked(server).items()}
    if name == "react":  # it calls tools
        assert count["/v1/programs"] == 0
    else:
        assert count == {"/v1/programs": 1, "/generate": 0}
    until(server.idle)


def test_counts_of_tokens_are_those_of_the_arguments(
    oracle: Server, here: OracleBackend, there: sgl.RuntimeEndpoint
) -> None:
    @sgl.function
    def told(s: Any, topic: str, most: int) -> None:
        s += topic + sgl.gen("long", max_tokens=most + 2, ignore_eos=True)
        s += "." + sgl.gen("short", max_tokens=most, ignore_eos=True)

    for most in (3, 1, 8, 5):
        before = asked(oracle)["/v1/programs"]
        made = [told.run("It", most, backend=backend, seed=1, mode="plan").sync() for backend in (there, here)]
        equal(*made)
        assert [call.usage.completion for call in made[0].calls] == [most + 2, most]
        assert asked(oracle)["/v1/programs"] == before + 1


def test_a_command_line_asks_once(
    server: Server, tmp_path: Path, local: LocalBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    sgl.set_default_backend(local)
    plan = tmp_path / "plan.json"
    PROGRAMS["judge"].program.compile(local).save(plan)
    said = []
    for backend in ("local", server.url):
        before = asked(server)
        assert main(["run", str(plan), "--backend", backend, "--seed", "3", "--json"]) == 0
        said.append(json.loads(capsys.readouterr().out))
        assert asked(server)["/v1/programs"] - before["/v1/programs"] == (backend != "local")
    sgl.set_default_backend(None)
    assert said[0]["text"] == said[1]["text"]
    assert said[0]["vars"] == said[1]["vars"]


def test_random_programs_are_those_of_local(
    oracle: Server, here: OracleBackend, there: sgl.RuntimeEndpoint
) -> None:
    args, alone = {**ARGS, "b": "beta"}, 0
    before = asked(oracle)["/v1/programs"]
    for seed in range(at_depth(6, 16, 400)):
        made = random_program(
            seed, regions=bool(seed % 3), images=False, ascii_only=True, python=False, resumed=False
        )
        program = from_text(known_characters(to_text(begun(made))), "random.sglir")
        plans = [compile_program(program, backend.target).plan for backend in (here, there)]
        if generating(plans[0]) is None or [*function_steps(plans[0])]:  # not all of it is there
            continue
        alone += 1
        mine, its = (LoadedPlan(plan).run(args, backend=b, seed=seed).sync()
                     for plan, b in zip(plans, (here, there), strict=True))  # fmt: skip
        equal(its, mine)
    assert alone > at_depth(1, 5, 150)
    assert asked(oracle)["/v1/programs"] - before == alone
    until(oracle.idle)


def test_rows_of_a_batch_have_their_own_seeds(here: OracleBackend, there: sgl.RuntimeEndpoint) -> None:
    rows = [{"topic": f"tea {number % 5}"} for number in range(20)]
    made = [plain.run_batch(rows, backend=backend, seed=5, temperature=1.0) for backend in (there, here)]
    for mine, its in zip(*made, strict=True):
        equal(mine, its)


@sgl.function
def endless(s: Any) -> None:
    s += "#" + sgl.gen("text", max_tokens=3_000, ignore_eos=True)


def test_pieces_come_and_add_up(here: OracleBackend, there: sgl.RuntimeEndpoint) -> None:
    result = plain.run("tea", backend=there, seed=5, stream=True)
    pieces = list(result.text_iter("answer"))
    assert "".join(pieces) == result["answer"] == plain.run("tea", backend=here, seed=5)["answer"]


def test_pieces_come_before_an_answer_has_ended(there: sgl.RuntimeEndpoint, oracle: Server) -> None:
    result = endless.run(backend=there, seed=5, stream=True)
    pieces = result.text_iter("text")
    first = next(pieces) + next(pieces)
    result.stop()
    assert isinstance(result.error(), RunError)
    assert result.partial_text.startswith("#" + first)
    until(oracle.idle)


@sgl.function
def failing(s: Any) -> None:
    s += "It " + sgl.gen("good", max_tokens=4)
    s += sgl.gen("long", max_tokens=10**6)
    s += " behind " + sgl.gen("behind", max_tokens=4)


def test_a_failure_is_that_of_local(here: OracleBackend, there: sgl.RuntimeEndpoint) -> None:
    found = [failing.run(backend=backend, seed=5) for backend in (there, here)]
    for result in found:
        with pytest.raises(RunError, match="SGLC44") as raised:
            _ = result["behind"]
        assert raised.value.code == "SGLC440"
        assert len(result["good"]) == 4
    first, second = [[(str(one.site), str(one.error)) for one in result.failures] for result in found]
    assert first == second
    assert [site for site, _ in first] == [
        "failing.long#0",
        "failing.behind#0",
    ]


def test_what_a_server_does_not_take_is_asked_one_by_one(
    here: OracleBackend, there: sgl.RuntimeEndpoint, oracle: Server
) -> None:
    @sgl.function
    def long(s: Any) -> None:
        s += "#"

        def again() -> Any:
            nonlocal s
            s += sgl.gen("word", max_tokens=2)
            return s["word"] == "never"

        sgl.loop(again, max_iters=plan_bounds.MOST_TURNS + 1)

    before = asked(oracle)
    equal(long.run(backend=there, seed=5, mode="plan"), long.run(backend=here, seed=5, mode="plan"))
    count = {path: number - before[path] for path, number in asked(oracle).items()}
    assert count == {"/v1/programs": 1, "/generate": 1}


def test_a_run_that_is_stopped_leaves_nothing(there: sgl.RuntimeEndpoint, oracle: Server) -> None:
    results = [endless.run(backend=there, seed=number) for number in range(4)]
    until(lambda: oracle.info()["running_rows"] == 4)
    for result in results:
        result.stop()
        assert isinstance(result.error(), RunError)
    until(oracle.idle)


def test_a_program_that_is_aborted_is_asked_once(there: sgl.RuntimeEndpoint, oracle: Server) -> None:
    before = asked(oracle)["/v1/programs"]
    result = endless.run(backend=there, seed=5)
    until(lambda: oracle.ask("POST", "/abort_request", {"abort_all": True})[1] == {"aborted": 1})
    error = result.error()
    assert isinstance(error, BackendError)
    assert (error.code, error.note) == ("SGLC542", "1 attempt")
    assert "/abort_request" in error.message
    assert "`text`" in error.message
    assert 's += "#" + sgl.gen' in str(error)
    assert asked(oracle)["/v1/programs"] == before + 1


def test_no_more_is_asked_at_once_than_the_server_lets_in(small_model: Path) -> None:
    @sgl.function
    def short(s: Any, text: str) -> None:
        s += text + sgl.gen("answer", max_tokens=3)

    with serving("--model", str(small_model), "--max-queue", "2") as server:
        backend = sgl.RuntimeEndpoint(server.url)
        assert backend.target.concurrency == 2
        assert server.ask("GET", "/v1/loads")[1]["loads"][0]["max_running_requests"] == 2
        results = short.run_batch([{"text": f"row {number}"} for number in range(24)], backend=backend)
        assert [result.error() for result in results] == [None] * 24
        backend.close()


def test_a_program_that_takes_too_long_is_asked_once() -> None:
    @sgl.function
    def long(s: Any) -> None:
        s += "#" + sgl.gen("text", max_tokens=4_000, ignore_eos=True)

    with serving("--model", "smollm2", "--request-timeout", "0.5") as server:
        backend = sgl.RuntimeEndpoint(server.url)
        error = long.run(backend=backend, seed=5).error()
        assert isinstance(error, BackendError)
        assert (error.code, error.note) == ("SGLC542", "1 attempt")
        assert "--request-timeout" in error.hint
        backend.close()
        assert asked(server)["/v1/programs"] == 1
        until(server.idle)


# -- the endpoint ------------------------------------------------------------------------------------


def test_events_by_site_and_results_by_row(oracle: Server) -> None:
    rows = [{"topic": "tea"}, {"topic": "coffee"}]
    status, events = asking(oracle, {"plan": valid()[0], "rows": rows, "seed": 5, "first": 3, "stream": True})
    assert status == 200
    for number in (3, 4):
        own = [event for event in events if event["row"] == number]
        result = own[-1]["result"]
        assert [("result" in event) for event in own] == [False] * (len(own) - 1) + [True]
        assert result["error"] is None
        assert (result["index"], result["seed"]) == (number, 5)
        assert list(result["vars"]) == ["answer", "more", "verdict"]
        assert result["text"].startswith("About " + rows[number - 3]["topic"])
        answers = {event["site"]: event["answer"] for event in own if "answer" in event}
        assert sorted(answers) == [
            "plain.answer#0", "plain.verdict#0", "plain[0].more#0", "plain[1].more#0",
        ]  # fmt: skip
        assert sum(each["usage"]["completion"] for each in answers.values()) == result["usage"]["completion"]
        said = "".join(e["text"] for e in own if e.get("site") == "plain.answer#0" and "text" in e)
        assert said == result["vars"]["answer"] == answers["plain.answer#0"]["samples"][0]["text"]
    until(oracle.idle)


def test_keys_quotas_and_aborts_are_those_of_every_request() -> None:
    plan = valid()[0]
    options = ("--api-key", KEY, "--admin-key", ADMIN, "--max-queue", "8", "--request-timeout", "3")
    with serving("--model", "smollm2", *options) as server:
        status, info = server.ask("GET", "/get_model_info", authorization=f"Bearer {KEY}")
        assert status == 200
        own = {"authorization": f"Bearer {KEY}"}
        held = {**plan, "tokenizer": info["tokenizer_hash"]}
        held.pop("hash")
        assert asking(server, {"plan": held, "rows": [{"topic": "tea"}]})[0] == 401
        status, refused = asking(server, {"plan": held, "rows": [{"topic": "tea"}] * 3}, **own)
        assert (status, refused["error"]["code"]) == (400, "too_many")
        status, refused = asking(server, {"plan": plan, "rows": [{"topic": "tea"}]}, **own)
        assert (status, refused["error"]["code"]) == (400, "SGLC015")
        for node in held["steps"][0]["nodes"]:
            if node["is"] == "gen":
                node["sampling"] |= {"max_tokens": 4_000, "ignore_eos": True, "stop": []}
        late = server.ask("POST", "/v1/programs", {"plan": held, "rows": [{"topic": "tea"}]}, **own)
        assert '"code":"timed_out"' in late[1]
        stopped: list[Any] = []
        asks = {"plan": held, "rows": [{"topic": "tea"}]}
        thread = threading.Thread(
            target=lambda: stopped.append(
                server.ask("POST", "/v1/programs", asks, **own, **{"x-request-id": "me"})
            )
        )
        thread.start()
        admin = {"authorization": f"Bearer {ADMIN}"}
        until(lambda: server.ask("POST", "/abort_request", {"rid": "me"}, **admin)[1] == {"aborted": 1})
        thread.join()
        assert '"code":"aborted"' in stopped[0][1]

        def idle() -> bool:
            now = server.ask("GET", "/get_server_info", **admin)[1]
            return bool(now["running_rows"] == now["used_pages"] == 0)

        until(idle)


@pytest.mark.parametrize(
    ("option", "number", "code"),
    [
        ("--max-plan", "1", "plan_bounds"),
        ("--max-row-tokens", "4", "SGLC408"),
        ("--max-program-blocks", "2", "SGLC414"),
    ],
)
def test_the_operator_says_how_much_a_program_may_take(
    small_model: Path, option: str, number: str, code: str
) -> None:
    with serving("--model", str(small_model), option, number) as server:
        plan = {**valid()[0], "tokenizer": server.ask("GET", "/get_model_info")[1]["tokenizer_hash"]}
        del plan["hash"]
        status, answer = asking(server, {"plan": plan, "rows": [{"topic": "tea"}]})
        error = answer["error"] if status == 400 else answer[-1]["result"]["error"]
        assert (error["code"], status) == (code, 400 if code == "plan_bounds" else 200)
        until(server.idle)


def test_a_client_that_goes_away_ends_its_rows(oracle: Server) -> None:
    plan = valid()[0]
    plan.pop("hash")
    for node in plan["steps"][0]["nodes"]:
        if node["is"] == "gen":
            node["sampling"] |= {"max_tokens": 3_000, "ignore_eos": True, "stop": []}
    body = {"plan": plan, "rows": [{"topic": "tea"}] * 3}
    with httpx2.stream("POST", f"{oracle.url}/v1/programs", json=body) as response:
        assert response.status_code == 200
        until(lambda: oracle.info()["running_rows"] == 3)
    until(oracle.idle)


# -- plans that are not to be trusted --------------------------------------------------------------------


def test_hostile_plans_are_refused_and_nothing_runs(oracle: Server) -> None:
    cases, taken = hostile(at_depth(200, 320, 5_000)), 0
    before = _memory(oracle)
    for number, case in enumerate(cases):
        steps = oracle.info()["steps"]
        status, content = oracle.ask("POST", "/v1/programs", case.body)
        if status == 200 and number >= len(list(named_plans())):
            taken += 1  # what was changed was of no meaning
            continue
        assert 400 <= status < 500, (case.name, content)
        error = content["error"]
        assert error["message"]
        assert error["type"] == "invalid_request_error"
        assert not case.code or error["code"] == case.code, (case.name, error)
        assert oracle.info()["steps"] == steps, case.name
    assert taken < len(cases) // 25
    assert _memory(oracle) - before < 256 << 20
    assert oracle.log.read_text().count("\n") == 1  # no traceback
    until(oracle.idle)


def _memory(server: Server) -> int:
    return 4096 * int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])


def refused(case: Hostile, service: Service) -> str:
    """The code of what a case is refused with; "" if it is not."""
    try:
        body = ProgramBody.model_validate(json.loads(case.body))
        programs._kept.cache_clear()
        programs.program_of(service, body, 0, "")
    except ValidationError:
        return "validation"
    except Refusal as refusal:
        return refusal.code
    except Exception as error:
        return type(error).__name__
    return ""


@pytest.fixture(scope="module")
def codes(here: OracleBackend) -> dict[Hostile, str]:
    """What each plan is refused with."""
    service = Service(here, Characters(), "oracle", 4_000)
    found = {case: refused(case, service) for case in named_plans() if case.name != "another model"}
    assert all(found.values())
    return found


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        (plan_bounds, "_check_size", lambda plan: None),
        (plan_bounds, "_check_node", lambda *given: None),
        (plan_bounds, "_beyond", lambda *given: ""),
        (plan_bounds, "sampling_problem", lambda sampling: ""),
        (plan_bounds, "host_part", lambda plan: ""),
        (plan_bounds, "hash_of", lambda data: "0" * 32),
        (plan_bounds, "_check_turns", lambda step: None),
        (plan_bounds, "check_json", lambda *given: None),
        (programs, "check_json", lambda *given: None),
        (programs, "check_plan_runs", lambda *given: None),
        (programs, "plan_bytes", lambda limits, plan: msgspec.json.encode(plan)),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_seeded_faults_are_found(
    module: Any, name: str, instead: Any, here: OracleBackend, codes: dict[Hostile, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    service = Service(here, Characters(), "oracle", 4_000)
    monkeypatch.setattr(module, name, instead)
    assert any(refused(case, service) != code for case, code in codes.items())


def _looping(results: tuple[Any, ...], steps: tuple[Any, ...], turns: int, inner: int = 0) -> Any:
    """A plan that carries one value through a loop; with `inner` there is another one in it."""
    value = Slot("x")
    blocks = [Block((Slot("a"),), steps, results)]
    if inner:
        loop = LoopStep((Slot("b"),), inner, 0, (Slot("c"),), NOWHERE)
        blocks.append(Block((Slot("b"),), (loop,), (True, Slot("c"))))
    loop = LoopStep((value,), turns, len(blocks) - 1, (Slot("y"),), NOWHERE)
    base = compile_program(plain.trace(), OracleBackend().target).plan
    return plan_to_json(
        Plan(
            version=base.version, program="odd", target="local", tokenizer=base.tokenizer,
            params=base.params, steps=(ValueStep("x", "format", (Slot("topic"),), NOWHERE), loop),
            variables=(Named("y", Slot("y")),), returns=None, estimate=base.estimate, blocks=tuple(blocks),
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    "plan",
    [
        _looping((True, Joined((Slot("a"), Slot("a")))), (), 100),
        _looping((True, Slot("d")), (ValueStep("d", "format", (Slot("a"), Slot("a")), NOWHERE),), 100),
        _looping((True, (Slot("a"), Slot("a"))), (), 100),
        _looping((True, Slot("d")), (ValueStep("d", "pack", ((Slot("a"), Slot("a")),), NOWHERE),), 100),
        _looping((True, Slot("d")), (ValueStep("d", "concat", (Slot("a"), Slot("a")), NOWHERE),), 100),
        _looping((True, Slot("a")), (), 1_000, 1_000),
    ],
    ids=["joined", "format", "tuples", "pack", "concat", "loops"],
)
def test_what_shows_only_as_it_runs_is_bounded_too(oracle: Server, plan: Any) -> None:
    before = _memory(oracle)
    status, events = asking(oracle, {"plan": plan, "rows": [{"topic": "tea"}]})
    assert status == 200
    (result,) = (event["result"] for event in events)
    assert result["error"]["code"] == "SGLC414"
    assert _memory(oracle) - before < 512 << 20
    assert server_answers(oracle)


def test_a_failed_row_tells_no_more_than_that_either(oracle: Server) -> None:
    """One text as often as a plan can name it, in a row that fails behind it."""
    plan = valid()[0]
    plan.pop("hash")
    nodes = plan["steps"][0]["nodes"]
    nodes[2]["sampling"] |= {"max_tokens": 3_000, "ignore_eos": True, "stop": []}
    nodes[-1] |= {"choices": ["x" * 4_000, "y"]}  # more than the model has room for
    slot = {"is": "slot", "name": plan["steps"][0]["gives"][0][0]}
    plan["variables"] = [{"is": "named", "name": "answer", "value": [slot] * 30_000}]
    before = _memory(oracle)
    status, events = asking(oracle, {"plan": plan, "rows": [{"topic": "tea"}]})
    assert status == 200
    result = events[-1]["result"]
    assert result["error"] is not None
    assert result["vars"] == {}
    assert _memory(oracle) - before < 256 << 20


def server_answers(server: Server) -> bool:
    return asking(server, {"plan": valid()[0], "rows": [{"topic": "tea"}]})[0] == 200
