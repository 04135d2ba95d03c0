"""The small JSON files of a model folder in Hugging Face's layout."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from sglc.errors import BackendError

Json = dict[str, object]

_LFS = b"version https://git-lfs.github.com/spec/"
STAMP = "sglc.json"  # what sglc says about a folder that it made itself


def read_json(path: Path) -> Json:
    """The JSON object in `path`; an empty one if there is no such file.

    Raises:
        BackendError: the file is not a JSON object (SGLC512).
    """
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BackendError("SGLC512", f"`{path}` is not JSON: {error}", hint=damaged_hint(path)) from None
    if not isinstance(data, dict):
        raise BackendError("SGLC512", f"`{path}` is not a JSON object", hint="fetch the model again")
    return data


def is_lfs_pointer(path: Path) -> bool:
    """Whether only what Git LFS has in a file's place was fetched."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(_LFS)) == _LFS
    return False


def damaged_hint(path: Path, what: str = "model") -> str:
    """What to do about a file that cannot be read."""
    if is_lfs_pointer(path):
        return "it is a Git LFS pointer and not the file itself: run `git lfs pull` there"
    return f"fetch the {what} again"


def eos_ids(folder: Path) -> tuple[int, ...]:
    """Ids that end a turn: those of generation_config.json, then those of config.json, which the model has.

    Raises:
        BackendError: SGLC512, what a file has there are no ids.
    """
    size = read_json(folder / "config.json").get("vocab_size")
    ids: list[Any] = []
    for name in ("generation_config.json", "config.json"):
        found = read_json(folder / name).get("eos_token_id")
        several = found if isinstance(found, list) else [] if found is None else [found]
        if not all(type(id_) is int for id_ in several):
            raise BackendError(
                "SGLC512", f"`{folder / name}` has no token ids under `eos_token_id`",
                note=f"it says `{found}`", hint="fetch the model again",
            )  # fmt: skip
        ids += several
    return tuple(id_ for id_ in dict.fromkeys(ids) if id_ >= 0 and (not isinstance(size, int) or id_ < size))
