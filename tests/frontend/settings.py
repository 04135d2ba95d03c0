"""Names of a module that programs of another one read, some of which tools of that one change."""

from __future__ import annotations

import logging
import re
from datetime import date
from enum import Enum

NEVER_CHANGED = "constant"
WORDS = ("a", ("b", 1), None)
BY_ATTRIBUTE = 1
BY_NAME = 1
BY_TEXT = 1
BY_DICT = 1
BY_PATCH = 1
BY_GLOBAL = 1
CHANGEABLE = [1]
PATTERN = re.compile("a+")
DAY = date(2020, 1, 2)
LOGGER = logging.getLogger(__name__)


class Kind(Enum):
    ONE = 1


KIND = Kind.ONE


class Limits:
    most_of_all = 3
    least = 1

    def __init__(self) -> None:
        self.most_of_all = 7  # of the object alone


def never_changed() -> str:
    LOGGER.debug("read")
    assert PATTERN.match("ab")
    return f"{DAY.isoformat()} {NEVER_CHANGED} {WORDS} {KIND.value} {Limits.most_of_all}"


def by_attribute() -> str:
    return f"{BY_ATTRIBUTE}"


def by_name() -> str:
    return f"{BY_NAME}"


def by_text() -> str:
    return f"{BY_TEXT}"


def by_dict() -> str:
    return f"{BY_DICT}"


def by_patch() -> str:
    return f"{BY_PATCH}"


def by_global() -> str:
    return f"{BY_GLOBAL}"


def assign() -> None:
    global BY_GLOBAL
    BY_GLOBAL += 1


def of_the_class() -> str:
    return f"{Limits.least}"


def replaced() -> str:
    return "first"


def by_function() -> str:
    return replaced()


def changeable() -> str:
    return f"{len(CHANGEABLE)}"
