"""What it means that the log-in failed with which Vertex AI is asked, whoever's model is there."""

from __future__ import annotations

import sys

from sglc.backends.remote.connection import unreachable
from sglc.backends.remote.sdk_errors import said
from sglc.backends.retry import Trouble

LOG_IN = "log in with `gcloud auth application-default login`"
_PACKAGES = ("google.auth", "google.oauth2")


def login_trouble(name: str, error: Exception) -> Exception:
    """What an error of `google.auth` means for the back end `name`; itself, if it is of somebody else.

    What never reached Google's door, or found it busy, may do so the next time; who is not let in, never.
    """
    auth = sys.modules.get("google.auth.exceptions")
    if auth is not None and isinstance(error, auth.GoogleAuthError):
        first = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
        if isinstance(error, auth.TransportError) or error.retryable:
            return Trouble(f"the log-in failed: {said(Exception(first))}")
        return unreachable(name, Exception(f"the log-in failed: {first}"), LOG_IN)
    if _raised_there(error):  # by what it read in an answer that was none
        return Trouble("the log-in failed: its answer is malformed")
    return error


def _raised_there(error: Exception) -> bool:
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if module.startswith(_PACKAGES):
            return True
        trace = trace.tb_next
    return False
