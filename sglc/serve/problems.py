"""What a client is told when a request fails: a status, and OpenAI's error object, or Ollama's."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sglc.errors import BackendError, LegalizeError, RunError, SglcError
from sglc.serve.access_log import SPENT
from sglc.serve.bodies import fields_at
from sglc.serve.fields import UNSUPPORTED, Body

# Of the back end's errors, those that a request is to blame for: what cannot be written down, a template that
# refuses the conversation, and a script without an answer.
_ASKED_WRONG = ("SGLC508", "SGLC513", "SGLC521", "SGLC522")
_UNAVAILABLE = ("SGLC501", "SGLC502", "SGLC503", "SGLC504", "SGLC505", "SGLC506", "SGLC520")
_CODES = {"SGLC440": "context_length_exceeded", "SGLC441": "context_length_exceeded"}
# The fields that errors speak of which only the runtime finds.
_PARAMS = {
    **dict.fromkeys(("SGLC450", "SGLC451", "SGLC452", "SGLC453", "SGLC454"), "regex"),
    **dict.fromkeys(("SGLC455", "SGLC456"), "json_schema"),
    "SGLC457": "ebnf",
    **dict.fromkeys(("SGLC464", "SGLC465"), "structural_tag"),
    "SGLC470": "logit_bias",
    **dict.fromkeys(("SGLC471", "SGLC472"), "stop_regex"),
}


def error_described(error: dict[str, Any]) -> dict[str, Any]:
    """What `/openapi.json` says of every answer that is none: an object whose `error` has this schema."""
    schema = {"type": "object", "required": ["error"], "properties": {"error": error}}
    return {"description": "an error", "content": {"application/json": {"schema": schema}}}


DESCRIBED = error_described(
    {
        "type": "object",
        "required": ["message", "type", "param", "code"],
        "properties": {
            "message": {"type": "string"},
            "type": {"enum": ["invalid_request_error", "server_error"]},
            "param": {"type": ["string", "null"]},
            "code": {"type": "string"},
        },
    }
)
_RETRY_S = "1"
_FINAL = ("aborted", "timed_out")  # not to be asked again, though clients do so at these statuses
_OF_STATUS = {404: "not_found", 405: "method_not_allowed"}
# What libraries that stand before our endpoints say begins with this; the code, and what we say.
_SAID = {
    "Invalid host header": ("unknown_host", "the server is not asked by this name"),
    "Disallowed CORS origin": ("origin_not_allowed", "pages of this origin may not ask"),
    "Content Too Large": ("body_too_large", "the body is larger than the server takes"),
}
OLLAMAS = "/api/"  # its paths begin with this


class Refusal(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP.
        message: what is wrong.
        param: the field of the request, if it is one; dotted where it is inside another.
        code: stable, for programs.
        closes: whether nothing more is taken on its connection.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str, closes: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.closes = closes

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        param = None if self.param is None else _writable(self.param)
        return {"error": {"message": _writable(self.message), "type": kind, "param": param, "code": self.code}}


def _writable(text: str) -> str:
    """`text`, in which a client may have put what no encoding has."""
    return text.encode("utf-8", "backslashreplace").decode()


def bad(param: str, message: str, code: str = "invalid_value") -> Refusal:
    """400: what stands in field `param`."""
    return Refusal(400, f"`{param}` {message}", param=param, code=code)


def refusal_of(error: SglcError) -> Refusal:
    """What a failed node means for the request that it came from."""
    message = "; ".join(text for text in (error.message, error.note, error.hint) if text)
    asked_wrong = isinstance(error, LegalizeError | RunError) or error.code in _ASKED_WRONG
    if isinstance(error, BackendError) and error.code in _UNAVAILABLE:
        status = 503
    else:
        status = 400 if asked_wrong else 500
    return Refusal(status, message, param=_PARAMS.get(error.code), code=_CODES.get(error.code, error.code))


def of_validation(problems: Sequence[Any], asked: type[Body] | None = None) -> Refusal:
    """400 for the first thing that is wrong with a body of this kind, by its field."""
    problem = problems[0]
    where = [str(part) for part in problem["loc"][1:]]  # behind "body"
    if inner := problem.get("ctx", {}).get("param"):
        where.append(inner)
    kind, param = problem["type"], ".".join(where) or None
    if kind == "json_invalid":
        return Refusal(400, f"the body is no JSON: {problem['ctx']['error']}", code="invalid_json")
    if kind == "extra_forbidden":
        return _unknown(param or "", where, asked)
    if kind == "missing":
        if param is None:
            return Refusal(400, "the request has no body", code="missing_field")
        return bad(param, "is missing", "missing_field")
    if kind == "model_attributes_type" and param is None:
        if isinstance(problem.get("input"), bytes):  # the framework reads as JSON only what is called so
            message = "the body is not called JSON: send it with `Content-Type: application/json`"
            return Refusal(400, message, code="invalid_type")
        return Refusal(400, "the body is no JSON object", code="invalid_type")
    what = problem["msg"][0].lower() + problem["msg"][1:]
    code = "invalid_type" if kind.endswith(("_type", "_parsing")) else "invalid_value"
    return Refusal(400, f"`{param}`: {what}", param=param, code=code)


def of_body(error: ValidationError, asked: type[Body] | None = None) -> Refusal:
    """As `of_validation`, of a body that the framework did not look at."""
    problem = error.errors(include_url=False, include_input=False)[0]
    return of_validation([{**problem, "loc": ("body", *problem["loc"])}], asked)


def _unknown(param: str, where: Sequence[str], asked: type[Body] | None) -> Refusal:
    *path, name = where
    if name in UNSUPPORTED:
        return bad(param, f"is not supported{UNSUPPORTED[name]}", "unsupported_field")
    near = difflib.get_close_matches(name, fields_at(asked, path) if asked else (), 1)
    hint = f"; is `{near[0]}` meant?" if near else ""
    return Refusal(400, f"there is no field `{param}`{hint}", param=param, code="unknown_field")


def of_any(error: Exception, asked: type[Body] | None = None) -> Refusal:
    """Whatever a request may raise, of this kind if it has a body."""
    match error:
        case Refusal():
            return error
        case SglcError():
            return refusal_of(error)
        case RequestValidationError():
            return of_validation(error.errors(), asked)
        case RecursionError():
            return Refusal(400, "the body is nested too deeply", code="invalid_value")
        case HTTPException(__cause__=Refusal() as refusal):  # of a body, whatever the framework says of it
            return refusal
        case HTTPException():
            return of_text(error.status_code, str(error.detail))
        case _:
            what = f"the server failed: `{type(error).__name__}`: {error}"
            return Refusal(500, what, code="internal_error")


def of_text(status: int, text: str) -> Refusal:
    """What a plain text of a library says."""
    for begin, (code, message) in _SAID.items():
        if text.startswith(begin):
            return Refusal(status, message, code=code)
    return Refusal(status, text or "the request cannot be answered", code=_OF_STATUS.get(status, "bad_request"))


def as_response(refusal: Refusal, path: str) -> Response:
    """The answer, as clients of this path know it. Who is turned away for now is told when to come again."""
    _told(refusal)
    content = _ollamas(refusal) if path.startswith(OLLAMAS) else refusal.body()
    response = as_json(content, refusal.status)
    if refusal.code in _FINAL:
        response.headers["x-should-retry"] = "false"  # which the vendors' clients go by
    elif refusal.status in (429, 503):
        response.headers["retry-after"] = _RETRY_S
    if refusal.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if refusal.closes:
        response.headers["connection"] = "close"
    return response


def as_last_part(refusal: Refusal, kind: str) -> bytes:
    """What a stream of this media type ends with where it fails; nothing, if there are no streams of it."""
    match kind:
        case "text/event-stream":
            last = b"data: " + msgspec.json.encode(refusal.body()) + b"\n\ndata: [DONE]\n\n"
        case "application/x-ndjson":
            last = msgspec.json.encode(_ollamas(refusal)) + b"\n"
        case _:
            return b""
    _told(refusal)
    return last


def _ollamas(refusal: Refusal) -> dict[str, Any]:
    """An error as Ollama's clients know it: its text alone."""
    return {"error": _writable(refusal.message)}


def _told(refusal: Refusal) -> None:
    """The request is answered with an error, if it is one that is counted."""
    if (spent := SPENT.get(None)) is not None:
        spent.code = refusal.code


def in_pieces(content: Any) -> Any:
    """The same data, the items of its lists as JSON already: others have their turn between two of them."""
    if isinstance(content, dict):
        return {key: in_pieces(value) for key, value in content.items()}
    if isinstance(content, list):
        return [msgspec.Raw(msgspec.json.encode(in_pieces(item))) for item in content]
    return content


def as_json(content: Any, status: int = 200) -> Response:
    """Data as an answer. What is not a number (an infinite log-probability) becomes null."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")
