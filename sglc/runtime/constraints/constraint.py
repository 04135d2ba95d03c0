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
from sglc.ir.grammar.pushdown import pushdown
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.grammar.schema_regex import schema_rules
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints import automaton_cache
from sglc.runtime.constraints.canonical_tokens import CanonicalTokens
from sglc.runtime.constraints.grammar_matcher import Grammars
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.constraints.pushdown_automaton import PushdownAutomaton
from sglc.runtime.constraints.token_automaton import TokenAutomaton, Vocabulary, build

_AUTOMATA, _BYTES = 128, 256 << 20  # kept for each tokenizer: so many, and so many bytes of them
_Automaton = TokenAutomaton | PushdownAutomaton
_SLOW_S = 0.1  # what takes longer to compile is worth keeping, however small it is
_KINDS = ("regex", "json_schema", "ebnf", "structural_tag")


def form_of(sampling: Sampling) -> tuple[str, str] | None:
    """What a generation is held to, if to anything: a field of `Sampling`, and the text there."""
    if not sampling.constrained:
        return None
    return next((kind, text) for kind in _KINDS if (text := getattr(sampling, kind)) is not None)


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
        # By kind and text of a form, each as it is and in the tokenizer's spelling, and its bytes when it was
        # last used; the last used last.
        self._automata: OrderedDict[tuple[str, str], tuple[_Automaton, Constraint, int]] = OrderedDict()
        self._bytes = 0  # of them all
        self._lock = threading.Lock()  # of them: automata may be read in several threads

    def prepare(self, *, ebnf: bool) -> None:
        """Load what constraints need. What those of `ebnf` need takes seconds: xgrammar loads torch."""
        self._vocabulary()
        with suppress(SglcError, ImportError):
            self._grammars.prepare(ebnf=ebnf)

    def at_hand(self, sampling: Sampling) -> bool:
        """Whether `of` takes no time."""
        form = form_of(sampling)
        if form is None:
            return True
        made = self._automata.get(form)
        return (made is not None and not made[0].worn) or self._grammars.at_hand(*form)

    def of(self, sampling: Sampling) -> Constraint | None:
        """What a generation with `sampling` is held to, if to anything.

        Raises:
            LegalizeError: as `compile_regex`, `json_grammar`, `check_gbnf`, `tag_grammar`.
            RunError: this model cannot do it: SGLC454, SGLC456 to SGLC459.
        """
        match form_of(sampling):
            case None:
                return None
            case "regex", pattern:
                return self._of_regex(pattern)[sampling.canonical]
            case kind, text:
                held = None if kind == "structural_tag" else self._held(kind, text)
                if held is not None:
                    return held[sampling.canonical]
                constraint = self._grammars.begun(kind, text)
        return self._spelled(constraint) if sampling.canonical else constraint

    def is_kept(self, sampling: Sampling) -> bool:
        """Whether the schema or grammar of `sampling` was compiled before, by whichever process."""
        form = form_of(sampling)
        if form is None or form[0] == "regex":
            return False
        paths = self._path(*form), self._pushdown_path(*form)
        return any(path is not None and path.exists() for path in paths) or self._grammars.is_kept(*form)

    def _held(self, kind: str, text: str) -> tuple[_Automaton, Constraint] | None:
        """The automaton of a schema or grammar; None if a parser holds it, or it cannot be spelled."""
        key = kind, text
        if key not in self._automata and (self._grammars.at_hand(*key) or self._grammars.is_kept(*key)):
            return None
        with suppress(SglcError):
            return self._automaton(*key)
        return None

    def _spelled(self, constraint: Constraint) -> Constraint:
        if self._encode is None:
            return constraint
        return CanonicalTokens(constraint, self._vocabulary(), self._encode)

    def regex(self, pattern: str) -> TokenAutomaton:
        """The automaton of a pattern. The last ones are kept.

        Raises as `of`.
        """
        made = self._of_regex(pattern)[0]
        assert isinstance(made, TokenAutomaton)
        return made

    def _of_regex(self, pattern: str) -> tuple[_Automaton, Constraint]:
        made = self._automaton("regex", pattern)
        assert made is not None, "a pattern that no automaton holds is refused"
        return made

    def _automaton(self, kind: str, text: str) -> tuple[_Automaton, Constraint] | None:
        """The automaton of a form, as it is and in the tokenizer's spelling; None if a parser holds it."""
        key = kind, text
        with self._lock:
            if key in self._automata and not self._automata[key][0].worn:
                return self._used(key, *self._automata[key][:2])
        made = self._made(kind, text)
        if made is None:
            return None
        spelled = self._spelled(made)
        with self._lock:
            return self._used(key, made, spelled)

    def _used(
        self, key: tuple[str, str], made: _Automaton, spelled: Constraint
    ) -> tuple[_Automaton, Constraint]:
        """Keep what is used now, and let those go that were used longest ago: while it is used it may grow."""
        before = self._automata[key][2] if key in self._automata else 0
        size = made.size_bytes
        self._automata[key] = made, spelled, size
        self._automata.move_to_end(key)
        self._bytes += size - before
        while len(self._automata) > _AUTOMATA or (len(self._automata) > 1 and self._bytes > _BYTES):
            _, (*_, size) = self._automata.popitem(last=False)
            self._bytes -= size
        return made, spelled

    def _made(self, kind: str, text: str) -> _Automaton | None:
        """As `_automaton`. Raises LegalizeError as `compile_regex`; RunError: SGLC454, it cannot be spelled."""
        vocabulary, path = self._vocabulary(), self._path(kind, text)
        tables = None if path is None else automaton_cache.load(path, self._size)
        if tables is not None:
            return TokenAutomaton(tables, vocabulary, text)
        calls_path = None if kind == "regex" else self._pushdown_path(kind, text)
        form = None if calls_path is None else automaton_cache.load_pushdown(calls_path)
        if form is not None:
            return PushdownAutomaton(form, vocabulary, text)
        began_s = perf_counter()
        rules = self._rules(kind, text)
        if rules is None:
            return None
        if len(rules) > 1:
            form = pushdown(rules)
            if form is None:
                return None
            made = PushdownAutomaton(form, vocabulary, text)
            if calls_path is not None:
                automaton_cache.save_pushdown(calls_path, form)
            return made
        tables = build(compile_regex(rules[0]), vocabulary)
        if path is not None:
            # That a schema is an automaton is known from then on without reading it.
            worth = kind != "regex" or perf_counter() - began_s > _SLOW_S
            automaton_cache.save(path, tables, slow=worth)
        return TokenAutomaton(tables, vocabulary, text)

    def _rules(self, kind: str, text: str) -> tuple[str, ...] | None:
        """A form as rules for `pushdown`, of which a regular one has one; None if a parser holds it."""
        if kind == "regex":
            return (text,)
        return schema_rules(text) if kind == "json_schema" else self._grammars.rules(text)

    def _path(self, kind: str, text: str) -> Path | None:
        if self._folder is None:
            return None
        return automaton_cache.path_of(self._folder, kind, text, self._identity, self._size)

    def _pushdown_path(self, kind: str, text: str) -> Path | None:
        if self._folder is None:
            return None
        return automaton_cache.path_of_grammar(self._folder, f"{kind} with calls", text)
