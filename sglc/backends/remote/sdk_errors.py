"""What errors of SDKs and of the network mean, for `retry`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from sglc.backends.retry import Trouble, status_trouble
from sglc.errors import shown

_FINAL = ("insufficient_quota", "billing_error")  # will be the same again, whatever the status
# Errors that are told inside a stream have no status of their own.
_STATUSES = {
    "invalid_request_error": 400, "authentication_error": 401, "permission_error": 403, "not_found_error": 404,
    "request_too_large": 413, "rate_limit_error": 429, "overloaded_error": 529,
}  # fmt: skip


def network_trouble(error: Exception) -> Exception:
    """What a failure below the SDK means; itself, if it is none."""
    http = tuple(sys.modules[name].TransportError for name in ("httpx", "httpx2") if name in sys.modules)
    if isinstance(error, json.JSONDecodeError):
        return Trouble(f"the answer is malformed: {said(error)}")
    if isinstance(error, http):
        return Trouble(f"the connection broke: {said(error)}")
    return error


def sdk_trouble(sdk: ModuleType, error: Exception) -> Exception:
    """The same of an SDK with OpenAI's tree of errors: `openai` and `anthropic`."""
    match error:
        case sdk.APIStatusError():
            body: Any = error.body if isinstance(error.body, Mapping) else {}
            body = body["error"] if isinstance(body.get("error"), Mapping) else body
            kind = str(body.get("type"))
            status = error.status_code if error.status_code >= 400 else _STATUSES.get(kind, 500)
            final = body.get("code") in _FINAL or kind in _FINAL
            message = shown(str(body["message"])) if body.get("message") else said(error)
            return status_trouble(status, message, error.response.headers, final=final)
        case sdk.APITimeoutError():
            return Trouble("no answer in time")
        case sdk.APIConnectionError():
            return Trouble(f"the connection failed: {said(error.__cause__ or error)}")
        case sdk.APIError():  # told inside a stream, or an answer that the SDK cannot read
            return Trouble(said(error))
        case _:
            return network_trouble(error)


def said(error: BaseException) -> str:
    """What an error says, or what it is, on one line."""
    return shown((str(error).splitlines() or [type(error).__name__])[0])
