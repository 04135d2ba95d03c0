"""What a body says: JSON, as a class of `bodies`, within the limits of the server."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from sglc.serve.bodies import RequestBody
from sglc.serve.fields import WHOLE_CHARACTERS
from sglc.serve.limits import Limits, check_lists
from sglc.serve.problems import Refusal, of_body, of_validation
from sglc.serve.sampling import check_forms

_Body = TypeVar("_Body", bound=RequestBody)


class OtherJson(Exception):
    """What is no JSON object, or none that `msgspec` takes: the framework says what is wrong with it."""


def decoded(content: bytes) -> dict[str, Any]:
    """The object that a body is.

    Raises:
        OtherJson: it is none.
    """
    try:
        given = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise OtherJson from None
    if not isinstance(given, dict):
        raise OtherJson
    return given


def checked(kind: type[RequestBody], given: dict[str, Any], limits: Limits, max_len: int) -> None:
    """Refuse what is too much, before it is looked at.

    Raises:
        Refusal: `check_lists`.
    """
    known = {name: value for name, value in given.items() if name in kind.model_fields}
    check_lists(limits, known, max_len)


def validated(kind: type[_Body], given: dict[str, Any]) -> _Body:
    """A request of that kind.

    Raises:
        Refusal: 400, it is none.
    """
    try:
        # What msgspec takes has no half of a surrogate pair. The framework has attributes read, too.
        return kind.model_validate(given, context=WHOLE_CHARACTERS, from_attributes=True)
    except ValidationError as error:
        # To decode what may be megabytes once more would keep everybody waiting.
        raise of_body(error) from None


def refusal_of_body(kind: type[RequestBody], content: bytes, limits: Limits, max_len: int) -> Refusal | None:
    """Why a body is not taken, as the framework says it; None: it is, or it is for the framework to say."""
    try:
        given = decoded(content)
        checked(kind, given, limits, max_len)
        check_forms(validated(kind, given), limits)
    except Refusal as refusal:
        return refusal
    except OtherJson:
        return _no_object(content)
    return None


def _no_object(content: bytes) -> Refusal | None:
    """What the framework says of what is no JSON object; None: it is one, of a kind that Python takes."""
    try:
        given = json.loads(content)
    except json.JSONDecodeError as error:
        return of_validation([{"type": "json_invalid", "loc": ("body",), "ctx": {"error": error.msg}}])
    except (RecursionError, UnicodeDecodeError):
        return Refusal(400, "There was an error parsing the body", code="bad_request")
    if isinstance(given, dict):
        return None
    return of_validation([{"type": "model_attributes_type", "loc": ("body",)}])
