"""One answer for several generations of a turn: what to ask for, and what it says of each. Pure functions.

A joint answer is asked for without the stop strings of its generations. `match` reads it from the left: the
text before a generation must stand there exactly, then comes the generation's own text up to the first of its
stops, and the stop itself belongs to what follows. What is given out is what the generation's own request
might have answered: all of it is there, and it has no more than `max_tokens` tokens. Where tokens end
is not known, so they are counted as one a byte, or as all that the answer has, whichever is less.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sglc.ir.grammar.stops import stop_pattern
from sglc.ir.sampling import Sampling
from sglc.runtime.tokenizer.detokenize import StopStream


@dataclass(frozen=True, slots=True)
class JointStep:
    """A generation of a joint answer, and the text that stands before it there."""

    before: str
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Heard:
    """A joint answer as far as it has come. `tokens`: it has no more; `finish`: why it ended, "" before."""

    text: str
    tokens: int
    finish: str


@dataclass(frozen=True, slots=True)
class Capture:
    """A generation's text, and why it ended (`stop` or `length`)."""

    text: str
    finish: str


@dataclass(frozen=True, slots=True)
class JointMatch:
    """The first generations' texts, what surely belongs to the next one's, and why there are no more."""

    captures: tuple[Capture, ...]
    begun: str = ""
    why: str = ""


def limit_of(steps: Sequence[JointStep], ahead: int) -> int:
    """`max_tokens` of a request for all steps: no less than the first one needs, and else at most `ahead`."""
    first, *others = (step.sampling.max_tokens + len(step.before.encode("utf-8", "replace")) for step in steps)
    return max(first, min(ahead, first + sum(others)))


def match(steps: Sequence[JointStep], heard: Heard, *, whole_turn: bool = False) -> JointMatch:
    """What `heard` says of the generations of `steps`, from the first on as far as it is sure.

    With more of the same answer, or with its end, there are the same captures and maybe more.

    Args:
        whole_turn: the answer is all that the model will say in its turn, so a generation without stops ends
            where the text of the next step begins. Otherwise only stops and the answer's end end one.
    """
    captures: list[Capture] = []
    at = 0
    for number, step in enumerate(steps):
        if not heard.text.startswith(step.before, at):
            found = heard.text[at : at + len(step.before)]
            return JointMatch(tuple(captures), why=f"{step.before!r} was to come, and there is {found!r}")
        at += len(step.before)
        following = steps[number + 1].before if number + 1 < len(steps) else ""
        text, stop = _cut(step.sampling, following if whole_turn else "", heard.text[at:], bool(heard.finish))
        size = len(text.encode("utf-8", "surrogatepass")) + (stop or 0)
        most = step.sampling.max_tokens
        # Where all of the answer is the first generation's, and no longer than it may be, a cut is its own.
        sure = number == 0 and not step.before and heard.tokens <= most
        if stop is None and not heard.finish:
            return JointMatch(tuple(captures), begun=text if sure else "", why="it goes on")
        if stop is None and heard.finish == "length" and not sure:
            return JointMatch(tuple(captures), why=f"it reaches its limit at {text[-40:]!r}")
        if min(size, heard.tokens) > most:
            return JointMatch(tuple(captures), why=f"{text[-40:]!r} may have more than {most} tokens")
        captures.append(Capture(text, heard.finish if stop is None else "stop"))
        if stop is None:
            break
        at += len(text)
    left = len(captures) < len(steps)
    return JointMatch(tuple(captures), why="it ends before" if left else "")


def _cut(sampling: Sampling, following: str, text: str, ended: bool) -> tuple[str, int | None]:
    """A generation's text at the beginning of `text`, and the bytes of the stop behind it, None without one.

    A text that has not `ended` may end in the beginning of a stop, which is left out. How long a pattern's
    match is may depend on what follows, so it counts as more than any limit.
    """
    stops = sampling.stop
    if following and not stops and not sampling.stop_regex:
        stops = (following,)
    patterns = [stop_pattern(pattern) for pattern in sampling.stop_regex]
    stream = StopStream([text.encode("utf-8", "replace")], stops, patterns)
    length = len(stream.push(0) + (stream.finish() if ended else ""))
    if stream.match is None:
        return text[:length], None
    found = stream.match.stop
    return text[:length], len(found.encode("utf-8", "replace")) if found in stops else sys.maxsize
