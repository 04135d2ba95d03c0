"""What it means that the log-in failed with which Vertex AI is asked, whoever's model is there."""

from __future__ import annotations

import sys

from sglc.backends.remote.connection import unreachable
from sglc.backends.remote.sdk_errors import said
from sglc.backends.retry import KEY_HINT, Trouble

LOG_IN = "log in with `gcloud auth application-default login`"
_PACKAGES = ("google.auth", "google.oauth2")
_TOKENS = ("google.oauth2._client", "google.oauth2.reauth")  # which ask for them


def login_trouble(name: str, error: Exception) -> Exception:
    """What an error of `google.auth` means for the back end `name`; itself, if it is of somebody else.

    What never reached Google's door, or found it busy, may do so the next time; who is not let in, never.
    """
    auth = sys.modules.get("google.auth.exceptions")
    if auth is not None and isinstance(error, auth.GoogleAuthError):
        first = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
        # Who is not let in is told so as JSON, which stands beside the text; a text alone is a page.
        quoted = len(error.args) == 1 and not first.startswith("Reauthentication")
        if quoted and type(error) is auth.RefreshError and _raised_in(error, *_TOKENS):
            return Trouble("the log-in failed: its answer is malformed")
        if isinstance(error, auth.TransportError) or error.retryable:
            return Trouble(f"the log-in failed: {said(Exception(first))}")
        return unreachable(name, Exception(f"the log-in failed: {first}"), LOG_IN)
    if _raised_in(error, *_PACKAGES):  # by what it read in an answer that was none
        return Trouble("the log-in failed: its answer is malformed")
    return error


def not_let_in(trouble: Exception) -> Exception:
    """A failure of a request to Vertex AI, with a hint at the log-in where another one would be at a key."""
    if isinstance(trouble, Trouble) and trouble.hint == KEY_HINT:
        trouble.hint = f"{LOG_IN}, or {KEY_HINT}"
    return trouble


def _raised_in(error: Exception, *modules: str) -> bool:
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if module.startswith(modules):
            return True
        trace = trace.tb_next
    return False
