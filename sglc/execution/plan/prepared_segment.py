"""A segment of a plan with what all runs of it share: its template, what it reads, asks for and gives."""

from __future__ import annotations

from functools import cached_property

from sglc.execution.bind import Template, asked_in
from sglc.execution.plan.values import Names, Read
from sglc.ir.plan.segment import GenNode, Held, KeepNode, Segment, SelectNode, Slot, behind
from sglc.ir.plan.uses import own_reads


class PreparedSegment:
    """By node: `gives` has the numbers of the names that are what it makes, `ends` the kept streams that wait
    for it, as places in `keeps`.

    `texts` and `opened` are what it reads, by name; of a stream of its own block that it opens also the number.
    `keeps` are (node, handle, number of its name, generations that it waits for).
    """

    def __init__(self, segment: Segment, names: Names) -> None:
        self.segment = segment
        self.empty = not segment.nodes
        read: list[Slot | Held] = list(dict.fromkeys(own_reads(segment)))
        self.texts: list[tuple[str, Read]] = [
            (name.name, names.reader(name)) for name in read if isinstance(name, Slot)
        ]
        self.opened: list[tuple[str, Read, int | None]] = [
            (name.name, names.reader(name), names.own.get(name))
            for name in read
            if isinstance(name, Held) and name.name is not None
        ]
        self.asked = tuple(asked_in(segment))
        self.gives: dict[int, list[int]] = {}
        for name, index in segment.gives:
            self.gives.setdefault(index, []).append(names.own[Slot(name)])
        self.keeps: list[tuple[KeepNode, int, int]] = []
        self.ends: dict[int, list[int]] = {}
        for index, node in enumerate(segment.nodes):
            if isinstance(node, KeepNode):
                waits = _generations(segment, index)
                for source in waits:
                    self.ends.setdefault(source, []).append(len(self.keeps))
                self.keeps.append((node, names.own[Held(str(node.handle))], len(waits)))

    @cached_property
    def template(self) -> Template:
        """For the program itself."""
        return Template(self.segment)

    @cached_property
    def placed(self) -> Template:
        """For where it stands in a called program or in a loop."""
        return Template(self.segment, placed=True)


def _generations(segment: Segment, index: int) -> list[int]:
    """The generations that node `index` waits for, directly or not."""
    return [at for at in sorted(behind(segment, index)) if isinstance(segment.nodes[at], GenNode | SelectNode)]
