"""`sglc run --batch` on several replicas: which there are, what they may not be asked for, how it ends."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from typing import TYPE_CHECKING, Any

from sglc.cli.batch.budget import BatchBudget
from sglc.cli.batch.destination import put_in_order
from sglc.cli.batch.fleet import Fleet
from sglc.cli.batch.journal import SharedJournal, begin_journal
from sglc.cli.batch.loop import asked_for, destination, limits_of_rows, settled, show
from sglc.cli.batch.manifest import write_manifest
from sglc.cli.batch.process_replica import ProcessReplica
from sglc.cli.batch.replica import Replica, Work
from sglc.cli.batch.rows import LOOKED_AT, RowFile
from sglc.cli.batch.sorted_rows import SortedRows
from sglc.cli.options import say
from sglc.errors import UsageError

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.api.plan import LoadedPlan

_SERVERS = ("http:", "https:", "grpc:", "grpcs:")
# What one machine keeps for itself, or needs before it begins.
_ALONE = ("record", "replay", "trace", "passes")


def backends_of(spec: str | None) -> list[str | None]:
    """The back ends that `--backend` names: `http://A,http://B` are several.

    Raises:
        UsageError: SGLC012, one of several is no server.
    """
    parts = (spec or "").split(",")
    if not parts[0].startswith(_SERVERS):
        return [spec]
    other = next((part for part in parts if not part.startswith(_SERVERS)), None)
    if other is not None:
        raise UsageError("SGLC012", f"`{other}` is no server, and `--backend` has several")
    return [*parts]


def is_spread(options: argparse.Namespace) -> bool:
    """Whether rows are to run on several replicas.

    Raises:
        UsageError: SGLC084, with something that is for one; SGLC043, there are no rows.
    """
    for name in ("replicas", "replica_command"):
        if getattr(options, name) and not options.cluster:
            raise UsageError("SGLC084", f"`--{name.replace('_', '-')}` is for a `--cluster`")
    several = len(backends_of(options.backend)) > 1
    if not options.cluster and not several:
        return False
    what = "`--cluster`" if options.cluster else "`--backend` with several servers"
    if options.batch is None:
        raise UsageError("SGLC043", f"{what} is for the rows of a `--batch`")
    if not options.output:
        raise UsageError("SGLC084", f"{what} keeps results in a file", hint="name it: `-o OUT.jsonl`")
    for name in _ALONE:
        if getattr(options, name):
            raise UsageError("SGLC084", f"`--{name}` is for a batch on one replica, and {what} has several")
    if options.program.endswith(".sglir"):
        raise UsageError(
            "SGLC084",
            f"{what} runs programs and plans",
            hint="make a plan: `sglc compile --emit json -o PLAN.json`",
        )
    if options.cluster and several and (options.replicas or options.replica_command):
        raise UsageError("SGLC084", "each server of `--backend` has one replica")
    return True


def run_spread(
    function: Function | LoadedPlan, options: argparse.Namespace, rows: RowFile, given: Mapping[str, Any],
    budget: BatchBudget, asked: Mapping[str, Any], journal: str | None,
) -> int:  # fmt: skip
    """Run every row of `rows` on several replicas; gives the exit code. Arguments are those of `run_rows`.

    Raises:
        UsageError: as of `Destination`, `SortedRows`, `ray_replicas` and `Fleet`. Nothing has run then.
    """
    to = destination(options, ordered=False, recorded=journal is not None)
    with closing(to), ExitStack() as ending:
        manifest, known = asked_for(function, options, rows, given, to, journal)
        begin_journal(journal, options)
        of_stream = {**asked, **limits_of_rows(options), "seed": manifest.seed, "resume": True}
        of_stream.pop("journal", None)  # each replica has the rows of its own
        work = Work(_plain(options), given, of_stream, options.replica_command)
        fleet = Fleet(_replicas(options, work), budget.admits if budget.limited else None)
        ending.callback(fleet.stop)
        fleet.open()
        numbered = ((number, row) for number, row in enumerate(rows) if number not in to)
        try:
            first = SortedRows(function, given, islice(numbered, LOOKED_AT))
        except UsageError as error:
            raise rows.placed(error) from None

        def rest() -> SortedRows | None:
            return SortedRows(function, given, numbered) if first.count == LOOKED_AT else None

        manifest = settled(manifest, known, fleet.model(all_of_them=not options.cluster), options)
        shared = SharedJournal(journal, function.__name__, manifest.seed, rows.count, to, resume=options.resume)
        ending.callback(shared.close)
        to.begin()
        if to.resumable:
            write_manifest(manifest, options.output)
        results = fleet.results(first, rest, shared)
        code = show(function.__name__, results, fleet, to, rows, options, budget)
        for one in fleet.members:
            used = one.used
            say(f"sglc: replica {one.replica.name}: {one.rows} rows; tokens: {used.prompt} in "
                f"({used.cached} cached), {used.completion} out")  # fmt: skip
    if options.ordered and fleet.complete:
        put_in_order(options.output)
    return code


def _replicas(options: argparse.Namespace, work: Work) -> Sequence[Replica]:
    backends = backends_of(options.backend)
    if not options.cluster:
        return [ProcessReplica(work, one) for one in backends if one is not None]
    from sglc.cli.batch.ray_replicas import ray_replicas

    return ray_replicas(options.cluster, work, [_absolute(one) for one in backends], options.replicas)


def _absolute(spec: str | None) -> str | None:
    """A back end of a file, by a path that holds elsewhere, too."""
    name, colon, path = (spec or "").partition(":")
    return f"{name}:{os.path.abspath(path)}" if colon and os.path.exists(path) else spec


def _plain(options: argparse.Namespace) -> argparse.Namespace:
    """What goes to other machines: neither functions nor stdout, and paths that hold there, too."""
    named = {name: value for name, value in vars(options).items() if not callable(value) and name != "stdout"}
    for name in ("program", "tools"):
        if named[name]:
            named[name] = os.path.abspath(named[name])
    return argparse.Namespace(**named)
