"""Constraints that no finite automaton describes: JSON schemas and grammars, matched by xgrammar or llguidance.

The packages are imported with the first of them, because it takes seconds.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sglc.errors import RunError, SglcError, shown
from sglc.ir.grammar.gbnf import check_gbnf
from sglc.ir.grammar.schema_grammar import json_grammar
from sglc.ir.grammar.structural_tag import tag_grammar
from sglc.runtime.constraints import automaton_cache
from sglc.runtime.constraints.finite_text import endless_rule
from sglc.runtime.constraints.gbnf_rules import gbnf_rules
from sglc.runtime.constraints.grammar_constraint import Form, GrammarConstraint, Look, Matcher, rehearse
from sglc.runtime.constraints.llguidance_matcher import Guidance
from sglc.runtime.constraints.next_bytes import NextBytes

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, Grammar, GrammarMatcher, TokenizerInfo

# Compiled ones kept for each tokenizer: so many, and so many bytes of them.
_GRAMMARS, _BYTES = 32, 128 << 20
_MOST_BYTES = 32 << 20  # of one as it is kept: others wait while it is read
_GUIDANCE: dict[str, Callable[[str], str]] = {
    "json_schema": json_grammar,
    "structural_tag": tag_grammar,
}  # the others are xgrammar's
_TOO_LARGE = {"json_schema": "SGLC456", "ebnf": "SGLC457", "structural_tag": "SGLC465"}


class Grammars:
    """Compiled grammars of one tokenizer.

    Args:
        token_bytes: bytes of every id, index = id; ids without bytes are no text and never allowed.
        size: ids of the model; those behind `token_bytes` are padding.
        folder, identity: as in `Constraints`.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        size: int,
        *,
        folder: Path | None = None,
        identity: str = "",
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._token_bytes = token_bytes
        self._size = size
        self._next_bytes = lru_cache(lambda: NextBytes(token_bytes[:size]))
        self._surrogates = lru_cache(lambda: Surrogates(token_bytes[:size], size))
        self._kept: OrderedDict[tuple[str, str], tuple[Any, Form, int]] = OrderedDict()  # the last used last
        self._lock = threading.Lock()  # of `_kept`: grammars may be read in several threads

    def prepare(self, *, ebnf: bool) -> None:
        """Load the library of schemas and tags, and with `ebnf` xgrammar, and tell them the vocabulary."""
        self._guidance, self._next_bytes()
        if ebnf:
            self._tokenizer_info, self._surrogates()

    @cached_property
    def _guidance(self) -> Guidance:
        return Guidance(self._token_bytes, self._size)

    def begun(self, kind: str, text: str) -> GrammarConstraint:
        """A constraint to what a `text` of this `kind` says.

        Args:
            kind: `json_schema`: documents of a schema, on one line, with `", "` and `": "` between their parts;
                `ebnf`: texts of a grammar in GBNF, which begin with the rule `root`; `structural_tag`: texts
                in which markers begin what a structural tag says.

        Raises:
            LegalizeError: as `json_grammar`, `check_gbnf`, `tag_grammar`.
            RunError: SGLC456, SGLC457 xgrammar does not take it, or it derives no finite text; SGLC458 xgrammar
                is not installed; SGLC459 the model cannot write any such text.
        """
        compiled, form = self._compiled(kind, text)
        constraint = self._constraint(kind, compiled, form)
        if constraint.done(constraint.start):
            raise RunError(
                "SGLC459", f"the `{kind}` of this generation allows nothing but the empty text",
                hint="mend the grammar",
            )  # fmt: skip
        return constraint

    def _constraint(self, kind: str, compiled: Any, form: Form) -> GrammarConstraint:
        # What all need is made here, and not with the first matcher: it is no effort of this form's.
        matcher: Callable[[], Matcher]
        if kind in _GUIDANCE:
            matcher = partial(self._guidance.matcher, compiled, markers=kind == "structural_tag")
        else:
            matcher = partial(XGrammarMatcher, compiled, self._size, self._surrogates())
        return GrammarConstraint(matcher, self._token_bytes, self._size, self._next_bytes(), form)

    @cached_property
    def _tokenizer_info(self) -> TokenizerInfo:
        try:
            import xgrammar
        except ImportError as error:
            raise RunError(
                "SGLC458", "grammars need the package `xgrammar`", note=f"{error}",
                hint="pip install 'sglc[local]'",
            ) from None  # fmt: skip
        return xgrammar.TokenizerInfo(
            list(self._token_bytes[: self._size]),
            xgrammar.VocabType.RAW,
            vocab_size=self._size,
            stop_token_ids=[],
        )

    def is_kept(self, kind: str, text: str) -> bool:
        """Whether a grammar of `kind` (`json_schema`, `ebnf`, `structural_tag`) was compiled before."""
        path = self._path(kind, text)
        return path is not None and path.exists()

    def _path(self, kind: str, text: str) -> Path | None:
        library = "llguidance" if kind in _GUIDANCE else "xgrammar"
        if self._folder is not None:
            with suppress(PackageNotFoundError):
                key = (kind, text, self._identity, self._size, version(library))
                return automaton_cache.path_of_grammar(self._folder, *key)
        return None

    def at_hand(self, kind: str, text: str) -> bool:
        """Whether it takes no time to begin with a grammar."""
        return (kind, text) in self._kept

    def _compiled(self, kind: str, text: str) -> tuple[Any, Form]:
        """As `_compile`; the last ones are kept."""
        with self._lock:
            if (kind, text) in self._kept:
                self._kept.move_to_end((kind, text))
                return self._kept[kind, text][:2]
        compiled, form = self._compile(kind, text)
        size = len(compiled) if kind in _GUIDANCE else compiled.memory_size_bytes
        with self._lock:
            self._kept[kind, text] = compiled, form, size + len(text)
            while len(self._kept) > _GRAMMARS or (
                len(self._kept) > 1 and sum(size for *_, size in self._kept.values()) > _BYTES
            ):
                self._kept.popitem(last=False)
        return compiled, form

    def _compile(self, kind: str, text: str) -> tuple[Any, Form]:
        """A grammar that matchers can be made of: read, if it was compiled before.

        What is kept was tried: no call is known to take long.
        """
        path = self._path(kind, text)
        if path is not None and (found := automaton_cache.load_grammar(path)) is not None:
            if kind in _GUIDANCE:
                return found, Form()
            from xgrammar import CompiledGrammar

            with suppress(RuntimeError):
                return CompiledGrammar.deserialize_json(found, self._tokenizer_info), Form()
        compiled: Any = _GUIDANCE[kind](text) if kind in _GUIDANCE else self._compile_ebnf(text)
        form = Form()
        if path is not None:
            kept = compiled if kind in _GUIDANCE else compiled.serialize_json()
            if len(kept) > _MOST_BYTES:
                raise RunError(
                    _TOO_LARGE[kind],
                    f"this generation is held to more than can be kept: {len(kept) >> 20} MiB compiled",
                    hint="make it smaller",
                )
            rehearse(self._constraint(kind, compiled, Form(form.effort)), self._token_bytes)
            automaton_cache.save_grammar(path, kept)
        return compiled, form

    def rules(self, text: str) -> tuple[str, ...] | None:
        """The rules of a grammar in GBNF, as `gbnf_rules`; None also if it is none, or cannot be read."""
        with suppress(SglcError, ImportError):
            return gbnf_rules(_parsed(text)[1])
        return None

    def _compile_ebnf(self, text: str) -> CompiledGrammar:
        check_gbnf(text)
        info = self._tokenizer_info
        from xgrammar import GrammarCompiler

        grammar = _parsed(text)[0]
        with _named():
            return GrammarCompiler(info, cache_enabled=False).compile_grammar(grammar)


