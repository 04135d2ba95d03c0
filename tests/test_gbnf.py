"""What is seen of a grammar without a model: texts and brackets end, and every rule is there."""

from __future__ import annotations

import pytest

from sglc.errors import LegalizeError
from sglc.ir.grammar.gbnf import check_gbnf
from sglc.ir.grammar.regex_gbnf import regex_gbnf


def test_a_number_that_python_does_not_read_is_too_large() -> None:
    with pytest.raises(LegalizeError, match="is no grammar"):
        check_gbnf('root ::= "a"{2,' + "9" * 5000 + "}")


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a"',
        '# a list\nroot ::= item (", " item)*  # of items\nitem ::= [a-z\\]#"]{1,3} | "\\"" | [^\\n"]',
        'root ::= (\n  "a" |\n  "b" x-1?\n)\nx-1 ::= root{2}',
        'root ::= "a" (= "b") "b"',
        r"root ::= [-a] [a-] [a\-c] [\[-\]] [\t-\n] [\u0041-\x5A]{0,0} [^]",
    ],
)
def test_grammars_are_taken(grammar: str) -> None:
    check_gbnf(grammar)


@pytest.mark.parametrize(
    ("grammar", "note"),
    [
        ("", "line 1, column 1: there is no rule `root`"),
        ('a ::= "b"', "line 1, column 1: there is no rule `root`"),
        ('root ::= "a', "line 1, column 10: a text without its end"),
        ('root ::= "a"\n  | [b', "line 2, column 5: a class without its end"),
        ('root ::= ("a"\nb ::= "c"', "line 2, column 3: `::=` without a rule's name"),
        ('root ::= ("a"', "line 1, column 10: `(` without `)`"),
        ('root ::= "a")', "line 1, column 13: `)` without `(`"),
        ('root ::= a b\na ::= "x"', "line 1, column 12: there is no rule `b`"),
        ('root ::= a\na ::= "x"\na ::= "y"', "line 3, column 1: a second rule `a`"),
        ('"a" ::= "b"', "line 1, column 5: `::=` without a rule's name"),
        ('root ::= "a" ; "b"', "line 1, column 14: `;` is not expected"),
        ("root ::= .{3}", "line 1, column 10: `.` is not expected"),
        ("root ::= 5", "line 1, column 10: `5` is not expected"),
        ("root ::= []", "line 1, column 10: the class `[]` has no characters"),
        ('root ::= "a"{4294967298}', "line 1, column 13: the repeat `{4294967298}` is too large"),
        ("root ::= [a-cb-a]", "line 1, column 10: the range `b-a` ends before it begins"),
        (r"root ::= [^z-\x41]", r"line 1, column 10: the range `z-\x41` ends before it begins"),
        ('root ::= "a"{2,1}', "line 1, column 13: the repeat `{2,1}` has more at least than at most"),
    ],
)
def test_what_is_no_grammar_is_refused_with_its_place(grammar: str, note: str) -> None:
    with pytest.raises(LegalizeError) as failure:
        check_gbnf(grammar)
    assert (failure.value.code, failure.value.note) == ("SGLC457", note)


@pytest.mark.parametrize(
    ("pattern", "grammar"),
    [
        ("yes|no", '( "yes" |"no" )'),
        ("a{2,}(b|)", '( "a" ){2,} ( ( "b" |))'),
        ("[1-9][0-9]?-", r"[\U00000031-\U00000039] ( [\U00000030-\U00000039] ){0,1} [\U0000002D] "),
        ("(?i)É\n", r"[\U000000C9] [\U0000000A] "),
    ],
)
def test_regular_expressions_are_grammars(pattern: str, grammar: str) -> None:
    assert regex_gbnf(pattern) == f"root ::= {grammar}"
    check_gbnf(regex_gbnf(pattern))
