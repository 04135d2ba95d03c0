"""A back end without a model: the local one, its thread and its engine, over the oracle.

What it generates is a function of the prompt, so runs repeat; how fast it steps is the test's to say.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from sglc.backends.local import LocalBackend, LocalOptions
from sglc.execution.result import Result
from sglc.ir.plan.events import Event, PackedIds
from sglc.ir.plan.segment import GenNode, Segment
from sglc.ir.target import ControlText, Objects, Target
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.machine import Machine
from sglc.runtime.step import Step
from sglc.runtime.tokenizer.chat_template import ChatTemplate
from tests.reference.oracle import Oracle
from tests.templates import CHATML
from tests.waiting import until

_CONTROL = ("<eos>", "<|im_start|>", "<|im_end|>")
_CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
VOCAB_SIZE = len(_CONTROL) + len(_CHARACTERS)


class Characters:
    """One id a printable ASCII character, behind three control tokens."""

    hash = "characters"
    bos_id = None
    eos_ids = (0,)
    has_template = True
    template = CHATML
    named: Mapping[str, str] = {"bos_token": "", "eos_token": "<eos>"}
    control: Mapping[int, str] = dict(enumerate(_CONTROL))

    _template = ChatTemplate(CHATML, named)  # compiled once

    def __init__(self) -> None:
        self._bytes = [b""] * len(_CONTROL) + [character.encode() for character in _CHARACTERS]

    def encode(self, text: str) -> list[int]:
        return [len(_CONTROL) + _CHARACTERS.index(character) for character in text]

    def encode_within(self, text: str) -> list[int]:
        return self.encode(text)

    def packed(self, text: str, *, within: bool) -> bytes:
        return PackedIds.of(self.encode_within(text) if within else self.encode(text)).packed

    def cut(self, text: str) -> int:
        return len(text)

    def first_cut(self, text: str) -> int:
        return min(1, len(text))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(_CHARACTERS[i - len(_CONTROL)] for i in ids if i >= len(_CONTROL))

    def token_bytes(self) -> list[bytes]:
        return self._bytes

    def split_control(self, markup: str) -> tuple[str | ControlText, ...]:
        parts = re.split("(" + "|".join(map(re.escape, _CONTROL)) + ")", markup)
        return tuple(ControlText(p, (_CONTROL.index(p),)) if p in _CONTROL else p for p in parts if p)

    def render(self, messages: Objects, *, generate: bool, tools: Objects | None = None) -> str:
        return self._template.render(messages, generate=generate, tools=tools)


class PacedOracle(Oracle):
    """An oracle that waits: `step_s` before every step, and at a closed `gate`; `broken` steps fail.

    It closes the gate itself before the first step at which `holds` is so.
    """

    def __init__(self, *, pages: int, page_size: int, vocab_size: int) -> None:
        super().__init__(pages=pages, page_size=page_size, vocab_size=vocab_size, eos_ids=(0,))
        self.step_s = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.holds: Callable[[], bool] = lambda: False
        self.broken: Callable[[Step], bool] = lambda step: False
        self.launched = 0

    def launch(self, step: Step) -> int:
        time.sleep(self.step_s)
        if self.holds():
            self.holds = lambda: False
            self.gate.clear()
        self.gate.wait()
        if self.broken(step):
            raise RuntimeError("the accelerator is on fire")
        self.launched += 1
        return super().launch(step)


class OracleBackend(LocalBackend):
    """`step_s`: seconds of one step; `pages` of `page_size` tokens hold the KV."""

    def __init__(
        self, *, step_s: float = 0.0, max_rows: int = 8, pages: int = 8_000, page_size: int = 4
    ) -> None:
        super().__init__(LocalOptions("oracle", device="cpu", max_rows=max_rows))
        self.oracle = PacedOracle(pages=pages, page_size=page_size, vocab_size=VOCAB_SIZE)
        self.oracle.step_s = step_s
        self.submitted: list[str] = []  # the names of the generations that were handed over

    @cached_property
    def target(self) -> Target:
        return Target(
            "local", Characters(), scores_tokens=True, continues_text=True, concurrency=self.options.max_rows
        )

    def _load(self) -> Machine:
        if self.oracle.launched:  # a machine that broke down has used it
            used = self.oracle
            self.oracle = PacedOracle(pages=used.pages, page_size=used.page_size, vocab_size=used.vocab_size)
            self.oracle.step_s = used.step_s
        limits = EngineConfig(max_rows=self.options.max_rows, max_len=4_000)
        return Machine(Engine(self.oracle, limits), Characters())

    def submit(self, segment: Segment, **options: Any) -> AsyncIterator[Event]:
        self.submitted += [node.site.name for node in segment.nodes if isinstance(node, GenNode)]
        return super().submit(segment, **options)

    @property
    def idle(self) -> bool:
        """Whether nothing runs."""
        return self.machine is None or self.machine.idle

    @property
    def held(self) -> bool:
        """Whether a step waits at the closed gate."""
        return not self.oracle.gate.is_set()

    def make_steps(self, count: int, result: Result) -> None:
        """Wait until the model has made so many more steps, or the run has ended."""
        before = self.oracle.launched
        until(lambda: self.oracle.launched >= before + count or result.ended, "no more steps are made")

    def settle(self) -> None:
        """Open the gate for good, and wait until nothing runs.

        Raises:
            AssertionError: something goes on without an end.
        """
        self.oracle.holds = lambda: False

        def rests() -> bool:
            self.oracle.gate.set()  # again and again: a step may have been about to close it
            return self.idle

        until(rests, "the machine does not come to rest")
