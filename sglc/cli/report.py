"""What a run and a batch show: results as text or JSON, failures, and one line about all of them."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sglc.cli.options import say
from sglc.errors import SglcError, render
from sglc.execution.progress import Counted
from sglc.ir.plan.events import Usage

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.api.plan import LoadedPlan
    from sglc.execution.result import Result


def text_of(result: Result, options: argparse.Namespace) -> str:
    """A result as the options want to see it, with its last line feed; "" for nothing."""
    if options.json or options.output:
        return json_text(result.as_json(), ascii=not options.output and not _says_all(options.stdout)) + "\n"
    if options.stream:
        return ""
    shown = _shown(result)
    if options.batch:
        return f"[{result.row}] {shown}\n"
    return shown + "\n" if shown else ""


def json_text(data: Any, *, ascii: bool = False) -> str:
    """JSON that every parser takes: no `NaN`, which is `null`, and no half of a surrogate pair as it is."""
    try:
        text = json.dumps(data, ensure_ascii=ascii, default=str, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(data, default=str, allow_nan=False)
    except ValueError:
        return json_text(_finite(json.loads(json.dumps(data, default=str))), ascii=ascii)
    return text


def failure_text(error: SglcError, options: argparse.Namespace) -> str:
    """What JSON says of a run that did not begin."""
    from sglc.execution.result import error_json

    return json_text({"error": error_json(error)}, ascii=not _says_all(options.stdout))


def _says_all(stdout: Any) -> bool:
    """Whether it takes every character."""
    return (getattr(stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"


def _finite(data: Any) -> Any:
    match data:
        case float():
            return data if math.isfinite(data) else None
        case Mapping():
            return {name: _finite(value) for name, value in data.items()}
        case list():
            return [_finite(value) for value in data]
        case _:
            return data


def _shown(result: Result) -> str:
    """What a person wants to see first: the return value, else the chat, else the text."""
    if result.error() is not None:
        return result.partial_text if result.calls else ""  # a prompt alone is no result
    from sglc.frontend.outputs.typed import plain

    if result.ret_value is not None:
        value = plain(result.ret_value)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)
    if result.asked is not None:
        return "\n".join(
            f"{name} = {json_text(value)}" for name, value in plain(dict(result.variables)).items()
        )
    turns = result.messages()
    lines = [f"{turn['role']}: {_said(turn['content'])}" for turn in turns] if turns else [result.text()]
    # What branches stored stands in no text of the prompt itself.
    # Nor does anything where the program leaves no prompt.
    shown = {name: value for name, value in plain(dict(result.variables)).items()
             if isinstance(value, list) or lines == [""]}  # fmt: skip
    lines += [f"{name} = {json_text(value)}" for name, value in shown.items()]
    return "\n".join(lines[1:] if lines[0] == "" else lines)


def _said(content: str | list[dict[str, Any]]) -> str:
    """What a turn says, with marks for its pictures."""
    if isinstance(content, str):
        return content
    from sglc.execution.answers.prompts import image_mark

    return "".join(
        [image_mark(part["image_url"]["url"]) if "image_url" in part else part["text"] for part in content]
    )


def error_of(result: Result, options: argparse.Namespace) -> BaseException | None:
    """The error of a result, as the options want to see it: what shows variables reads them."""
    shows_all = options.json or options.output or result.asked is not None
    return result.error_if_read() if shows_all else result.error()


def failures_of(
    function: Function | LoadedPlan, result: Result, error: BaseException | None, row: str = ""
) -> list[str]:
    """The error of a result, or the failures that its program has caught, for people."""
    if error is not None:
        return [row + render(_as_sglc(function, error))]
    said = []
    for failure in result.failures:
        shown = render(failure.error) if isinstance(failure.error, SglcError) else repr(failure.error)
        said.append(f"{row}sglc: `{failure.site}` failed, and the program went on:\n{shown}")
    return said


def texts_stay(function: Function | LoadedPlan) -> str | None:
    """What a plan leaves as texts, for people."""
    from sglc.api.plan import LoadedPlan, texts_stay

    return texts_stay(function) if isinstance(function, LoadedPlan) else None


def _as_sglc(function: Function | LoadedPlan, error: BaseException) -> SglcError:
    from sglc.api.function import Function
    from sglc.execution.unread import with_place
    from sglc.frontend.tracing.trace import failed

    if isinstance(function, Function) and not isinstance(error, SglcError):
        return failed(function.definition, error)
    return with_place(error, function.__name__)


class Summed(Counted, Protocol):
    """What is added up of a result."""

    @property
    def seed(self) -> int: ...
    @property
    def why_python(self) -> str: ...


@dataclass(slots=True)
class Totals:
    """What results add up to. `kept` and `failed` count those of an earlier run, too."""

    kept: int = 0
    failed: int = 0
    ended: int = 0  # here
    used: Usage = field(default_factory=Usage)
    seed: int | None = None
    python: int = 0  # runs whose code ran as Python
    why_python: str = ""

    def add(self, result: Summed) -> None:
        """One more."""
        self.ended += 1
        self.failed += result.failed
        self.used += result.usage
        self.seed = result.seed
        used = result.usage
        if result.why_python and (used.calls or used.cache_hits or not result.failed):  # else none of it ran
            self.python += 1
            self.why_python = self.why_python or result.why_python

    def print(self, what: str, seconds: float, spent: str = "") -> None:
        """One line on stderr about all of them, which are `what`."""
        used = self.used
        if self.python:
            rows = "" if self.ended == 1 else f" in {self.python} rows"
            say(f"sglc: its code ran as Python{rows}: {self.why_python}")
        tokens = f"{used.prompt} in ({used.cached} cached), {used.completion} out"
        scored = f", {used.scored} scored" if used.scored else ""
        seed = "" if self.seed is None else f"; seed {self.seed}"
        saved = f" ({used.saved_calls} saved)" if used.saved_calls else ""
        hits = f", {used.cache_hits} from the cache" if used.cache_hits else ""
        unified = f", {used.unified} unified" if used.unified else ""
        calls = f"{used.calls} calls{saved}{hits}{unified}"
        line = f"sglc: {what}, {calls}; tokens: {tokens}{scored}{spent}; {seconds:.2f} s{seed}"
        say(line)

    def rows(self, count: int, *, early: bool = False) -> str:
        """The rows of a batch of `count`, -1 if nobody knows how many: which have ended how."""
        ended = self.kept + self.ended
        if not self.failed and not self.kept and not early:
            return f"{ended} rows"
        what = f"{ended - self.failed} done, {self.failed} failed"
        if count < 0:
            return f"{ended} rows: {what}" + (", others left" if early else "")
        return f"{count} rows: {what}, {self.left(count)} left"

    def left(self, count: int) -> int:
        """How many rows have no result yet; -1 if nobody knows."""
        return -1 if count < 0 else max(count - self.kept - self.ended, 0)
