"""Schemas that ask for much: compiled and read within bounds of time and memory, or refused at a place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.constraints.hostile_forms import HOSTILE, HOSTILE_TAGS
from tests.depth import some_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# A processor's 10 seconds and a gigabyte beside what Python has, for each form: as a compile process has them.
CHILD = """
import resource, sys
from random import Random
from sglc.errors import SglcError
from tests.constraints.random_schemas import walk
from tests.constraints.hostile_forms import HOSTILE, HOSTILE_TAGS, text_of
from tests.constraints.verdicts import CONSTRAINTS
from sglc.ir.sampling import Sampling

CONSTRAINTS._grammars._guidance
text = text_of({forms}["{name}"][0]())
resource.setrlimit(resource.RLIMIT_CPU, (int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + 30,) * 2)
before = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (before + (1 << 30),) * 2)
try:
    constraint = CONSTRAINTS.of(Sampling({form}=text))
except SglcError as error:
    assert error.note.startswith("at `#"), error
    print(error.code)
else:
    if not constraint.slow:
        state = constraint.start
        rng = Random(1)
        for _ in range(2000):
            allowed = constraint.mask(state).nonzero()[0].tolist()
            if not allowed:
                break
            state = constraint.advance(state, rng.choice(allowed))
        print("made", constraint.mask(state).any() or constraint.accepting(state))
    else:
        matcher = constraint._new_matcher()
        walk(matcher, Random(1), 2000)
        print("made", matcher.look()[0].any() or matcher.look()[1])
"""


@pytest.mark.parametrize("name", some_of([*HOSTILE], 4, 6))
def test_a_hostile_schema_is_bounded(name: str) -> None:
    assert_bounded("json_schema", "HOSTILE", name, HOSTILE[name][1])


@pytest.mark.parametrize("name", some_of([*HOSTILE_TAGS], 2, 3))
def test_a_hostile_tag_is_bounded(name: str) -> None:
    assert_bounded("structural_tag", "HOSTILE_TAGS", name, HOSTILE_TAGS[name][1])


def assert_bounded(form: str, forms: str, name: str, said: str | None) -> None:
    code = CHILD.replace("{forms}", forms).replace("{name}", name).replace("{form}", form)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert said is None or done.stdout.strip() == said
