"""A model's own chat template: messages to prompt text, in the sandbox that such templates expect.

Invariants: a template cannot reach Python beyond what is given to it here; the text equals what
transformers renders from the same template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sglc.errors import BackendError
from sglc.ir.target import Objects

_GIVEN = {"messages", "add_generation_prompt", "tools", "documents"}


class ChatTemplate:
    """A compiled jinja2 chat template.

    Args:
        source: the template.
        named: `bos_token`, `eos_token`, ... as the template may write them, and variables of its own.

    Raises:
        BackendError: the template is not valid jinja2 (SGLC513).
    """

    def __init__(self, source: str, named: Mapping[str, Any]) -> None:
        self._named = dict(named)
        try:
            self._template = _compiled(source)
        except jinja2.TemplateError as error:
            raise _refusal("the chat template is not valid", error, "use a model whose template is") from None

    def with_variables(self, variables: Mapping[str, Any]) -> ChatTemplate:
        """The same template, which reads these, too."""
        other = copy(self)
        other._named = {**self._named, **variables}
        return other

    def render(self, messages: Objects, *, generate: bool, tools: Objects | None = None) -> str:
        """The text of `messages` (keys `role`, `content`); `generate` opens the answer's turn.

        Raises:
            BackendError: the template refuses the conversation (SGLC513).
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=generate,
                tools=None if tools is None else [dict(tool) for tool in tools],
                documents=None,
                **self._named,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            roles = ", ".join(f"`{message.get('role')}`" for message in messages)
            raise _refusal(
                f"the chat template refuses a conversation of {roles or 'no turns'}",
                error,
                "order the turns as the model's template wants them",
            ) from None


@lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


@lru_cache(maxsize=8)
def variables_of(source: str) -> frozenset[str]:
    """The variables that a template reads beside the conversation and the names of tokens: its switches.

    Raises:
        BackendError: the template is not valid jinja2 (SGLC513).
    """
    try:
        environment = _environment()
        read = jinja2.meta.find_undeclared_variables(environment.parse(source))
    except jinja2.TemplateError as error:
        raise _refusal("the chat template is not valid", error, "use a model whose template is") from None
    return frozenset(name for name in read - _GIVEN - environment.globals.keys() if not name.endswith("_token"))


def _refusal(message: str, error: Exception, hint: str) -> BackendError:
    return BackendError("SGLC513", message, note=str(error) or type(error).__name__, hint=hint)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks answers for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own way to declare it)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    """What chat templates expect to find: the flags, the extensions, two functions and one filter."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    environment.filters["tojson"] = _to_json
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML, which a prompt must not.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
