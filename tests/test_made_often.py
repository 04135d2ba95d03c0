"""Frozen data that is made often is as any other frozen dataclass."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

import pytest

from sglc.ir.made_often import made_often
from sglc.ir.plan.events import Sample, Usage


@dataclass(frozen=True, slots=True)
class Usual:
    made: int
    name: str = "n"
    seen: tuple[int, ...] = field(default=(), compare=False, repr=False)


@made_often
@dataclass(frozen=True, slots=True)
class Often:
    made: int
    name: str = "n"
    seen: tuple[int, ...] = field(default=(), compare=False, repr=False)


@pytest.mark.parametrize("given", [{"made": 1}, {"made": 2, "name": "x"}, {"made": 3, "seen": (1,)}])
def test_it_is_as_the_usual_one(given: dict[str, int]) -> None:
    usual, often = Usual(**given), Often(**given)  # type: ignore[arg-type]
    assert type(often) is Often
    assert repr(often) == repr(usual).replace("Usual", "Often")
    assert asdict(often) == asdict(usual)
    assert often == Often(*asdict(often).values()) == replace(often, seen=(7,))
    assert hash(often) == hash(usual)
    assert pickle.loads(pickle.dumps(often)) == often
    assert inspect.signature(Often) == inspect.signature(Usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    place: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class UsualBelow(Base):
    made: int
    name: str = "n"


@made_often
@dataclass(frozen=True, slots=True)
class OftenBelow(Base):
    made: int
    name: str = "n"


def test_one_below_another_is_as_the_usual_one() -> None:
    usual, often = UsualBelow(1, "x", place=7), OftenBelow(1, "x", place=7)
    assert type(often) is OftenBelow
    assert isinstance(often, Base)
    assert repr(often) == repr(usual).replace("Usual", "Often")
    assert often == replace(often, place=8) == pickle.loads(pickle.dumps(often))
    assert hash(often) == hash(usual)
    assert inspect.signature(OftenBelow) == inspect.signature(UsualBelow)
    with pytest.raises(FrozenInstanceError):
        often.place = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del often.made
    with pytest.raises(TypeError, match="positional argument"):
        OftenBelow(1, "x", 7)  # type: ignore[misc]


def test_it_stays_frozen_and_refuses_what_does_not_fit() -> None:
    often = Often(1)
    with pytest.raises(FrozenInstanceError):
        often.made = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del often.made
    with pytest.raises(AttributeError):
        often.__dict__  # noqa: B018
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'made'"):
        Often()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        Often(1, other=2)  # type: ignore[call-arg]
    match often:
        case Often(made, name):
            assert (made, name) == (1, "n")


def test_data_of_generations_is() -> None:
    sample = Sample("t", (1,), "stop", made=3)
    assert [getattr(sample, one.name) for one in fields(sample)][:3] == ["t", (1,), "stop"]
    assert sample.made == 3
    assert Usage(1, calls=2) + Usage(3) == Usage(4, calls=2)
