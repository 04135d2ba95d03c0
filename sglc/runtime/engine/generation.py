"""Generations and choices on the engine: from a stream to the text that continues it.

A call makes its requests when it is built, takes their events, and gives an outcome with the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sglc.errors import RunError, SglcError
from sglc.ir.choice_scoring import NEEDS_UNCONDITIONAL, decide
from sglc.ir.grammar.stops import stop_pattern
from sglc.ir.plan.dataflow import goes_on
from sglc.ir.plan.events import Delta, Event, GenDone, Sample, SelectDone, TokenLogprob, Usage
from sglc.ir.plan.segment import GenNode, SelectNode
from sglc.ir.remembered import remembered
from sglc.ir.target import Tokenizer
from sglc.runtime.cache.sequence_handles import Prefix
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.engine.engine import (
    Engine,
    EngineEvent,
    Handle,
    PromptScored,
    QueuePosition,
    RequestDone,
    RequestFailed,
    RequestId,
    SampleDone,
    ScoreDone,
    Token,
)
from sglc.runtime.engine.kept_constraints import kept_constraints
from sglc.runtime.engine.prompt_prefixes import PromptPrefixes, TokenStream
from sglc.runtime.ids import common_prefix
from sglc.runtime.scheduler.samples import Likely, listed
from sglc.runtime.tokenizer.detokenize import StopStream

Outcome = GenDone | SelectDone  # of a call
_NOTHING_SCORED = PromptScored(0, ())
_TEXTS, _CHARACTERS = 2048, 1024  # whose ids are remembered: 80 MB of them where a character is an id


class EngineModel:
    """The engine with its tokenizer: literal runs are encoded once however often they come."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self.eos_ids = tokenizer.eos_ids
        self.token_bytes = tokenizer.token_bytes()
        self.constraints = kept_constraints(tokenizer, engine.executor.vocab_size)
        self.cut = tokenizer.cut
        kept = remembered(_TEXTS, _CHARACTERS, longer=0)
        self.encode = kept(lambda text: tuple(tokenizer.encode(text)))
        self.encode_within = kept(lambda text: tuple(tokenizer.encode_within(text)))
        self.prefixes = PromptPrefixes(engine)

    def encode_behind(self, ids: Sequence[int], text: str) -> tuple[int, ...]:
        """Ids of a text behind `ids`."""
        return self.encode_within(text) if goes_on(ids, self.token_bytes) else self.encode(text)

    def known(self, stream: TokenStream) -> Sequence[int]:
        """Ids that a stream ends with but for its tail: its own, or else those of its base."""
        base = stream.base
        if stream.ids or base is None:
            return stream.ids
        return base.ids if isinstance(base, Prefix) else self.engine.ids(base)

    def extend(self, stream: TokenStream, behind: Sequence[int] = ()) -> Handle:
        """A new handle on the ids of a stream, and `behind` them."""
        ids = (*stream.ids, *behind) if behind else stream.ids
        return self.engine.extend(stream.base, ids, stream.namespace)


