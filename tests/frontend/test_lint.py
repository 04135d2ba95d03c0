"""Warnings: what they say, where, when they keep silent, and how one is silenced."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from sglc.cli import main
from sglc.cli.program_file import open_functions
from sglc.frontend.analysis.lint import findings, render_finding

HEAD = "import time\nimport sglc as sgl\nLONG = 'word ' * 60\n\n"


def warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, parameters: str = "q") -> list[str]:
    """What is said about a program whose function starts at line 5, the body at line 7."""
    monkeypatch.chdir(tmp_path)
    inside = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    (tmp_path / "p.py").write_text(f"{HEAD}@sgl.function\ndef program(s, {parameters}):\n{inside}\n")
    (function,) = open_functions("p.py")
    return [render_finding(finding) for finding in findings(function.definition, function.trace())]


def codes(found: list[str]) -> list[str]:
    return [text[8:15] for text in found]


def test_an_argument_before_a_long_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = warnings(tmp_path, monkeypatch, 's += sgl.user(q)\ns += LONG\ns += "a" + sgl.gen("x")')
    assert found == textwrap.dedent(
        """\
        warning[SGLC601]: an argument stands before a constant that all runs could share
         --> p.py:7:5
          |
        7 |     s += sgl.user(q)
          |     ^^^^^^^^^^^^^^^^
        note: behind it every run computes a constant of 300 characters (p.py:8:5)
        hint: put the constant first, and the argument behind it"""
    )


@pytest.mark.parametrize(
    "body",
    [
        's += f"{q} {LONG}" + sgl.gen("x")',
        's += f"Q: {q.strip()}\\n"\nforks = s.fork(2)\nforks += LONG + sgl.gen("x")\nforks.join()',
        's += sgl.system(f"You help {q}. {LONG}")\ns += sgl.assistant(sgl.gen("x"))',
        'with s.user():\n    s += q\n    s += LONG\ns += sgl.gen("x")',
    ],
)
def test_volatile_text_comes_in_many_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    assert codes(warnings(tmp_path, monkeypatch, body)) == ["SGLC601"]


@pytest.mark.parametrize(
    "body",
    [
        's += LONG + q + sgl.gen("x")',
        's += q + "short" + sgl.gen("x")',
        's += q + sgl.gen("x") + LONG + sgl.gen("y")',  # behind a generation nothing can be shared
        's += "a" + sgl.gen("x") + sgl.gen("y")\ns += LONG\ns += s["x"] + LONG',
        'one, two = s.fork(2)\none += q + sgl.gen("x")\ntwo += LONG + sgl.gen("x")\ns.join([one, two])',
    ],
)
def test_a_constant_that_is_shared_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    assert warnings(tmp_path, monkeypatch, body) == []


def test_a_loop_that_only_the_model_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
        s += q
        while True:
            s += sgl.gen("step", stop="\\n") + sgl.select("next", choices=["more", "done"])
            if s["next"] == "done":
                break
    """
    (found,) = warnings(tmp_path, monkeypatch, body)
    assert found == textwrap.dedent(
        """\
        warning[SGLC602]: a loop with generations has no bound on its rounds
         --> p.py:8:11
          |
        8 |     while True:
          |           ^^^^
        note: it ends only when the model writes what it waits for
        hint: count the rounds: `for _ in range(8): ...` with a `break`"""
    )


@pytest.mark.parametrize(
    ("test", "inside", "bounded"),
    [
        ('"x" not in s or s["x"] != "done"', "", False),
        ('"x" not in s or s["x"].strip() != "done"', "", False),
        ("True", "text = s['x']\nif len(text) < 3: return", False),
        ("True", "", False),
        ("rounds < 5", "rounds += 1", True),
        ("True", "rounds += 1\nif rounds > 5: break", True),
        ("time.monotonic() < 9e9", "", True),
        ("limit", "limit = limit[1:]", True),
        ("True", "if ask(s['x']): break", True),  # what Python decides may well end
    ],
)
def test_bounds_of_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str, inside: str, bounded: bool
) -> None:
    body = f"rounds = 0\ntime.sleep(0)\nwhile {test}:\n    s += 'a' + sgl.gen('x')\n"
    body += textwrap.indent(inside, "    ")
    found = warnings(tmp_path, monkeypatch, body, "limit, ask=print")
    assert codes(found) == ([] if bounded else ["SGLC602"])


