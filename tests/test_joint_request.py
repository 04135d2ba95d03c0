"""Joint requests against single ones, in random segments; a model's next character depends on its last ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b

import pytest

from sglc.backends.remote.joint_request import JointReply, ask_jointly
from sglc.backends.remote.prompts import text
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest, Walker
from sglc.errors import Loc
from sglc.ir.core import Site
from sglc.ir.plan.events import Delta, Event, GenDone, Sample, Usage
from sglc.ir.plan.segment import ExtendNode, ForkNode, GenNode, Made, Node, NodeResult, OpenNode, Segment
from sglc.ir.sampling import Sampling
from tests.depth import at_depth

END = "$"


@cache
def following(tail: str) -> str:
    """The character that comes behind a text that ends in `tail`, or `END`."""
    return "aab\n:é\na$"[blake2b(tail.encode(), digest_size=1).digest()[0] % 9]


def goes_on(prompt: str, most: int) -> tuple[str, str]:
    """What the model says behind `prompt`, a token a character, and why it ends."""
    said = ""
    while len(said) <= most:
        if (one := following((prompt + said)[-3:])) == END:
            return said, "stop"
        said += one
    return said[:most], "length"


def own_answer(prompt: str, sampling: Sampling) -> tuple[str, str]:
    said, finish = goes_on(prompt, sampling.max_tokens)
    for end in range(1, len(said) + 1):
        ended = [stop for stop in sampling.stop if said[:end].endswith(stop)]
        if ended:
            return said[: end - max(map(len, ended))], "stop"
    return said, finish


@dataclass(slots=True)
class Api:
    """Answers requests, and counts them."""

    retries: int
    calls: int = 0

    def ask(self, request: ApiRequest, emit: Callable[[Event], None]) -> asyncio.Future[ApiAnswer]:
        node = request.node
        assert isinstance(node, GenNode)
        if not node.ahead:
            return asyncio.ensure_future(self.alone(request))
        return asyncio.ensure_future(
            ask_jointly(request, emit, self.once, self.alone, whole_turn=False, retries=self.retries)
        )

    async def once(self, request: ApiRequest, hear: Callable[[str], None] | None) -> JointReply:
        self.calls += 1
        assert isinstance(request.node, GenNode)
        assert request.node.sampling.stop == ()
        said, finish = goes_on(text(request.prompt), request.node.sampling.max_tokens)
        for one in said if hear is not None else "":
            assert hear is not None
            hear(one)
            await asyncio.sleep(0)
        return JointReply(said, finish, Usage(prompt=1, completion=len(said), calls=1))

    async def alone(self, request: ApiRequest) -> ApiAnswer:
        self.calls += 1
        assert isinstance(request.node, GenNode)
        said, finish = own_answer(text(request.prompt), request.node.sampling)
        usage = Usage(prompt=1, completion=len(said), calls=1)
        return ApiAnswer(GenDone(request.index, (), (Sample(said, (), finish),), usage), Made(said))


def segment_of(rng: random.Random) -> tuple[Segment, int]:
    """A turn, or two branches with a turn each, and how many; texts are often what would be said anyway."""
    nodes: list[Node] = [OpenNode(), ExtendNode(0, (rng.choice(("a", "b:", "é\n")),))]
    texts = {0: "", 1: nodes[1].parts[0]}  # type: ignore[union-attr]
    ends = [1]
    if rng.random() < 0.3:
        nodes.append(ForkNode(1, 2))
        texts[2] = texts[1]
        ends = [2, 2]
    made: list[int] = []
    for stream in ends:
        for number in range(length := rng.randint(1, 5)):
            stops = tuple({rng.choice(("\n", ":", "\na", "b", "aa")) for _ in range(rng.randint(1, 2))})
            sampling = Sampling(stop=stops, max_tokens=rng.choice((2, 6, 30)))
            ahead = rng.choice((8, 60)) if number + 1 < length else 0
            site = Site("f", (), f"x{len(nodes)}")
            nodes.append(GenNode(stream, site, sampling, Loc("f.py", 1), 0, ahead))
            index = len(nodes) - 1
            said, _ = own_answer(texts[stream], sampling)
            texts[index] = texts[stream] + said
            made.append(index)
            stream = index
            if number + 1 < length and rng.random() < 0.9:
                literal = goes_on(texts[index], rng.randint(1, 3))[0] if rng.random() < 0.7 else "ab"
                parts: tuple[str | NodeResult, ...] = (literal,) if literal else ("a",)
                if rng.random() < 0.1:
                    parts = (*parts, NodeResult(rng.choice(made)))
                nodes.append(ExtendNode(index, parts))
                stream = len(nodes) - 1
                texts[stream] = texts[index] + "".join(
                    part if isinstance(part, str) else texts_of(texts, nodes, part.node) for part in parts
                )
    return Segment(tuple(nodes)), len(ends)


def texts_of(texts: dict[int, str], nodes: list[Node], index: int) -> str:
    node = nodes[index]
    assert isinstance(node, GenNode)
    return texts[index][len(texts[node.stream]) :]


def run(segment: Segment, api: Api, *, streams: bool) -> tuple[dict[int, GenDone], dict[int, str], list[int]]:
    """The ends, the pieces of each generation, and the order in which ends came."""

    async def submit() -> list[Event]:
        return [event async for event in Walker(api.ask).submit(segment, streams=streams)]

    events = asyncio.run(submit())
    pieces: dict[int, str] = {}
    for event in events:
        if isinstance(event, Delta):
            pieces[event.node] = pieces.get(event.node, "") + event.text
    ends = [event for event in events if isinstance(event, GenDone)]
    assert len({end.node for end in ends}) == len(ends)
    return {end.node: end for end in ends}, pieces, [end.node for end in ends]


def without(segment: Segment) -> Segment:
    return Segment(
        tuple(replace(node, ahead=0) if isinstance(node, GenNode) else node for node in segment.nodes)
    )


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("retries", [0, 2])
def test_results_are_those_of_single_requests_and_calls_are_no_more(streams: bool, retries: int) -> None:
    fewer = more = told = 0
    count = at_depth(80, 160, 400)
    for seed in range(count):
        segment, turns = segment_of(random.Random(seed))
        single, joint = Api(retries), Api(retries)
        wanted, _, _ = run(without(segment), single, streams=streams)
        found, pieces, order = run(segment, joint, streams=streams)
        assert {i: end.samples for i, end in found.items()} == {i: end.samples for i, end in wanted.items()}
        assert order == sorted(order) or turns > 1
        assert joint.calls <= single.calls + (turns if retries else 0), seed
        usage = sum((end.usage for end in found.values()), Usage())
        assert usage.calls == joint.calls
        assert usage.prompt == joint.calls
        # What is saved is what was not asked for, less what was asked for in vain.
        in_vain = usage.calls + usage.saved_calls - single.calls
        assert 0 <= in_vain <= (turns if retries else 0)
        for index, piece in pieces.items():
            assert found[index].samples[0].text == piece
            told += 1
        fewer += joint.calls < single.calls
        more += joint.calls > single.calls
    assert fewer > at_depth(10, 20, 80)
    assert more == 0 or retries > 0
    assert more > 0 or retries == 0 or count < 400  # sometimes it does not pay
    assert (told > count // 4) == streams
