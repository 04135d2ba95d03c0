"""Classes of the user's whose objects a program makes of data, and what reads typed values from texts.

A plan holds their names only: it runs where they are known, like the declared functions that it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglc.errors import Loc
from sglc.frontend.outputs.output_form import OutputParser

MAKERS: dict[str, Callable[..., Any]] = {}  # by their names in a plan


PARSERS: dict[Loc, OutputParser] = {}  # by the places of their generations


def declare_class(kind: type) -> str:
    """Make a class known whose objects a program makes of data; gives its name in a plan."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    MAKERS[name] = kind
    return name


def declare_parser(parser: OutputParser) -> str:
    """Make known what reads typed values from texts; gives its name in a plan."""
    name = f"{parser.name} of {parser.loc}"
    MAKERS[name] = parser.parse
    return name


def declare_typed(parser: OutputParser) -> None:
    """Make known what a typed variable is: a plan gives its value where its program was traced, else its text."""
    PARSERS[parser.loc] = parser
