"""The op set. Required fields come first; the printer, parser and verifier follow from the classes.

arg      a program argument                     root     an empty stream
resume   a stream that an earlier run kept      append   literal or captured text at the end
control  control tokens (from `lower_roles`)    role_open, role_close   a chat turn's borders
gen      decode a text                          select   the most likely of several texts
fork     one stream, n equal branches           join     a variable's texts over the branches
format   texts and literals as one text         host_call  ordinary Python takes over here
"""

from __future__ import annotations

from sglc.ir.core import Op, Site, Type, Value, op
from sglc.ir.sampling import Sampling

# How `select` decides; the first is the default.
SELECT_METHODS = (
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)
S, T, L = Type.STREAM, Type.TEXT, Type.LIST


@op("arg", T)
class Arg(Op):
    """A text that is given when the program runs."""

    name: str


@op("resume", S)
class Resume(Op):
    """A stream that an earlier segment kept. `turns` are its chat turns so far; a role still open is `role`."""

    name: str
    turns: tuple[str, ...] = ()
    role: str = ""


@op("root", S, pure=True)
class Root(Op):
    """The empty stream."""


@op("append", S, pure=True)
class Append(Op):
    """`stream` followed by text. Literals never become control tokens."""

    stream: Value
    text: Value | str


@op("control", S, pure=True)
class Control(Op):
    """`stream` followed by control tokens; `text` is how they are written."""

    stream: Value
    text: str
    ids: tuple[int, ...]


@op("role_open", S, pure=True)
class RoleOpen(Op):
    """Begin a chat turn of `role`."""

    stream: Value
    role: str


@op("role_close", S, pure=True)
class RoleClose(Op):
    """End the open chat turn, which is `role`'s."""

    stream: Value
    role: str


@op("gen", S, T)
class Gen(Op):
    """Decode from `stream` until a stop string, `max_tokens` or the end of the turn. Not pure: it samples."""

    stream: Value
    site: Site
    sampling: Sampling = Sampling()


@op("select", S, T)
class Select(Op):
    """The choice with the best score after `stream`, and the stream that ends with it."""

    stream: Value
    site: Site
    choices: tuple[Value | str, ...]
    method: str = SELECT_METHODS[0]


@op("fork", variadic=True, pure=True)
class Fork(Op):
    """As many equal branches of `stream` as the op has results; they decode as one group."""

    stream: Value
    labels: tuple[str, ...] = ()


@op("join", L, pure=True)
class Join(Op):
    """What the branches stored under the site's name, in branch order; None where one stored nothing."""

    site: Site
    values: tuple[Value | None, ...]


@op("format", T, pure=True)
class Format(Op):
    """Texts and literals joined into one text."""

    parts: tuple[Value | str, ...]


@op("host_call")
class HostCall(Op):
    """From here the rest of the function runs as ordinary Python: why, and the call that needs it."""

    reason: str
    reads: tuple[Value, ...] = ()
