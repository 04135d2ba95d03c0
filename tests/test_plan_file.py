"""Plans as files: their hash, what damages them, and that they run where their program is not."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

import sglc as sgl
from sglc.api.plan import LoadedPlan, tools_for
from sglc.backends.scripted import Asked, ScriptedBackend, Words
from sglc.cli import main
from sglc.errors import SglcError, UsageError, VerifyError, render
from sglc.execution.plan.prepare import function_steps
from sglc.ir.plan.plan import Plan
from sglc.ir.plan.plan_file import hash_of, plan_from_text, plan_hash, plan_to_text
from sglc.ir.plan.plan_json import PLAN_VERSION
from sglc.ir.pure import STORED
from sglc.ir.target import Target
from sglc.passes.compile import compile_program
from tests.depth import at_depth
from tests.oracle_backend import OracleBackend
from tests.random_programs import random_program

EVERYTHING = Target("scripted", Words(), continues_text=True, images=True)

AGENT = """\
import sglc as sgl


@sgl.tool
def search(query: str) -> str:
    return f" {query.strip()} was found"


@sgl.function
def agent(s, question):
    s += question + sgl.gen("query")
    s += search(s["query"]) + sgl.gen("answer")
    return s["answer"]


@sgl.function
def short(s, question):
    s += question
    forks = s.fork(2)
    for number, fork in enumerate(forks):
        fork += f"{number}:" + sgl.gen("tip")
    forks.join()
    s += sgl.select("verdict", choices=["yes", "no"])
    return s["verdict"]
"""

RULES = [
    {"name": "query", "text": " tea"},
    {"name": "answer", "prompt": "(tea was found|4\\))$", "text": " Yes."},
    {"name": "tip", "prompt": "0:$", "text": " first"},
    {"name": "tip", "text": " second"},
    {"name": "verdict", "text": "yes"},
    {"name": "kind", "text": "2"},
    {"name": "counts", "text": '{"a": [1, 2]}'},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "answers.json").write_text(json.dumps({"rules": RULES, "word_s": 0.001}))
    return tmp_path


def compile_line(folder: Path, name: str) -> list[str]:
    """The command that writes the plan of a program."""
    program, target = f"{folder / 'agent.py'}:{name}", f"scripted:{folder / 'answers.json'}"
    return ["compile", program, "--target", target, "--emit", "json", "-o", str(folder / "plan.json")]


def compiled(folder: Path, name: str) -> Path:
    """The plan of a program."""
    assert main(compile_line(folder, name)) == 0
    return folder / "plan.json"


def compiled_apart(folder: Path, name: str) -> Path:
    """The plan of a program, compiled in a process of its own."""
    done = sglc(compile_line(folder, name), folder)
    assert done.returncode == 0, done.stderr
    return folder / "plan.json"


def sglc(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own that works in `folder`."""
    root = str(Path(__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-m", "sglc.cli", *arguments], cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": root}, check=False,
    )  # fmt: skip


