"""The parts of JSON Schema that APIs hold answers to, each by the rules of its vendor.

Of all of them: objects have all of their properties and no others, and what is left out here is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid")


@dataclass(frozen=True, slots=True)
class SchemaSubset:
    """What one kind of structured outputs takes.

    `kept` are the keywords of each type beside those that every subset has, `formats` those of strings.
    """

    kept: Mapping[str, tuple[str, ...]]
    formats: tuple[str, ...]
    several_types: bool = True  # `type` may be a list
    enums: tuple[str, ...] = (
        "string",
        "integer",
        "number",
        "boolean",
        "null",
    )  # types of values that are listed
    recursive: bool = True  # a definition may refer to itself
    least_items: bool = True  # `minItems` may be more than 1


SUBSETS: Mapping[str, SchemaSubset] = {
    # OpenAI's structured outputs with `strict`.
    "strict": SchemaSubset(
        {
            "string": ("pattern", "format"), "integer": _NUMBERS, "number": _NUMBERS,
            "array": ("minItems", "maxItems"),
        },
        _FORMATS,
    ),
    # Anthropic's `output_config.format`: its SDK moves every other keyword into the description, where nothing
    # holds an answer to it (`lib/_parse/_transform.py`); lists may be asked for as not empty, nothing recurs.
    "anthropic": SchemaSubset(
        {"string": ("format",), "array": ("minItems",)},
        (*_FORMATS, "uri"),
        several_types=False,
        recursive=False,
        least_items=False,
    ),
    # Google's `response_json_schema`, as its SDK lists the keywords; enums are of strings and numbers.
    "gemini": SchemaSubset(
        {
            "string": ("format",), "integer": ("minimum", "maximum"), "number": ("minimum", "maximum"),
            "array": ("minItems", "maxItems"),
        },
        ("date", "date-time", "time"),
        several_types=False,
        enums=("string", "integer", "number"),
        recursive=False,
    ),
}  # fmt: skip
