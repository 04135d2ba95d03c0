"""Triton's interpreter without what it does for nothing, which is more than half of its time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest


@pytest.fixture(autouse=True, scope="module")
def _interpreter_that_patches_once() -> Iterator[None]:
    """The language is made the interpreter's once a module, not for every launch and every call in a kernel.

    Nor is each sum and product of integers made twice to see whether it overflows: without `debug` the
    interpreter asserts nothing of it.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    plain: Callable[[Callable[..., object]], interpreter._LangPatchScope] = interpreter._patch_lang
    options = interpreter.interpreter_builder.options
    assert not options.debug
    patched: dict[frozenset[int], interpreter._LangPatchScope] = {}

    def once(fn: Callable[..., object]) -> interpreter._LangPatchScope:
        seen = frozenset(id(value) for value in fn.__globals__.values() if value is tl or value is tl.core)
        if seen not in patched:
            patched[seen] = plain(fn)
        return interpreter._LangPatchScope()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", once)
        patch.setattr(interpreter.interpreter_builder, "options", replace(options, sanitize_overflow=False))
        yield
    for scope in reversed(patched.values()):
        scope.restore()
