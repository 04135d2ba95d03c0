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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglc.errors import SglcError
from sglc.execution.call_record import CallRecord
from sglc.execution.outputs import PendingOutput, RunOutputs
from sglc.ir.core import Program, Site, walk
from sglc.ir.plan.segment import GenNode
from sglc.ir.target import Target

_MODULE = "opentelemetry.trace"
# Who runs the models of a back end, in the words of the conventions.
_PROVIDERS = {
    "openai": "openai", "azure": "azure.ai.openai", "anthropic": "anthropic", "gemini": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
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
        self._target: Target | None = None
        self._others: dict[Site, Target] = {}
        self._known: set[Site] = set()
        sys.modules["opentelemetry.context"].attach(self._context)

    def on(self, target: Target) -> None:
        """The back end of the row."""
        self._target = target

    def other(self, program: Program, target: Target) -> None:
        """The back end of a program that one call of the row is."""
        self._others.update((op.site, target) for op in walk(program.ops) if hasattr(op, "site"))

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

    def done(self, output: PendingOutput) -> None:
        """A generation has ended well."""
        assert output.call is not None
        self._generation(output, output.ended_s, None, _counts(output.call))

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
        self._known.add(output.site)
        target = self._others.get(output.site, self._target)
        operation = "chat" if target is not None and target.protocol == "chat" else "text_completion"
        model = "" if target is None else target.name
        kind, _, name = model.partition(":")
        provider = _PROVIDERS.get(kind, "sglc")
        asked: dict[str, Any] = {"sglc.kind": "select"}
        if isinstance(output.node, GenNode):
            sampling = output.node.sampling
            asked = {
                "sglc.kind": "gen", "gen_ai.request.max_tokens": sampling.max_tokens,
                "gen_ai.request.temperature": sampling.temperature, "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.request.choice.count": sampling.n,
            }  # fmt: skip
        span = self._spans.tracer.start_span(
            f"{operation} {model}".strip(),
            context=self._context,
            kind=self._spans.api.SpanKind.CLIENT,
            start_time=self._ns(output.started_s),
            attributes={
                "gen_ai.operation.name": operation, "gen_ai.provider.name": provider,
                "gen_ai.request.model": name if kind in _PROVIDERS else model, "sglc.site": str(output.site),
                "code.file.path": output.node.loc.file, "code.line.number": output.node.loc.line,
                **asked, **counts,
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


def _counts(call: CallRecord) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "gen_ai.usage.input_tokens": call.usage.prompt,
        "gen_ai.usage.cache_read.input_tokens": call.usage.cached,
        "gen_ai.usage.output_tokens": call.usage.completion,
    }
    if call.samples:
        counts["gen_ai.response.finish_reasons"] = [sample.finish for sample in call.samples]
    return counts
