"""SGLang's ways to have a model of one's own: `Runtime` and `Engine`, here in this process.

Both are back ends: for `run(backend=...)`, `gen(backend=...)` and `set_default_backend`. The model is loaded
with the first use.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sglc.backends.local import LocalBackend, LocalOptions
from sglc.errors import UsageError
from sglc.execution.bind import random_seed
from sglc.execution.call_record import CallRecord, meta_info
from sglc.execution.session import Session
from sglc.frontend.language.chat_templates import ChatTemplate, get_chat_template, jinja_of
from sglc.frontend.language.gen_arguments import sampling_fields
from sglc.frontend.locate import here
from sglc.frontend.outputs.output_spec import forms_given
from sglc.frontend.values.recorded import Recorded
from sglc.ir.core import Op, Program, Site, Type, Value
from sglc.ir.ops import Append, Control, Gen, Root
from sglc.ir.plan.backend import BackendWrapper
from sglc.ir.plan.events import Event
from sglc.ir.plan.segment import Segment, stopped_by
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target, Tokenizer
from sglc.ir.values import refuse_unreachable

if TYPE_CHECKING:
    from sglc.runtime.tokenizer.tokenizer import LocalTokenizer

# SGLang's names of sampling parameters where they are not `Sampling`'s.
_RENAMED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
_OTHERWISE = ("max_tokens", "min_tokens", "logprobs_from", "top_logprobs", "logprob_text", "logprobs")
# What is always so here: the one value that these may have.
_ALWAYS: dict[str, Any] = {
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "no_stop_trim": False,
    "repetition_penalty": 1.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArgs:
    """How `Runtime` and `Engine` are set up: those of SGLang's server arguments that have a meaning here.

    `device`: auto, cpu or cuda. `dtype`: auto, float32, bfloat16, float16. `max_running_requests`: rows at
    once. `chunked_prefill_size`: tokens of one step. `page_size`: tokens of a page of keys and values, of which
    the CPU's compiled kernels take multiples of 16. `chat_template`: a name that `register_chat_template`
    knows; the model's own template without it. `log_level` and `launch_timeout` are taken and have nothing
    to do: there are no logs, and no server is launched. `tp_size` is 1.
    """

    model_path: str = ""
    device: str = "auto"
    dtype: str = "auto"
    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None
    disable_radix_cache: bool = False
    page_size: int = 16
    chat_template: str | None = None
    log_level: str = "error"
    launch_timeout: float = 300.0
    tp_size: int = 1

    def options(self) -> LocalOptions:
        """The same as the local back end takes it."""
        from sglc.knobs import model

        return LocalOptions(
            self.model_path or model(),
            device=self.device,
            dtype=self.dtype,
            max_rows=self.max_running_requests,
            token_budget=self.chunked_prefill_size,
            cache=not self.disable_radix_cache,
            page_size=self.page_size,
        )


_KNOWN = tuple(field.name for field in fields(ServerArgs))
_UNSET = tuple(field.name for field in fields(ServerArgs) if field.default is None)
_CHOICES = {
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "tp_size": (1,),
}
_COUNTS = ("max_running_requests", "chunked_prefill_size", "page_size")


def server_args(given: Mapping[str, Any]) -> ServerArgs:
    """The arguments of a `Runtime`, checked.

    Raises:
        UsageError: SGLC027, an argument that is unknown, or a value that it cannot have.
    """
    for name, value in given.items():
        if name not in _KNOWN:
            raise UsageError(
                "SGLC027", f"`Runtime` takes no `{name}`", here(), note=f"it takes: {', '.join(_KNOWN)}"
            )
        if name in _CHOICES and value not in _CHOICES[name]:
            choices = ", ".join(map(str, _CHOICES[name]))
            raise UsageError("SGLC027", f"`{name}` cannot be `{value!r}`", here(), note=f"it can be: {choices}")
        if value is None and name in _UNSET:
            continue
        if name in _COUNTS and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise UsageError("SGLC027", f"`{name}` cannot be `{value!r}`", here(), note="it is a number from 1")
    return ServerArgs(**given)


class _Templated(LocalBackend):
    """The local back end with another chat template than the model's, and its stop strings."""

    def __init__(self, options: LocalOptions, template: ChatTemplate) -> None:
        super().__init__(options)
        self._template = template

    @cached_property
    def target(self) -> Target:
        """As of the model, under the other template."""
        own = LocalBackend(self.options).target
        tokenizer: Any = own.tokenizer
        return replace(own, tokenizer=tokenizer.with_template(jinja_of(self._template)))

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """Run `segment`, whose generations stop at the template's strings too."""
        stops = self._template.stops
        stopped = Segment(tuple([stopped_by(node, stops) for node in segment.nodes])) if stops else segment
        return super().submit(stopped, streams=streams)


