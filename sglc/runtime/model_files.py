"""The small JSON files of a model folder in Hugging Face's layout."""

from __future__ import annotations

import json
from pathlib import Path

from sglc.errors import BackendError

Json = dict[str, object]

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
        raise BackendError("SGLC512", f"`{path}` is not JSON: {error}", hint="fetch the model again") from None
    if not isinstance(data, dict):
        raise BackendError("SGLC512", f"`{path}` is not a JSON object", hint="fetch the model again")
    return data


def eos_ids(folder: Path) -> tuple[int, ...]:
    """Ids that end a turn: those of generation_config.json, then those of config.json, which the model has."""
    size = read_json(folder / "config.json").get("vocab_size")
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        match read_json(folder / name).get("eos_token_id"):
            case int(id_):
                ids.append(id_)
            case list(several):
                ids += several
    return tuple(id_ for id_ in dict.fromkeys(ids) if id_ >= 0 and (not isinstance(size, int) or id_ < size))