def test_a_program_in_ir_form_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, target = folder / "short.sglir", f"scripted:{folder / 'answers.json'}"
    asked = ["compile", f"{folder / 'agent.py'}:short", "--target", target, "--passes", ""]
    assert main([*asked, "--emit", "ir", "-o", str(program)]) == 0
    assert main(["run", str(program), "--backend", target, "--arg", "question=Why?", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == "yes"


def test_a_plan_prints_what_its_program_prints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In each form that the ending of a file names."""
    program, target = f"{folder / 'agent.py'}:short", f"scripted:{folder / 'answers.json'}"
    line = ["--backend", target, "--arg", "question=Why?", "--seed", "1"]
    assert main(["run", program, *line]) == 0
    printed = capsys.readouterr().out
    assert printed == "yes\n"
    for name in ("short.json", "short.sglir"):
        assert main(["compile", program, "--target", target, "-o", str(folder / name)]) == 0
        assert main(["run", str(folder / name), *line]) == 0
        assert capsys.readouterr().out == printed


@pytest.mark.parametrize("written", ["all.json", "all.sglir"])
def test_a_file_that_runs_has_one_program(
    folder: Path, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["compile", str(folder / "agent.py"), "--target", f"scripted:{folder / 'answers.json'}"]
    assert main([*asked, "-o", str(folder / written)]) == 2
    assert capsys.readouterr().err.startswith("error[SGLC006]: ")
    assert not (folder / written).exists()
    assert main([*asked, "-o", str(folder / "all.txt")]) == 0


def test_a_plan_to_be_read_does_not_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, target = f"{folder / 'agent.py'}:short", f"scripted:{folder / 'answers.json'}"
    shown = folder / "shown.json"
    assert main(["compile", program, "--target", target, "--emit", "plan", "-o", str(shown)]) == 0
    assert main(["run", str(shown), "--backend", target, "--arg", "question=Why?"]) == 2
    assert capsys.readouterr().err.endswith(
        "hint: a plan that runs is what `sglc compile PROG --emit json` writes\n"
    )


TYPED = """\
from typing import Literal

import sglc as sgl


@sgl.function
def typed(s, question, count: int, rows: list, tone="kind"):
    with s.var_scope("asked"):
        s += f"{question} ({tone}, {count + 1})" + sgl.gen("answer")
    s["pair"] = (count, s["answer"])
    s += sgl.gen("kind", dtype=Literal["one", 2]) + sgl.gen("counts", dtype=dict[str, list[int]])
    s += sgl.select("verdict", choices=["yes", "no"])
    return {"count": count, "rows": rows, "tone": tone, "half": 0.5}
"""


@pytest.mark.slow
def test_a_program_its_ir_and_its_plan_print_the_same(folder: Path) -> None:
    (folder / "typed.py").write_text(TYPED)
    given = json.dumps({"question": "Why?", "count": 3, "rows": ["a", 2]})
    target = f"scripted:{folder / 'answers.json'}"
    files = {"typed.sglir": ["--emit", "ir", "--passes", ""], "typed.json": ["--emit", "json"]}
    for file, emitted in files.items():
        line = ["compile", "typed.py:typed", "--target", target, "--args", given, *emitted, "-o", file]
        done = sglc(line, folder)
        assert done.returncode == 0, done.stderr
    found = {}
    for file in ("typed.py", *files):
        done = sglc(["run", file, "--backend", target, "--args", given, "--seed", "1", "--json"], folder)
        assert done.returncode == 0, done.stderr
        found[file] = json.loads(done.stdout)
        del found[file]["timing"]
    shown = found["typed.py"]
    assert shown["value"] == {"count": 3, "rows": ["a", 2], "tone": "kind", "half": 0.5}
    assert shown["text"] == 'Why? (kind, 4) Yes.2{"a": [1, 2]}yes'
    assert list(shown["vars"]) == ["answer", "asked", "pair", "kind", "counts", "verdict"]
    assert (shown["vars"]["kind"], shown["vars"]["counts"]) == (2, {"a": [1, 2]})
    assert found["typed.sglir"] == found["typed.json"] == shown


# -- the file ----------------------------------------------------------------------------------------


def planned(seed: int) -> Plan:
    program = random_program(seed, regions=True, python=False, resumed=False)
    return compile_program(program, EVERYTHING).plan


def test_a_plan_is_the_same_after_it_was_written() -> None:
    hashes = set()
    count = at_depth(8, 16, 40)
    for seed in range(count):
        plan = planned(seed)
        text = plan_to_text(plan)
        again = plan_from_text(text, "plan.json")
        assert again == plan
        assert plan_hash(again) == plan_hash(plan)
        # Laid out anew it is the same plan.
        data = json.loads(text)
        assert plan_from_text(json.dumps(data, sort_keys=True), "plan.json") == plan
        hashes.add(plan_hash(plan))
    assert len(hashes) == count


def places(data: Any, path: tuple[Any, ...] = ()) -> Any:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from places(part, (*path, key))


def changed(item: Any) -> Any:
    match item:
        case bool():
            return not item
        case int() | float():
            return item + 1
        case str():
            return item + "x"
        case list():
            return [*item, None]
        case dict():
            return {**item, "more": 1}
        case _:
            return "x"


def test_a_change_anywhere_is_refused() -> None:
    codes: dict[str, int] = {}
    count = at_depth(2, 3, 6)
    for seed in range(count):
        text = plan_to_text(planned(seed))
        paths = list(places(json.loads(text)))
        for path in random.Random(seed).sample(paths, min(len(paths), at_depth(50, 100, 150))):
            data = json.loads(text)
            place = data
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = changed(place[path[-1]])
            with pytest.raises(SglcError) as caught:
                plan_from_text(json.dumps(data), "plan.json")
            codes[caught.value.code] = codes.get(caught.value.code, 0) + 1
    assert codes.keys() == {"SGLC040", "SGLC220", "SGLC221"}
    assert codes["SGLC040"] > at_depth(10, 30, 100)


@sgl.function
def judged(s: Any, left: str, right: str) -> Any:
    s += left + right + sgl.gen("kind", dtype=Literal["one", 2])
    return s["kind"]


def forged(data: Any) -> Any:
    """The file of a plan that says something else, with the hash of that."""
    said = {key: item for key, item in data.items() if key != "hash"}
    return plan_from_text(json.dumps({**said, "hash": hash_of(said)}), "plan.json")


def misplaced(data: Any, kind: str = "", holder: Any = None, path: tuple[Any, ...] = ()) -> Iterator[Any]:
    """(what it is about, path, what cannot stand in that place of a plan)."""
    own = data.get("is") if isinstance(data, dict) else None
    if kind == "handle":
        yield kind, path, 0
    if own == "held":
        yield from ((own, path, odd) for odd in (1e308, "a", True))
    if kind == "text" and own in ("joined", "slot"):
        yield kind, path, [data]
    if kind in ("pred", "items") and own == "slot":
        yield kind, path, "a"
    if path[-2:-1] == ("operands",) and holder["operation"] not in ("concat", "pack"):
        yield "operands", path, 1.5
    if path[-2:-1] == ("results",) and own in ("joined", "slot"):
        yield "results", path, 3
    if kind == "args" and str(holder.get("function")).endswith(STORED):
        yield kind, path, []
    for key, part in data.items() if isinstance(data, dict) else enumerate(data) if type(data) is list else ():
        yield from misplaced(part, str(key), holder if own is None else data, (*path, key))


@pytest.mark.slow
def test_a_plan_that_was_made_by_hand_is_refused_or_fails_well() -> None:
    """Its hash is right, and what it says is not."""
    backend = ScriptedBackend(lambda asked: asked.choices[0] if asked.choices else "2")
    tried = set()
    for plan in (*map(planned, range(at_depth(4, 8, 24))), judged.compile(backend).plan):
        text = plan_to_text(plan)
        found = list(misplaced(json.loads(text)))
        for about, path, odd in random.Random(0).sample(found, min(len(found), at_depth(30, 60, 1_000))):
            data = place = json.loads(text)
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = odd
            try:
                error = LoadedPlan(forged(data)).run(dict.fromkeys(plan.names, "x"), backend=backend).error()
            except SglcError as problem:
                error = problem
            assert error is None or isinstance(error, SglcError), (path, odd, error)
            tried.add(about)
    assert tried == {"handle", "held", "text", "pred", "items", "operands", "args", "results"}


@sgl.function
def chooses(s: Any, q: str) -> None:
    s += q + sgl.gen("kind")
    if s["kind"] == "a":
        s += " so " + sgl.gen("so")
    s += " end" + sgl.gen("end")


@pytest.mark.parametrize("odd", [3, None, True, ["a"], {"is": "held", "name": None}])
def test_a_block_that_gives_no_text_where_one_is_read_is_refused(odd: Any) -> None:
    data = json.loads(plan_to_text(chooses.compile(ScriptedBackend(lambda asked: "a")).plan))
    arm = next(block for block in data["blocks"] if block["results"] and block["steps"])
    place = next(at for at, part in enumerate(arm["results"]) if part["is"] != "held")
    arm["results"][place] = odd
    with pytest.raises(VerifyError, match=r"SGLC221.*: `\.(steps|variables)\[\d\]` \w+ "):
        forged(data)


def test_a_file_that_was_cut_short_is_refused() -> None:
    text = plan_to_text(planned(1))
    for end in range(0, len(text) - 1, len(text) // 40):
        with pytest.raises(UsageError) as caught:
            plan_from_text(text[:end], "plan.json")
        assert caught.value.code == "SGLC008"


def test_a_number_of_too_many_digits_is_no_json() -> None:
    with pytest.raises(UsageError, match="integer string conversion") as caught:
        plan_from_text(f'{{"version": {"1" * 5000}}}', "plan.json")
    assert caught.value.code == "SGLC008"


def test_what_the_errors_say() -> None:
    text = plan_to_text(planned(0))
    data = json.loads(text)
    with pytest.raises(UsageError) as caught:
        plan_from_text(json.dumps({**data, "program": "other"}), "plan.json")
    shown = render(caught.value)
    assert shown.startswith(
        "error[SGLC040]: the plan in `plan.json` is not as it was written\n --> plan.json:1\n"
    )
    assert f"beside it stands {data['hash']}" in shown
    with pytest.raises(UsageError, match="beside it stands none"):
        plan_from_text(json.dumps({key: item for key, item in data.items() if key != "hash"}), "plan.json")
    for version in (PLAN_VERSION - 1, PLAN_VERSION + 1):
        with pytest.raises(VerifyError) as refused:
            plan_from_text(json.dumps({**data, "version": version}), "plan.json")
        assert refused.value.code == "SGLC220"
        assert f"`{version}`" in refused.value.message


# -- another process ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_runs_where_its_program_is_not(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = compiled_apart(folder, "short")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("plan.json", "answers.json"):
        (folder / name).rename(elsewhere / name)
    (folder / "agent.py").unlink()
    line = ["run", "plan.json", "--backend", "scripted:answers.json", "--arg", "question=Tea?", "--seed", "5"]
    done = sglc([*line, "--json"], elsewhere)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["value"] == "yes"
    assert shown["vars"] == {"tip": [" first", " second"], "verdict": "yes"}
    assert (shown["index"], shown["seed"], shown["error"], shown["usage"]["calls"]) == (0, 5, None, 3)
    assert plan.name == "plan.json"


@pytest.mark.slow
def test_a_plan_with_a_tool_wants_a_file_that_declares_it(folder: Path) -> None:
    compiled_apart(folder, "agent")
    tools = AGENT.partition("@sgl.function")[0]
    (folder / "agent.py").unlink()
    line = ["run", "plan.json", "--backend", "scripted:answers.json", "--arg", "question=Tea?", "--json"]
    done = sglc(line, folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(
        "error[SGLC025]: the plan calls `sglc_program_agent.search`, which is not there\n --> agent.py:12:10\n"
    )
    assert "`--tools FILE.py`" in done.stderr
    (folder / "functions.py").write_text(tools)
    done = sglc([*line, "--tools", "functions.py"], folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["value"] == " Yes."
    (folder / "empty.py").write_text("x = 1\n")
    done = sglc([*line, "--tools", "empty.py"], folder)
    assert done.returncode == 2
    assert done.stderr.startswith("error[SGLC045]: `empty.py` declares no function\n --> empty.py:1\n")


# -- from Python -------------------------------------------------------------------------------------


@sgl.tool
def shout(text: str) -> str:
    return text.upper()


@sgl.function
def loud(s: Any, word: str) -> Any:
    s += word + sgl.gen("x")
    s += shout(s["x"]) + sgl.gen("y")
    return {"y": s["y"]}


def answering(asked: Asked) -> str:
    return f" {asked.site.name}{len(asked.prompt)}"


def test_a_plan_is_saved_and_loaded(tmp_path: Path) -> None:
    backend = ScriptedBackend(answering)
    loud.compile(backend).save(tmp_path / "loud.json")
    plan = sgl.load_plan(tmp_path / "loud.json")
    result = plan.run({"word": "ab"}, backend=backend, seed=3)
    assert result.ret_value == loud.run("ab", backend=backend, seed=3).ret_value == {"y": " y8"}
    assert dict(result.variables) == {"x": " x2", "y": " y8"}
    assert result["y"] == " y8"
    assert plan.run(word="ab", backend=backend).ret_value == {"y": " y8"}
    text = (tmp_path / "loud.json").read_text()
    (tmp_path / "marked.json").write_text(text, encoding="utf-8-sig")
    assert sgl.load_plan(tmp_path / "marked.json").hash == plan.hash
    assert plan.hash in repr(plan)
    with pytest.raises(UsageError) as caught:
        plan.run(backend=backend)
    assert caught.value.code == "SGLC014"
    with pytest.raises(UsageError) as caught:
        sgl.load_plan(tmp_path / "nothing.json")
    assert caught.value.code == "SGLC002"


@sgl.function
def sampled(s: Any, word: str) -> Any:
    s += word + sgl.gen("x", max_tokens=12)
    forks = s.fork(3)
    for number, fork in enumerate(forks):
        fork += f"{number}:" + sgl.gen("tip", max_tokens=8, n=2 if number == 1 else 1)
    forks.join()
    s += sgl.gen("end", max_tokens=8)
    return {"end": s["end"], "first": [s["x"], word]}


def test_rows_of_a_plan_draw_the_samples_of_the_function_s() -> None:
    oracle = OracleBackend()
    plan = LoadedPlan(sampled.compile(oracle).plan)
    rows = [{"word": "same"}] * 6 + [{"word": f"w{i}"} for i in range(6)]
    shown = []
    for runs in (sampled, plan):
        for seed in (1, 2):
            results = runs.run_batch(rows, backend=oracle, seed=seed)
            shown.append([(dict(result.variables), result.ret_value) for result in results])
            one = runs.run(**rows[0], backend=oracle, seed=seed)
            assert (dict(one.variables), one.ret_value) == shown[-1][0]
    assert shown[0] == shown[2]
    assert shown[1] == shown[3]
    assert shown[0] != shown[1]
    assert len({json.dumps(row) for row in shown[0][:6]}) == 6  # equal rows differ
    oracle.close()


def test_a_plan_s_result_is_read_while_it_runs() -> None:
    backend = ScriptedBackend(lambda asked: " one two three" if asked.site.name == "x" else " 4", word_s=0.02)
    plan = LoadedPlan(sampled.compile(backend).plan)
    result = plan.run(word="a", backend=backend, stream=True)
    assert list(result.text_iter("x")) == [" one", " two", " three"]
    assert not result.ended
    assert result["x"] == " one two three"
    assert result["tip"] == [" 4", [" 4", " 4"], " 4"]
    assert [site.name for site, _ in result.pieces()] == ["x"] * 3 + ["tip"] * 3 + ["end"]
    meta = result.get_meta_info("x")
    assert meta is not None
    assert meta["completion_tokens"] == 3
    assert (result.text(), result.messages()) == ("a one two three 4", [])
    late = asyncio.run(plan.run(word="a", backend=backend).sync_async())
    assert late.variables == {"x": " one two three", "tip": [" 4", [" 4", " 4"], " 4"], "end": " 4"}
    assert list(late.text_iter("x")) == [" one two three"]


def test_a_program_runs_a_plan_where_it_runs_itself() -> None:
    backend = ScriptedBackend(answering)
    plan = LoadedPlan(loud.compile(backend).plan)

    @sgl.function
    def outer(s: Any) -> Any:
        s += "a" + sgl.gen("z")
        return [plan.run(word=s["z"]).ret_value, s["z"]]

    first, second = (outer.run(backend=backend, seed=7).ret_value for _ in range(2))
    assert first == second == [{"y": " y9"}, " z1"]


def test_tools_are_found_by_the_last_part_of_their_names(tmp_path: Path) -> None:
    backend = ScriptedBackend(answering)
    plan = loud.compile(backend).plan
    (name,) = (step.function for step in function_steps(plan))
    assert name.endswith(".shout")

    def other(text: str) -> str:
        return "!"

    for given in ({"shout": other}, {f"elsewhere.{'shout'}": other}, {name: other}):
        result = LoadedPlan(plan, given).run(word="ab", backend=backend)
        assert result.ret_value == {"y": " y6"}
    assert LoadedPlan(plan, [shout]).run(word="ab", backend=backend).ret_value == {"y": " y8"}
    assert tools_for(plan, {"another": other}).keys() == {name}  # it is declared here


def test_a_name_that_two_functions_of_the_plan_have_is_refused() -> None:
    from sglc.ir.text.printer import from_text

    program = from_text(
        "def f(a):\n    t0 = tool('one.get', (a,))\n    t1 = tool('two.get', (t0,))\n    return t1\n", "f.sglir"
    )
    backend = ScriptedBackend(answering)
    plan = compile_program(program, backend.target).plan
    with pytest.raises(UsageError) as caught:
        LoadedPlan(plan, {"get": str})
    assert caught.value.code == "SGLC042"
    assert caught.value.message == "the plan calls `one.get` and `two.get`: which one is `get`?"
    both = LoadedPlan(plan, {"one.get": lambda text: text + "1", "two.get": lambda text: text + "2"})
    assert both.run(a="x", backend=backend).ret_value == "x12"
    with pytest.raises(UsageError, match=r"`one.get`, `two.get`, which are not there"):
        LoadedPlan(plan).run(a="x", backend=backend)


def test_a_plan_for_an_api_runs_on_no_other_back_end() -> None:
    backend = ScriptedBackend(answering)
    plan = replace(loud.compile(backend).plan, target="openai:gpt-4o", tokenizer="")
    with pytest.raises(UsageError) as caught:
        LoadedPlan(plan).run(word="a", backend=backend)
    assert caught.value.code == "SGLC046"
    assert caught.value.message == "the plan was made for `openai:gpt-4o`, and runs on no other back end"
    with pytest.raises(UsageError) as caught:
        LoadedPlan(replace(plan, tokenizer="another")).run(word="a", backend=backend)
    assert caught.value.code == "SGLC015"
    assert backend.submits == 0


# -- batches from the command line -------------------------------------------------------------------


def test_a_batch_of_a_plan_gives_lines_as_a_program_s_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = compiled(folder, "short")
    (folder / "rows.jsonl").write_text("".join(f'{{"question": "Tea {i}?"}}\n' for i in range(20)))
    line = ["--backend", f"scripted:{folder / 'answers.json'}", "--batch", str(folder / "rows.jsonl")]
    shown = []
    for program in (str(plan), f"{folder / 'agent.py'}:short"):
        assert main(["run", program, *line, "--seed", "1", "--json"]) == 0
        lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
        assert [one["index"] for one in lines] == list(range(20))
        shown.append(lines)
    for of_plan, of_program in zip(*shown, strict=True):
        assert of_plan.keys() == of_program.keys()
        for key in ("vars", "value", "usage", "error", "seed"):
            assert of_plan[key] == of_program[key]
    (folder / "rows.jsonl").write_text('{"question": "Tea?"}\n{"quest": "Tea?"}\n')
    assert main(["run", str(plan), *line]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error[SGLC014]: the plan misses `question`\nnote: ")
    assert "rows.jsonl:2: row 1 of the batch; its arguments: question\n" in err


def test_a_plan_s_text_is_shown_while_it_is_generated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = compiled(folder, "short")
    line = ["run", str(plan), "--backend", f"scripted:{folder / 'answers.json'}", "--arg", "question=Tea?"]
    assert main([*line, "--stream"]) == 0
    assert capsys.readouterr().out == "[tip]  first\n[tip]  second\n[verdict] yes\n"


CITIES = """
import sglc as sgl
from dataclasses import dataclass

@dataclass
class City:
    name: str
    size: int = 3

@sgl.function
def cities(s):
    s += "A city: " + sgl.gen("city", dtype=City) + sgl.gen("other", dtype=City) + sgl.gen("n", dtype=list[int])
"""


@pytest.mark.slow
def test_a_plan_says_which_values_stay_texts(folder: Path) -> None:
    (folder / "agent.py").write_text(CITIES)
    city = '{"name": "Rome"}'
    (folder / "answers.json").write_text(json.dumps([{"name": "n", "text": "[1]"}, {"text": city}]))
    compiled_apart(folder, "cities")
    (folder / "agent.py").rename(folder / "kept.py")
    line = ["run", "plan.json", "--backend", "scripted:answers.json", "--json"]
    done = sglc(line, folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["vars"] == {"city": city, "other": city, "n": [1]}
    said = "variables of these types stay texts, since what reads them is not here: `sglc_program_agent.City`"
    assert done.stderr.startswith(f"sglc: {said}; ")
    with pytest.warns(UserWarning, match=r"not here: `sglc_program_agent\.City`$"):
        plan = sgl.load_plan(folder / "plan.json")
    assert plan.left_texts == ["sglc_program_agent.City"]
    (folder / "kept.py").rename(folder / "agent.py")
    done = sglc([*line, "--tools", "agent.py"], folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["vars"]["city"] == {"name": "Rome", "size": 3}
    assert "stay texts" not in done.stderr