@lru_cache(maxsize=1)  # where no automaton holds it, it is compiled next
def _parsed(text: str) -> tuple[Grammar, str]:
    """A grammar in GBNF as xgrammar parses it, and the same serialized. Raises as `Grammars.begun`."""
    check_gbnf(text)
    from xgrammar import Grammar

    with _named():
        grammar = Grammar.from_ebnf(text)
        serialized = grammar.serialize_json()
    if rule := endless_rule(serialized):
        raise RunError(
            "SGLC457", "the `ebnf` of this generation has a part that no finite text satisfies",
            note=f"its rule `{rule}` always needs itself again", hint="give it a way to end",
        )  # fmt: skip
    return grammar, serialized


@contextmanager
def _named() -> Iterator[None]:
    """What xgrammar says of a grammar is an error of ours."""
    try:
        yield
    except (RuntimeError, UnicodeError) as error:  # the latter of names and texts that it cannot read
        said = shown(re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error)).strip())
        raise RunError(
            "SGLC457", "the `ebnf` of this generation cannot be compiled", note=said, hint="mend it"
        ) from None


class Surrogates:
    """Which ids would spell half of a surrogate pair, which is no text: xgrammar's `[^...]` lets it through."""

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        half = re.compile(rb"\xed[\xa0-\xbf]")
        self.begun = frozenset(number for number, data in enumerate(token_bytes) if data.endswith(b"\xed"))
        inside, behind = np.ones((2, -(-size // 32) * 32), np.bool_)
        for number, data in enumerate(token_bytes):
            inside[number] = half.search(data) is None
            behind[number] = half.search(b"\xed" + data) is None
        self.others = np.packbits(inside, bitorder="little"), np.packbits(behind, bitorder="little")


class XGrammarMatcher:
    """A `Matcher` of xgrammar."""

    def __init__(self, compiled: CompiledGrammar, size: int, surrogates: Surrogates) -> None:
        from xgrammar import GrammarMatcher

        self._matcher: GrammarMatcher = GrammarMatcher(compiled)
        self._size = size
        self._surrogates = surrogates
        self._begun = [False]  # of each place: whether the byte before may begin half of a pair

    def take(self, token: int) -> None:
        """Read a token, which is allowed."""
        taken = self._matcher.accept_token(token)
        assert taken, "a token that the mask allows is refused"
        self._begun = [token in self._surrogates.begun]

    def look(self) -> Look:
        """The ids that may come next, and whether the text may end here."""
        words: NDArray[np.int32] = np.zeros((1, -(-self._size // 32)), np.int32)
        self._matcher.fill_next_token_bitmask(words)
        packed = words.view(np.uint8)[0] & self._surrogates.others[self._begun[-1]]
        return packed, self._matcher.is_completed()

    def push(self, byte: int) -> bool:
        """Read a byte, which is allowed."""
        self._begun.append(byte == 0xED)
        return bool(self._matcher.accept_string(bytes([byte])))

    def back(self, count: int) -> None:
        """Take back the last bytes that were pushed."""
        self._matcher.rollback(count)
        del self._begun[1:]
