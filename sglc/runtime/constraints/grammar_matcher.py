"""Constraints that no finite automaton describes: JSON schemas and grammars, matched by xgrammar or llguidance.

Their matchers change as they read, a `Constraint`'s states do not. So a state is a number for
the tokens that led to it, and a matcher stands at some of the states: one that is needed further on
moves along, one that is needed elsewhere is made anew. A constraint belongs to one request, whose
samples share it. The package is imported with the first of them, because it takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sglc.errors import RunError
from sglc.ir.grammar.gbnf import check_gbnf
from sglc.ir.grammar.json_schema import enforceable
from sglc.ir.grammar.strict_schema import strict_grammar
from sglc.runtime.constraints import automaton_cache
from sglc.runtime.constraints.finite_text import endless_rule
from sglc.runtime.constraints.llguidance_matcher import Encode, Guidance
from sglc.runtime.constraints.token_automaton import only_one
from sglc.runtime.step import Bool

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, GrammarMatcher, TokenizerInfo

_GRAMMARS = 64  # compiled ones kept for each tokenizer
_LOOKS = 64  # of states kept for each request: 0.4 MB for 49,152 tokens
_MATCHERS = 32  # kept for each request
# Processor time of a request's matchers: what is ambiguous takes more and more for each token.
_MAY_TAKE_S, _MAY_TAKE_EACH_S = 1.0, 0.005
_AHEAD = 256  # bytes that have to come next are looked for up to here: a grammar may have them without end


class Grammars:
    """Compiled grammars of one tokenizer.

    Args:
        token_bytes: bytes of every id, index = id; ids without bytes are no text and never allowed.
        size: ids of the model; those behind `token_bytes` are padding.
        encode: text to ids, for llguidance.
        folder, identity: as in `Constraints`.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        size: int,
        encode: Encode | None = None,
        *,
        folder: Path | None = None,
        identity: str = "",
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._token_bytes = token_bytes
        self._encode = encode
        self._size = size
        self._next_bytes = lru_cache(lambda: NextBytes(token_bytes[:size]))
        self._compiled = lru_cache(maxsize=_GRAMMARS)(self._compile)

    def prepare(self) -> None:
        """Load the libraries, and tell them the vocabulary."""
        self._tokenizer_info, self._guidance, self._next_bytes()

    def json_schema(self, schema: str) -> GrammarConstraint:
        """A constraint to documents of `schema`, on one line, with `", "` and `": "` between their parts.

        Raises:
            LegalizeError: SGLC455, SGLC456, as `enforceable`.
            RunError: SGLC456, SGLC458, SGLC459, as `ebnf`.
        """
        return self._start("json_schema", schema)

    def strict(self, schema: str) -> GrammarConstraint:
        """As `json_schema`, by llguidance.

        Raises:
            LegalizeError: SGLC455, SGLC456, SGLC458, as `strict_grammar`.
            RunError: SGLC459, as `ebnf`.
        """
        grammar = self._compiled("strict", schema)
        make = self._guidance.matcher
        return self._checked("json_schema", lambda: make(grammar))

    @cached_property
    def _guidance(self) -> Guidance:
        return Guidance(self._token_bytes, self._size, self._encode)

    def ebnf(self, grammar: str) -> GrammarConstraint:
        """A constraint to texts of `grammar`, in GBNF; they begin with the rule `root`.

        Raises:
            LegalizeError: SGLC457, as `check_gbnf`.
            RunError: SGLC456, SGLC457 xgrammar does not take it, or it derives no finite text; SGLC458 xgrammar
                is not installed; SGLC459 the model cannot write any such text.
        """
        return self._start("ebnf", grammar)

    def _start(self, kind: str, text: str) -> GrammarConstraint:
        compiled, next_bytes = self._compiled(kind, text), self._next_bytes()
        return self._checked(kind, lambda: XGrammarMatcher(compiled, self._size, next_bytes))

    def _checked(self, kind: str, matcher: Callable[[], Matcher]) -> GrammarConstraint:
        constraint = GrammarConstraint(matcher, self._token_bytes, self._size)
        if constraint.done(constraint.start):
            raise RunError(
                "SGLC459", f"the `{kind}` of this generation allows nothing but the empty text",
                hint="mend the grammar",
            )  # fmt: skip
        return constraint

    @cached_property
    def _tokenizer_info(self) -> TokenizerInfo:
        try:
            import xgrammar
        except ImportError:
            raise RunError(
                "SGLC458", "JSON schemas and grammars need the package `xgrammar`",
                hint="pip install 'sglc[local]'",
            ) from None  # fmt: skip
        return xgrammar.TokenizerInfo(
            list(self._token_bytes[: self._size]),
            xgrammar.VocabType.RAW,
            vocab_size=self._size,
            stop_token_ids=[],
        )

    def _compile(self, kind: str, text: str) -> Any:
        """A grammar that matchers can be made of: read, if it was compiled before."""
        path = None
        if self._folder is not None:
            library = "llguidance" if kind == "strict" else "xgrammar"
            with suppress(PackageNotFoundError):
                key = (kind, text, self._identity, self._size, version(library))
                path = automaton_cache.path_of_grammar(self._folder, *key)
        if path is not None and (found := automaton_cache.load_grammar(path)) is not None:
            if kind == "strict":
                return found
            from xgrammar import CompiledGrammar

            with suppress(RuntimeError):
                return CompiledGrammar.deserialize_json(found, self._tokenizer_info)
        if kind == "strict":
            compiled: Any = strict_grammar(text)
        else:
            compiled = self._compile_grammar(kind, text)
        if path is not None:
            automaton_cache.save_grammar(path, compiled if kind == "strict" else compiled.serialize_json())
        return compiled

    def _compile_grammar(self, kind: str, text: str) -> CompiledGrammar:
        if kind == "ebnf":
            check_gbnf(text)
        else:
            text = enforceable(text)
        info = self._tokenizer_info
        from xgrammar import Grammar, GrammarCompiler

        code = "SGLC457" if kind == "ebnf" else "SGLC456"
        try:
            if kind == "ebnf":
                grammar = Grammar.from_ebnf(text)
            else:
                # Without free whitespace a model cannot go on with spaces for ever.
                grammar = Grammar.from_json_schema(text, any_whitespace=False)
            if rule := endless_rule(grammar.serialize_json()):
                raise RunError(
                    code, f"the `{kind}` of this generation has a part that no finite text satisfies",
                    note=f"its rule `{rule}` always needs itself again", hint="give it a way to end",
                )  # fmt: skip
            return GrammarCompiler(info, cache_enabled=False).compile_grammar(grammar)
        except RuntimeError as error:
            said = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error)).strip()
            raise RunError(
                code, f"the `{kind}` of this generation cannot be compiled", note=said, hint="mend it"
            ) from None


