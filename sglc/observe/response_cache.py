"""Answers that models gave before, in one SQLite file that programs and processes share.

An answer lies under the digest of all that it depends on. The file is only ever a copy of what could be asked
for again: one that is damaged is put aside, and one with the next number begun, so that processes which still
have the old one open do no harm. It is in WAL mode: nobody waits to read.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sglc.errors import UsageError

_FORM = "answers-1"  # counted up with the form of what is in it
_BUSY_S = 10.0
_WAITING = 256  # answers that are written together at the latest
# What ails the place and not the file. Of a sound file its statements ask nothing that could go wrong.
_OUTSIDE = (
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM),
)
_TABLES = """
CREATE TABLE IF NOT EXISTS models (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, model INTEGER NOT NULL, answer BLOB NOT NULL, sum INTEGER NOT NULL,
    created REAL NOT NULL, used REAL NOT NULL, hits INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS by_use ON answers (used);
"""

Json = dict[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a cache holds. `models` is how many answers each model gave."""

    entries: int
    bytes: int
    hits: int
    models: dict[str, int]


class ResponseCache:
    """The cache in a folder; from any thread, and in a process that was forked.

    What is stored waits in memory until `flush`, which whoever gives a result calls before.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Raises UsageError: SGLC065, nothing can be kept in `folder`."""
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(folder, error.strerror or str(error)) from None
        if not os.access(self.folder, os.W_OK):
            raise _unusable(folder, "it cannot be written")
        self._path = self.path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._inherited: list[sqlite3.Connection] = []  # of the process that this one was forked from
        self._stored: dict[bytes, tuple[str, bytes]] = {}  # what waits: model, answer
        self._used: dict[bytes, int] = {}  # hits that wait
        self._told = False
        self._given_up = False
        self.users = 0  # calls that `close` ends

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"{_FORM}.{_newest(self.folder)}.sqlite"

    def get(self, key: bytes) -> Json | None:
        """The answer under a key, if there is one."""
        with self._mine():
            waiting = self._stored.get(key)
            if waiting is not None:
                text = waiting[1]
            else:
                row = self._safely(lambda db: db.execute(_GET, (key,)).fetchone())
                if row is None:
                    return None
                text = row[0]
                if not isinstance(text, bytes) or _sum(key, text) != row[1]:
                    self._drop(key)
                    return None
            self._used[key] = self._used.get(key, 0) + 1
        answer: Json = json.loads(text)
        return answer

    def put(self, key: bytes, model: str, answer: Json) -> None:
        """Store an answer of `model`, by `flush` at the latest."""
        text = json.dumps(answer, separators=(",", ":")).encode()
        with self._mine():
            self._stored[key] = model, text
            if len(self._stored) >= _WAITING:
                self.flush()

    def knows(self, model: str) -> bool:
        """Whether there are answers of `model`."""
        with self._mine():
            query = "SELECT 1 FROM models WHERE name = ?"
            return self._safely(lambda db: db.execute(query, (model,)).fetchone()) is not None

    def flush(self) -> None:
        """Write what waits: all of it or nothing."""
        with self._mine():
            if self._stored:
                stored, self._stored = self._stored, {}
                self._safely(lambda db: _write(db, stored))

    def close(self) -> None:
        """A call has ended: write what waits, the hits too; with the last one let go of the file."""
        with _OPENING:
            self.users -= 1
            if self.users <= 0:
                _OPEN.pop(_key(self.folder), None)
        with self._mine():
            self.flush()
            if self._used:
                used, self._used = self._used, {}
                self._safely(lambda db: _note_hits(db, used))
            if self._connection is not None and self.users <= 0:
                self._connection.close()
                self._connection = None

    def info(self) -> CacheInfo:
        """What it holds."""
        with self._mine():
            found = self._safely(lambda db: db.execute(_INFO).fetchall()) or []
            models = {name: count for name, count, _ in found}
            files = [Path(f"{self._path}{suffix}") for suffix in ("", "-wal")]
            size = sum(file.stat().st_size for file in files if file.exists())
            return CacheInfo(sum(models.values()), size, sum(int(hits) for _, _, hits in found), models)

    def clear(self, older_than_s: float = 0.0) -> int:
        """Forget the answers that were last used longer ago than that; gives how many."""
        with self._mine():
            before = time.time() - older_than_s
            return self._safely(lambda db: _clear(db, before)) or 0

    # -- inside ----------------------------------------------------------------------------------

    def _mine(self) -> threading.RLock:
        """The lock of this process. What another one has open is neither used here nor closed."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.RLock()
            if self._connection is not None:
                self._inherited.append(self._connection)
            self._connection, self._used = None, {}
        return self._lock

    def _safely(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """What `work` gives on the connection; None where the file cannot be used."""
        for _ in range(2):
            if self._given_up:
                return None
            try:
                return work(self._open())
            except (sqlite3.Error, UnicodeError) as error:  # that too is said by damaged files
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code in _OUTSIDE:  # what a model says does not depend on it
                    self._tell(f"the cache in `{self.folder}` cannot be used: {error}")
                    self._given_up = code == sqlite3.SQLITE_BUSY  # for very long: nobody waits again
                    return None
                self._put_aside(error)
        return None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path = self.path
            self._connection = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            with _alone(self.folder):  # two that begin a file at once do not wait for each other by themselves
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=NORMAL")
                self._connection.executescript(_TABLES)
        return self._connection

    def _drop(self, key: bytes) -> None:
        self._tell(f"an answer in the cache in `{self.folder}` is damaged, and is asked for again")
        self._safely(lambda db: db.execute("DELETE FROM answers WHERE key = ?", (key,)))

    def _put_aside(self, error: Exception) -> None:
        """Begin the next file, unless another process has done that."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        with _alone(self.folder):
            if self.path != self._path:
                return
            number = _newest(self.folder)
            (self.folder / f"{_FORM}.{number + 1}.sqlite").touch()
            aside = Path(f"{self._path}.damaged")
            self._path.rename(aside)
        note = f"what there was lies in `{aside}`"
        self._tell(f"the cache in `{self.folder}` is damaged ({error}), and begun anew", note)

    def _tell(self, message: str, note: str = "") -> None:
        if not self._told:
            self._told = True
            print(f"sglc: {message}" + (f"\n  note: {note}" if note else ""), file=sys.stderr)


_OPENING = threading.Lock()
_OPEN: dict[str, ResponseCache] = {}


def is_cache(folder: str | os.PathLike[str]) -> bool:
    """Whether there is a cache in `folder`."""
    return any(Path(folder).glob(f"{_FORM}.*.sqlite"))


def open_cache(folder: str | os.PathLike[str]) -> ResponseCache:
    """The cache in `folder`, one for all calls of this process that use it now; each of them closes it.

    Raises:
        UsageError: SGLC065, as of `ResponseCache`.
    """
    with _OPENING:
        cache = _OPEN.setdefault(_key(folder), ResponseCache(folder))
        cache.users += 1
        return cache


def _key(folder: str | os.PathLike[str]) -> str:
    return f"{os.getpid()} {os.path.realpath(folder)}"


_GET = "SELECT answer, sum FROM answers WHERE key = ?"
_INFO = """SELECT name, COUNT(key), TOTAL(hits) FROM models JOIN answers ON model = models.id
    GROUP BY models.id ORDER BY name"""
_PUT = """INSERT INTO answers (key, model, answer, sum, created, used)
    VALUES (?1, (SELECT id FROM models WHERE name = ?2), ?3, ?4, ?5, ?5)
    ON CONFLICT (key) DO UPDATE SET answer = ?3, sum = ?4, used = ?5"""


def _write(db: sqlite3.Connection, stored: dict[bytes, tuple[str, bytes]]) -> None:
    now = time.time()
    with _transaction(db):
        names = dict.fromkeys(model for model, _ in stored.values())
        db.executemany("INSERT OR IGNORE INTO models (name) VALUES (?)", [(name,) for name in names])
        rows = [(key, model, text, _sum(key, text), now) for key, (model, text) in stored.items()]
        db.executemany(_PUT, rows)


def _note_hits(db: sqlite3.Connection, used: dict[bytes, int]) -> None:
    now = time.time()
    with _transaction(db):
        rows = [(count, now, key) for key, count in used.items()]
        db.executemany("UPDATE answers SET hits = hits + ?, used = ? WHERE key = ?", rows)


def _clear(db: sqlite3.Connection, before: float) -> int:
    with _transaction(db):
        count = db.execute("DELETE FROM answers WHERE used <= ?", (before,)).rowcount
        db.execute("DELETE FROM models WHERE id NOT IN (SELECT model FROM answers)")
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return count


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process is inside meanwhile."""
    file = os.open(folder / f"{_FORM}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _newest(folder: Path) -> int:
    """The number of the file that counts."""
    names = [name.split(".") for name in os.listdir(folder)]
    numbers = [int(name[1]) for name in names if name[0] == _FORM and name[2:] == ["sqlite"]]
    return max(numbers, default=1)


def _sum(key: bytes, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(key))


def _unusable(folder: str | os.PathLike[str], why: str) -> UsageError:
    return UsageError("SGLC065", f"nothing can be cached in `{os.fspath(folder)}`: {why}")
