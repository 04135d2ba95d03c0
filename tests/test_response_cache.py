"""A cache of answers: what was asked for before is not asked for again, and nothing else changes."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.backends.registry import disconnect
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.cli import main
from sglc.errors import UsageError
from sglc.execution.result import Result
from sglc.observe import response_cache
from sglc.observe.response_cache import ResponseCache
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from tests import test_record as record
from tests.depth import at_depth
from tests.openai_server import serving
from tests.oracle_backend import OracleBackend
from tests.prompt_ids import PromptIds
from tests.random_programs import ARGS
from tests.test_known_answers import Handed
from tests.test_plan_run import Recorded

ROOT = Path(__file__).parent.parent


def echoing(asked: Asked) -> str:
    """Every prompt and sample has its own answer."""
    if asked.choices:
        return asked.choices[len(asked.prompt) % len(asked.choices)]
    return f"{asked.sample} of {len(asked.prompt)} {sum(map(ord, asked.prompt)) % 997}"


def scripted(**options: Any) -> ScriptedBackend:
    return ScriptedBackend(echoing, **options)


def shown(result: Result) -> Any:
    """All of a result but its usage and its times."""
    calls = {str(call.site): {**asdict(call), "loc": None} for call in result.calls}
    for call in calls.values():
        for name in ("usage", "started_s", "first_s", "ended_s"):
            del call[name]
    error = result.error()
    return (
        repr(error) if error is None else str(error), result.partial_text, dict(result.variables),
        None if error is not None else (result.text(), result.messages(), result.ret_value), calls,
    )  # fmt: skip


# -- programs ----------------------------------------------------------------------------------------


@sgl.function
def chat(s: Any, q: str) -> None:
    s += sgl.system("Be brief.") + sgl.user(q) + sgl.assistant(sgl.gen("a", temperature=0))
    s += sgl.user("Why?") + sgl.assistant(sgl.gen("b", temperature=0, stop="\n"))


@sgl.function
def branching(s: Any, q: str) -> Any:
    s += "Q: " + q
    forks = s.fork(3)
    for number, branch in enumerate(forks):
        branch += f" tip {number}:" + sgl.gen("tip", temperature=0, n=2 if number == 1 else 1)
    forks.join()
    s += " best:" + sgl.select("best", ["one", "three"])
    if s["best"] == "one":
        s += " so " + sgl.gen("more", temperature=0)
    return s["best"], s["tip"]


@sgl.function
def looping(s: Any, q: str) -> None:
    for number in range(4):
        s += f"{number} {q}" + sgl.gen("part", temperature=0)
        if "7" in s["part"]:
            s += "seven"
    s += inner(s["part"])["h"]


@sgl.function
def inner(s: Any, text: str) -> None:
    s += text + sgl.gen("h", temperature=0)


PROGRAMS = (chat, branching, looping)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "python"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_an_unchanged_program_asks_nothing_the_second_time(program: Any, mode: str, tmp_path: Path) -> None:
    backend, place = scripted(), str(tmp_path)
    plain = program.run("Tea?", backend=backend, mode=mode).sync()
    calls = backend.calls
    first = program.run("Tea?", backend=backend, mode=mode, cache=place).sync()
    assert backend.calls == 2 * calls
    again = program.run("Tea?", backend=backend, mode=mode, cache=place).sync()
    assert backend.calls == 2 * calls
    assert shown(again) == shown(first) == shown(plain)
    assert first.usage == plain.usage
    assert again.usage.cache_hits == plain.usage.calls == len(plain.calls)
    assert {name: n for name, n in asdict(again.usage).items() if n} == {"cache_hits": len(plain.calls)}
    other = program.run("Coffee?", backend=backend, mode=mode, cache=place).sync()
    assert backend.calls > 2 * calls
    assert other.error() is None
    assert not backend.kept


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_pieces_and_batches_are_the_same(program: Any, tmp_path: Path) -> None:
    backend, place = scripted(), str(tmp_path)
    rows = [{"q": f"number {number % 5}"} for number in range(12)]
    plain = program.run_batch(rows, backend=backend)
    first = program.run_batch(rows, backend=backend, cache=place)
    calls = backend.calls
    again = program.run_batch(rows, backend=backend, cache=place)
    assert backend.calls == calls
    assert [shown(row) for row in again] == [shown(row) for row in first] == [shown(row) for row in plain]
    told = list(program.stream("number 1", backend=backend))
    calls = backend.calls
    repeated = list(program.stream("number 1", backend=backend, cache=place))
    assert backend.calls == calls
    assert by_site(repeated) == by_site(told)


def by_site(pieces: list[tuple[Any, str]]) -> dict[str, str]:
    made: dict[str, str] = {}
    for site, text in pieces:
        made[str(site)] = made.get(str(site), "") + text
    return made


def test_equal_rows_are_answered_by_the_first_of_them_that_ended(tmp_path: Path) -> None:
    backend = scripted()
    rows = [{"q": "the same"}] * 6
    results = chat.run_batch(rows, backend=backend, cache=str(tmp_path), num_threads=1)
    assert backend.calls == 2
    assert sum(result.usage.cache_hits for result in results) == 10


def test_plans_and_programs_that_run_together(tmp_path: Path) -> None:
    backend, place = scripted(), str(tmp_path)
    pairs: Any = [(chat, [{"q": "a"}, {"q": "b"}]), (branching, [{"q": "c"}])]
    first = sgl.run_together(pairs, backend=backend, cache=place)
    calls = backend.calls
    again = sgl.run_together(pairs, backend=backend, cache=place)
    assert backend.calls == calls
    assert [[shown(row) for row in rows] for rows in again] == [[shown(row) for row in rows] for rows in first]
    plan = chat.compile(target=backend)
    assert plan.run(q="a", backend=backend, cache=place).sync().usage.cache_hits == 2
    plan.save(str(tmp_path / "plan.json"))
    loaded = sgl.load_plan(str(tmp_path / "plan.json"))
    assert loaded.run(q="a", backend=backend, cache=place).sync().usage.cache_hits == 2
    (row,) = loaded.run_batch([{"q": "b"}], backend=backend, cache=place)
    assert row.usage.cache_hits == 2
    assert backend.calls == calls


# Without one whose value is usage, and those that call batches, which draw seeds of their own.
_UNEQUAL = (record.observing, record.calling, record.together)
OTHERS = [program for program in record.PROGRAMS if program not in _UNEQUAL]


@pytest.mark.slow
@pytest.mark.parametrize("program", OTHERS, ids=lambda program: program.__name__)
def test_tools_calls_other_back_ends_and_failures(program: Any, tmp_path: Path) -> None:
    """Under a seed; its tools run again."""
    backend, place = ScriptedBackend(record.echoing), str(tmp_path)

    def run(**options: Any) -> tuple[Result, int]:
        record.CALLED.clear()
        before = backend.calls + record.OTHER.calls
        result = program.run("where?", backend=backend, seed=5, **options).sync()
        return result, backend.calls + record.OTHER.calls - before

    plain, calls = run()
    first, cold = run(cache=place)
    tools = list(record.CALLED)
    again, warm = run(cache=place)
    assert shown(again) == shown(first) == shown(plain)
    assert tools == record.CALLED
    assert cold == calls
    # What failed is asked for again.
    assert warm == (1 if program is record.failing else 0)


def edited(first: str, second: str, third: str) -> Any:
    @sgl.function
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks[0] += first + sgl.gen("a", temperature=0)
        forks[0] += "then" + sgl.gen("b", temperature=0)
        forks[1] += second + sgl.gen("c", temperature=0)
        forks[1] += third + sgl.gen("d", temperature=0)
        s += "Of " + forks[0]["b"] + sgl.gen("e", temperature=0)

    return program


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "python"])
def test_only_what_depends_on_an_edit_runs(mode: str, tmp_path: Path) -> None:
    backend = scripted()
    asked: list[int] = []
    for literals in (("x", "y", "z"), ("x", "y", "z"), ("xx", "y", "z"), ("xx", "yy", "z"), ("xx", "yy", "zz")):
        before = backend.calls
        result = edited(*literals).run(backend=backend, cache=str(tmp_path), mode=mode).sync()
        assert result.error() is None
        asked.append(backend.calls - before)
    assert asked == [5, 0, 3, 2, 1]


# -- what is cached, and under which key -------------------------------------------------------------


@sgl.function
def sampled(s: Any) -> None:
    s += "Say:" + sgl.gen("a") + sgl.gen("b", n=3)


def test_samples_are_cached_under_a_seed_that_was_given(tmp_path: Path) -> None:
    backend = scripted()

    def asked(**options: Any) -> int:
        before = backend.calls
        sampled.run(backend=backend, cache=str(tmp_path), **options).sync()
        return backend.calls - before

    assert [asked(), asked()] == [2, 2]
    assert ResponseCache(tmp_path).info().entries == 0
    assert [asked(seed=1), asked(seed=1), asked(seed=2), asked()] == [2, 0, 2, 2]
    assert ResponseCache(tmp_path).info().entries == 4


def asks(backend: Any, place: Path, prompt: str = "Say: ", choices: Any = None, **options: Any) -> bool:
    """Whether the back end is asked."""

    @sgl.function
    def one(s: Any) -> None:
        made = sgl.gen("a", **{"temperature": 0, **options}) if choices is None else sgl.select("a", choices)
        s += prompt + made

    before = backend.calls
    result = one.run(backend=backend, cache=str(place)).sync()
    assert result.error() is None
    return bool(backend.calls > before)


@pytest.mark.slow
def test_whatever_an_answer_depends_on_is_in_its_key(tmp_path: Path) -> None:
    backend = scripted()
    variants: list[dict[str, Any]] = [
        {}, {"prompt": "Say:"}, {"max_tokens": 7}, {"stop": "x"}, {"stop": ["x", "y"]}, {"regex": "[0-9a-z ]+"},
        {"choices": ["a", "b"]}, {"choices": ["b", "a"]}, {"n": 2}, {"min_p": 0.5}, {"ignore_eos": True},
    ]  # fmt: skip
    assert [asks(backend, tmp_path, **variant) for variant in variants] == [True] * len(variants)
    assert [asks(backend, tmp_path, **variant) for variant in variants] == [False] * len(variants)
    other = scripted(identity="another model")
    assert asks(other, tmp_path)
    assert not asks(other, tmp_path)
    assert not asks(scripted(), tmp_path)


def test_markup_is_no_text_that_looks_like_it(tmp_path: Path) -> None:
    @sgl.function
    def turn(s: Any) -> None:
        s += sgl.user("Say") + sgl.assistant_begin() + sgl.gen("a", temperature=0)

    @sgl.function
    def text(s: Any, whole: str) -> None:
        s += whole + sgl.gen("a", temperature=0)

    backend = scripted()
    first = turn.run(backend=backend, cache=str(tmp_path)).sync()
    whole = first.partial_text.removesuffix(first["a"])
    before = backend.calls
    assert text.run(whole, backend=backend, cache=str(tmp_path)).sync().error() is None
    assert backend.calls == before + 1


def test_a_text_that_a_model_made_is_not_a_literal_where_prompts_are_ids(
    default_tokenizer: LocalTokenizer, tmp_path: Path
) -> None:
    @sgl.function
    def made(s: Any) -> None:
        s += "Say" + sgl.gen("a", temperature=0) + sgl.gen("b", temperature=0)

    @sgl.function
    def literal(s: Any, text: str) -> None:
        s += "Say" + text + sgl.gen("b", temperature=0)

    def run(program: Any, **arguments: Any) -> tuple[Result, int]:
        backend: Any = PromptIds(default_tokenizer)
        result = program.run(backend=backend, cache=str(tmp_path), **arguments).sync()
        return result, len(backend.asked)

    first, asked = run(made)
    assert asked == 2
    assert run(made)[1] == 0
    assert run(literal, text=first["a"])[1] == 1
    assert run(literal, text=first["a"])[1] == 0


def test_failures_are_asked_for_again(tmp_path: Path) -> None:
    numbers = count()
    backend = ScriptedBackend(lambda asked: None if next(numbers) == 0 else "well")
    assert chat.run("x", backend=backend, cache=str(tmp_path)).sync().error() is not None
    assert chat.run("x", backend=backend, cache=str(tmp_path)).sync()["a"] == "well"


def test_a_local_model_is_known_by_its_files_and_how_it_is_computed(smollm2: Path) -> None:
    one, same, other = (
        LocalBackend(LocalOptions("smollm2", dtype=dtype)) for dtype in ("auto", "auto", "bfloat16")
    )
    assert one.identity == same.identity != other.identity


@pytest.mark.slow
def test_an_api_at_temperature_0(tmp_path: Path) -> None:
    with serving(lambda body: f"{len(body['messages'])} messages") as api:
        backend = sgl.OpenAI("gpt-4o", base_url=api.url, api_key="sk-very-secret")
        first = chat.run("Tea?", backend=backend, cache=str(tmp_path)).sync()
        again = chat.run("Tea?", backend=backend, cache=str(tmp_path)).sync()
        assert len(api.bodies) == 2
        backend.close()
    assert shown(again) == shown(first)
    assert again["b"] == "4 messages"
    (file,) = tmp_path.glob("*.sqlite")
    assert b"secret" not in file.read_bytes()


@pytest.mark.slow
def test_random_plans_run_as_without_a_cache(tmp_path: Path) -> None:
    class Known(OracleBackend):
        identity = "the oracle"

    backend, hits, random = Known(), 0, Random(1)
    for seed in range(at_depth(4, 6, 300)):
        plan, place = record.random_plan(seed, backend), str(tmp_path / f"c{random.randrange(3)}")

        def run(plan: Any = plan, seed: int = seed, **options: Any) -> tuple[Result, Handed]:
            handed: Any = Handed(backend)
            handed.start = backend.start
            made = record.ran(plan, {**ARGS, "b": "beta"}, Recorded(), backend=handed, seed=seed, **options)
            return made, handed

        plain, _ = run()
        cold, _ = run(cache=place)
        warm, handed = run(cache=place)
        assert shown(cold) == shown(plain)
        assert shown(warm) == shown(plain)
        if plain.error() is None:
            assert not handed.asked
            assert warm.usage.cache_hits == len(plain.calls)
        assert not handed.kept
        hits += warm.usage.cache_hits
    backend.close()
    assert hits > at_depth(6, 12, 600)


@pytest.mark.slow
def test_a_run_with_a_cache_is_recorded_as_a_whole_and_replayed(tmp_path: Path) -> None:
    backend, place = scripted(), str(tmp_path / "cache")
    chat.run("Tea?", backend=backend, cache=place).sync()
    first = looping.run("Tea?", backend=backend, cache=place, record=str(tmp_path / "r0")).sync()
    calls = backend.calls
    again = looping.run("Tea?", backend=backend, cache=place, record=str(tmp_path / "r1")).sync()
    assert backend.calls == calls
    replayed = looping.run("Tea?", backend=backend, replay=str(tmp_path / "r1")).sync()
    assert backend.calls == calls
    assert shown(replayed) == shown(again) == shown(first)
    assert replayed.usage == again.usage
    with pytest.raises(UsageError, match="SGLC066"):
        looping.run("Tea?", replay=str(tmp_path / "r1"), cache=place)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "python"])
def test_a_recording_goes_on_with_a_cache(mode: str, tmp_path: Path) -> None:
    """What it holds is not looked up, what it lacks is, and the whole replays."""
    fails = [True]
    backend = ScriptedBackend(lambda a: None if fails[0] and "2 " in a.prompt[-20:] else echoing(a))
    options: dict[str, Any] = {"backend": backend, "mode": mode, "seed": 1}
    place, tape = str(tmp_path / "cache"), str(tmp_path / "tape")
    cut = looping.run("Tea?", record=tape, cache=place, **options).sync()
    assert cut.error() is not None
    fails[0] = False
    whole = looping.run("Tea?", **options).sync()
    chat.run("Tea?", cache=place, **options).sync()
    filled_by_another = looping.run("Tea?", cache=place, **options).sync()
    assert filled_by_another.usage.cache_hits == 2
    calls = backend.calls
    again: dict[str, Any] = {"record": tape, "resume": True, "retry_failed": True}
    gone_on = looping.run("Tea?", **again, cache=place, **options).sync()
    assert backend.calls == calls
    assert gone_on.usage.cache_hits == len(whole.calls) - 2
    replayed = looping.run("Tea?", replay=tape, **options).sync()
    assert shown(replayed) == shown(gone_on) == shown(whole)


# -- the file ----------------------------------------------------------------------------------------


def test_what_cannot_hold_a_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="SGLC065"):
        chat.run("x", backend=scripted(), cache=str(tmp_path / "file"))


def test_an_answer_is_on_disk_when_its_row_is_given(tmp_path: Path) -> None:
    results = chat.stream_batch(
        [{"q": str(number)} for number in range(20)], backend=scripted(), cache=str(tmp_path), num_threads=1
    )
    for number in range(1, 4):
        next(results)
        with sqlite3.connect(tmp_path / "answers-1.1.sqlite") as other:
            assert other.execute("SELECT COUNT(*) FROM answers").fetchone()[0] >= 2 * number
        other.close()
    results.close()  # type: ignore[attr-defined]


def filled(place: Path, entries: int = 400) -> list[bytes]:
    """A cache with answers in its file."""
    cache, keys = ResponseCache(place), [number.to_bytes(32, "big") for number in range(entries)]
    for key in keys:
        cache.put(key, "model", {"text": key.hex() * 8})
    cache.close()
    return keys


def test_hits_are_counted_and_old_answers_forgotten(tmp_path: Path) -> None:
    keys = filled(tmp_path, 10)
    cache = ResponseCache(tmp_path)
    assert [cache.get(key) is not None for key in (*keys, b"other")] == [True] * 10 + [False]
    cache.close()
    found = ResponseCache(tmp_path).info()
    assert (found.entries, found.hits, found.models) == (10, 10, {"model": 10})
    assert found.bytes > 10 * 512
    cache = ResponseCache(tmp_path)
    assert cache.clear(older_than_s=3600) == 0
    assert cache.clear() == 10
    assert (cache.info().entries, cache.info().models) == (0, {})
    cache.close()


def garbage(file: Path) -> None:
    file.write_bytes(b"no database at all" * 100)


def cut_short(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 3)


def zeros(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(bytes(file.stat().st_size - 4096))


@pytest.mark.slow
@pytest.mark.parametrize("damage", [garbage, cut_short, zeros])
@pytest.mark.parametrize("open_then", [False, True], ids=["closed", "open"])
def test_a_damaged_file_is_noticed_put_aside_and_rebuilt(
    damage: Callable[[Path], None], open_then: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = filled(tmp_path)
    (file,) = tmp_path.glob("*.sqlite")
    cache, other = ResponseCache(tmp_path), ResponseCache(tmp_path)
    if open_then:
        assert other.get(keys[0]) is not None
    damage(file)
    for key in keys:
        answer = cache.get(key)
        assert answer in (None, {"text": key.hex() * 8})
        if answer is None:
            cache.put(key, "model", {"text": key.hex() * 8})
    cache.flush()
    assert [cache.get(key) for key in keys[-5:]] == [{"text": key.hex() * 8} for key in keys[-5:]]
    cache.close()
    told = capsys.readouterr().err
    assert told.count("is damaged") == 1
    assert (tmp_path / f"{file.name}.damaged").exists()
    # Whoever had it open goes on, with the new one at the latest when it meets the damage.
    for key in keys:
        assert other.get(key) in (None, {"text": key.hex() * 8})
    other.close()
    assert len(list(tmp_path.glob("*.sqlite"))) == 1
    assert ResponseCache(tmp_path).info().entries == len(keys)


def damaged(data: bytearray, random: Random) -> bytearray:
    at = random.randrange(len(data))
    match random.randrange(4):
        case 0:
            for _ in range(random.choice((1, 3, 30))):
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        case 1:
            del data[at:]
        case 2:
            data[at : at + 6000] = random.randbytes(len(data[at : at + 6000]))
        case _:
            data[at : at + 4096] = bytes(len(data[at : at + 4096]))
    return data


@pytest.mark.slow
def test_no_damage_makes_a_wrong_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And it is over when all has been asked again, once or twice."""
    for seed in range(at_depth(20, 30, 2000)):
        place, random = tmp_path / str(seed), Random(seed)
        keys = filled(place, 100)
        (file,) = place.glob("*.sqlite")
        file.write_bytes(damaged(bytearray(file.read_bytes()), random))
        missing = 1
        for _ in range(4):
            cache = ResponseCache(place)
            found = {key: cache.get(key) for key in keys}
            assert all(answer in (None, {"text": key.hex() * 8}) for key, answer in found.items())
            missing = sum(answer is None for answer in found.values())
            for key, answer in found.items():
                if answer is None:
                    cache.put(key, "model", {"text": key.hex() * 8})
                    if random.random() < 0.2:
                        cache.flush()
            cache.close()
        assert not missing, seed
    assert "Traceback" not in capsys.readouterr().err


