"""`/metrics`: it counts what a client counts, in names that are well made, and says nothing of anybody."""

from __future__ import annotations

import asyncio
import json
import random
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.ir.plan.plan_json import plan_to_json
from sglc.serve.app import make_direct
from sglc.serve.door import Access, guarded
from sglc.serve.service import Service
from tests.depth import at_depth
from tests.serving import ROOT, Server, serving
from tests.waiting import until

pytestmark = pytest.mark.slow

REQUESTS = at_depth(40, 40, 1_000)
SECRET = "Zanzibar"  # stands in whatever a client may choose
NAMED = "named-by-its-owner"


@pytest.fixture(scope="module")
def counted(small_model: Path) -> Iterator[Server]:
    with serving("--model", str(small_model), "--max-rows", "8", "--name", NAMED, "--access-log") as server:
        yield server


def families(server: Server, **headers: str) -> list[Metric]:
    status, page = server.ask("GET", "/metrics", **headers)
    assert status == 200
    return list(text_string_to_metric_families(page))


def values(server: Server) -> dict[str, float]:
    """Samples by their names; those of several labels together."""
    found: defaultdict[str, float] = defaultdict(float)
    for family in families(server):
        for sample in family.samples:
            found[sample.name] += sample.value
    return dict(found)


def refused(server: Server) -> Counter[str]:
    """Refused requests by the code of their refusal."""
    return Counter(
        {
            sample.labels["code"]: int(sample.value)
            for family in families(server)
            for sample in family.samples
            if sample.name == "sglc_errors_total"
        }
    )


@dataclass
class Seen:
    """What a client has counted."""

    requests: int = 0
    aborted: int = 0
    streams: int = 0
    whole: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def take(self, usage: Any) -> None:
        self.whole += 1
        self.prompt += usage.prompt_tokens
        self.completion += usage.completion_tokens
        self.cached += usage.prompt_tokens_details.cached_tokens


def ask(client: openai.OpenAI, number: int, seen: Seen) -> None:
    """One request of a kind that its number draws; calls of several threads add up, each in its own `seen`."""
    draw = random.Random(number)
    prompt = f"{SECRET} {draw.randrange(20)}: one, two, three,"
    options: dict[str, Any] = {"model": NAMED, "max_tokens": draw.randint(1, 6), "user": SECRET}
    kind = draw.choice(("whole", "whole", "stream", "chat", "several", "abort", "error", "late error", "regex"))
    seen.requests += kind != "error"
    match kind:
        case "whole":
            seen.take(client.completions.create(prompt=prompt, **options).usage)
        case "several":
            seen.take(client.completions.create(prompt=[prompt, prompt + " four"], n=2, **options).usage)
        case "regex":
            body = {"regex": "(yes|no)"}
            seen.take(client.completions.create(prompt=prompt, extra_body=body, **options).usage)
        case "chat":
            turns: Any = [{"role": "user", "content": prompt}]
            seen.take(client.chat.completions.create(messages=turns, **options).usage)
        case "stream":
            seen.streams += 1
            chunks = client.completions.create(
                prompt=prompt, stream=True, stream_options={"include_usage": True}, **options
            )
            seen.take([chunk.usage for chunk in chunks][-1])
        case "abort":
            seen.streams += 1
            seen.aborted += 1
            options |= {"max_tokens": 5_000, "extra_body": {"ignore_eos": True}}
            with client.completions.create(prompt=prompt, stream=True, **options) as stream:
                next(iter(stream))
        case "error":
            with pytest.raises(openai.APIStatusError) as caught:
                client.completions.create(prompt=prompt, extra_body={SECRET: 1}, **options)
            seen.errors[str(caught.value.code)] += 1
        case "late error":
            options["max_tokens"] = 100_000
            with pytest.raises(openai.APIStatusError) as caught:
                client.completions.create(prompt=prompt, **options)
            seen.errors[str(caught.value.code)] += 1


