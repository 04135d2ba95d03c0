"""Compiled constraints on disk, one file for each form and tokenizer. A file that cannot be read is ignored.

A file's name begins with the key of the form, which plans carry too (`ir.grammar.form_key`).
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from sglc.ir import grammar
from sglc.ir.grammar.dfa import ByteDfa
from sglc.ir.grammar.form_key import key_of
from sglc.ir.grammar.pushdown import Pushdown
from sglc.runtime.constraints.token_automaton import Tables

_WORTH_KEEPING = 64  # states; what has fewer is built as fast as it is read
_MOST_FILES, _MOST_BYTES = 1024, 512 << 20  # on disk: whoever may ask for patterns could fill it
_MAKERS = (Path(grammar.__file__).parent, Path(__file__).parent)  # the code that makes what is kept
_ARRAYS = ("parent", "kind", "levels", "tokens", "begins", "moves", "is_open", "alike")
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile, zlib.error)


def path_of(folder: Path, kind: str, text: str, tokenizer: str, size: int) -> Path:
    """Where the automaton of the form `text` of a `kind` for a model of `size` ids lies."""
    # Python's parser reads patterns, so what they mean is a matter of its version.
    return folder / f"{key_of(text)}-{_hash(kind, text, tokenizer, size, *sys.version_info[:2])}.npz"


def path_of_grammar(folder: Path, kind: str, text: str, *more: str | int) -> Path:
    """Where the grammar `text` of a `kind` lies, as it is compiled for `more`."""
    return folder / f"{key_of(text)}-{_hash(kind, text, *more)}.grammar"


def _hash(*key: str | int) -> str:
    digest = hashlib.sha256(_made_by(_MAKERS).encode())
    for part in key:
        # A form may have megabytes: others go on while they are hashed, but not while they are written as JSON.
        data = str(part).encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()[:32]


@lru_cache(maxsize=2)
def _made_by(folders: tuple[Path, ...]) -> str:
    """A hash of the code: what other code has made may be laid out in another way, or be wrong."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def load_grammar(path: Path) -> str | None:
    """What was saved there, if anything was."""
    try:
        return zlib.decompress(path.read_bytes()).decode()
    except _UNREADABLE:
        return None


def save_grammar(path: Path, compiled: str) -> None:
    """Keep a compiled grammar."""
    _save(path, lambda file: file.write(zlib.compress(compiled.encode(), 1)))


def load_pushdown(path: Path) -> Pushdown | None:
    """What `save_pushdown` kept there, if it did."""
    kept = load_grammar(path)
    with suppress(msgspec.DecodeError):
        return None if kept is None else msgspec.json.decode(kept, type=Pushdown)
    return None


def save_pushdown(path: Path, form: Pushdown) -> None:
    """Keep a pushdown automaton, which is the same for all vocabularies."""
    save_grammar(path, msgspec.json.encode(form).decode())


def load(path: Path, size: int) -> Tables | None:
    """What was saved there for `size` ids; None if nothing was, or not whole."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in _ARRAYS}
            # Row by row: another thread may have its turn between two of them.
            moves = tuple([tuple(row.tolist()) for row in arrays["moves"]])
            dfa = ByteDfa(file["classes"].tobytes(), moves, tuple(file["accepting"].tolist()))
            tables = Tables(dfa=dfa, **arrays)
    except _UNREADABLE:
        return None
    whole = len(dfa.classes) == 256 and len(dfa.moves) == len(dfa.accepting) == tables.is_open.size - 1
    nodes, tokens = tables.begins.size - 1, tables.tokens
    whole = whole and nodes == tables.parent.size and tables.begins[-1] == tokens.size
    whole = whole and tables.alike.size == len(dfa.moves)
    return tables if whole and (tokens < size).all() else None


def save(path: Path, tables: Tables, *, slow: bool = False) -> None:
    """Keep `tables`, if they are large or were `slow` to build. A disk that takes nothing keeps nothing."""
    dfa = tables.dfa
    if len(dfa.moves) < _WORTH_KEEPING and not slow:
        return
    arrays = {name: getattr(tables, name) for name in _ARRAYS}
    arrays["classes"] = np.frombuffer(dfa.classes, np.uint8)
    arrays["accepting"] = np.array(dfa.accepting, np.bool_)
    _save(path, lambda file: np.savez_compressed(file, **arrays))


def _save(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file of its own until it is whole: several processes may compile the same pattern.
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
            write(file)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        return
    with suppress(OSError):
        _let_go(path.parent)


def _let_go(folder: Path) -> None:
    """Remove the oldest files where there are too many, or they are too large."""
    found = [(path.stat(), path) for path in folder.iterdir() if path.suffix in (".npz", ".grammar")]
    found.sort(key=lambda each: each[0].st_mtime_ns, reverse=True)
    kept = 0
    for number, (stat, path) in enumerate(found):
        kept += stat.st_size
        if number >= _MOST_FILES or kept > _MOST_BYTES:
            path.unlink(missing_ok=True)
