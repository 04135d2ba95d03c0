"""What a batch was asked for, beside its results: a run that goes on with them must be asked for the same."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import file_digest
from pathlib import Path
from typing import Any

from sglc.cli.batch.output import write_lines
from sglc.errors import Loc, UsageError

_VERSION = 1
_HINT = "go on with its results all the same with `--resume --force`, or anew with `--force`"
_JSON = {"str": str, "int": int, "Mapping[str, Any]": dict}


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that decides what the row of a number gives.

    `source` and `rows` are digests of files; "" for what is none, as stdin. `options` are those that change
    results.
    """

    program: str
    source: str
    arguments: Mapping[str, Any]
    rows: str
    model: str
    seed: int
    options: Mapping[str, Any]


def digest(path: str | Path) -> str:
    """The content of a file as a short text; "" for what is no file."""
    if not Path(path).is_file():
        return ""
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()[:32]


def check_manifest(asked: Manifest, known: Manifest, output: str) -> None:
    """Whether a run may go on with the results in `output`, which are `known`.

    Raises:
        UsageError: SGLC076, they are those of another batch.
    """
    differs = _compared(known, _plain(asked))
    if differs:
        raise UsageError(
            "SGLC076", f"`{output}` holds results of another run", note="; ".join(differs),
            hint="give what was given then; `--resume --force` goes on all the same",
        )  # fmt: skip


def write_manifest(asked: Manifest, output: str) -> None:
    """Keep it beside the results in `output`.

    Raises:
        UsageError: SGLC009, there is no writing here.
    """
    path = manifest_of(output)
    try:
        text = json.dumps({"manifest": _VERSION, **asdict(_plain(asked))}, indent=1)
        write_lines(f"{path}.new", text.encode().split(b"\n"))
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise UsageError("SGLC009", f"`{path}` cannot be written: {error.strerror or error}") from None


def read_manifest(output: str) -> Manifest:
    """The manifest of the results in `output`.

    Raises:
        UsageError: SGLC075, there is none, or none of this version.
    """
    path = manifest_of(output)
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["manifest"] != _VERSION:
            raise ValueError(f"it has version `{data['manifest']}`")
        for one in fields(Manifest):
            if not isinstance(data[one.name], _JSON[str(one.type)]):
                raise TypeError(f"`{one.name}` is `{data[one.name]!r}`")
        return Manifest(**{one.name: data[one.name] for one in fields(Manifest)})
    except FileNotFoundError:
        raise UsageError(
            "SGLC075", f"nobody knows which run made `{output}`: there is no `{path}`",
            hint=_HINT,
        ) from None  # fmt: skip
    except OSError as error:
        raise UsageError("SGLC075", f"`{path}` cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"it has no `{error.args[0]}`" if isinstance(error, KeyError) else str(error)
        raise UsageError("SGLC075", f"this is no manifest: {why}", Loc(path, 1), hint=_HINT) from None


def _plain(asked: Manifest) -> Manifest:
    """As it comes back from JSON."""
    return Manifest(**json.loads(json.dumps(asdict(asked), default=str)))


def manifest_of(output: str) -> str:
    """The file of the manifest of the results in `output`."""
    return f"{output}.manifest"


def _compared(known: Manifest, asked: Manifest) -> list[str]:
    """What differs, one text each."""
    found = []
    if known.program != asked.program:
        found.append(f"the program was `{known.program}` and is `{asked.program}`")
    elif known.source != asked.source:
        found.append(f"`{known.program}` has changed")
    if known.rows != asked.rows:
        found.append("the rows have changed")
    if known.model != asked.model:
        found.append(f"the model was `{known.model}` and is `{asked.model}`")
    if known.seed != asked.seed:
        found.append(f"the seed was {known.seed} and is {asked.seed}")
    return (
        found
        + _items("argument", known.arguments, asked.arguments)
        + _items("option", known.options, asked.options)
    )


def _items(what: str, known: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    names = [name for name in {**known, **asked} if known.get(name) != asked.get(name)]
    return [f"the {what} `{name}` was {known.get(name)!r} and is {asked.get(name)!r}" for name in names]