def test_counters_equal_what_a_client_counts(counted: Server) -> None:
    before, refused_before = values(counted), refused(counted)
    with openai.OpenAI(base_url=counted.url + "/v1", api_key="none", max_retries=0) as client:

        def work(first: int) -> Seen:
            seen = Seen()
            for number in range(first, REQUESTS, 8):
                ask(client, number, seen)
            return seen

        with ThreadPoolExecutor(8) as threads:
            parts = list(threads.map(work, range(8)))
    until(counted.idle, "an aborted request runs on")
    after = values(counted)

    def grown(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    def total(name: str) -> int:
        return sum(getattr(part, name) for part in parts)

    assert min(total("aborted"), total("streams"), total("whole")) > 2
    assert {
        "requests": grown("sglang:num_requests_total"),
        "aborted": grown("sglang:num_aborted_requests_total"),
        "whole": grown("sglang:e2e_request_latency_seconds_count"),
        "streams": grown("sglang:time_to_first_token_seconds_count"),
        "prompt": grown("sglang:prompt_tokens_total"),
        "cached": grown("sglang:cached_tokens_total"),
        "completion": grown("sglang:generation_tokens_total"),
    } == {
        name: total(name)
        for name in ("requests", "aborted", "whole", "streams", "prompt", "cached", "completion")
    }
    errors: Counter[str] = sum((part.errors for part in parts), Counter())
    assert refused(counted) - refused_before == errors
    assert errors.keys() == {"unknown_field", "context_length_exceeded"}
    assert grown("sglang:inter_token_latency_seconds_count") > 0
    assert grown("sglang:queue_time_seconds_count") > total("whole")
    assert grown("sglc_step_duration_seconds_count") == grown("sglc_steps_total") > 0
    assert (after["sglang:num_running_reqs"], after["sglang:num_queue_reqs"]) == (0, 0)
    assert after["sglang:num_used_tokens"] == 0
    assert after["sglc_runtime_up"] == 1
    assert after["sglc_kv_pages"] * counted.info()["page_size"] == after["sglang:max_total_num_tokens"]


def test_a_constraint_is_compiled_once(counted: Server) -> None:
    name = "sglang:grammar_compilation_time_seconds_count"
    before = values(counted)[name]
    body = {"prompt": "Yes or no?", "max_tokens": 20, "regex": f"(yes|no|{uuid.uuid4().hex})"}
    for _ in range(2):
        assert counted.ask("POST", "/v1/completions", body)[0] == 200
    assert values(counted)[name] == before + 1


def test_nothing_that_a_client_chooses_is_told(counted: Server) -> None:
    with httpx2.Client(base_url=counted.url) as client:
        client.post(f"/{SECRET}", json={})
        client.request(SECRET, "/v1/completions")
        client.post("/v1/completions", json={"prompt": SECRET, "model": SECRET, "user": SECRET, SECRET: 1})
        client.get("/metrics", params={SECRET: SECRET}, headers={SECRET: SECRET, "x-request-id": SECRET})
    page = counted.ask("GET", "/metrics")[1]
    assert SECRET.lower() not in page.lower()
    endpoints = {
        sample.labels["endpoint"]
        for family in families(counted)
        for sample in family.samples
        if "endpoint" in sample.labels
    }
    assert {"/v1/completions", "/metrics", "other"} <= endpoints


# -- first texts, of a back end without a model -----------------------------------------------------


TURN = {"role": "user", "content": "fast"}


@pytest.mark.parametrize(
    ("path", "body", "counted"),
    [
        ("/v1/completions", {"prompt": "fast", "stream": True}, 1),
        ("/v1/completions", {"prompt": "fast", "stream": True, "max_tokens": 0}, 0),
        ("/v1/completions", {"prompt": "nothing answers", "stream": True}, 0),
        ("/api/chat", {"model": "m", "messages": [TURN], "stream": False}, 0),
        ("/api/chat", {"model": "m", "messages": [TURN]}, 1),
        ("program", {"stream": True}, 1),
        ("program", {"stream": False}, 0),
    ],
)
def test_the_time_to_a_first_text_is_of_streams_with_one(path: str, body: dict[str, Any], counted: int) -> None:
    backend = ScriptedBackend(lambda asked: "one two" if "fast" in asked.prompt else None)
    tokenizer: Any = backend.target.tokenizer
    service = Service(backend, tokenizer, "m", 1_000)
    app = guarded(make_direct(service), Access(), service.limits, service.drain, service.queue, service.metrics)
    if path == "program":
        path, body = "/v1/programs", {"plan": plan_to_json(fast.compile(backend).plan), "rows": [{}], **body}

    async def posted() -> None:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://served") as client:
            await client.post(path, json=body)
            await client.get("/v1/models/m")

    asyncio.run(posted())
    assert service.metrics.generations == 1
    assert sum(service.metrics.first.told()["counts"]) == counted
    assert ("/v1/models/{name}", "GET") in service.metrics.asked


@sgl.function
def fast(s: Any) -> None:
    s += "fast" + sgl.gen("a")


# -- names -----------------------------------------------------------------------------------------

# Of SGLang's server: the only names with a colon.
SGLANGS = {
    "sglang:cached_tokens", "sglang:e2e_request_latency_seconds", "sglang:generation_tokens",
    "sglang:grammar_compilation_time_seconds", "sglang:http_requests", "sglang:http_requests_active",
    "sglang:http_responses", "sglang:inter_token_latency_seconds", "sglang:max_total_num_tokens",
    "sglang:num_aborted_requests", "sglang:num_queue_reqs", "sglang:num_requests",
    "sglang:num_retracted_requests", "sglang:num_running_reqs", "sglang:num_used_tokens",
    "sglang:prompt_tokens", "sglang:queue_time_seconds", "sglang:time_to_first_token_seconds",
    "sglang:token_usage",
}  # fmt: skip
_ENDS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
_UNITS = (
    "ns|us|ms|s|sec|min|m|h|d|b|kb|mb|gb|tb|kib|mib|gib"
    "|milliseconds?|microseconds?|nanoseconds?|minutes?|hours?|days?|kilobytes?|megabytes?|gigabytes?|percents?"
)


def lint(found: Sequence[Metric]) -> list[str]:
    """What `promtool check metrics` would say of these, by its rules."""
    said = []
    for family in found:
        name, kind = family.name, family.type
        names = {sample.name for sample in family.samples} or {name}
        labels = {label for sample in family.samples for label in sample.labels}
        series = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        rules = {
            "no help text": not family.documentation,
            "an unknown type": kind not in ("counter", "gauge", "histogram"),
            "no snake_case": not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name.removeprefix("sglang:")),
            "a colon": ":" in name and name not in SGLANGS,
            "a unit that is short, or none of the base": bool(re.search(rf"_({_UNITS})(_|$)", name)),
            "its type in its name": bool(re.search(r"_(counter|gauge|histogram|summary)(_|$)", name)),
            "a counter without `_total`": kind == "counter" and any(not n.endswith("_total") for n in names),
            "`_total`, and no counter": kind != "counter" and any(n.endswith("_total") for n in names),
            "a name of a histogram's parts": kind != "histogram"
            and any(n.endswith(("_bucket", "_count", "_sum")) for n in names),
            "a label of a histogram": kind != "histogram" and bool(labels & {"le", "quantile"}),
            "a label that is no snake_case": any(not re.fullmatch(r"[a-z][a-z_]*", label) for label in labels),
            "one series twice": len(series) != len(set(series)),
        }
        said += [f"{name}: {rule}" for rule, broken in rules.items() if broken]
    return said