class GenCall:
    """One generation: `sampling.n` samples of the same prompt.

    The engine reports tokens one by one only where text is streamed or looked through for its end;
    else the text is made once, from all the ids. With `max_tokens` 0 one token is
    sampled to see the log-probabilities at its place, and dropped.
    """

    _told = 0  # of `_tokens`, those that a delta had
    _prompt_scored = _NOTHING_SCORED
    _prompt_told = False

    def __init__(
        self,
        model: EngineModel,
        index: int,
        node: GenNode,
        stream: TokenStream,
        emit: Callable[[Event], None],
        *,
        streams: bool,
        turn: QueuePosition,
        constraint: Constraint | None,
    ) -> None:
        """Held to `constraint`. With `streams`, sample 0 is emitted as it comes.

        Raises:
            SglcError: there is no prompt, or it is too long.
        """
        self.node = node
        self._engine = model.engine
        self._index = index
        self._emit = emit
        # Most prompts are ids already.
        known = model.known(stream)
        behind = () if known and not stream.tail else model.encode_behind(known, stream.tail)
        if not (known or behind):
            raise _no_prompt(node)
        seed = node.seed if node.sampling.seed is None else node.sampling.seed
        assert seed is not None, "a segment's generations carry seeds"
        sampling = node.sampling
        seeds = [sample_seed(seed, sample) for sample in range(sampling.n)]
        self._streams = streams
        self._stepwise = bool(streams or sampling.stop or sampling.stop_regex) and sampling.max_tokens > 0
        self._namespace = stream.namespace
        self._watched: list[StopStream] = []
        if self._stepwise:
            patterns = list(map(stop_pattern, sampling.stop_regex))
            self._watched = [StopStream(model.token_bytes, sampling.stop, patterns) for _ in seeds]
        self._texts = [""] * len(seeds)
        self._spelled = model.token_bytes
        self._tokens: list[Token] = []  # of sample 0
        self._tops: list[tuple[TokenLogprob, ...]] = []  # of those that a delta had, if asked for
        self._samples: dict[int, Sample] = {}  # that have ended
        self._handle = model.extend(stream, behind)
        if not sampling.max_tokens:
            sampling = replace(sampling, max_tokens=1)
        try:
            request = self._engine.gen(
                self._handle,
                sampling,
                seeds,
                eos_ids=model.eos_ids,
                constraint=constraint,
                watch=self._stepwise,
                dropped=not node.sampling.max_tokens,
                turn=turn,
            )
        except SglcError:
            self._engine.release(self._handle)
            raise
        self.requests = [request]

    @property
    def _prompt(self) -> tuple[int, ...]:
        """The ids that it goes on behind; before `close`."""
        return self._engine.ids(self._handle)

    def take(self, event: EngineEvent) -> Outcome | None:
        """Account for an event of this call's request; gives the outcome with the last one.

        Raises:
            SglcError: the request failed.
        """
        match event:
            case Token():
                self._token(event)
            case SampleDone():  # at once: to read the likeliest ids of many would hold up a step
                self._samples[event.sample] = self._sample(event)
            case RequestDone():
                return self._outcome(event)
            case PromptScored():
                self._prompt_scored = event
            case RequestFailed():
                raise event.error
            case ScoreDone():
                raise AssertionError(event)
        return None

    def behind(self, outcome: Outcome) -> TokenStream:
        """The stream that goes on behind the outcome; before `close`."""
        assert isinstance(outcome, GenDone)
        match = self._watched[0].match if self._stepwise else None
        tail = match.tail if match else ""
        return TokenStream(outcome.samples[0].ids, tail, self._handle, self._namespace)

    def close(self) -> None:
        """Stop what is left of the request, and give back what the call holds."""
        self._engine.abort(self.requests[0])
        self._engine.release(self._handle)

    def _token(self, event: Token) -> None:
        watched = self._watched[event.sample]
        if watched.match is not None:
            return
        if self._streams and event.sample == 0:
            self._tokens.append(event)
        self._give(event.sample, watched.push(event.id))
        if watched.match is not None:
            self._engine.cut(event.request, event.sample, watched.match.kept_tokens)

    def _give(self, sample: int, text: str) -> None:
        self._texts[sample] += text
        if self._streams and text and sample == 0:
            self._emit(self._delta(text))

    def _delta(self, text: str) -> Delta:
        certain = self._watched[0].certain_tokens
        new, self._told = self._tokens[self._told : certain], certain
        asked = self.node.sampling.top_logprobs > 0
        tops = tuple([self._listed(token.likeliest) for token in new]) if asked else ()
        self._tops += tops
        tokens = tuple([(token.logprob, token.id, self._text(token.id)) for token in new])
        if self._prompt_told:
            return Delta(self._index, text, tokens, tops)
        self._prompt_told = True
        cached = self._engine.cached(self.requests[0])
        return Delta(self._index, text, tokens, tops, *self._prompt_logprobs(), cached)

    def _prompt_logprobs(
        self,
    ) -> tuple[tuple[TokenLogprob, ...], tuple[tuple[TokenLogprob, ...] | None, ...]]:
        """Of the prompt's ids those that were asked for, and the likeliest ids at their places."""
        begin = self.node.sampling.logprobs_from
        if begin is None or begin >= len(self._prompt):
            return (), ()
        ids = self._prompt[begin:]
        scored = self._prompt_scored
        first = (None,) if begin == 0 else ()
        logprobs = zip((*first, *scored.logprobs), ids, strict=True)
        tops = tuple(self._listed(likeliest) for likeliest in scored.likeliest)
        asked = bool(self.node.sampling.top_logprobs)
        return tuple((p, i, self._text(i)) for p, i in logprobs), (*first, *tops) if asked else ()

    def _listed(self, likeliest: Likely) -> tuple[TokenLogprob, ...]:
        return tuple([(logprob, id_, self._text(id_)) for id_, logprob in listed(likeliest)])

    def _text(self, token: int) -> str | None:
        """The text of an id, if asked for. Ids behind the tokenizer's are padding."""
        if not self.node.sampling.logprob_text:
            return None
        spelled = self._spelled[token] if token < len(self._spelled) else b""
        return spelled.decode("utf-8", "replace")

    def _outcome(self, done: RequestDone) -> GenDone:
        samples = tuple(map(self._samples.__getitem__, range(self.node.sampling.n)))
        # How much was decoded behind a stop before it was seen is a matter of time.
        spent = usage(done, sum([sample.made or 0 for sample in samples]))
        prompt = self._engine.packed(self._handle)
        scored = () if self.node.sampling.logprobs_from is None else self._prompt_logprobs()
        return GenDone(self._index, prompt, samples, spent, *scored)

    def _sample(self, ended: SampleDone) -> Sample:
        sample, asked = ended.sample, self.node.sampling
        match = None
        if not asked.max_tokens:
            seen = tuple(self._listed(likeliest) for likeliest in ended.likeliest)
            return Sample("", (), "length", top_logprobs=seen)
        if self._stepwise:
            self._give(sample, self._watched[sample].finish())
            match = self._watched[sample].match
        else:
            self._texts[sample] = b"".join(map(self._spelled.__getitem__, ended.ids)).decode("utf-8", "replace")
        ids, logprobs, finish, likeliest = ended.ids, ended.logprobs, ended.finish, ended.likeliest
        end: TokenLogprob | None = None
        end_top: tuple[TokenLogprob, ...] = ()
        matched: str | int | None = None
        if match is not None:
            kept = match.kept_tokens
            ids, logprobs, finish, likeliest = ids[:kept], logprobs[:kept], "stop", likeliest[:kept]
            matched, made = match.stop, match.read_tokens
        elif ended.last is not None:
            id_, logprob, likely = ended.last
            end = (logprob, id_, self._text(id_))
            end_top = self._listed(likely) if asked.top_logprobs else ()
            matched, made = id_ if finish == "stop" else None, len(ids) + 1
        else:
            made = len(ids)
        texts = tuple([self._text(id_) or "" for id_ in ids]) if asked.logprob_text else ()
        tops: tuple[tuple[TokenLogprob, ...], ...] = ()
        if likeliest:
            told = self._tops[: len(likeliest)] if sample == 0 else []
            tops = (*told, *map(self._listed, likeliest[len(told) :]))
        return Sample(self._texts[sample], ids, finish, logprobs, texts, tops, end, end_top, matched, made)


