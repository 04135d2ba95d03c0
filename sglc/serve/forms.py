"""What a text is held to, in the notations that clients have for it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from sglc.serve.fields import WHOLE_CHARACTERS, Body, wrong


def _schema(value: Any, info: ValidationInfo) -> str:
    if isinstance(value, str | dict | bool):
        return _text(value, info)
    raise wrong("schema_type", "a schema is an object, or its text")


def _tag(value: Any, info: ValidationInfo) -> str:
    if isinstance(value, str | dict):
        return _text(value, info)
    raise wrong("tag_type", "a structural tag is an object, or its text")


def _text(value: Any, info: ValidationInfo) -> str:
    """A form as its text. It may have megabytes, and nobody else goes on meanwhile."""
    if isinstance(value, str):
        return value
    if info.context is WHOLE_CHARACTERS:  # it is JSON, and nothing that Python takes beside
        return msgspec.json.encode(value).decode()
    return json.dumps(value, ensure_ascii=False)


Schema = Annotated[Any, BeforeValidator(_schema)]
TagText = Annotated[Any, BeforeValidator(_tag)]


Choices = Annotated[list[str], Field(min_length=1)]


class SchemaFormat(Body):
    """The `json_schema` of a `response_format`. It is always enforced, whatever `strict` is."""

    name: str
    schema_: Schema = Field(alias="schema")
    description: str = ""
    strict: bool = True


class ResponseFormat(Body):
    """OpenAI's name for what the answer is held to; a structural tag is xgrammar's, or SGLang's older one."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: SchemaFormat | None = None
    format: TagText = None
    structures: list[Any] | None = None
    triggers: list[str] | None = None

    @model_validator(mode="after")
    def _whole(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise wrong("format_value", "`json_schema` comes with the type `json_schema`, and with no other")
        given = {name for name in ("format", "structures", "triggers") if getattr(self, name) is not None}
        if given not in (
            ({"format"}, {"structures", "triggers"}) if self.type == "structural_tag" else (set(),)
        ):
            raise wrong("format_value", "`format`, or `structures` and `triggers`, are of a `structural_tag`")
        return self

    @property
    def tag(self) -> str:
        """The structural tag, where it is one."""
        if self.format is not None:
            return f'{{"format": {self.format}}}'
        return json.dumps({"structures": self.structures, "triggers": self.triggers}, ensure_ascii=False)


class StructuredOutputs(Body):
    """vLLM's name for it: one of these."""

    ignored = frozenset({"disable_any_whitespace", "disable_fallback"})  # there is no white space to choose

    json_: Schema = Field(None, alias="json")
    json_object: bool = False
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    structural_tag: TagText = None

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if not self.json_object and not self.model_fields_set - {"json_object"}:
            names = ", ".join(f"`{field.alias or name}`" for name, field in type(self).model_fields.items())
            raise wrong("outputs_value", f"it holds a text to nothing: it has one of {names}")
        return self
