"""Steps in the making, what they wait for, and their order."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from sglc.ir.plan.plan import Step
from sglc.passes.lowering.segments import Nodes, StreamOp


@dataclass(slots=True, eq=False)
class Unit:
    """A step in the making: a decision, or the segment of all ops that need the same decisions."""

    position: int  # of its first op
    key: int = 0  # decisions that a segment needs
    ops: list[StreamOp] = field(default_factory=list)
    step: Step | None = None
    nodes: Nodes | None = None
    after: dict[Unit, None] = field(default_factory=dict)


def ordered(units: Sequence[Unit]) -> list[Unit]:
    """The units in an order in which each comes behind those it needs; else as in the program."""
    if len(units) < 2:
        return list(units)
    waiting = {unit: len(unit.after) for unit in units}
    followers: dict[Unit, list[Unit]] = {unit: [] for unit in units}
    for unit in units:
        for before in unit.after:
            followers[before].append(unit)
    rank = {unit: (unit.position, number) for number, unit in enumerate(units)}
    ready = [(*rank[unit], unit) for unit in units if not waiting[unit]]
    heapq.heapify(ready)
    order: list[Unit] = []
    while ready:
        unit = heapq.heappop(ready)[-1]
        order.append(unit)
        for follower in followers[unit]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (*rank[follower], follower))
    assert len(order) == len(units), "units wait for each other"
    return order
