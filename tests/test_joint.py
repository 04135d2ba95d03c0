"""The matcher of joint answers: against what own requests would have given, on random texts; its mutants."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from sglc.backends.remote import joint
from sglc.backends.remote.joint import Capture, Heard, JointMatch, JointStep, limit_of, match
from sglc.ir.sampling import Sampling
from tests.depth import at_depth

Matcher = Callable[..., JointMatch]


@dataclass(frozen=True)
class Case:
    """`text` is all that the model would say; a token of it is a character."""

    steps: tuple[JointStep, ...]
    text: str
    limit: int

    @property
    def heard(self) -> Heard:
        said = self.text[: self.limit]
        return Heard(said, len(said), "stop" if len(said) == len(self.text) else "length")


def own_answer(sampling: Sampling, text: str) -> Capture:
    """What a request for this generation alone gives, character by character."""
    for end in range(min(len(text), sampling.max_tokens) + 1):
        ended = [stop for stop in sampling.stop if text[:end].endswith(stop)]
        if ended:
            return Capture(text[: end - max(map(len, ended))], "stop")
    kept = text[: sampling.max_tokens]
    return Capture(kept, "stop" if kept == text else "length")


def one_by_one(case: Case) -> list[Capture]:
    """The generations as long as each goes on from what the model would say anyway."""
    made: list[Capture] = []
    at = 0
    for step in case.steps:
        if not case.text[at:].startswith(step.before):
            break
        at += len(step.before)
        made.append(own_answer(step.sampling, case.text[at:]))
        at += len(made[-1].text)
    return made


def text_of(rng: random.Random, most: int) -> str:
    return "".join(rng.choice("aab\né漢") for _ in range(rng.randint(0, most)))


def case_of(rng: random.Random) -> Case:
    """Texts that are made of what is asked for, and then spoilt now and then; stops overlap literals."""
    steps: list[JointStep] = []
    said = ""
    for number in range(rng.randint(1, 4)):
        before = "" if number == 0 and rng.random() < 0.7 else text_of(rng, 3)
        stops = [text_of(rng, 2) for _ in range(rng.randint(0, 2))]
        if number and before and rng.random() < 0.7:  # the stop before it begins the text
            last = steps[-1]
            own = before[: rng.randint(1, len(before))]
            steps[-1] = JointStep(last.before, Sampling(stop=(own,), max_tokens=last.sampling.max_tokens))
        sampling = Sampling(stop=tuple(stop for stop in stops if stop), max_tokens=rng.choice((1, 3, 8, 40)))
        steps.append(JointStep(before, sampling))
        capture = before[: rng.randint(0, len(before))] if rng.random() < 0.3 else text_of(rng, 5)
        said += before + capture
    if rng.random() < 0.5:
        said += text_of(rng, 6)
    if said and rng.random() < 0.3:
        at = rng.randrange(len(said))
        said = said[:at] + rng.choice(("", "b")) + said[at + 1 :]
    return Case(tuple(steps), said, limit_of(steps, rng.choice((1, 5, 20, 100))))


def check(matcher: Matcher, rounds: int) -> dict[str, int]:
    """Hold a matcher to `own_answer` and to its own promises; gives how often what was seen."""
    rng = random.Random(7)
    seen = dict.fromkeys(("whole", "some", "none", "empty", "stopped", "length", "begun"), 0)
    for _ in range(rounds):
        case = case_of(rng)
        found = matcher(case.steps, case.heard)
        captures = list(found.captures)
        wanted = one_by_one(case)
        assert captures == wanted[: len(captures)], case
        # What is not given out could not be: it is cut off, does not match, or may be too long.
        if len(captures) < len(case.steps):
            step = case.steps[len(captures)]
            before = "".join(one.before + made.text for one, made in zip(case.steps, captures, strict=False))
            rest = case.heard.text[len(before) :]
            ended = bool(captures) and before == case.heard.text and captures[-1].finish == "stop"
            cut = case.heard.finish == "length"
            if rest.startswith(step.before) and not cut and not ended:
                own = own_answer(step.sampling, rest[len(step.before) :])
                size = len(own.text.encode()) + max(map(len, map(str.encode, step.sampling.stop)), default=0)
                assert own.finish == "length" or size > step.sampling.max_tokens, case
        else:
            assert not found.why
        # As it comes: the same from the left.
        for end in {rng.randint(0, len(case.heard.text)) for _ in range(3)}:
            early = matcher(case.steps, Heard(case.heard.text[:end], case.limit, ""))
            assert list(early.captures) == captures[: len(early.captures)], (case, end)
            if early.begun:
                assert captures[len(early.captures)].text.startswith(early.begun), (case, end)
                seen["begun"] += 1
        kind = "whole" if len(captures) == len(case.steps) else "some" if captures else "none"
        seen[kind] += 1
        seen["empty"] += any(not capture.text for capture in captures)
        seen["stopped"] += sum(capture.finish == "stop" for capture in captures)
        seen["length"] += sum(capture.finish == "length" for capture in captures)
    return seen


def test_captures_are_what_own_requests_would_give() -> None:
    seen = check(match, at_depth(1_500, 3_000, 6_000))
    assert min(seen.values()) > at_depth(20, 40, 100), seen


MUTANTS = {
    "off by one behind a literal": ("at += len(step.before)", "at += max(0, len(step.before) - 1)"),
    "off by one behind a capture": ("        at += len(text)\n", "        at += len(text) + 1\n"),
    "the first instead of the exact place": (
        "if not heard.text.startswith(step.before, at):",
        "at = max(at, heard.text.find(step.before, at))\n        if step.before not in heard.text[at:]:",
    ),
    "white space does not count": (
        "if not heard.text.startswith(step.before, at):",
        "if not heard.text[at:].lstrip().startswith(step.before.lstrip()):",
    ),
    "stops ignored": ("    stops = sampling.stop\n", "    stops: tuple[str, ...] = ()\n"),
    "only the first stop": ("    stops = sampling.stop\n", "    stops = sampling.stop[:1]\n"),
    "the stop belongs to the capture": ("return text[:length], len(", "return text[:length + 1], len("),
    "the limit ignored": ("if min(size, heard.tokens) > most:", "if False:"),
    "the limit off by one": ("if min(size, heard.tokens) > most:", "if min(size, heard.tokens) > most + 1:"),
    "characters for bytes": ('len(text.encode("utf-8", "surrogatepass"))', "len(text) // 2"),
    "a cut answer is whole": ('heard.finish == "length" and not sure', "False"),
    "nothing is sure": ("if min(size, heard.tokens) > most:", "if size > most:"),
    "goes on behind the end": (
        "        if stop is None:\n            break\n",
        "        if stop is None and False:\n            break\n",
    ),
    "a beginning of a stop is told": (
        '(stream.finish() if ended else "")', "stream.finish()",
    ),
    "told though it may be dropped": ("and not step.before and heard.tokens <= most", ""),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(mutant: str) -> None:
    old, new = MUTANTS[mutant]
    source = Path(joint.__file__).read_text()
    assert source.count(old) == 1
    module = ModuleType("mutant")
    sys.modules["mutant"] = module  # where dataclasses look up annotations
    exec(compile(source.replace(old, new), "mutant.py", "exec"), module.__dict__)
    with pytest.raises((AssertionError, IndexError)):
        check(module.match, 6000)


def stopped(before: str, *stops: str, most: int = 40) -> JointStep:
    return JointStep(before, Sampling(stop=stops, max_tokens=most))


def said(text: str, finish: str = "stop", tokens: int | None = None) -> Heard:
    return Heard(text, len(text) if tokens is None else tokens, finish)


def test_a_literal_is_matched_exactly_and_where_it_stands() -> None:
    steps = (stopped("", "\n"), stopped("\nJob:", "\n"))
    assert match(steps, said(" Ann\nJob: cook\n")).captures == (
        Capture(" Ann", "stop"),
        Capture(" cook", "stop"),
    )
    for other in (" Ann\nJob : cook", " Ann\njob: cook", " Ann\n\nJob: cook", " Ann\nAge: 3\nJob: cook"):
        assert match(steps, said(other)).captures == (Capture(" Ann", "stop"),)
    assert "'\\nJob:' was to come, and there is '\\nAge:'" in match(steps, said(" Ann\nAge: 3\nJob: cook")).why


def test_a_capture_may_hold_the_beginning_of_the_next_text() -> None:
    steps = (stopped("", "\nJob"), stopped("\nJob:", "."))
    assert [c.text for c in match(steps, said("A\nJo\nJob: b\nJob:c.")).captures] == ["A\nJo", " b\nJob:c"]


def test_patterns_end_a_generation_and_their_lengths_count_for_nothing() -> None:
    steps = (JointStep("", Sampling(stop_regex=("[.!]+",), max_tokens=5)), stopped("!! ", "\n"))
    assert [c.text for c in match(steps, said("no!! yes\n", tokens=5)).captures] == ["no", "yes"]
    assert match(steps, said("no!! yes\n", tokens=6)).captures == ()


def test_in_a_whole_turn_a_text_ends_what_has_no_stop() -> None:
    steps = (JointStep("Name: ", Sampling()), JointStep("\nJob: ", Sampling()))
    answer = said("Name: Ann\nJob: cook\n")
    assert [c.text for c in match(steps, answer, whole_turn=True).captures] == ["Ann", "cook\n"]
    assert [c.text for c in match(steps, answer).captures] == ["Ann\nJob: cook\n"]
    assert match(steps, said(" Name: Ann"), whole_turn=True).captures == ()
    # A stop of its own counts, not the text.
    with_stop = (stopped("Name: ", "."), JointStep("\nJob: ", Sampling()))
    assert [c.text for c in match(with_stop, answer, whole_turn=True).captures] == ["Ann\nJob: cook\n"]


def test_tokens_count_as_bytes_or_as_the_whole_answer() -> None:
    steps = (stopped("", "\n", most=4), stopped("\nB:", "\n", most=4))
    assert len(match(steps, said("漢\nB:x\n", tokens=9)).captures) == 2  # 3 bytes and a stop
    assert match(steps, said("漢漢\nB:x\n", tokens=9)).captures == ()
    assert len(match(steps, said("漢漢\nB:x\n", tokens=4)).captures) == 2


def test_requests_ask_for_enough_and_no_more() -> None:
    steps = (stopped("", "\n", most=10), stopped("\nB:", "\n", most=6))
    assert limit_of(steps, 64) == 10 + 3 + 6
    assert limit_of(steps, 12) == 12
    assert limit_of(steps, 3) == 10  # the first one must not be cut short
    assert limit_of((stopped("Name: ", most=10),), 3) == 16