class Matcher(Protocol):
    """Reads a text token by token."""

    def take(self, token: int) -> None:
        """Read a token, which is allowed."""

    def look(self) -> tuple[NDArray[np.uint8], bool]:
        """The ids that may come next, packed, the lowest bit first; and whether the text may end here."""

    def ahead(self, limit: int) -> bytes:
        """Bytes that have to come next, as far as is known, and about `limit` of them at most."""


class NextBytes:
    """Which byte a mask wants next, told by few ids where every byte is one."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        begins = np.array([data[0] if data else -1 for data in token_bytes], np.int32)
        single = np.array([len(data) == 1 for data in token_bytes], np.bool_)
        everywhere = set(b"".join(token_bytes)) <= set(begins[single].tolist())
        ids = np.flatnonzero(single if everywhere else begins >= 0)
        self._bytes, self._words, self._bits = begins[ids], ids // 8, ids.astype(np.uint8) % 8

    def only(self, packed: NDArray[np.uint8]) -> int | None:
        """The byte that all allowed ids begin with; None if there are several, or no ids."""
        found = self._bytes[(packed[self._words] >> self._bits & 1).view(np.bool_)]
        return int(found[0]) if found.size and (found == found[0]).all() else None


class XGrammarMatcher:
    """A `Matcher` of xgrammar."""

    def __init__(self, compiled: CompiledGrammar, size: int, next_bytes: NextBytes) -> None:
        from xgrammar import GrammarMatcher

        self._matcher: GrammarMatcher = GrammarMatcher(compiled)
        self._size = size
        self._next_bytes = next_bytes

    def take(self, token: int) -> None:
        """Read a token, which is allowed."""
        taken = self._matcher.accept_token(token)
        assert taken, "a token that the mask allows is refused"

    def look(self) -> tuple[NDArray[np.uint8], bool]:
        """The ids that may come next, and whether the text may end here."""
        words: NDArray[np.int32] = np.zeros((1, -(-self._size // 32)), np.int32)
        self._matcher.fill_next_token_bitmask(words)
        return words.view(np.uint8)[0], self._matcher.is_completed()

    def ahead(self, limit: int) -> bytes:
        """Bytes that have to come next. xgrammar's own search for them knows no limit."""
        found = bytearray()
        while len(found) < limit:
            packed, may_end = self.look()
            byte = None if may_end else self._next_bytes.only(packed)
            if byte is None or not self._matcher.accept_string(bytes([byte])):
                break
            found.append(byte)
        self._matcher.rollback(len(found))
        return bytes(found)


