"""Invariants that the text form cannot break (the others are in tests/golden/errors_verify.md)."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from sglc.errors import VerifyError
from sglc.ir.core import Op, Program, Site, Type, Value
from sglc.ir.ops import Append, Arg, Control, Fork, Format, Gen, Join, Resume, Root, Select
from sglc.ir.sampling import Sampling
from sglc.ir.verify.fields import sampling_problem
from sglc.ir.verify.verify import verify
from tests.random_programs import random_program

S, T, L = Type.STREAM, Type.TEXT, Type.LIST
s0, s1, s2, t0, t1 = Value(0, S), Value(1, S), Value(2, S), Value(3, T), Value(4, T)
ROOT = Root(results=(s0,))
SITE = Site("f", (), "x")

BROKEN: dict[str, tuple[str, tuple[Op, ...]]] = {
    "an id used with another type": ("SGLC203", (ROOT, Append(Value(0, T), "x", results=(s1,)))),
    "an id from nowhere": ("SGLC203", (Append(s0, "x", results=(s1,)),)),
    "its own result": ("SGLC203", (Append(s1, "x", results=(s1,)),)),
    "defined twice by one op": ("SGLC204", (ROOT, Fork(s0, results=(s1, s1)))),
    "defined twice with other types": ("SGLC204", (ROOT, Format(("a",), results=(Value(0, T),)))),
    "a text where a stream belongs": ("SGLC206", (Root(results=(t0,)),)),
    "no results": ("SGLC206", (Root(),)),
    "an empty fork": ("SGLC206", (ROOT, Fork(s0))),
    "a fork of texts": ("SGLC206", (ROOT, Fork(s0, results=(s1, t0)))),
    "no control ids": ("SGLC213", (ROOT, Control(s0, "<x>", (), results=(s1,)))),
    "a root among the parameters": ("SGLC212", ()),
    "an unknown ranking": ("SGLC213", (ROOT, Select(s0, SITE, ("a",), "greedy", results=(s1, t0)))),
    "a join and a generation of one site": (
        "SGLC208", (ROOT, Gen(s0, SITE, results=(s1, t0)), Join(SITE, (t0,), results=(Value(5, L),))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_invariant_is_found(what: str) -> None:
    code, ops = BROKEN[what]
    params: tuple[Op, ...] = () if ops else (ROOT,)
    with pytest.raises(VerifyError) as caught:
        verify(Program("f", params, ops))
    assert caught.value.code == code


def test_return_value_is_checked() -> None:
    with pytest.raises(VerifyError) as caught:
        verify(Program("f", (), (ROOT,), {"a": (s0, s1)}))
    assert caught.value.code == "SGLC203"


def test_lists_may_be_joined_again() -> None:
    inner, outer = Value(5, L), Value(6, L)
    ops = (
        Join(Site("f", (0,), "x"), (t0, None), results=(inner,)),
        Join(Site("f", (), "x"), (inner, t0), results=(outer,)),
    )
    verify(Program("f", (Arg("a", results=(t0,)),), ops, outer))


def test_an_argument_and_a_stream_may_share_a_name() -> None:
    verify(Program("f", (Arg("k", results=(t0,)), Resume("k", results=(s0,))), ()))


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": -1}, {"min_tokens": -1}, {"n": 0}, {"stop": ("",)}, {"stop_token_ids": (-1,)},
        {"temperature": -0.1}, {"temperature": 1e39}, {"temperature": float("nan")}, {"top_p": 0.0},
        {"top_p": 1.1}, {"top_k": 0}, {"top_k": -2}, {"top_k": 2**31}, {"min_p": -0.1},
        {"temperature": 10**39}, {"min_p": 1.1}, {"seed": -1}, {"seed": 2**64},
    ],
    ids=str,
)  # fmt: skip
def test_sampling_out_of_range(fields: dict[str, object]) -> None:
    (name,) = fields
    assert sampling_problem(replace(Sampling(), **fields)).startswith(f"`{name}` is")  # type: ignore[arg-type]


def test_more_tokens_than_there_may_be() -> None:
    assert sampling_problem(Sampling(min_tokens=3, max_tokens=3)) == ""
    assert sampling_problem(Sampling(min_tokens=3, max_tokens=2)).startswith("`min_tokens` is `3`, more than")


def test_sampling_at_its_bounds() -> None:
    for temperature in (0, 3e38):
        most = Sampling(max_tokens=1, temperature=temperature, top_p=1, top_k=1, min_p=1, seed=2**64 - 1)
        assert sampling_problem(most) == ""


def test_two_forms_are_no_value_of_one() -> None:
    problem = sampling_problem(Sampling(regex="a", ebnf='root ::= "a"'))
    assert problem == "`regex` and `ebnf` both say what the text is"


def test_random_programs_verify() -> None:
    for seed in range(50):
        verify(random_program(seed))
        verify(random_program(seed, chat=True))


def test_time_is_linear() -> None:
    """Four times the ops take less than ten times as long."""

    def seconds(count: int) -> float:
        """Of this thread alone, so that it does not matter what else the machine does."""
        ops: list[Op] = [Root(results=(s0,))]
        for i in range(count):
            ops.append(Append(Value(i if i else 0, S), "x", results=(Value(i + 1, S),)))
        begin = time.thread_time()
        verify(Program("f", (), tuple(ops)))
        return time.thread_time() - begin

    assert seconds(20_000) < 10 * min(seconds(5_000), seconds(5_000))
