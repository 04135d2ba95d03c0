"""Schemas that ask for much: compiled and read within bounds of time and memory, or refused at a place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.depth import some_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# A processor's 10 seconds and a gigabyte beside what Python has, for each form: as a compile process has them.
CHILD = """
import json, resource, sys
from random import Random
from sglc.errors import SglcError
from tests.constraints.random_schemas import walk
from tests.constraints.verdicts import CONSTRAINTS, ours
from sglc.ir.sampling import Sampling

CONSTRAINTS._grammars._guidance
schema = {schema}
text = schema if isinstance(schema, str) else json.dumps(schema)
resource.setrlimit(resource.RLIMIT_CPU, (int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + 10,) * 2)
before = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (before + (1 << 30),) * 2)
try:
    constraint = CONSTRAINTS.of(Sampling(json_schema=text))
except SglcError as error:
    assert error.note.startswith("at `#"), error
    print(error.code)
else:
    matcher = constraint._new_matcher()
    walk(matcher, Random(1), 2000)
    print("made", matcher.look()[0].any() or matcher.look()[1])
"""
HOSTILE = {
    "a long text": ('{"type": "string", "maxLength": 100_000}', "made True"),
    "a text of millions": ('{"type": "string", "minLength": 10**6, "maxLength": 10**9}', "made True"),
    "repeats of repeats": ('{"type": "string", "pattern": "^([a-z]{0,50},){0,50}$"}', "made True"),
    "an ambiguous pattern": ('{"type": "string", "pattern": "^(a|b|ab)*(a|b){60}c$"}', "made True"),
    "a large remainder": ('{"type": "integer", "multipleOf": 1_000_003}', "SGLC456"),
    "the largest remainder": ('{"type": "integer", "multipleOf": 9_973}', "made True"),
    "five megabytes": (
        '{"properties": {f"p{i}": {"description": "x" * 100, "type": "integer"} for i in range(38_000)}}',
        "SGLC456",
    ),
    "five megabytes of words": ('{"description": "x" * 5_000_000, "type": "null"}', "made True"),
    "a hundred thousand values": ('{"enum": [f"{i:x}" * 9 for i in range(100_000)]}', "SGLC456"),
    "fifty thousand properties": (
        '{"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(50_000)}}', "SGLC456"
    ),
    "ten thousand properties": (
        '{"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(10_000)}}', "SGLC456"
    ),
    "a thousand properties": (
        '{"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1000)}}',
        "made True",
    ),
    "a recursive one": (
        '{"properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]}',
        "made True",
    ),
    "one that requires itself": (
        '{"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}', "SGLC456"
    ),
    "all of itself": ('{"allOf": [{"$ref": "#"}, {"type": "object"}]}', "SGLC456"),
    "references in a fan": (
        '{"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}'
        ' | {"d60": {"type": "null"}}, "$ref": "#/$defs/d0"}',
        "made True",
    ),
    "alternatives of alternatives": (
        '{"allOf": [{"anyOf": [{"minLength": i}, {"maxLength": 9 + i}]} for i in range(12)], "type": "string"}',
        "made True",
    ),
    "all of a fan": (
        '{"$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}'
        ' | {"d40": {"type": "object", "properties": {"a": {"type": "null"}}}}, "$ref": "#/$defs/d0"}',
        None,
    ),
    "a pattern of a million letters": ('{"pattern": "^" + "x" * 1_000_000}', None),
    "one of thousands": ('{"oneOf": [{"const": f"v{i}"} for i in range(4000)]}', "made True"),
    "one of thousands like each other": ('{"oneOf": [{"maxLength": i} for i in range(4000)]}', "SGLC456"),
    "lists of many": ('{"type": "array", "items": {"type": "integer"}, "minItems": 10**8}', "made True"),
    "deep ones": ("'[' * 100_000", "SGLC456"),
}  # fmt: skip


@pytest.mark.parametrize("name", some_of([*HOSTILE], 4, 12))
def test_a_hostile_schema_is_bounded(name: str) -> None:
    schema, said = HOSTILE[name]
    done = subprocess.run(
        [sys.executable, "-c", CHILD.replace("{schema}", schema)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert said is None or done.stdout.strip() == said
