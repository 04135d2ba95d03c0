"""`GET /metrics`: what the server and its runtime have counted, as Prometheus reads it.

Names that begin with `sglang:` are those of SGLang's server, with its label `model_name`, and mean the same:
the dashboards, autoscalers and gateways that there are for it look for these. (That a colon is for recording
rules is the one rule of `promtool check metrics` that they break.) Other names begin with `sglc_`.
Labels have nothing that a client can choose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.registry import Collector

from sglc.serve.metrics import Metrics

# Of what the server has counted: its name there, ours, and what it is.
_COUNTED = (
    ("generations", "sglang:num_requests", "Requests for texts that are over."),
    ("aborted", "sglang:num_aborted_requests", "Of these, those whose client did not read the end."),
    ("prompt_tokens", "sglang:prompt_tokens", "Tokens of prompts whose texts are whole."),
    ("cached_tokens", "sglang:cached_tokens", "Of these, those that were not computed."),
    ("generated_tokens", "sglang:generation_tokens", "Tokens of texts that are whole."),
)
_TIMED = (
    ("first", "sglang:time_to_first_token_seconds", "From a request's head to the first text of a stream."),
    ("between", "sglang:inter_token_latency_seconds", "Between two tokens of a streamed text."),
    ("whole", "sglang:e2e_request_latency_seconds", "Of requests for texts that were answered."),
)
# Of what the runtime says of itself, likewise.
_GAUGES = (
    ("running_rows", "sglang:num_running_reqs", "Texts that are being made."),
    ("waiting_rows", "sglang:num_queue_reqs", "Texts that wait for a row."),
    ("max_rows", "sglc_max_rows", "Texts that can be made at once."),
    ("token_budget", "sglc_token_budget", "Tokens of one step at most."),
)
_COUNTERS = (
    (
        "preempted_rows",
        "sglang:num_retracted_requests",
        "Texts that gave up their row for others and go on later.",
    ),
    ("steps", "sglc_steps", "Steps of the model."),
    (
        "forced_tokens",
        "sglc_forced_tokens",
        "Tokens that a constraint left no choice for, without a step of their own.",
    ),
)
_HISTOGRAMS = (
    ("queue_seconds", "sglang:queue_time_seconds", "From a request's way into the runtime to its first row."),
    ("compile_seconds", "sglang:grammar_compilation_time_seconds", "Compiling a regex, schema or grammar."),
    ("step_seconds", "sglc_step_duration_seconds", "A step of the model and what it sets in motion."),
)

# How names are to be written that Prometheus did not always take; ours, it did.
_ESCAPING = re.compile(r";\s*escaping=[^;,]*")
_VERSION = re.compile(r";\s*version=([^;,]*)")
_VERSIONS = ("0.0.1", "0.0.4", "1.0.0")  # of the forms that there are


def _known(accept: str) -> str:
    """What of `accept` is a form that there is: of others the library says that it is theirs, or raises."""
    forms = _ESCAPING.sub("", accept).split(",")
    return ",".join(form for form in forms if {v.rstrip() for v in _VERSION.findall(form)} <= {*_VERSIONS})


class Exposition(Collector):
    """All that is told, at the time of asking."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._info: Mapping[str, Any] | None = None

    def text(self, info: Mapping[str, Any] | None, accept: str) -> tuple[bytes, str]:
        """The page in the form that a header `accept` asks for, and its content type.

        Args:
            info: what the runtime says of itself; None if it does not answer.
        """
        self._info = info
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        ProcessCollector(registry=registry)
        # Underscores are its default, by which it leaves a colon in `# TYPE` and takes it out of the samples.
        encode, kind = choose_encoder(_known(accept))
        return encode(registry, escaping=ALLOWUTF8), kind  # type: ignore[call-arg]

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names follow from what is counted."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """As of every collector."""
        yield from self._of_requests()
        up = float(self._info is not None)
        yield GaugeMetricFamily("sglc_runtime_up", "Whether the runtime answers.", up)
        if self._info is not None:
            yield from self._of_runtime(self._info)

    def _of_requests(self) -> Iterable[Metric]:
        counts = self._metrics
        for key, name, what in _COUNTED:
            yield self._one(CounterMetricFamily, name, what, getattr(counts, key))
        for key, name, what in _TIMED:
            yield self._histogram(name, what, getattr(counts, key).told())
        what = "Requests that are not answered yet."
        yield GaugeMetricFamily("sglang:http_requests_active", what, counts.active)
        labels = ("endpoint", "method", "status_code")
        yield _counts("sglang:http_requests", "Requests.", labels[:2], counts.asked)
        yield _counts("sglang:http_responses", "Answers by their status.", labels, counts.answers)
        errors = {(code,): times for code, times in counts.errors.items()}
        yield _counts("sglc_errors", "Answers that are errors, by their code.", ("code",), errors)

    def _of_runtime(self, info: Mapping[str, Any]) -> Iterable[Metric]:
        for key, name, what in _GAUGES:
            if key in info:
                yield self._one(GaugeMetricFamily, name, what, info[key])
        for key, name, what in _COUNTERS:
            if key in info:
                yield self._one(CounterMetricFamily, name, what, info[key])
        for key, name, what in _HISTOGRAMS:
            if key in info:
                yield self._histogram(name, what, info[key])
        if "pages" in info:
            pages, size = info["pages"], info["page_size"]
            used = info["used_pages"]
            for name, what, value in (
                ("sglang:max_total_num_tokens", "Tokens whose KV has room.", pages * size),
                ("sglang:num_used_tokens", "Of it, what texts use now.", used * size),
                ("sglang:token_usage", "Used part of the room, 0 to 1.", used / pages),
            ):
                yield self._one(GaugeMetricFamily, name, what, value)
            by_state = GaugeMetricFamily("sglc_kv_pages", "Pages of KV.", labels=("model_name", "state"))
            for state in ("used", "cached", "free"):
                by_state.add_metric((self._metrics.model, state), info[f"{state}_pages"])
            yield by_state

    def _one(
        self, kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, what: str, value: float
    ) -> Metric:
        made = kind(name, what, labels=("model_name",))  # a counter's `_total` is added
        made.add_metric((self._metrics.model,), value)
        return made

    def _histogram(self, name: str, what: str, told: Mapping[str, Any]) -> Metric:
        """`told`: as of `Histogram`."""
        made = HistogramMetricFamily(name, what, labels=("model_name",))
        below, buckets = 0, []
        for bound, count in zip((*told["bounds"], float("inf")), told["counts"], strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", below))
        made.add_metric((self._metrics.model,), buckets, told["sum"])
        return made


def _counts(name: str, what: str, labels: Sequence[str], counted: Mapping[Any, int]) -> Metric:
    made = CounterMetricFamily(name, what, labels=labels)
    for kind, times in counted.items():
        made.add_metric(kind, times)
    return made
