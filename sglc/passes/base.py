"""What a pass is, the register of all of them, and the loop that runs a list of them.

A pass is a pure function of a program and a target. The program is verified before the first
pass and after each one, so a broken rewrite is found where it happens.
"""

from __future__ import annotations

import inspect
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

from sglc import knobs
from sglc.errors import Loc, SglcError, UsageError, VerifyError
from sglc.ir.core import Program
from sglc.ir.depth import with_room
from sglc.ir.remark import Remark
from sglc.ir.target import Target
from sglc.ir.text.printer import identity, to_text
from sglc.ir.verify.verify import verify
from sglc.passes.pass_options import name_of, options_of


class Exactness(StrEnum):
    """What a pass promises not to change."""

    TOKENS = "token-exact"  # the ids that every generation sees
    TEXT = "text-exact"  # the text that every generation sees
    DISTRIBUTION = "distribution-exact"  # how likely each result is
    AGGRESSIVE = "aggressive"  # nothing: the user asks for it by name


class Kind(StrEnum):
    """What a pass is for. Only an optimizing one owes a win."""

    LOWERING = "lowering"  # the target cannot do without it
    ENABLING = "enabling"  # others then find more
    OPTIMIZING = "optimizing"  # it saves something by itself


# A pass with nothing to say gives the program alone.
Rewrite = Program | tuple[Program, tuple[Remark, ...]]


@dataclass(frozen=True, slots=True)
class Pass:
    """A registered rewrite. Keywords of `run` behind the program and the target are its options.

    `to_run`, if there is one, takes the place of `run` where a program is compiled to be run at once: nobody
    reads marks there that tell people of the program, or in which order the rows of a batch are to run.
    """

    name: str
    exactness: Exactness
    run: Callable[..., Rewrite]
    summary: str  # one line, for listings
    kind: Kind = Kind.OPTIMIZING
    to_run: Callable[..., Rewrite] | None = None


PASSES: dict[str, Pass] = {}


_Run = TypeVar("_Run", bound=Callable[..., Rewrite])


def register(
    name: str, exactness: Exactness, summary: str, kind: Kind = Kind.OPTIMIZING,
    *, to_run: Callable[..., Rewrite] | None = None,
) -> Callable[[_Run], _Run]:  # fmt: skip
    """Enter the decorated function in `PASSES` under `name`. Its module may be loaded again.

    Args:
        to_run: as of a `Pass`.

    Raises:
        UsageError: SGLC320, there is another pass of this name, or it is none that can be asked for.
    """

    def enter(run: _Run) -> _Run:
        other = PASSES[name].run if name in PASSES else run
        if (other.__module__, other.__qualname__) != (run.__module__, run.__qualname__):
            raise UsageError("SGLC320", f"there is a pass `{name}` already", _defined(run))
        if not name.isidentifier():
            raise UsageError(
                "SGLC320", f"`{name}` is no name for a pass", _defined(run), hint="use letters, digits and `_`"
            )
        PASSES[name] = Pass(name, exactness, run, summary, kind, to_run)
        return run

    return enter


@with_room
def run_pipeline(
    program: Program,
    target: Target,
    names: Sequence[str],
    *,
    observe: Callable[[str, Program], None] | None = None,
    step_by_step: bool = True,
) -> tuple[Program, tuple[Remark, ...]]:
    """`program` after the passes `names`, in that order, and what they remarked.

    `name{option=value}` sets a pass's options (`passes.pass_options`).

    `observe` sees each pass's name and the program behind it. `SGLC_DEBUG` and `SGLC_DUMP` report
    the same to stderr and to files. Without `step_by_step` it is for a run (`Pass.to_run`), and only the last
    program is verified as long as nothing is wrong; if something is, it is all done again to find out where.

    Raises:
        UsageError: SGLC020, a name that is no pass; SGLC322, an option that is none; SGLC321, a pass of the
            user's raises or gives no program.
        VerifyError: the program, or what a pass made of it, breaks an invariant.
        LegalizeError: the target cannot do what the program asks.
    """
    passes = [(chosen := looked_up(name), options_of(name, chosen.run)) for name in names]
    level, dump = knobs.debug_level(), knobs.dump_dir()
    if not (step_by_step or observe or level or dump):
        with suppress(Exception):
            last, said = _after_all(program, target, passes)
            verify(last)
            return last, said
    report = _reporter(program, level, dump)
    verify(program)
    report(0, "input", program, 0.0)
    remarks: list[Remark] = []
    for number, (chosen, given) in enumerate(passes, 1):
        begin_s = time.perf_counter()
        before = program
        program, told = _rewritten(chosen, chosen.run, program, target, given)
        remarks += told
        if program is not before and program != before:
            _verify_behind(chosen, program)
        report(number, chosen.name, program, time.perf_counter() - begin_s)
        if observe is not None:
            observe(chosen.name, program)
    return program, tuple(remarks)


