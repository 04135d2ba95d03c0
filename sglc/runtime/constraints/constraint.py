"""What a constrained generation may go on with, and how what holds it is come by for one tokenizer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from time import perf_counter

from sglc.errors import SglcError
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints import automaton_cache
from sglc.runtime.constraints.canonical_tokens import CanonicalTokens
from sglc.runtime.constraints.grammar_matcher import Grammars
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.constraints.token_automaton import TokenAutomaton, Vocabulary, build

_AUTOMATA, _BYTES = 64, 128 << 20  # kept for each tokenizer: so many, and so many bytes of them
_SLOW_S = 0.1  # what takes longer to compile is worth keeping, however small it is


class Constraints:
    """Constraints of one tokenizer; what is compiled for them is kept."""

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        size: int,
        encode: Callable[[str], Sequence[int]] | None = None,
        *,
        folder: Path | None = None,
        identity: str = "",
    ) -> None:
        """With `token_bytes` and `size` as `Vocabulary`, which is built with the first constraint.

        Args:
            encode: text to ids; without it nothing is spelled in its way.
            folder: where compiled automata are kept for the next process, under the tokenizer's `identity`.
        """
        self._vocabulary = lru_cache(lambda: Vocabulary(token_bytes, size))
        self._grammars = Grammars(token_bytes, size, folder=folder, identity=identity)
        self._size = size
        self._encode = encode
        self._folder = folder
        self._identity = identity
        # Each as it is, and in the tokenizer's spelling; the last used last.
        self._automata: OrderedDict[str, tuple[TokenAutomaton, Constraint]] = OrderedDict()
        self._lock = threading.Lock()  # of them: automata may be read in several threads

    def prepare(self) -> None:
        """Load what constraints of all kinds need, which takes seconds."""
        self._vocabulary()
        with suppress(SglcError, ImportError):
            self._grammars.prepare()

    def at_hand(self, sampling: Sampling) -> bool:
        """Whether `of` takes no time."""
        match sampling:
            case Sampling(regex=str(pattern)):
                return pattern in self._automata
            case Sampling(json_schema=str(schema)):
                return self._grammars.at_hand("json_schema", schema)
            case Sampling(ebnf=str(grammar)):
                return self._grammars.at_hand("ebnf", grammar)
        return True

    def of(self, sampling: Sampling) -> Constraint | None:
        """What a generation with `sampling` is held to, if to anything.

        Raises:
            LegalizeError: as `compile_regex`, `json_grammar`, `check_gbnf`.
            RunError: this model cannot do it: SGLC454, SGLC456 to SGLC459.
        """
        match sampling:
            case Sampling(regex=str(pattern)):
                return self._automaton(pattern)[sampling.canonical]
            case Sampling(json_schema=str(schema)):
                constraint = self._grammars.json_schema(schema)
            case Sampling(ebnf=str(grammar)):
                constraint = self._grammars.ebnf(grammar)
            case _:
                return None
        return self._spelled(constraint) if sampling.canonical else constraint

    def is_kept(self, sampling: Sampling) -> bool:
        """Whether the schema or grammar of `sampling` was compiled before, by whichever process."""
        match sampling:
            case Sampling(json_schema=str(schema)):
                return self._grammars.is_kept("json_schema", schema)
            case Sampling(ebnf=str(grammar)):
                return self._grammars.is_kept("ebnf", grammar)
        return False

    def _spelled(self, constraint: Constraint) -> Constraint:
        return (
            constraint
            if self._encode is None
            else CanonicalTokens(constraint, self._vocabulary(), self._encode)
        )

    def regex(self, pattern: str) -> TokenAutomaton:
        """The automaton of a pattern. The last ones are kept.

        Raises as `of`.
        """
        return self._automaton(pattern)[0]

    def _automaton(self, pattern: str) -> tuple[TokenAutomaton, Constraint]:
        """The automaton of a pattern, as it is and in the tokenizer's spelling."""
        with self._lock:
            if pattern in self._automata:
                self._automata.move_to_end(pattern)
                return self._automata[pattern]
        made = self._regex(pattern)
        both = made, self._spelled(made)
        with self._lock:
            self._automata[pattern] = both
            while len(self._automata) > _AUTOMATA or (
                len(self._automata) > 1 and sum(one.size_bytes for one, _ in self._automata.values()) > _BYTES
            ):
                self._automata.popitem(last=False)
        return both

    def _regex(self, pattern: str) -> TokenAutomaton:
        """Raises LegalizeError as `compile_regex`; RunError: the vocabulary cannot spell it (SGLC454)."""
        vocabulary = self._vocabulary()
        if self._folder is None:
            return TokenAutomaton(build(compile_regex(pattern), vocabulary), vocabulary, pattern)
        path = automaton_cache.path_of(self._folder, pattern, self._identity, self._size)
        tables = automaton_cache.load(path, self._size)
        if tables is None:
            began_s = perf_counter()
            tables = build(compile_regex(pattern), vocabulary)
            automaton_cache.save(path, tables, slow=perf_counter() - began_s > _SLOW_S)
        return TokenAutomaton(tables, vocabulary, pattern)