class SelectCall:
    """One choice: all texts are scored behind the prompt in one request. Some methods also score the
    texts alone, those that begin with the same id in one request."""

    def __init__(
        self,
        model: EngineModel,
        index: int,
        node: SelectNode,
        stream: TokenStream,
        texts: tuple[str, ...],
        *,
        turn: QueuePosition,
    ) -> None:
        """Raises RunError: an empty choice, no prompt, or more than the engine can take."""
        self.node = node
        self._engine = model.engine
        self._turn = turn
        self._index = index
        self._before = stream
        self._texts = texts
        if not all(texts):
            raise RunError("SGLC404", "a choice of `select` is empty", hint="every choice needs a text")
        cut = model.cut(stream.tail)  # what is before it need not be encoded again with each text
        known = model.known(stream)
        own = (*stream.ids, *model.encode_behind(known, stream.tail[:cut]))
        before_cut, behind = own or known, stream.tail[cut:]
        tail, *whole = [model.encode_behind(before_cut, behind + text) for text in ("", *texts)]
        if not (before_cut or tail):
            raise _no_prompt(node)
        # Where a choice merges with the text before it, the prefix is cut back to the last common id.
        common = min(common_prefix(tail, ids) for ids in whole)
        if not before_cut and not common:  # what comes first cannot be scored: choices are encoded apart
            self._choices = tuple(model.encode_within(text) for text in texts)
            common = len(tail)
        else:
            self._choices = tuple(ids[common:] for ids in whole)
        self._handles: list[Handle] = []
        self.requests: list[RequestId] = []
        self._scored: dict[RequestId, tuple[tuple[float, ...], ...]] = {}
        self._done: dict[RequestId, Usage] = {}
        self._alone: dict[int, list[tuple[int, ...]]] = {}  # by their first id, what follows it
        if node.method in NEEDS_UNCONDITIONAL:
            for first, *rest in self._choices:
                if rest:
                    self._alone.setdefault(first, []).append(tuple(rest))
        try:
            before = self._engine.extend(stream.base, (*own, *tail[:common]), stream.namespace)
            self._score(before, self._choices)
            for first, rests in self._alone.items():
                self._score(self._engine.extend(None, (first,), stream.namespace), tuple(rests))
        except SglcError:
            self.close()
            raise

    def _score(self, prompt: Handle, choices: tuple[tuple[int, ...], ...]) -> None:
        self._handles.append(prompt)
        self.requests.append(self._engine.score(prompt, choices, turn=self._turn))

    def take(self, event: EngineEvent) -> SelectDone | None:
        """As `GenCall.take`."""
        match event:
            case ScoreDone():
                self._scored[event.request] = event.logprobs
            case RequestDone():
                self._done[event.request] = usage(event, event.completion_tokens)
                return self._outcome() if len(self._done) == len(self.requests) else None
            case RequestFailed():
                raise event.error
            case Token() | SampleDone() | PromptScored():
                raise AssertionError(event)
        return None

    def behind(self, outcome: Outcome) -> TokenStream:
        """As `GenCall.behind`. A choice is text, so what follows begins with the ids before it."""
        before = self._before
        return TokenStream(before.ids, before.tail + text_of(outcome), before.base, before.namespace)

    def close(self) -> None:
        """Stop what is left of the requests, and give back what the call holds."""
        for request in self.requests:
            self._engine.abort(request)
        for handle in self._handles:
            self._engine.release(handle)

    def _outcome(self) -> SelectDone:
        first, *others = self.requests
        logprobs = self._scored[first]
        unconditional: tuple[tuple[float | None, ...], ...] = ()
        if self.node.method in NEEDS_UNCONDITIONAL:
            # The first id of a text has nothing before it.
            alone = dict(zip(self._alone, (iter(self._scored[request]) for request in others), strict=True))
            unconditional = tuple(
                (None, *(next(alone[ids[0]]) if len(ids) > 1 else ())) for ids in self._choices
            )
        decision = decide(self.node.method, logprobs, unconditional)
        text = self._texts[decision.choice]
        spent = sum((self._done[request] for request in others), self._done[first])
        return SelectDone(
            self._index,
            self._engine.packed(self._handles[0]),
            decision.choice,
            text,
            decision.scores,
            self._choices,
            logprobs,
            Usage(spent.prompt, spent.cached, spent.computed, spent.scored, spent.completion, 1),
            unconditional,
            decision.matrix,
        )


Call = GenCall | SelectCall


def text_of(outcome: Outcome) -> str:
    """What a call leaves in its prompt."""
    return outcome.samples[0].text if isinstance(outcome, GenDone) else outcome.text


def usage(done: RequestDone, completion: int) -> Usage:
    """A request's counts, of which `completion` tokens were made."""
    return Usage(
        prompt=done.prompt_tokens,
        cached=done.cached_tokens,
        computed=done.computed_tokens,
        scored=done.scored_tokens,
        completion=completion,
        calls=1,
    )


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one of n samples (splitmix64 of Steele et al. 2014 over seed and index)."""
    z = (seed + (sample + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def _no_prompt(node: GenNode | SelectNode) -> RunError:
    return RunError(
        "SGLC402", f"`{node.site.name}` has no text before it", node.loc,
        note="this model has no token that begins an empty text",
        hint="append some text first",
    )  # fmt: skip
