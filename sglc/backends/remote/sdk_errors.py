"""What errors of SDKs and of the network mean, for `retry`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from sglc.backends.retry import Trouble, status_trouble
from sglc.errors import RunError, shown

_FINAL = ("insufficient_quota", "billing_error")  # will be the same again, whatever the status
_HEADER = "Illegal header value"  # and it, which may be a key
# Errors that are told inside a stream have no status of their own.
_STATUSES = {
    "invalid_request_error": 400, "authentication_error": 401, "permission_error": 403, "not_found_error": 404,
    "request_too_large": 413, "rate_limit_error": 429, "overloaded_error": 529,
}  # fmt: skip


def network_trouble(error: Exception) -> Exception:
    """What a failure below the SDK means; itself, if it is none."""
    unread = json.JSONDecodeError | UnicodeDecodeError | RecursionError  # the latter of too many brackets
    if isinstance(error, unread) or _is_http(error, "DecodingError"):
        return Trouble(f"the answer is malformed: {said(error)}")
    if _is_http(error, "RequestError") or _is_http(error, "InvalidURL"):
        return _unconnected("broke", error)
    return unencodable(error)


def unencodable(error: Exception) -> Exception:
    """What it means that a request could not be written as UTF-8; itself, if it is another error."""
    if not isinstance(error, UnicodeEncodeError) or error.encoding != "utf-8":
        return error
    char = f"\\u{ord(error.object[error.start]):04x}"
    return RunError(
        "SGLC430", f"text with the lone surrogate `{char}` cannot be sent",
        hint="decode the input as UTF-8, or with `errors='replace'`",
    )  # fmt: skip


def _is_http(error: BaseException, kind: str) -> bool:
    """Whether it is an error of this kind of `httpx`, which SDKs use in both of its versions."""
    here = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return isinstance(error, tuple(getattr(http, kind) for http in here))


def _unconnected(how: str, error: BaseException) -> Trouble:
    """A connection that failed; of what was never sent the next one would fail, too."""
    no_address = _is_http(error, "UnsupportedProtocol") or _is_http(error, "InvalidURL")
    never = no_address or _HEADER in str(error)
    return Trouble(f"the connection {how}: {said(error)}", again=not never)


def sdk_trouble(sdk: ModuleType, error: Exception) -> Exception:
    """The same of an SDK with OpenAI's tree of errors: `openai` and `anthropic`."""
    match error:
        case sdk.APIStatusError():
            body: Any = error.body if isinstance(error.body, Mapping) else {"message": error.body}
            body = body["error"] if isinstance(body.get("error"), Mapping) else body
            status = error.status_code if error.status_code >= 300 else _status_of(body) or 500
            message = message_of(body) or said(error)
            return status_trouble(status, message, error.response.headers, final=_is_final(body))
        case sdk.APITimeoutError():
            return Trouble("no answer in time")
        case sdk.APIConnectionError():
            return _unconnected("failed", error.__cause__ or error)
        case sdk.APIError() if isinstance(error.body, Mapping):  # told inside a stream
            return told_trouble(error.body)
        case sdk.APIError():  # so, too, or an answer that the SDK cannot read
            return Trouble(said(error))
        case _:
            return network_trouble(error)


def told_trouble(error: Any) -> Trouble:
    """What an error means that stands where an answer should; its code may be the status that it has not."""
    body = error if isinstance(error, Mapping) else {"message": error}
    status, message = _status_of(body), message_of(body) or "the API failed"
    if status is None:
        return Trouble(message, again=not _is_final(body))
    return status_trouble(status, message, {}, final=_is_final(body))


def _status_of(body: Mapping[str, Any]) -> int | None:
    code = str(body.get("code"))
    return int(code) if re.fullmatch("[45][0-9][0-9]", code) else _STATUSES.get(str(body.get("type")))


def _is_final(body: Mapping[str, Any]) -> bool:
    return body.get("code") in _FINAL or body.get("type") in _FINAL


def message_of(body: Mapping[str, Any]) -> str:
    """What an error says: in `message`, in FastAPI's `detail`, or alone where an object should stand."""
    said = next((body[name] for name in ("message", "detail", "error") if body.get(name)), "")
    return shown((str(said).strip().splitlines() or [""])[0])


def said(error: BaseException) -> str:
    """What an error says, or what it is, on one line."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return "a header cannot be sent" if _HEADER in line else shown(line)
