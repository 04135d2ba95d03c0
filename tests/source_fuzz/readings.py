"""What a program reads that may be something else at its next call, and what changes it: `readings.txt`.

A reading is what stands in the module, `parts` of a program's body in their order, cells of a notebook that
make `changes`, and arguments by parameter, the first of which is its default (`...`: it has none). A `<n>` is a
small number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Every module has these; whatever has an effect writes what it did into `LOG`.
HEAD = """\
import dataclasses
import enum
import types

LOG = []
STATE = {"n": 0}
"""
_INSIDE = (" ", "elif ", "else:", "except ")  # a line that begins so belongs to what is before it


@dataclass(slots=True)
class Reading:
    """What one part of a program reads; what `defines` it stands before the program."""

    defines: str = ""
    parts: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    arguments: dict[str, list[str]] = field(default_factory=dict)


def _read(text: str) -> dict[str, Reading]:
    found: dict[str, Reading] = {}
    for piece in text.removeprefix("#: ").split("\n#: "):
        defines, *sections = piece.split("\n#- ")
        name, _, source = defines.partition("\n")
        reading = found[name] = Reading(source)
        for section in sections:
            title, _, lines = section.partition("\n")
            parameter, _, values = title.partition(": ")
            if values:
                reading.arguments[parameter] = values.split(" | ")
            else:
                (reading.parts if title == "parts" else reading.changes).extend(_statements(lines))
    return found


def _statements(text: str) -> list[str]:
    """The statements of a text, or several in one line."""
    made: list[str] = []
    for line in text.splitlines():
        decorated = bool(made) and made[-1].startswith("@") and "\n" not in made[-1]
        if decorated or line.startswith(_INSIDE):
            made[-1] += "\n" + line
        else:
            made.append(line)
    return made


READINGS: Mapping[str, Reading] = _read((Path(__file__).parent / "readings.txt").read_text(encoding="utf-8"))
