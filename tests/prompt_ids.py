"""A back end that makes every prompt into ids, as APIs that are sent ids do, and remembers them by site.

Its answers are a function of site and ids, so two runs that see the same ids see the same everywhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from hashlib import blake2b

from sglc.backends.remote.prompts import ids
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest, Walker
from sglc.ir.core import Site
from sglc.ir.plan.events import Event, GenDone, Sample, SelectDone, Usage
from sglc.ir.plan.segment import GenNode, Made, Segment
from sglc.ir.target import Target, Tokenizer


class PromptIds:
    """`asked` has the ids of each generation's prompt; `submits` counts what was handed over."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.target = Target("ids", tokenizer, scores_tokens=True, continues_text=True)
        self.tokenizer = tokenizer
        self.asked: dict[Site, tuple[int, ...]] = {}
        self.submits = 0
        self._walker = Walker(self._ask)

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        self.submits += 1
        return self._walker.submit(segment, streams=streams)

    async def _ask(self, request: ApiRequest, emit: Callable[[Event], None]) -> ApiAnswer:
        node, prompt = request.node, ids(request.prompt, self.tokenizer)
        assert node.site not in self.asked, node.site
        self.asked[node.site] = prompt
        seen = blake2b(f"{node.site}|{prompt}".encode(), digest_size=2)
        if isinstance(node, GenNode):
            own = tuple(self.tokenizer.encode(seen.hexdigest()))
            samples = (Sample(seen.hexdigest(), own, "stop"),) * node.sampling.n
            return ApiAnswer(GenDone(request.index, prompt, samples, Usage()), Made(seen.hexdigest(), own))
        number = seen.digest()[0] % len(request.choices)
        said = request.choices[number]
        done = SelectDone(request.index, prompt, number, said, (), (), (), Usage())
        return ApiAnswer(done, Made(said))
