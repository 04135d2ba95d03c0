"""OpenTelemetry spans of runs, under the names of its conventions for generative AI.

    invoke_workflow judge          one call of `run` or `run_batch`
      row 0
        text_completion local      every generation and choice
        execute_tool lookup        every declared function

Only where the process has configured a tracer provider; nothing is imported for that here. Prompts and
answers are in no span.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from sglc.errors import SglcError
from sglc.execution.call_record import CallRecord
from sglc.execution.outputs import PendingOutput, RunOutputs
from sglc.ir.core import Program, Site, walk
from sglc.ir.plan.segment import GenNode
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target
from sglc.observe.timeline import Lanes

_MODULE = "opentelemetry.trace"
# Who runs the models of a back end, or of a vendor by LiteLLM's name, in the words of the conventions.
_PROVIDERS = {
    "openai": "openai", "azure": "azure.ai.openai", "anthropic": "anthropic", "gemini": "gcp.gemini",
    "vertex": "gcp.vertex_ai", "mistral": "mistral_ai", "openrouter": "openrouter", "litellm": "litellm",
    "vertex_ai": "gcp.vertex_ai", "azure_ai": "azure.ai.inference", "bedrock": "aws.bedrock",
    "watsonx": "ibm.watsonx.ai", "xai": "x_ai",
}  # fmt: skip


class Spans:
    """The span of one call of `run` or `run_batch`, and where those of its rows come from."""

    def __init__(self, api: Any, tracer: Any, span: Any) -> None:
        self.api = api
        self.tracer = tracer
        self._span = span
        self._context = api.set_span_in_context(span)

    @staticmethod
    def begun(name: str, rows: int | None) -> Spans | None:
        """The span of a run of `name` that begins now; None if nobody records spans."""
        api = sys.modules.get(_MODULE)
        if api is None:
            return None
        tracer = api.get_tracer("sglc")
        span = tracer.start_span(f"invoke_workflow {name}")
        if not span.is_recording():
            return None
        span.set_attribute("gen_ai.operation.name", "invoke_workflow")
        span.set_attribute("gen_ai.workflow.name", name)
        span.set_attribute("sglc.rows", 1 if rows is None else rows)
        return Spans(api, tracer, span)

    def row(self, number: int, path: str, began_s: float) -> RowSpan:
        """The span of a row, which began at `began_s`; what its Python does from here on is inside."""
        return RowSpan(self, self._context, number, path, began_s)

    def close(self, error: BaseException | None) -> None:
        """All rows have ended, or none began, because of `error`."""
        if error is not None:
            _fail(self.api, self._span, error)
        self._span.end()


class RowSpan:
    """The span of one row. It becomes the current one of the context that it is made in."""

    def __init__(self, spans: Spans, context: Any, number: int, path: str, began_s: float) -> None:
        self._spans = spans
        now_ns = time.time_ns()
        self._base_ns = now_ns - int((time.perf_counter() - began_s) * 1e9)
        self._span = spans.tracer.start_span(
            f"row {number}",
            context=context,
            start_time=self._base_ns,
            attributes={"sglc.row": number},
        )
        if path:
            self._span.set_attribute("sglc.call", path)
        self._context = spans.api.set_span_in_context(self._span, context)
        self._model: Mapping[str, Any] = {}
        self._others: dict[Site, Mapping[str, Any]] = {}
        self._known: set[Site] = set()
        self._branches: dict[tuple[str, tuple[int, ...]], Lanes] = {}  # called programs run side by side, too
        sys.modules["opentelemetry.context"].attach(self._context)

    def on(self, target: Target) -> None:
        """The back end of the row."""
        self._model = _model(target)

    def other(self, program: Program, target: Target) -> None:
        """The back end of a program that one call of the row is."""
        model = _model(target)
        self._others.update((op.site, model) for op in walk(program.ops) if hasattr(op, "site"))

    @contextmanager
    def tool(self, name: str) -> Iterator[None]:
        """The span of a declared function, which is called inside."""
        attributes = {
            "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function",
        }  # fmt: skip
        with self._spans.tracer.start_as_current_span(
            f"execute_tool {name}", context=self._context, attributes=attributes,
            record_exception=False, set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                yield
            except BaseException as error:
                _fail(self._spans.api, span, error)
                raise

    def done(self, output: PendingOutput, *, replayed: bool) -> None:
        """A generation has ended well; if `replayed`, long ago, and it was counted then."""
        assert output.call is not None
        told = {"sglc.replayed": True} if replayed else _counts(output.call)
        self._generation(output, output.ended_s, None, told)

    def end(self, outputs: RunOutputs, error: BaseException | None) -> None:
        """The row has ended; what failed in it is known."""
        now_ns = time.time_ns()
        for output in tuple(outputs.generations.values()):
            if output.error is not None and output.site not in self._known:
                self._generation(output, (now_ns - self._base_ns) / 1e9, output.error, {})
        if error is not None:
            _fail(self._spans.api, self._span, error)
        self._span.end(now_ns)

    def _generation(
        self, output: PendingOutput, ended_s: float, error: BaseException | None, counts: dict[str, Any]
    ) -> None:
        site, node = output.site, output.node
        self._known.add(site)
        model = self._others.get(site, self._model)
        asked = _asked(node.sampling) if isinstance(node, GenNode) else {"sglc.kind": "select"}
        _, began_s = self._branches.setdefault((site.function, site.fork), Lanes()).take(
            output.started_s, ended_s
        )
        span = self._spans.tracer.start_span(
            f"{model['gen_ai.operation.name']} {model.get('gen_ai.request.model', '')}".strip(),
            context=self._context,
            kind=self._spans.api.SpanKind.CLIENT,
            start_time=self._ns(began_s),
            attributes={
                **model, "sglc.site": str(site), "code.file.path": node.loc.file,
                "code.line.number": node.loc.line, **asked, **counts,
            },
        )  # fmt: skip
        if error is not None:
            _fail(self._spans.api, span, error)
        span.end(self._ns(ended_s))

    def _ns(self, seconds: float) -> int:
        return self._base_ns + int(seconds * 1e9)


def _fail(api: Any, span: Any, error: BaseException) -> None:
    """What an error says may be of a prompt or an answer: only its code or its class is told."""
    kind = error.code if isinstance(error, SglcError) else type(error).__name__
    span.set_status(api.Status(api.StatusCode.ERROR, kind))
    span.set_attribute("error.type", kind)


def _model(target: Target) -> dict[str, Any]:
    """Whose model it is, and where."""
    kind, _, name = target.name.partition(":")
    told: dict[str, Any] = {
        "gen_ai.operation.name": "chat" if target.protocol == "chat" else "text_completion",
        "gen_ai.provider.name": _PROVIDERS.get(kind, "sglc"),
    }
    if kind in ("http", "https", "grpc", "grpcs"):
        where, name = urlsplit(target.name), ""
        told["server.address"] = where.hostname
        told["server.port"] = where.port or (443 if kind.endswith("s") else 80)
    elif kind == "litellm" and "/" in name:
        vendor = name.partition("/")[0]
        told["gen_ai.provider.name"] = _PROVIDERS.get(vendor, vendor)
    elif kind not in _PROVIDERS:
        name = target.name
    if model := target.model or name:
        told["gen_ai.request.model"] = model
    return told


def _asked(sampling: Sampling) -> dict[str, Any]:
    """What a generation is asked for, without what nobody has said."""
    told = {
        "sglc.kind": "gen", "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature, "gen_ai.request.top_p": sampling.top_p,
    }  # fmt: skip
    seed = None if sampling.seed is None or sampling.seed >= 2**63 else sampling.seed  # exporters' integers end
    more = {
        "choice.count": (sampling.n, 1), "top_k": (sampling.top_k, -1), "seed": (seed, None),
        "stop_sequences": (sampling.stop, ()), "frequency_penalty": (sampling.frequency_penalty, 0.0),
        "presence_penalty": (sampling.presence_penalty, 0.0),
    }  # fmt: skip
    return told | {f"gen_ai.request.{name}": value for name, (value, usual) in more.items() if value != usual}


def _counts(call: CallRecord) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "gen_ai.usage.input_tokens": call.usage.prompt,
        "gen_ai.usage.cache_read.input_tokens": call.usage.cached,
        "gen_ai.usage.output_tokens": call.usage.completion,
    }
    if call.samples:
        counts["gen_ai.response.finish_reasons"] = [sample.finish for sample in call.samples]
    return counts
