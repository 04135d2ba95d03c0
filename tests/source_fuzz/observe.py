"""One run, and all that can be seen of it: what is compared between ways to run a program.

An outcome is plain JSON data by aspect, so that one of another process can be compared with one of this.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from sglc.errors import SglcError
from sglc.execution.result import Result
from sglc.execution.unread import UNREAD
from tests.source_fuzz.answers import HashBackend
from tests.source_fuzz.canon import Plain, canon, canon_alone, globals_of

Outcome = dict[str, Plain]
SEED = 11
_APART = ("started_s", "first_s", "ended_s", "loc")  # times are nobody's, and places an aspect of their own
_ABSENT = "no such variable"

# Of one result, ...
RESULT = (
    "error", "value", "variables", "order of variables", "reads", "text", "messages", "meta data", "calls",
    "usage",
)  # fmt: skip
# ... of what the back end was asked in a run, ...
ASKED = ("sites", "prompts", "samples", "sampling", "places")
# ... and of the user's side.
OUTSIDE = ("printed", "arguments", "state")


def loaded(name: str, path: Path) -> types.ModuleType:
    """The module, executed anew: nothing that another run did to it is left."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Not by the loader: no byte code of a file that is written anew with other lines.
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


def state_of(module: types.ModuleType, arguments: Any) -> Plain:
    """All of the user's that a run can change."""
    return {"globals": globals_of(module), "arguments": canon(arguments)}


def seen(
    run: Callable[[HashBackend], Sequence[Result]],
    module: types.ModuleType | None,
    arguments: Any,
    more: Callable[[Result], Outcome] | None = None,
) -> Outcome:
    """What one or several runs on a new back end show; several are told one by one under `rows`."""
    backend = HashBackend()
    printed = io.StringIO()
    outcome: Outcome = {}
    with contextlib.redirect_stdout(printed):
        try:
            results = run(backend)
            for result in results:
                result.sync()
            all_ended()
        except Exception as error:
            outcome["error"] = ["not run", *told(error)]
            results = []
        rows = [{**of_result(result), **(more(result) if more else {})} for result in results]
    if len(rows) == 1:
        outcome.update(rows[0])
    else:
        outcome["rows"] = rows
    outcome.update(asked(backend))
    outcome["printed"] = printed.getvalue()
    outcome["arguments"] = canon(arguments)
    outcome["state"] = None if module is None else globals_of(module)
    return outcome


def all_ended() -> None:
    """Wait for the runs that programs started too, whose results nobody has read."""
    for result in list(UNREAD):
        if isinstance(result, Result):
            result.error()


def of_result(result: Result) -> Outcome:
    """The aspects of one result."""
    error = result.error()
    outcome: Outcome = {"error": None if error is None else told(error)}
    if error is not None:
        return outcome
    variables = dict(result.variables)
    names = sorted(map(str, variables))
    outcome["value"] = canon_alone(result.ret_value)
    outcome["variables"] = {name: canon_alone(variables[name]) for name in names}
    outcome["order of variables"] = list(variables)
    outcome["reads"] = {name: [canon_alone(_read(result, name)), name in result] for name in [*names, _ABSENT]}
    if result.asked is None:
        outcome["text"] = result.text()
        outcome["messages"] = canon_alone(result.messages())
    outcome["meta data"] = {name: _meta(result.get_meta_info(name)) for name in names}
    calls = [_meta(_fields(call)) for call in result.calls]
    outcome["calls"] = sorted(calls, key=json.dumps)
    outcome["usage"] = asdict(result.usage)
    outcome["own texts"] = {
        str(call.site): call.samples[0].text if call.samples else None for call in result.calls
    }
    return outcome


def _fields(record: Any) -> Any:
    """`asdict` without copies: records have hundreds of ids and log-probabilities."""
    if is_dataclass(record):
        return {field.name: _fields(getattr(record, field.name)) for field in fields(record)}
    if type(record) is tuple and any(map(is_dataclass, record)):
        return tuple(map(_fields, record))
    return record


def asked(backend: HashBackend) -> Outcome:
    """What the back end was asked for, by site: what does not wait for each other has no order."""
    calls = sorted(backend.calls_made, key=lambda call: (call.site, call.prompt, str(call.seed), call.texts))
    by_site: dict[str, list[Any]] = defaultdict(list)
    for call in calls:
        by_site[call.site].append(call)
    return {
        "sites": [[call.site, call.kind] for call in calls],
        "prompts": {site: [call.prompt for call in made] for site, made in by_site.items()},
        "samples": {site: [[call.seed, list(call.texts)] for call in made] for site, made in by_site.items()},
        "sampling": {site: [canon_alone(dict(call.wanted)) for call in made] for site, made in by_site.items()},
        "places": {site: [call.loc for call in made] for site, made in by_site.items()},
    }


def pieces(result: Result) -> Outcome:
    """The events of a stream, by site, and those of the whole prompt and of each variable."""
    by_site: dict[str, list[str]] = defaultdict(list)
    try:
        for site, piece in result.pieces():
            by_site[str(site)].append(piece)
    except Exception as error:
        by_site["error"] = told(error)
    outcome: Outcome = {"stream": dict(by_site)}
    if result.error() is None:
        outcome["stream of text"] = "".join(result.text_iter())
        outcome["stream of variables"] = {
            name: [canon_alone(piece) for piece in result.text_iter(name)] for name in result.variables
        }
    return outcome


STREAMED = ("stream", "stream of text", "stream of variables")


def told(error: BaseException) -> list[str]:
    """An error as data: what it is, and its place.

    What the program raises itself is raised as it is by Python, and as the cause of an error by a plan.
    """
    raised = re.fullmatch(r"`(\w+)` in `\w+`: (.*)", str(getattr(error, "message", "")), re.S)
    if isinstance(error, SglcError) and error.code == "SGLC401" and raised:
        return [raised[1], "", raised[2], ""]
    if isinstance(error, SglcError):
        place = f"{error.loc.line}" if error.loc else ""
        return [type(error).__name__, error.code, error.message, place]
    return [type(error).__name__, "", str(error), ""]


def _read(result: Result, name: str) -> Any:
    try:
        return result[name]
    except KeyError:
        return "missing"


def _meta(meta: Mapping[str, Any] | None) -> Plain:
    if meta is None:
        return None
    return canon_alone({key: value for key, value in meta.items() if key not in _APART})


def differences(expected: Outcome, found: Outcome, aspects: Sequence[str]) -> dict[str, tuple[Plain, Plain]]:
    """The aspects in which two outcomes differ.

    If one of them failed, that is the difference, and the rest its consequence; if both did, errors and effects
    are compared.
    """
    failed = [outcome.get("error") is not None for outcome in (expected, found)]
    if any(failed):
        compared = ("error", *OUTSIDE) if all(failed) else ("error",)
        aspects = [aspect for aspect in aspects if aspect in compared]
    return {
        aspect: (expected.get(aspect), found.get(aspect))
        for aspect in aspects
        if expected.get(aspect) != found.get(aspect)
    }