def test_names_are_well_made(counted: Server) -> None:
    assert counted.ask("POST", "/generate", {})[0] == 400  # what was never counted has no sample to look at
    found = families(counted)
    assert lint(found) == []
    assert len(found) > 25
    assert {family.name for family in found if ":" in family.name} == SGLANGS


def test_the_page_has_every_name(counted: Server) -> None:
    page = (ROOT / "docs" / "serving.md").read_text()
    names = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in families(counted)
        if not family.name.startswith("process_")
    }
    assert {name for name in names if f"`{name}" not in page} == set()


PLANTED = {
    "no help text": "# HELP a \n# TYPE a gauge\na 1\n",
    "an unknown type": "a 1\n",
    "no snake_case": "# HELP aB h\n# TYPE aB gauge\naB 1\n",
    "a colon": "# HELP a:b h\n# TYPE a:b gauge\na:b 1\n",
    "a unit that is short": "# HELP a_ms h\n# TYPE a_ms gauge\na_ms 1\n",
    "its type in its name": "# HELP a_gauge h\n# TYPE a_gauge gauge\na_gauge 1\n",
    "`_total`, and no counter": "# HELP a_total h\n# TYPE a_total gauge\na_total 1\n",
    "a name of a histogram's parts": "# HELP a_count h\n# TYPE a_count gauge\na_count 1\n",
    "a label of a histogram": '# HELP a h\n# TYPE a gauge\na{le="1"} 1\n',
    "one series twice": "# HELP a h\n# TYPE a gauge\na 1\na 2\n",
}