class GrammarConstraint:
    """A `Constraint` of one request; its states are numbers of token sequences."""

    start = 0

    def __init__(self, matcher: Callable[[], Matcher], token_bytes: Sequence[bytes], size: int) -> None:
        """`matcher` makes one that stands at the start; `token_bytes` and `size` as in `Grammars`."""
        self._token_bytes = token_bytes
        self._size = size
        self._new_matcher = matcher
        self._came: list[tuple[int, int]] = [(-1, -1)]  # of a state: the one before, and the token
        self._after: dict[tuple[int, int], int] = {}
        self._matchers: dict[int, Matcher] = {}  # by where they stand, newest last
        self._look = lru_cache(maxsize=_LOOKS)(self._looked_at)
        self._taken_s = 0.0
        self._ahead: dict[int, tuple[bytes, bool]] = {}  # of the newest states; whether it was cut off

    def mask(self, state: int) -> Bool:
        """Ids that may come next, bool [V], the caller's own."""
        packed, _ = self._look(state)
        return np.unpackbits(packed, count=self._size, bitorder="little").view(np.bool_)

    def accepting(self, state: int) -> bool:
        """Whether the text may end here."""
        return self._look(state)[1]

    def ahead(self, state: int) -> bytes:
        """Bytes that have to come next, up to some hundred."""
        if state not in self._ahead:
            began_s = thread_time()
            self._ahead[state] = self._looked_ahead(state)
            self._taken_s += thread_time() - began_s
            if len(self._ahead) > _LOOKS:
                del self._ahead[next(iter(self._ahead))]
        return self._ahead[state][0]

    def only(self, state: int) -> int | None:
        """The id that has to come next; None if there are several, or none."""
        return only_one(self.mask(state))

    def advance(self, state: int, token: int) -> int:
        """The state behind `token`, which `state` allows."""
        after = self._after.setdefault((state, token), len(self._came))
        if after == len(self._came):
            self._came.append((state, token))
        return after

    def done(self, state: int) -> bool:
        """Whether the text has to end here.

        Raises:
            RunError: SGLC459, the text may not end here, and the model has no token to go on with; or its
                grammar takes too long.
        """
        packed, accepting = self._look(state)
        if self._taken_s > _MAY_TAKE_S + _MAY_TAKE_EACH_S * len(self._came):
            raise RunError(
                "SGLC459", f"what this generation is held to takes too long: {self._taken_s:.1f} s so far",
                note="there may be many ways to read one text",
                hint="write the grammar so that a text can be read in one way",
            )  # fmt: skip
        if packed.any():
            return False
        if not accepting:
            raise RunError(
                "SGLC459", "the model has no token that its grammar allows here",
                note="its vocabulary has to spell the text",
                hint="keep what is asked for to characters that the model can write",
            )  # fmt: skip
        return True

    def _looked_at(self, state: int) -> tuple[NDArray[np.uint8], bool]:
        """The mask of `state`, packed, and whether it accepts."""
        began_s = thread_time()
        found = self._matcher(state).look()
        self._taken_s += thread_time() - began_s
        return found

    def _looked_ahead(self, state: int) -> tuple[bytes, bool]:
        before, token = self._came[state]
        known, cut_off = self._ahead.get(before, (b"", False))
        taken = self._token_bytes[token] if known else b""
        if known.startswith(taken) and len(known) - len(taken) > (_AHEAD // 2 if cut_off else 0):
            return known[len(taken) :], cut_off
        found = b"" if self.accepting(state) else self._matcher(state).ahead(_AHEAD)
        return found, len(found) >= _AHEAD

    def _matcher(self, state: int) -> Matcher:
        """A matcher that stands at `state`."""
        before, token = self._came[state]
        if state in self._matchers:
            return self._matchers[state]
        matcher = self._matchers.pop(before, None)
        path = [token]
        if matcher is None:
            matcher = self._new_matcher()
            path = []
            at = state
            while at:
                at, token = self._came[at]
                path.append(token)
        for token in reversed(path):
            matcher.take(token)
        self._matchers[state] = matcher
        if len(self._matchers) > _MATCHERS:
            del self._matchers[next(iter(self._matchers))]
        return matcher