def test_a_generation_that_nobody_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
        s += q + sgl.gen("thought") + "so" + sgl.gen("answer")
        forks = s.fork(1)
        forks[0] += "and" + sgl.gen("more")
        return s["answer"]
    """
    (found,) = warnings(tmp_path, monkeypatch, body)
    assert found == textwrap.dedent(
        """\
        warning[SGLC603]: `more` is generated and never used
         --> p.py:9:25
          |
        9 |     forks[0] += "and" + sgl.gen("more")
          |                         ^^^^^^^^^^^^^^^
        note: its branch is not joined, nothing reads it, and no generation follows it in its prompt
        hint: join the branch, or leave the generation of `more` out"""
    )


def test_a_name_that_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 's += q + sgl.gen("x")\ns += "b" + sgl.gen("x")\nreturn s["x"]'
    (found,) = warnings(tmp_path, monkeypatch, body)
    assert found.startswith("warning[SGLC603]: `x` is never read before it is made again\n --> p.py:7:14\n")
    assert "note: `x` is what p.py:8:16 makes\nhint: give the two different names" in found


@pytest.mark.parametrize(
    "body",
    [
        's += q + sgl.gen("x")\nreturn "done"',  # it is in the result's variables
        's += q\nforks = s.fork(2)\nforks += sgl.gen("x")\ns += forks[0]["x"] + forks[1]["x"]',
        's += q + sgl.gen("x")\nreturn s["x"]',
        's += q + sgl.gen("x") + "so" + sgl.gen("y")\nreturn s["y"]',
        's += q + sgl.gen("x")\ns += s["x"] + sgl.gen("x")\nreturn s["x"]',
        'for i in range(3):\n    s += q + sgl.gen("x")\nreturn s["x"]',
        's += q\nforks = s.fork(2)\nforks += sgl.gen("x")\nreturn s.join(forks)',
        's += q\nforks = s.fork(2)\nforks += sgl.gen("x")\nforks.join()\nreturn s["x"]',
        's += q + sgl.gen() + "b" + sgl.gen()\nreturn "done"',
        's += q + sgl.gen("x")\nprint("who knows what follows")\nreturn "done"',
    ],
)
def test_what_is_used_in_some_way_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    assert warnings(tmp_path, monkeypatch, body) == []


def test_a_number_read_from_free_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 's += q + sgl.gen("n")\nk = int(s["n"].strip())\nif k > 3:\n    s += "many"'
    (found,) = warnings(tmp_path, monkeypatch, body)
    assert found == textwrap.dedent(
        """\
        warning[SGLC604]: `n` is read as an integer, and may be any text
         --> p.py:8:9
          |
        8 |     k = int(s["n"].strip())
          |         ^^^^^^^^^^^^^^^^^^^
        note: the run fails where the model writes something else (p.py:7:14)
        hint: say `dtype=int` at the generation: then it writes nothing else, and ends by itself"""
    )


@pytest.mark.parametrize(
    "body",
    [
        's += q + sgl.gen("n", dtype=int)\nk = int(s["n"])\ns += str(k + 1)',
        's += q + sgl.gen("n", regex="[0-9]")\ns += str(int(s["n"]) + 1)',
        's += q + sgl.gen("n")\ntry:\n    k = int(s["n"])\nexcept ValueError:\n    k = 0\ns += str(k)',
        's += q + sgl.gen("n")\nk = int(s["n"]) if s["n"].isdigit() else 0\ns += str(k)',
        's += q + sgl.gen("n")\ns += str(len(s["n"]))',
    ],
)
def test_numbers_that_are_sure_or_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    assert codes(warnings(tmp_path, monkeypatch, body)) == []


def test_choices_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 's += q\ntime.sleep(0)\ns += sgl.select("x", choices=[])\ns += sgl.gen("y", choices=())'
    found = warnings(tmp_path, monkeypatch, body)
    assert found[0] == textwrap.dedent(
        """\
        warning[SGLC605]: `choices` is empty
         --> p.py:9:34
          |
        9 |     s += sgl.select("x", choices=[])
          |                                  ^^
        note: the run fails when it comes here
        hint: give at least one choice"""
    )
    assert codes(found) == ["SGLC605", "SGLC605"]


def test_a_comment_silences_the_warning_on_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 's += q  # sglc: ignore\ns += LONG + sgl.gen("x")'
    assert warnings(tmp_path, monkeypatch, body) == []
    other = tmp_path / "other"
    other.mkdir()
    body = 's += q  # sglc: ignored\ns += LONG + sgl.gen("x")'
    assert codes(warnings(other, monkeypatch, body)) == ["SGLC601"]


def test_the_command_line_shows_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (expected,) = warnings(tmp_path, monkeypatch, 's += q + LONG + sgl.gen("x")')
    assert main(["compile", "p.py", "--dump-ir"]) == 0
    out, err = capsys.readouterr()
    assert err == expected + "\n"
    assert "warning" not in out
    assert main(["explain", "p.py"]) == 0
    assert capsys.readouterr().out.endswith(expected + "\n")
