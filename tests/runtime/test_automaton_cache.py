"""Compiled automata on disk: read instead of compiled again, ignored and rewritten if damaged."""

from __future__ import annotations

import pickle
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sglc.ir.grammar.form_key import key_of
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints import automaton_cache
from sglc.runtime.constraints import constraint as constraint_module
from sglc.runtime.constraints.constraint import Constraints
from tests.runtime.test_constraint import shuffled

PATTERN = r"(ab|12){1,40}!? \d{30}é"
TOKENS = shuffled(3)


def constraints(folder: Path, *, identity: str = "t", size: int = len(TOKENS)) -> Constraints:
    return Constraints(TOKENS, size, folder=folder, identity=identity)


def masks(found: Constraints) -> list[list[bool]]:
    automaton = found.regex(PATTERN)
    states = len(automaton._dfa.moves)
    assert states > 64
    return [automaton.mask(state).tolist() for state in range(states)]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was compiled since."""
    seen: list[str] = []
    original = constraint_module.compile_regex  # type: ignore[attr-defined]

    def compile_regex(pattern: str) -> object:
        seen.append(pattern)
        return original(pattern)

    monkeypatch.setattr(constraint_module, "compile_regex", compile_regex)
    return seen


def test_what_was_compiled_is_read(tmp_path: Path, compiled: list[str]) -> None:
    truth = masks(Constraints(TOKENS, len(TOKENS)))
    assert masks(constraints(tmp_path)) == truth
    assert compiled == [PATTERN] * 2
    assert masks(constraints(tmp_path)) == truth
    assert compiled == [PATTERN] * 2
    # Another tokenizer, or another size, is another file.
    masks(constraints(tmp_path, identity="other"))
    masks(constraints(tmp_path, size=len(TOKENS) + 5))
    assert compiled == [PATTERN] * 4
    assert len(list(tmp_path.iterdir())) == 3


def test_what_other_code_has_made_is_not_read(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be wrong: masks, and what is enforced of a schema, are kept as they were made."""
    code, kept = tmp_path / "code", tmp_path / "kept"
    code.mkdir()
    monkeypatch.setattr(automaton_cache, "_MAKERS", (code,))
    for text in ("a = 1", "a = 2"):
        (code / "maker.py").write_text(text)
        automaton_cache._made_by.cache_clear()
        for _ in range(2):
            masks(constraints(kept))
            constraints(kept).of(Sampling(json_schema='{"type": "string", "pattern": "a"}'))
    assert compiled == [PATTERN] * 2
    assert len(list(kept.iterdir())) == 4


def test_the_oldest_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(*lengths: int) -> list[str]:
        for length in lengths:
            constraints(tmp_path).regex(f"[ab]{{{length}}}")
        return [path.name.split("-")[0] for path in tmp_path.iterdir()]

    monkeypatch.setattr(automaton_cache, "_MOST_FILES", 2)
    assert sorted(keep(80, 81, 82)) == sorted(map(key_of, ("[ab]{81}", "[ab]{82}")))
    monkeypatch.setattr(automaton_cache, "_MOST_BYTES", 1)
    assert keep(83) == []


def test_small_automata_are_not_kept(tmp_path: Path, compiled: list[str]) -> None:
    for _ in range(2):
        constraints(tmp_path).regex("[ab]+")
    assert compiled == ["[ab]+"] * 2
    assert list(tmp_path.iterdir()) == []


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 255 for byte in data[middle : middle + 8]) + data[middle + 8 :]


def pickled(data: bytes) -> bytes:
    return pickle.dumps({"classes": data})


@pytest.mark.parametrize("damage", [truncated, flipped, pickled, lambda _: b"", lambda _: b"\x00" * 999])
def test_a_damaged_file_is_ignored_and_rewritten(
    tmp_path: Path, compiled: list[str], damage: Callable[[bytes], bytes]
) -> None:
    truth = masks(constraints(tmp_path))
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert masks(constraints(tmp_path)) == truth
    assert len(compiled) == 2
    assert masks(constraints(tmp_path)) == truth
    assert len(compiled) == 2


def test_a_file_of_other_arrays_is_ignored(tmp_path: Path, compiled: list[str]) -> None:
    truth = masks(constraints(tmp_path))
    (path,) = tmp_path.iterdir()
    with np.load(path) as file:
        arrays = dict(file)
    for name, value in (("is_open", arrays["is_open"][:-1]), ("tokens", arrays["tokens"][:3])):
        np.savez(path, **{**arrays, name: value})
        assert masks(constraints(tmp_path)) == truth
    np.savez(path, **{name: value for name, value in arrays.items() if name != "moves"})
    assert masks(constraints(tmp_path)) == truth
    np.savez(path, **{**arrays, "moves": np.array([{"an": "object"}])}, allow_pickle=True)
    assert masks(constraints(tmp_path)) == truth
    assert len(compiled) == 5


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path, compiled: list[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    truth = masks(Constraints(TOKENS, len(TOKENS)))
    assert masks(constraints(blocked / "automata")) == truth
    assert stat.S_ISREG(blocked.stat().st_mode)


@pytest.mark.parametrize("schema", ['{"enum": ["a", "b"]}', '{"type": "string", "pattern": "a"}'])
def test_a_schema_is_read_where_it_is_compiled_alone(
    schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is at hand, or kept, is asked where others wait; what is kept is not read again."""
    sampling = Sampling(json_schema=schema)
    constraints(tmp_path).of(sampling)

    def read(text: str) -> str | None:
        raise AssertionError(f"`{text}` is read")

    monkeypatch.setattr(constraint_module, "schema_rules", read)
    other = constraints(tmp_path)
    assert not other.at_hand(sampling)
    assert other.is_kept(sampling)
    other.of(sampling)
    assert other.at_hand(sampling)
    new = Sampling(json_schema=schema + " ")
    assert not other.at_hand(new)
    assert not other.is_kept(new)