def test_a_damaged_row_is_noticed_and_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = scripted()
    first = chat.run("Tea?", backend=backend, cache=str(tmp_path)).sync()
    (file,) = tmp_path.glob("*.sqlite")
    data = file.read_bytes()
    at = data.index(first["b"].encode())
    file.write_bytes(data[:at] + b"#" + data[at + 1 :])
    again = chat.run("Tea?", backend=backend, cache=str(tmp_path)).sync()
    assert backend.calls == 3
    assert shown(again) == shown(first)
    assert capsys.readouterr().err.count("is damaged") == 1
    assert chat.run("Tea?", backend=backend, cache=str(tmp_path)).sync().usage.cache_hits == 2


def test_a_cache_that_cannot_be_used_changes_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "answers-1.1.sqlite").mkdir()
    assert chat.run("Tea?", backend=scripted(), cache=str(tmp_path)).sync().error() is None
    assert capsys.readouterr().err.count("cannot be used") == 1


def test_a_full_disk_costs_the_cache_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = filled(tmp_path, 10)
    cache = ResponseCache(tmp_path)
    cache._open().execute("PRAGMA max_page_count = 1")  # as many as there are
    for number in range(1000, 1600):
        cache.put(number.to_bytes(32, "big"), "model", {"text": "x" * 1000})
    cache.flush()
    assert [cache.get(key) for key in keys] == [{"text": key.hex() * 8} for key in keys]
    cache.close()
    assert capsys.readouterr().err.count("cannot be used: database or disk is full") == 1
    assert ResponseCache(tmp_path).info().entries == 10


