"""What programs say ahead: in every dialect, and without any effect on what comes of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sglc as sgl
from sglc.backends.http import ServerBackend, ServerOptions
from sglc.backends.http.hint_fields import DIALECTS, spoken, urgency
from sglc.errors import UsageError
from sglc.ir.plan.hints import Hints, envelope, read_envelope
from sglc.ir.plan.segment import Segment
from sglc.serve.hints import allowed_hints, hinted_priority
from sglc.serve.keys import ADMIN
from sglc.serve.limits import Limits
from tests.agents import Agents, Clock, TimedBackend, served
from tests.runtime.test_priorities import Bench, text

NAMES = st.text(st.characters(exclude_categories=("C", "Z")), max_size=20)
HINTS = st.builds(
    Hints, program=NAMES, parent=NAMES, stream=NAMES, after=NAMES, over=st.lists(NAMES).map(tuple),
    leaves=st.tuples(NAMES, NAMES), behind=st.integers(0, 1 << 20),
)  # fmt: skip
ONE = Hints(program="p/f", parent="p", order=3, stream="s2", after="s1", over=("s0",), most=64, behind=160)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(("actions", "payload", "action_type", "action_version", "streams", "agent_hints")),
        inner,
    ),
)  # fmt: skip
# The same cases each time, however busy the machine is.
AS_EVER = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@AS_EVER
@given(HINTS)
def test_what_is_sent_is_what_is_read(hints: Hints) -> None:
    assert read_envelope(json.loads(json.dumps(envelope(hints)))) == hints


@pytest.mark.slow
@AS_EVER
@given(JSON)
def test_nothing_that_is_malformed_fails(given: Any) -> None:
    read_envelope(given)
    hinted_priority(given)


def test_every_dialect_has_its_fields() -> None:
    said = {name: fields(ONE) for name, fields in DIALECTS.items()}
    lower = 3 * 1024 - 28  # (64 + 160) / 8 steps of the longest chain are left
    assert urgency(ONE) == lower
    assert set(said["sglc"]) == {"kv_hints"}
    assert said["sglang"]["priority"] == -lower
    assert said["vllm"]["priority"] == lower
    assert said["vllm"]["vllm_xargs"] == {
        "sglc_behind": 160, "sglc_most": 64, "sglc_stream": "s2", "sglc_parent": "p",
    }  # fmt: skip
    assert said["dynamo"]["nvext"] == {
        "agent_hints": {"priority": -lower, "osl": 64},
        "agent_context": {"session_id": "p/f", "parent_session_id": "p"},
    }


def test_strangers_are_told_nothing_unless_the_user_says_so() -> None:
    assert spoken(None, {}) == spoken(None, {"hints_version": 0}) == spoken("", {"hints_version": 1}) == ""
    assert spoken(None, {"hints_version": 1}) == "sglc"
    assert spoken("vllm", {}) == "vllm"


def test_hints_count_as_far_as_the_operator_lets_them() -> None:
    sent = envelope(ONE)
    for limits, scope, room in (
        (Limits(), {}, 0), (Limits(hint_tokens=9), {}, 9), (Limits(), {ADMIN: True}, 1 << 40),
    ):  # fmt: skip
        hints, allowed = allowed_hints(limits, scope, sent)
        assert ((hints is not None), allowed) == (room > 0, room)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_hints_that_are_lost_at_random_change_no_result(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Agents(6, rounds=3, system=60, result=20, output=8, tool_steps=2)

    def texts(lost: float) -> list[str]:
        chance = random.Random(seed)

        def some(self: ServerBackend, request: Any) -> dict[str, Any]:
            sent = DIALECTS["sglc"](request.hints)
            keeps = chance.random() >= lost
            if not keeps or chance.random() < lost:  # or an action of it
                sent["kv_hints"]["actions"] = sent["kv_hints"]["actions"][1:] if keeps else []
            return sent

        monkeypatch.setattr(ServerBackend, "_hinted", some)
        clock = Clock(work.count)
        backend = TimedBackend(clock, 60, token_budget=64)
        try:
            with served(backend) as url:
                results = work.run(clock, ServerBackend(ServerOptions(url=url, hints="sglc")), served=True)
        finally:
            backend.close()
        return [result.text() for result in results]

    assert len({tuple(texts(lost)) for lost in (0.0, 0.5, 1.0)}) == 1


def hinted(name: str, share: str, after: str = "", room: int = 0) -> Segment:
    told = Hints(program=name, stream=name, after=after)
    return replace(text(name, 4, share=share, prompt=40), hints=told, room=room)


def drained(bench: Bench) -> None:
    while not bench.machine.idle:
        bench.machine.step()


def test_a_share_keeps_so_many_tokens_and_loses_its_own_oldest_first() -> None:
    bench = Bench(pages=64)
    for number in range(4):
        bench.submit(f"a{number}", hinted(f"a{number}", "a", room=128))
    bench.submit("b0", hinted("b0", "b", room=128))
    bench.submit("c0", hinted("c0", "c", room=30))  # where one alone counts as more
    drained(bench)
    kept = bench.machine.hinted._shares
    assert {share: list(streams) for share, streams in kept.items()} == {"a": ["a2", "a3"], "b": ["b0"]}
    assert all(sum(each.tokens for each in streams.values()) <= 128 for streams in kept.values())
    bench.submit("d", hinted("d", "b", after="a3", room=0))  # another's stream, and room for none
    drained(bench)
    assert list(kept["a"]) == ["a2", "a3"]
    assert len(bench.machine.engine.handles.pinned()) == 3


def test_a_dialect_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="`hints` cannot be `'typo'`") as failure:
        sgl.RuntimeEndpoint("http://127.0.0.1:9", hints="typo")
    assert failure.value.code == "SGLC027"
