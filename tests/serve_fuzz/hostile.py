"""Random requests that are made to break a server, as the bytes that go through a socket.

Each is of a kind, and the kind says which statuses it may be answered with.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests import hostile_plans
from tests.serve_fuzz import forms

HALF = "a\ud800b"
_PATHS = ("/v1/completions", "/v1/chat/completions", "/generate")
_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "stop_regex",
    "stop_token_ids",
    "ignore_eos",
    "regex",
    "ebnf",
    "json_schema",
    "strict",
    "canonical",
    "seed",
    "max_tokens",
    "min_tokens",
    "stream",
    "stream_options",
    "response_format",
    "logprobs",
    "top_logprobs",
    "echo",
    "rid",
    "user",
    "model",
    "tools",
    "messages",
    "prompt",
    "text",
    "input_ids",
    "sampling_params",
    "best_of",
    "x",
)
_VALUES: tuple[Any, ...] = (
    10**30,
    -(10**30),
    2**31,
    2**63,
    -1,
    0,
    0.5,
    1e308,
    5e-324,
    True,
    False,
    "",
    "a",
    HALF,
    "\0",
    "é" * 5_000,
    [],
    {},
    [[]],
    [None],
    {"a": HALF},
    [10**30],
    {"1": 1e308},
    {"type": "json_schema"},
    {"type": "json_object"},
    "9" * 5_000,
    [1, "a"],
    {"": 1},
    [[[[[1]]]]],
    {"include_usage": 7},
    ["a"] * 300,
    [HALF],
)

REFUSED, TAKEN, EITHER = (400,), (200,), (200, 400, 413)


@dataclass(frozen=True, slots=True)
class Hostile:
    """A request.

    Fields:
        parts: what is sent, one after the other.
        statuses: what may come back; none: the connection may be closed without an answer.
        leaves: after how many bytes of the answer the client goes away; 0: before any.
        slow: whether the client reads little by little.
        ends: whether it says that it sends nothing more, for what is no whole request.
    """

    kind: str
    parts: tuple[bytes, ...]
    statuses: tuple[int | None, ...]
    leaves: int | None = None
    slow: bool = False
    ends: bool = False


def request(seed: int, number: int) -> Hostile:
    """The request of that number: every kind has its turn."""
    kinds = list(KINDS)
    kind = kinds[number % len(kinds)]
    return KINDS[kind](Random(f"{seed} {number}"), kind)


def posted(path: str, body: bytes, *more: bytes) -> bytes:
    """A request with a body."""
    head = (
        b"POST %s HTTP/1.1" % path.encode(),
        b"host: a",
        b"content-type: application/json",
        b"connection: close",
        b"content-length: %d" % len(body),
        *more,
    )
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def body(random: Random, path: str, tokens: int = 0, **fields: Any) -> dict[str, Any]:
    """A body that is good but for `fields`, at the place where they belong."""
    tokens = tokens or random.choice((1, 8, 60))
    match path:
        case "/generate":
            return {"text": "once", "sampling_params": {"max_new_tokens": tokens, **fields}}
        case "/v1/completions":
            return {"prompt": "once", "max_tokens": tokens, **fields}
    return {"messages": [{"role": "user", "content": "once"}], "max_tokens": tokens, **fields}


def _sent(random: Random, kind: str, tokens: int = 0, **fields: Any) -> Hostile:
    path = random.choice(_PATHS)
    return Hostile(kind, (posted(path, json.dumps(body(random, path, tokens, **fields)).encode()),), EITHER)


def _good(random: Random, kind: str) -> Hostile:
    path = random.choice(_PATHS)
    given = {**body(random, path, temperature=random.choice((0, 1)), n=random.choice((1, 1, 4, 128)))}
    given["stream"] = random.random() < 0.5
    return Hostile(kind, (posted(path, json.dumps(given).encode()),), TAKEN)


def _malformed(random: Random, kind: str) -> Hostile:
    data = bytearray(json.dumps(body(random, "/v1/completions", json_schema=forms.schema(random, 2))).encode())
    match random.randrange(6):
        case 0:
            del data[random.randrange(1, len(data)) :]
        case 1:
            data[random.randrange(len(data))] = random.randrange(256)
        case 2:
            data = bytearray(
                random.choice((b"", b"null", b"7", b"[]", b'"a"', b"\xef\xbb\xbf{}", b"NaN", b"\xff\xfe{\0"))
            )
        case 3:
            deep = random.choice((100, 1_000, 300_000))
            data = bytearray(
                b'{"prompt": ' + b"[" * deep + b"]" * (deep if random.random() < 0.5 else 0) + b"}"
            )
        case 4:
            data[-1:] = (
                b', "prompt": NaN, "temperature": 1e999, "n": ' + b"9" * random.choice((5, 5_000)) + b"}"
            )
        case _:
            data = bytearray(random.randbytes(random.choice((1, 100, 10_000))))
    return Hostile(kind, (posted(random.choice(_PATHS), bytes(data)),), EITHER)


def _valued(random: Random, kind: str) -> Hostile:
    fields = {random.choice(_FIELDS): random.choice(_VALUES) for _ in range(random.choice((1, 1, 3)))}
    path = random.choice(_PATHS)
    given = body(random, path)
    (given["sampling_params"] if path == "/generate" and random.random() < 0.7 else given).update(fields)
    return Hostile(kind, (posted(path, json.dumps(given).encode()),), (200, 400, 404))


def _huge(random: Random, kind: str) -> Hostile:
    path, given = random.choice(
        (
            ("/v1/completions", {"prompt": [5] * 1_000_000}),
            ("/v1/completions", {"prompt": "word " * 1_000_000}),
            ("/v1/completions", {"prompt": ["a"] * 10_000}),
            ("/v1/completions", {"prompt": "a", "n": 128, "best_of": 128, "logprobs": 20, "echo": True}),
            ("/generate", {"input_ids": [[5] * 5_000] * 200}),
            ("/generate", {"text": ["a" * 100_000] * 256}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * 50_000}),
            (
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": [{"type": "text", "text": "b"}] * 100_000}]},
            ),
            ("/v1/completions", {"prompt": "a", "stop": ["b" * 9_999], "stop_token_ids": [7] * 10**6}),
            ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1 for i in range(100_000)}}),
        )
    )
    return Hostile(kind, (posted(path, json.dumps(given).encode()),), EITHER)


def _stops(random: Random, kind: str) -> Hostile:
    patterns = [
        random.choice(("(a+)+b", "(a|a)*b", "(a*)*x", "(a|aa)+$x", "(\\w|a)+!")),
        forms.regex(random) or "b",
    ]
    return _sent(
        random, kind, 150, stop_regex=random.sample(patterns, random.choice((1, 1, 2))), regex="a{99}.{0,99}"
    )


def _raw(random: Random, kind: str) -> Hostile:
    whole = posted("/v1/completions", json.dumps(body(random, "/v1/completions")).encode())
    chunked = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n%s\r\n"
    parts, statuses = random.choice(
        (
            (
                (
                    chunked % b"content-length: 5\r\ntransfer-encoding: chunked\r\n"
                    + b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
                ),
                (400,),
            ),
            ((chunked % b"content-length: 5\r\ncontent-length: 6\r\n" + b"hello",), (400,)),
            ((chunked % b"content-length: -5\r\n" + b"hello",), (400,)),
            ((chunked % b"transfer-encoding: chunked\r\n" + b"zz\r\nhello\r\n",), (400,)),
            ((chunked % b"transfer-encoding: chunked\r\n" + b"ffffffffffffffff\r\nhello",), (400, None)),
            ((chunked % (b"x: " + b"y" * 200_000 + b"\r\n"),), (400, 431)),
            ((b"GET /%ff/../../etc/passwd HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",), (404,)),
            ((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(200),), (400,)),
            ((random.randbytes(random.choice((1, 4_000))) + b"\r\n\r\n",), (400,)),
            ((b"DELETE /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",), (405,)),
            ((b"GET /v1/models HTTP/0.9\r\n\r\n",), (200, 400)),
            ((b"POST /flush_cache HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",), (200,)),
            (tuple(whole[i : i + 9] for i in range(0, len(whole), 9)), (200,)),
        )
    )
    return Hostile(kind, parts, statuses, ends=statuses[0] == 400)


def _leaving(random: Random, kind: str) -> Hostile:
    """The client goes away: before its body is there, before the answer, or in the middle of a stream."""
    long = {
        "prompt": "once",
        "max_tokens": 2_000,
        "ignore_eos": True,
        "n": random.choice((1, 8)),
        "stream": True,
    }
    form = random.choice(({}, {"ebnf": forms.costly_grammar(random)}, {"regex": "[a-z ]{1000}"}))
    whole = posted("/v1/completions", json.dumps({**long, **form}).encode())
    cut = random.choice((len(whole), len(whole), random.randrange(1, len(whole))))
    leaves = random.choice((0, 1, 5_000)) if cut == len(whole) else 0
    return Hostile(kind, (whole[:cut],), (200, 400, None), leaves)


def _planned(random: Random, kind: str) -> Hostile:
    case = hostile_plans.for_any_model(random)
    return Hostile(kind, (posted("/v1/programs", case.body),), (200, 400, 404))


def _half(random: Random, kind: str) -> Hostile:
    """The rest of the body never comes."""
    whole = posted("/v1/completions", json.dumps(body(random, "/v1/completions")).encode())
    return Hostile(kind, (whole[: -random.randrange(1, 20)],), (503, 408, None))


def _slow(random: Random, kind: str) -> Hostile:
    long = {"prompt": "once", "max_tokens": 400, "ignore_eos": True, "stream": True, "logprobs": 20}
    return Hostile(kind, (posted("/v1/completions", json.dumps(long).encode()),), TAKEN, slow=True)


KINDS: dict[str, Callable[[Random, str], Hostile]] = {
    "good": _good,
    "malformed body": _malformed,
    "random grammar": lambda random, kind: _sent(random, kind, ebnf=forms.grammar(random)),
    "random schema": lambda random, kind: _sent(
        random, kind, json_schema=forms.schema(random), strict=random.random() < 0.4
    ),
    "random regex": lambda random, kind: _sent(random, kind, regex=forms.regex(random)),
    "hostile value": _valued,
    "costly grammar": lambda random, kind: _sent(random, kind, 60, ebnf=forms.costly_grammar(random)),
    "costly schema": lambda random, kind: _sent(
        random, kind, json_schema=forms.costly_schema(random), strict=random.random() < 0.4
    ),
    "costly regex": lambda random, kind: _sent(random, kind, regex=forms.costly_regex(random)),
    "stop pattern": _stops,
    "raw bytes": _raw,
    "client that leaves": _leaving,
    "half a body": _half,
    "slow reader": _slow,
    "huge request": _huge,
    "hostile plan": _planned,
}