def test_a_cache_that_somebody_holds_is_waited_for_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_cache, "_BUSY_S", 0.01)
    keys = filled(tmp_path, 10)
    (file,) = tmp_path.glob("*.sqlite")
    holder = sqlite3.connect(file, isolation_level=None)
    cache = ResponseCache(tmp_path)
    assert cache.get(keys[0]) is not None
    holder.execute("BEGIN IMMEDIATE")
    assert cache.get(keys[1]) is not None  # reading does not wait
    cache.put(b"other", "model", {})
    cache.flush()
    holder.close()
    assert cache.get(keys[0]) is None
    cache.close()
    assert capsys.readouterr().err.count("cannot be used: database is locked") == 1
    assert ResponseCache(tmp_path).info().entries == 10


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_has_its_own_connection(tmp_path: Path) -> None:
    cache, keys = ResponseCache(tmp_path), [bytes([number]) * 32 for number in range(4)]
    cache.put(keys[0], "model", {"text": "before"})
    cache.flush()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with cache._mine():
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        good = cache.get(keys[0]) == {"text": "before"}
        cache.put(keys[1], "model", {"text": "child"})
        cache.close()
        os._exit(0 if good else 1)
    done.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
    assert cache.get(keys[1]) == {"text": "child"}
    cache.put(keys[2], "model", {"text": "parent"})
    cache.close()
    assert ResponseCache(tmp_path).info().entries == 3