class Runtime(BackendWrapper):
    """A model in this process, by SGLang's name for it. As a back end it is its `endpoint`.

    Args:
        model_path: as behind `local:`; the default model without it.
        arguments: of `ServerArgs`.

    Raises:
        UsageError: SGLC027, an argument that is unknown or cannot be so; SGLC029, no such chat template.
    """

    def __init__(self, model_path: str | None = None, **arguments: Any) -> None:
        given = arguments if model_path is None else {"model_path": model_path, **arguments}
        self.server_args = server_args(given)
        options, name = self.server_args.options(), self.server_args.chat_template
        # What programs hand to `set_default_backend` and `run`.
        self.endpoint = LocalBackend(options) if name is None else _Templated(options, get_chat_template(name))
        super().__init__(self.endpoint)

    def __repr__(self) -> str:
        return f"<sglc {type(self).__name__} of {self.endpoint.options.model}>"

    def generate(
        self,
        prompt: str | Sequence[str],
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        return_logprob: bool | None = None,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
    ) -> Any:
        """What the model writes behind `prompt`, as JSON text: `text`, `meta_info` and `output_ids`.

        A list for several prompts or samples. Control tokens in a prompt are control tokens.

        Args:
            sampling_params: by SGLang's names (`max_new_tokens`, `temperature`, `stop`, ...); a list for a list
                of prompts.

        Raises:
            UsageError: SGLC030, no prompt, or not as many `sampling_params`; SGLC031, an unknown one.
            TraceError: SGLC103, a value out of range; SGLC112, two that say what the text is.
            SglcError: the model does not load, or the generation fails.
        """
        asked = (return_logprob, logprob_start_len, top_logprobs_num)
        return self._generate(Session(self, random_seed()), prompt, sampling_params, *asked)

    async def async_generate(self, *args: Any, **kwargs: Any) -> Any:
        """`generate` without blocking the event loop; what it runs is stopped if this is cancelled."""
        session = Session(self, random_seed())
        try:
            return await asyncio.to_thread(self._generate, session, *args, **kwargs)
        except asyncio.CancelledError:
            session.stop()
            raise

    def _generate(
        self,
        session: Session,
        prompt: str | Sequence[str],
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        return_logprob: bool | None = None,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
    ) -> str:
        asked = {
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
        }
        params = sampling_params or {}
        prompts = [prompt] if isinstance(prompt, str) else _listed(prompt)
        if not prompts or not all(isinstance(text, str) for text in prompts):
            raise UsageError("SGLC030", "`generate` takes a text or a list of texts", here())
        each = [params] * len(prompts) if isinstance(params, Mapping) else _listed(params)
        if len(each) != len(prompts) or not all(isinstance(one, Mapping) for one in each):
            raise UsageError(
                "SGLC030", "`sampling_params` is a dict, or a list with one for each prompt", here(),
                note=f"there are {len(prompts)} prompts",
            )  # fmt: skip
        samplings = [_sampling(one, asked) for one in each]
        ops: list[Op] = []
        tokenizer = self.get_tokenizer()
        for number, (text, sampling) in enumerate(zip(prompts, samplings, strict=True)):
            ops += _ops(tokenizer, text, Site("generate", (), "text", number), sampling, 3 * len(ops))
        try:
            session.launch(Recorded(Program("generate", (), tuple(ops)), {}, (), final=True))
            error = session.wait()
        except KeyboardInterrupt:
            session.stop()
            raise
        if error is not None:
            raise error
        calls = {call.site.occurrence: call for call in session.calls}
        made = [answer for number in range(len(prompts)) for answer in _answers(calls[number])]
        alone = isinstance(prompt, str) and samplings[0].n == 1
        return json.dumps(made[0] if alone else made, ensure_ascii=False)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: `encode`, `decode`, `render` and more."""
        tokenizer: LocalTokenizer | Any = self.target.tokenizer
        return tokenizer

    def get_server_info(self) -> dict[str, Any]:
        """`server_info` under SGLang's name."""
        return self.endpoint.server_info()

    def shutdown(self) -> None:
        """`close` under SGLang's name."""
        self.close()