def _after_all(
    program: Program, target: Target, passes: Sequence[tuple[Pass, Mapping[str, Any]]]
) -> tuple[Program, tuple[Remark, ...]]:
    remarks: list[Remark] = []
    made: dict[str, Program] = {}
    users = [at for at, (chosen, _) in enumerate(passes) if not _is_own(chosen)]  # which may read all marks
    for at, (chosen, given) in enumerate(passes):
        if made.get(chosen.name) is program:
            continue  # it has made that, and no other pass found anything since
        run = chosen.run if chosen.to_run is None or (users and at < users[-1]) else chosen.to_run
        program, said = _rewritten(chosen, run, program, target, given)
        made[chosen.name] = program
        remarks += said
    return program, tuple(remarks)


def _rewritten(
    chosen: Pass, run: Callable[..., Rewrite], program: Program, target: Target, options: Mapping[str, Any]
) -> tuple[Program, Sequence[Remark]]:
    """What a pass gives that does `run`. Bugs of sglc's own passes are raised as they are."""
    try:
        made = run(program, target, **options)
    except SglcError:
        raise
    except Exception as error:
        if _is_own(chosen):
            raise
        raise UsageError(
            "SGLC321", f"pass `{chosen.name}` raises `{type(error).__name__}`: {error}",
            _raised(chosen.run, error),
        ) from error  # fmt: skip
    match made:
        case Program():
            return made, ()
        case (Program() as after, (*said,)) if all(isinstance(one, Remark) for one in said):
            return after, said
    raise UsageError(
        "SGLC321", f"pass `{chosen.name}` gives a `{type(made).__name__}`", _defined(chosen.run),
        hint="return a program, or a program and a tuple of remarks",
    )  # fmt: skip


def _is_own(chosen: Pass) -> bool:
    """Whether a pass is sglc's, and nobody's who uses it."""
    return chosen.run.__module__.startswith("sglc.")


def _verify_behind(chosen: Pass, program: Program) -> None:
    try:
        verify(program)
    except VerifyError as error:
        note = f"pass `{chosen.name}` made it" + (f"; {error.note}" if error.note else "")
        raise VerifyError(error.code, error.message, error.loc, note=note, hint=error.hint) from None


def _defined(run: Callable[..., object]) -> Loc | None:
    code = getattr(inspect.unwrap(run), "__code__", None)
    return Loc(code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else None


def _raised(run: Callable[..., object], error: Exception) -> Loc | None:
    """Where in the pass's own file it raised."""
    defined = _defined(run)
    lines = [(frame.filename, frame.lineno or 1) for frame in traceback.extract_tb(error.__traceback__)]
    own = [Loc(file, line) for file, line in lines if defined is not None and file == defined.file]
    return own[-1] if own else defined


def looked_up(spec: str) -> Pass:
    """The pass that `name` or `name{options}` asks for.

    Raises:
        UsageError: SGLC020, there is none.
    """
    name = name_of(spec)
    if name not in PASSES:
        raise UsageError("SGLC020", f"unknown pass `{name}`", note=f"passes: {', '.join(sorted(PASSES))}")
    return PASSES[name]


def _reporter(program: Program, level: int, dump: Path | None) -> Callable[[int, str, Program, float], None]:
    """What `SGLC_DEBUG` and `SGLC_DUMP` ask for; each program gets a folder of its own in the dump."""
    if level < 1 and dump is None:
        return lambda number, name, after, seconds: None
    letters = "".join(c if c.isalnum() or c in "_-" else "_" for c in program.name)
    folder = None if dump is None else dump / f"{letters}-{identity(program)[:8]}"
    if folder is not None:
        with _dumping(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def report(number: int, name: str, after: Program, seconds: float) -> None:
        if level >= 1 and number:
            print(f"pass {name}: {seconds * 1e3:.2f} ms, {len(after.ops)} ops", file=sys.stderr)
        if level >= 2:
            print(to_text(after, locs=True), file=sys.stderr)
        if folder is not None:
            with _dumping(folder):
                (folder / f"{number:02}-{name}.sglir").write_text(to_text(after, locs=True), encoding="utf-8")

    return report


@contextmanager
def _dumping(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise UsageError("SGLC001", f"`SGLC_DUMP`: `{folder}` cannot be written: {why}") from None