PROCESS = """
import json, os, sys, signal
import sglc as sgl
from sglc.backends.scripted import ScriptedBackend

@sgl.function
def program(s, q):
    s += q + sgl.gen("a", temperature=0) + "then" + sgl.gen("b", temperature=0)

backend = ScriptedBackend(lambda asked: f"{len(asked.prompt)} {sum(map(ord, asked.prompt))}")
first, last, kill = map(int, sys.argv[2:])
rows = [{"q": f"number {number}"} for number in range(first, last)]
done = 0
for row in program.stream_batch(rows, backend=backend, cache=sys.argv[1]):
    assert row.error() is None
    done += 1
    if done == kill:
        os.kill(os.getpid(), signal.SIGKILL)
print(json.dumps([backend.calls, done]))
"""


def process(place: Path, first: int, last: int, kill: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(place), str(first), str(last), str(kill)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def ended(started: subprocess.Popen[str]) -> Any:
    out, err = started.communicate(timeout=120)
    assert err == ""
    return json.loads(out) if started.returncode == 0 else started.returncode


@pytest.mark.slow
def test_two_processes_share_a_cache(tmp_path: Path) -> None:
    """At the same time, and one that is killed leaves what its rows were answered."""
    one, two = process(tmp_path, 0, 200), process(tmp_path, 100, 300)
    calls = [ended(one)[0], ended(two)[0]]
    assert 2 * 300 <= sum(calls) <= 2 * 400
    assert ended(process(tmp_path, 0, 350, kill=330)) == -signal.SIGKILL
    assert ended(process(tmp_path, 0, 330))[0] == 0
    assert ResponseCache(tmp_path).info().entries >= 2 * 330


# -- the command line --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_row_that_failed_half_way_goes_on_with_the_answers_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ask.py").write_text(
        "import sglc as sgl\n\n\n@sgl.function\ndef ask(s, q):\n"
        '    s += q + sgl.gen("a")\n    if q != "easy":\n        s += str(len(s["a"])) + sgl.gen("b")\n'
    )
    Path("script.json").write_text('[{"text": "some words"}]')
    Path("rows.jsonl").write_text('{"q": "one"}\n{"q": "two"}\n{"q": "easy"}\n')
    run = ["run", "ask.py", "--backend", "scripted:script.json", "--cache", "answers", "--batch", "rows.jsonl"]
    run += ["-o", "out.jsonl"]  # whose manifest keeps the seed
    assert main([*run, "--max-calls", "1"]) == 1
    assert "3 calls; tokens" in capsys.readouterr().err
    Path("out.jsonl.journal/recording.jsonl").unlink()  # else the answers would come from there
    assert main([*run, "--resume", "--retry-failed", "--force"]) == 0
    assert "2 calls, 2 from the cache; tokens" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ask.py").write_text(
        "import sglc as sgl\n\n\n@sgl.function\ndef ask(s, q):\n"
        '    s += q + sgl.gen("a", temperature=0) + "!" + sgl.gen("b", temperature=0)\n'
    )
    Path("script.json").write_text('[{"text": "some words"}]')
    Path("rows.jsonl").write_text('{"q": "one"}\n{"q": "two"}\n')
    run = ["run", "ask.py", "--backend", "scripted:script.json", "--cache", "answers"]
    for command, counts in (
        ([*run, "--arg", "q=one"], "2 calls; tokens"),
        ([*run, "--arg", "q=one"], "0 calls, 2 from the cache; tokens: 0 in (0 cached), 0 out"),
        ([*run, "--batch", "rows.jsonl"], "2 calls, 2 from the cache; tokens"),
        ([*run, "--batch", "rows.jsonl", "-o", "out.jsonl"], "0 calls, 4 from the cache; tokens"),
    ):
        assert main(command) == 0
        shown = capsys.readouterr()
        assert counts in shown.err
        assert "some words" in shown.out + Path("out.jsonl").read_text() if "-o" in command else shown.out
    assert [json.loads(line)["usage"]["cache_hits"] for line in Path("out.jsonl").read_text().splitlines()] == [
        2,
        2,
    ]
    assert main(["cache", "info", "answers"]) == 0
    told = capsys.readouterr().out
    assert re.fullmatch(r"4 answers, [\d,]+ bytes, 8 hits\n +4  scripted [0-9a-f]{12} tokens words\n", told)
    assert main(["cache", "clear", "answers", "--older-than", "1"]) == 0
    assert main(["cache", "clear", "answers"]) == 0
    assert capsys.readouterr().out == "0 answers forgotten\n4 answers forgotten\n"
    Path("script.json").write_text('[{"text": "other words"}]')
    disconnect()
    assert main([*run, "--arg", "q=one"]) == 0
    assert "2 calls; tokens" in capsys.readouterr().err
