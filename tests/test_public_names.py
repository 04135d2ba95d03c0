"""The public names of `sglc`, written out: a name is added or removed here first, and on purpose."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import sglc
from sglc.errors import UsageError

# sglc's own: few, so that the language fits in one head.
OWN = (
    "Function",
    "Result",
    "SglcError",
    "assistant",
    "function",
    "gen",
    "select",
    "set_default_backend",
    "system",
    "user",
)

# SGLang's other spellings of the same language.
SGLANG = (
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user_begin",
    "user_end",
)


def test_public_names_are_exactly_these() -> None:
    assert sorted(sglc.__all__) == sorted(OWN)
    assert len(OWN) <= 15
    assert sorted(sglc._SGLANG) == sorted(SGLANG)


@pytest.mark.parametrize("name", OWN + SGLANG)
def test_every_name_resolves(name: str) -> None:
    assert getattr(sglc, name) is not None


def test_nothing_else_is_public() -> None:
    """In a fresh process, since tests that ran earlier may have resolved lazy names or loaded submodules."""
    code = (
        "import sglc, types\n"
        "names = [n for n in dir(sglc) if not n.startswith('_') and n != 'annotations']\n"
        "print(*(n for n in names if not isinstance(getattr(sglc, n), types.ModuleType)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert [name for name in found if name not in OWN and name != "Any"] == []
    assert [name for name in OWN if name not in found] == []


def test_modules_are_not_exported() -> None:
    assert [name for name in sglc.__all__ if isinstance(getattr(sglc, name), ModuleType)] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(sglc, "no_such" + "_name")


@pytest.mark.parametrize("name", sorted(sglc._LATER))
def test_names_of_a_later_release_are_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"`sglc.{name}` is not in this release"):
        getattr(sglc, name)
    with pytest.raises(UsageError, match="SGLC018"):
        exec(f"from sglc import {name}")