class Engine(Runtime):
    """A `Runtime` whose `generate` gives dicts."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As `Runtime.generate`, as data."""
        return json.loads(super().generate(*args, **kwargs))

    async def async_generate(self, *args: Any, **kwargs: Any) -> Any:
        """As `Runtime.async_generate`, as data."""
        return json.loads(await super().async_generate(*args, **kwargs))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _ops(tokenizer: Tokenizer, text: str, site: Site, sampling: Sampling, first: int) -> list[Op]:
    loc = here()
    stream = Value(first, Type.STREAM)
    ops: list[Op] = [Root(results=(stream,), loc=loc)]
    for part in tokenizer.split_control(text):
        after = Value(stream.id + 1, Type.STREAM)
        if isinstance(part, str):
            ops.append(Append(stream, part, results=(after,), loc=loc))
        else:
            ops.append(Control(stream, part.text, part.ids, results=(after,), loc=loc))
        stream = after
    made = (Value(stream.id + 1, Type.STREAM), Value(stream.id + 2, Type.TEXT))
    return [*ops, Gen(stream, site, sampling, results=made, loc=loc)]


def _listed(given: object) -> list[Any]:
    return list(given) if isinstance(given, Iterable) else []


def _answers(call: CallRecord) -> list[dict[str, Any]]:
    """One for each sample, which has what is its own in `meta_info`."""
    answers = []
    for sample in call.samples:
        meta = meta_info(replace(call, samples=(sample,)))
        kept = {key: meta[key] for key in meta if key not in ("site", "loc", "samples")}
        if len(call.samples) > 1:
            kept["completion_tokens"] = len(sample.ids) if sample.made is None else sample.made
        answers.append({"text": sample.text, "output_ids": list(sample.ids), "meta_info": kept})
    return answers


def _sampling(params: Mapping[str, Any], asked: Mapping[str, Any]) -> Sampling:
    loc = here()
    given: dict[str, Any] = {}
    names = [field.name for field in fields(Sampling) if field.name not in _OTHERWISE]
    for key, value in params.items():
        name = _RENAMED.get(key, key)
        if key in _ALWAYS and value in (None, _ALWAYS[key]):
            continue
        if name not in (*names, *_RENAMED.values()) or key in ("max_tokens", "min_tokens"):
            raise UsageError(
                "SGLC031", f"`generate` has no sampling parameter `{key}` that can be `{value!r}`", loc,
                hint="the names are SGLang's: `max_new_tokens`, `temperature`, `top_p`, `stop`, ...",
            )  # fmt: skip
        given[name] = value
    forms_given("generate", given, loc)
    sampling = Sampling(**sampling_fields({**given, **asked}, loc))
    refuse_unreachable(sampling, loc)
    return sampling
