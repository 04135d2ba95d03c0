"""A segment of which some answers are known: they are given at once, and only the rest is asked for.

A segment in which nothing is left to ask is not handed over at all, and no back end has the streams that it
keeps: what goes on with one begins with its whole prompt, as text and ids, and so is given the same ids.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Mapping
from dataclasses import replace

from sglc.errors import SglcError, located
from sglc.execution.answers.prompts import Followed, Inputs, Streams
from sglc.ir.plan.backend import Backend, hand_over
from sglc.ir.plan.dataflow import failed_before, left_in_prompt
from sglc.ir.plan.events import Delta, Event, GenDone, NodeFailed, SelectDone
from sglc.ir.plan.rest import Rest, rest_of
from sglc.ir.plan.segment import GenNode, KeepNode, OpenNode, ReleaseNode, Segment, SelectNode, reads

# The answer of a generation that is given these inputs, if it is known; raises why it failed, if that is.
Answer = GenDone | SelectDone | NodeFailed
Known = Callable[[int, GenNode | SelectNode, Inputs], GenDone | SelectDone | None]


def submit_unknown(
    inner: Backend, kept: Streams, followed: Followed, known: Known, *, streams: bool = True
) -> AsyncIterator[Event]:
    """As `inner.submit` of the segment that `kept` has followed, but what is `known` is not asked for.

    `known` is called before this returns, for each generation whose inputs are known by then: what reads an
    answer that is yet to come is asked for together with that. `followed` is told of every answer.
    """
    answers: dict[int, GenDone | SelectDone | NodeFailed] = {}
    failed = followed.failed
    for index, node in enumerate(followed.segment.nodes):
        error = failed_before(node, failed)
        done: GenDone | SelectDone | None = None
        if error is None and isinstance(node, GenNode | SelectNode) and followed.may_be_asked(index):
            try:
                done = known(index, node, followed.inputs(index))
            except SglcError as problem:
                error = located(problem, node.loc)
        if error is not None:
            failed[index], answers[index] = error, NodeFailed(index, error)
        elif done is not None:
            answers[index] = done
            followed.answered(index, done, inner.target)
    return _events(inner, followed, answers, _unknown(inner, kept, followed, answers), streams)


def told(done: GenDone | SelectDone, streams: bool) -> list[Event]:
    """The events of an answer that is there as a whole."""
    text = done.samples[0].text if isinstance(done, GenDone) else done.text
    return [Delta(done.node, text), done] if streams and text and isinstance(done, GenDone) else [done]


def part_of(followed: Followed, nodes: Container[int], begun: Container[int]) -> Rest:
    """These nodes of a segment with what they go on from, up to answers that are there.

    Streams in `begun` no back end has: they begin anew.
    """
    every, texts = followed.segment.nodes, followed.texts
    needed = {index for index in range(len(every)) if index in nodes}
    for index in range(len(every) - 1, -1, -1):
        if index in needed and (sources := reads(every[index])):
            needed.add(sources[0])
            needed.update(source for source in sources[1:] if source not in texts)
    return rest_of(
        followed.segment,
        {index: tuple(followed.prompt(index)) for index in needed if index in begun},
        {index: (followed.left(index),) for index in texts},
        {*range(len(every))} - needed,
    )


def is_whole(done: GenDone | SelectDone) -> bool:
    """Whether nothing cut it off: the same prompt would have the same answer."""
    return isinstance(done, SelectDone) or all(sample.finish != "abort" for sample in done.samples)


def _unknown(inner: Backend, kept: Streams, followed: Followed, answers: Mapping[int, Answer]) -> Rest:
    """What is left to be handed over."""
    nodes, unsent = followed.segment.nodes, kept.unsent
    asked = [i for i, node in enumerate(nodes) if isinstance(node, GenNode | SelectNode) and i not in answers]
    begun = [i for i, node in enumerate(nodes) if isinstance(node, OpenNode) and node.handle in unsent]
    gone = [i for i, node in enumerate(nodes) if isinstance(node, ReleaseNode) and node.handle in unsent]
    gone += followed.failed
    keeps = [node for i, node in enumerate(nodes) if isinstance(node, KeepNode) and i not in followed.failed]
    unsent.difference_update(node.handle for node in nodes if isinstance(node, ReleaseNode))
    if not asked and all(followed.is_known(node.stream) for node in keeps):
        unsent.update(node.handle for node in keeps if isinstance(node.handle, int))
        left = [i for i, node in enumerate(nodes) if isinstance(node, ReleaseNode) and i not in gone]
        return Rest(Segment(tuple([nodes[index] for index in left])), {})
    if not (answers or begun or gone):
        return Rest(followed.segment, {index: index for index in range(len(nodes))})
    return rest_of(
        followed.segment,
        {index: tuple(followed.prompt(index)) for index in begun},
        {
            index: (left_in_prompt(done, inner.target),)
            for index, done in answers.items()
            if not isinstance(done, NodeFailed)
        },
        gone,
    )


async def _events(
    inner: Backend, followed: Followed, answers: Mapping[int, Answer], rest: Rest, streams: bool
) -> AsyncIterator[Event]:
    for done in answers.values():
        for event in [done] if isinstance(done, NodeFailed) else told(done, streams):
            yield event
    if not rest.segment.nodes:
        return
    were = {place: index for index, place in rest.places.items()}
    events = hand_over(inner, rest.segment, streams)
    try:
        async for event in events:
            if event.node not in were:  # a part of a stream that begins anew
                continue
            index = were[event.node]
            if index != event.node:
                event = replace(event, node=index)
            match event:
                case GenDone() | SelectDone():
                    followed.answered(index, event, inner.target)
                case NodeFailed(error=error):
                    followed.failed[index] = error
            yield event
    finally:
        if (close := getattr(events, "aclose", None)) is not None:
            await close()
