"""What the benchmarks of constraints share: well-known patterns, vocabularies, and three engines side by side.

An engine compiles a regular expression for a vocabulary, and then says at any place which ids may come next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from sglc.bench.constrained import CHARACTER, WORDS
from sglc.ir.grammar.regex import compile_regex
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.constraints.token_automaton import TokenAutomaton, Vocabulary, build

_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_HEX = "[0-9a-fA-F]"
# This and `CHARACTER` are SGLang's own examples.
CITY = (
    r'\{\n  "name": "' + WORDS + r'",\n  "country": "' + WORDS + r'",\n'
    r'  "latitude": [-+]?[0-9]*\.?[0-9]{0,2},\n'
    r'  "population": [-+]?[0-9]{1,9},\n  "top 3 landmarks": \["' + WORDS + r'", "' + WORDS + r'", "' + WORDS
    + r'"\]\n\}'
)  # fmt: skip
PATTERNS = {
    "email": r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}",
    "email, lengths": r"[a-zA-Z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*",  # that of HTML's input fields
    "IPv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "IPv6": rf"(({_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}|({_HEX}{{1,4}}:){{1,7}}:"
    rf"|({_HEX}{{1,4}}:){{1,6}}:{_HEX}{{1,4}}"
    rf"|({_HEX}{{1,4}}:){{1,5}}(:{_HEX}{{1,4}}){{1,2}}|({_HEX}{{1,4}}:){{1,4}}(:{_HEX}{{1,4}}){{1,3}}"
    rf"|({_HEX}{{1,4}}:){{1,3}}(:{_HEX}{{1,4}}){{1,4}}|({_HEX}{{1,4}}:){{1,2}}(:{_HEX}{{1,4}}){{1,5}}"
    rf"|{_HEX}{{1,4}}:(:{_HEX}{{1,4}}){{1,6}}|:((:{_HEX}{{1,4}}){{1,7}}|:))",
    "URL": r"https?://(www\.)?[-a-zA-Z0-9@:%._+~#=]{1,256}\.[a-zA-Z0-9()]{1,6}([-a-zA-Z0-9()@:%_+.~#?&/=]*)",
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?",
    "date and time": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    "phone": r"(\+[0-9]{1,3}[ -]?)?(\([0-9]{3}\)|[0-9]{3})[ -]?[0-9]{3}[ -]?[0-9]{4}",
    "UUID": rf"{_HEX}{{8}}-{_HEX}{{4}}-[1-5]{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}",
    "colour": rf"#({_HEX}{{3}}|{_HEX}{{6}})",
    "credit card": r"(4[0-9]{12}([0-9]{3})?|5[1-5][0-9]{14}|3[47][0-9]{13}|6(?:011|5[0-9]{2})[0-9]{12})",
    "version": r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?",
    "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "choice": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",
    "sentence": r"[A-Z][^.!?\n]{1,200}[.!?]",
    "character": CHARACTER,
    "city": CITY,
}


class Walk(Protocol):
    """A text that is being read."""

    def mask(self) -> Any:
        """The ids that may come next, as the engine gives them."""

    def take(self, token: int) -> None:
        """Read a token that the mask allows."""


class Engine(Protocol):
    """Compiles regular expressions for one vocabulary."""

    name: str

    def walk(self, pattern: str) -> Callable[[], Walk]:
        """Compile; what comes makes walks that begin at the start."""


class Own:
    """The automata of this project. Nothing that was compiled is kept."""

    name = "sglc"

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        self.vocabulary = Vocabulary(token_bytes, size)

    def walk(self, pattern: str) -> Callable[[], Walk]:
        """As `Engine`."""
        compile_regex.cache_clear()
        automaton = TokenAutomaton(build(compile_regex(pattern), self.vocabulary), self.vocabulary, pattern)
        return lambda: OwnWalk(automaton)


class OwnWalk:
    """A walk along a constraint of this project."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.state = constraint.start

    def mask(self) -> Any:
        """As `Walk`."""
        return self.constraint.mask(self.state)

    def take(self, token: int) -> None:
        """As `Walk`."""
        self.state = self.constraint.advance(self.state, token)


class XGrammar:
    """xgrammar, in one thread and without its cache."""

    name = "xgrammar"

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        import xgrammar

        info = xgrammar.TokenizerInfo(
            list(token_bytes), xgrammar.VocabType.RAW, vocab_size=size, stop_token_ids=[]
        )
        self._size = size
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def walk(self, pattern: str) -> Callable[[], Walk]:
        """As `Engine`."""
        return self.begin(self.compiler.compile_regex(pattern))

    def begin(self, compiled: Any) -> Callable[[], Walk]:
        """Walks of what the compiler gave."""
        import xgrammar

        return lambda: _XGrammarWalk(xgrammar.GrammarMatcher(compiled), self._size)


class _XGrammarWalk:
    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher = matcher
        self._words = np.zeros((1, -(-size // 32)), np.int32)

    def mask(self) -> Any:
        """Ids in bits."""
        self._matcher.fill_next_token_bitmask(self._words)
        return self._words

    def take(self, token: int) -> None:
        """As `Walk`."""
        assert self._matcher.accept_token(token)


class Guidance:
    """llguidance."""

    name = "llguidance"

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        self._token_bytes = [*token_bytes, *[b""] * (size - len(token_bytes))]

    @cached_property
    def _tokenizer(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(_Bytes(self._token_bytes)))

    def walk(self, pattern: str) -> Callable[[], Walk]:
        """As `Engine`."""
        from llguidance import LLMatcher

        return self.begin(LLMatcher.grammar_from_regex(pattern))

    def begin(self, grammar: str) -> Callable[[], Walk]:
        """Walks of a grammar."""
        from llguidance import LLMatcher

        def begun() -> Walk:
            return _GuidanceWalk(LLMatcher(self._tokenizer, grammar))

        return begun


class _Bytes:
    """What llguidance asks of a tokenizer: one that spells byte by byte, with an end behind all other ids."""

    bos_token_id = None

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._single = {data: token for token, data in enumerate(token_bytes) if len(data) == 1}
        self.tokens = [*token_bytes, b"<end>"]
        self.eos_token_id = len(token_bytes)
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        return [self._single[bytes([byte])] for byte in text if bytes([byte]) in self._single]


class _GuidanceWalk:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self) -> Any:
        """Ids in bits."""
        return self._matcher.compute_bitmask()

    def take(self, token: int) -> None:
        """As `Walk`."""
        assert self._matcher.consume_token(token)


ENGINES: tuple[Callable[[Sequence[bytes], int], Engine], ...] = (Own, XGrammar, Guidance)
