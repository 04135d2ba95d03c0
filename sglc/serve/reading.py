"""What a body says: JSON, as a class of `bodies`, within the limits of the server."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.responses import Response

from sglc.ir.plan.events import PackedIds
from sglc.serve.bodies import ProgramBody, RequestBody
from sglc.serve.fields import WHOLE_CHARACTERS, Body
from sglc.serve.limits import Limits, check_lists, plan_bytes
from sglc.serve.problems import Refusal, of_body, of_validation
from sglc.serve.sampling import check_forms

_Body = TypeVar("_Body", bound=RequestBody)
_IDS = 1  # the extension of msgpack that token ids are


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


def read(content: bytes) -> Any:
    """The JSON that a body is, as Python takes it.

    Raises:
        JSONDecodeError: it is none.
        Refusal: 400, it is none that is taken.
    """
    try:
        return json.loads(content)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        message = "the body is nested too deeply"
    except UnicodeDecodeError:
        message = "the body is no UTF-8"
    except ValueError:
        message = f"the body has an integer of more than {sys.get_int_max_str_digits()} digits"
    raise Refusal(400, message, code="bad_request") from None


class JsonRoute(APIRoute):
    """An endpoint of the framework whose body is what `read` says."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As of every route."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handled


class _JsonRequest(Request):
    async def json(self) -> Any:
        """As of every request."""
        return read(await self.body())


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
        raise of_body(error, kind) from None


def packed(kind: type[RequestBody], content: bytes, limits: Limits, max_len: int) -> bytes:
    """A body that is taken, as `unpacked` reads it at once, its schemas as texts; nothing, if its JSON is read
    as fast, or is for the framework.

    Raises:
        Refusal: it is not taken, as the framework says it.
    """
    try:
        given = decoded(content)
    except OtherJson:
        if refusal := _no_object(content):
            raise refusal from None
        return b""
    checked(kind, given, limits, max_len)
    made = validated(kind, given)
    check_forms(made, limits)
    if isinstance(made, ProgramBody):
        plan_bytes(limits, made.plan)
    prompts = {name: given[name] for name in ("prompt", "input_ids") if _are_ids(given.get(name))}
    # `custom_params` may have a schema once more, which has to be equal.
    if not (prompts or ("custom_params" not in given and _with_texts(given, made))):
        return b""
    try:
        for name, lists in prompts.items():
            given[name] = [msgspec.msgpack.Ext(_IDS, PackedIds.of(ids).packed) for ids in lists]
        return msgspec.msgpack.encode(given)
    except (OverflowError, RecursionError):  # an id that no model has, or JSON as deep as can be read
        return b""


def unpacked(content: bytes) -> dict[str, Any]:
    """The object that `packed` took, its token ids as `PackedIds`."""
    given: dict[str, Any] = msgspec.msgpack.decode(content, ext_hook=lambda _, ids: PackedIds(bytes(ids)))
    return given


def _with_texts(given: dict[str, Any], made: Body) -> bool:
    """Have `given` hold the texts that were made of its schemas; whether there are any."""
    found = False
    for name, field in type(made).model_fields.items():
        key, text = field.alias or name, getattr(made, name)
        match given.get(key):
            case dict() as value if isinstance(text, Body):
                found = _with_texts(value, text) or found
            case dict() if isinstance(text, str):
                given[key] = text
                found = True
    return found


def _are_ids(value: Any) -> bool:
    """Whether a prompt that is taken is several lists of token ids."""
    return isinstance(value, list) and isinstance(value[0], list)


def _no_object(content: bytes) -> Refusal | None:
    """What the framework says of what is no JSON object; None: it is one, of a kind that Python takes."""
    try:
        given = read(content)
    except json.JSONDecodeError as error:
        return of_validation([{"type": "json_invalid", "loc": ("body",), "ctx": {"error": error.msg}}])
    except Refusal as refusal:
        return refusal
    if isinstance(given, dict):
        return None
    return of_validation([{"type": "model_attributes_type", "loc": ("body",)}])