@pytest.mark.parametrize("rule", PLANTED)
def test_each_rule_finds_what_breaks_it(rule: str) -> None:
    said = lint(list(text_string_to_metric_families(PLANTED[rule])))
    assert [line for line in said if rule in line], said


OPEN = "application/openmetrics-text;version=1.0.0"
ACCEPTED = {
    "nothing": "",
    "Prometheus 2": f"{OPEN},application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5",
    "Prometheus 3": f"{OPEN};escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4",
    "dots": f"{OPEN};escaping=dots",
    "plain, of version 1": "text/plain;version=1.0.0",
    "no number": "text/plain;version=x",
    "open, and no number": "application/openmetrics-text;version=x",
    "a version to come": "application/openmetrics-text; version=9.0.0, text/plain;q=0.3",
}


@pytest.mark.parametrize("asked", ACCEPTED)
def test_both_forms_are_spoken_with_the_same_names(counted: Server, asked: str) -> None:
    with httpx2.Client(base_url=counted.url) as client:
        page = client.get("/metrics", headers={"accept": ACCEPTED[asked]})
    opens = OPEN in ACCEPTED[asked]
    kind = "application/openmetrics-text; version=1.0.0" if opens else "text/plain; version="
    assert page.headers["content-type"].startswith(kind)
    assert page.text.endswith("# EOF\n") == opens
    read = open_metrics_families if opens else text_string_to_metric_families
    names = {family.name: family.type for family in read(page.text)}
    assert names.keys() >= SGLANGS
    assert "unknown" not in names.values(), "a sample of no `# TYPE`"


# -- the dashboard ---------------------------------------------------------------------------------

DASHBOARD = ROOT / "deploy" / "grafana" / "sglc-serve.json"
_METRIC = re.compile(r"\b(?:sglang:|sglc_|process_)[a-z0-9_]+")


def queries() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return targets + [variable["definition"] for variable in board["templating"]["list"][1:]]


def test_every_query_of_the_dashboard_names_metrics_that_there_are(counted: Server) -> None:
    known = {
        family.name + end: {label for sample in family.samples for label in sample.labels}
        for family in families(counted)
        for end in _ENDS.get(family.type, ("",))
    }
    used = set()
    for query in queries():
        names = _METRIC.findall(query)
        assert names, query
        assert set(names) <= known.keys(), query
        used |= set(names)
        for label in re.findall(r"by \((\w+)\)", query):
            assert label == "le" or all(label in known[name] or not known[name] for name in names), query
    assert used >= {
        name for name in known if name.startswith("sglang:") and name.endswith(("_bucket", "_reqs"))
    }


# -- who may look ----------------------------------------------------------------------------------


def test_where_there_are_admin_keys_it_takes_one(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"text": "word"}]')
    keys = ("--api-key", "user-key", "--admin-key", "admin-key")
    with serving("--model", f"scripted:{script}", *keys) as server:
        assert server.ask("GET", "/metrics", authorization="Bearer user-key")[0] == 403
        # A back end that knows of no rows and pages has the server's own figures.
        names = {family.name for family in families(server, authorization="Bearer admin-key")}
    assert "sglang:prompt_tokens" in names
    assert "sglang:num_running_reqs" not in names
