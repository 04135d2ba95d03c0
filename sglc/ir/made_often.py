"""Frozen data of which several are made for every generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

_T = TypeVar("_T")


def made_often(cls: type[_T]) -> type[_T]:
    """A frozen dataclass with slots that is made in a quarter of the time, and no different then.

    The usual `__init__` goes around the `__setattr__` that refuses, field by field. Here the new object is of a
    class with the same slots, which refuses nothing, until all is stored.
    """
    own = sorted(fields(cls), key=lambda one: bool(one.kw_only))  # type: ignore[arg-type]  # a dataclass
    assert all(one.init and one.default_factory is MISSING for one in own), cls
    assert not hasattr(cls, "__post_init__"), cls
    slots = {"__slots__": cls.__dict__["__slots__"]}
    refusing_nothing = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    known: dict[str, Any] = {
        "_set_class": object.__setattr__,
        "_cls": cls,
        "_open": type(cls.__name__, cls.__bases__, slots | refusing_nothing),
        "_defaults": {one.name: one.default for one in own},
    }
    given = [one.name if one.default is MISSING else f"{one.name}=_defaults[{one.name!r}]" for one in own]
    if any(one.kw_only for one in own):
        given.insert([one.kw_only for one in own].index(True), "*")
    lines = [f"self.{one.name} = {one.name}" for one in own]
    body = ["_set_class(self, '__class__', _open)", *lines, "self.__class__ = _cls"]
    exec(f"def __init__(self, {', '.join(given)}):\n    " + "\n    ".join(body), known)
    known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    known["__init__"].__annotations__ = cls.__init__.__annotations__
    cls.__init__ = known["__init__"]  # type: ignore[method-assign]
    if len(own) > 1:
        _fields_of(cls)  # type: ignore[arg-type]  # else the first run would wait for it
    return cls


def replaced(item: _T, /, **changed: Any) -> _T:
    """`dataclasses.replace` for classes of two fields or more, of which each is asked for its fields once."""
    names, held = _fields_of(type(item))  # type: ignore[arg-type]  # classes are hashable
    return type(item)(**dict(zip(names, held(item), strict=True), **changed))


@cache
def _fields_of(cls: type) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """The names of a class's fields, and what reads all of them: `fields` takes long to say what makes it."""
    made = cls.__init__.__code__  # type: ignore[misc]  # that of a dataclass
    names = made.co_varnames[1 : made.co_argcount + made.co_kwonlyargcount]
    assert len(names) > 1, cls
    return names, attrgetter(*names)
