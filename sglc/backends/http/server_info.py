"""What is said of a server, and what follows for prompts: ids where its tokenizer is here, else text.

With ids a run gives what `local` gives under the same seed. As text, literals that look like the model's
control tokens would become such tokens on the server, so they are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglc.backends.remote.text_tokenizer import TextTokenizer
from sglc.errors import BackendError, SglcError
from sglc.frontend.language.chat_templates import get_chat_template, get_chat_template_by_model_path, jinja_of
from sglc.ir.plan.plan_json import PLAN_VERSION
from sglc.ir.target import Takes, Tokenizer
from sglc.runtime.model.registry import REGISTRY, path
from sglc.runtime.tokenizer.tokenizer import load_tokenizer

_PROBE = "Grüße, 1,234  tokens\n\tdef f(x): 日本語 ½ don't"  # what tokenizers differ in
_VLLM_ROWS = 64  # requests at once: it does not say how many it runs
_TAKES = Takes(cache_key=True, cache_least=16)  # a page of the cache
# Its penalties count the tokens of prompts, too; what a stop string cuts off takes log-probabilities with it.
_OF_LLAMA = replace(
    _TAKES, penalties=False, min_tokens=False, stop_tokens=False, logprobs=-1, prompt_logprobs=False,
    structural_tag=False,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerModel:
    """`exact`: prompts are ids. `stops` end every generation. `image_token` marks a picture; it may be "".

    `runs_plans`: it runs those of this version whole.

    `hints`: the dialect in which it is told what follows a request (`hint_fields`); "": it is not.

    `engine`: whose protocol it speaks besides: `vllm` or `llama.cpp`, or "" for SGLang's and ours.

    `over_grpc`: a gateway asks it by the scheduler's protocol, which has less than `/generate`.
    """

    name: str
    tokenizer: Tokenizer
    exact: bool
    own: bool  # an sglc server
    concurrency: int
    scores_tokens: bool
    stops: tuple[str, ...] = ()
    image_token: str = ""
    over_grpc: bool = False
    runs_plans: bool = False
    hints: str = ""
    engine: str = ""
    takes: Takes = _TAKES


def model_behind(workers: Sequence[Mapping[str, Any]], template_name: str | None) -> ServerModel:
    """What a gateway tells of its servers that it asks over gRPC, which have to be sglc's.

    Args:
        template_name: as of `model_of`.

    Raises:
        UsageError, BackendError: as `model_of`; SGLC547 too where prompts cannot be ids.
    """
    labels = [worker.get("labels", {}) for worker in workers if worker.get("connection_mode") == "grpc"]
    own: Mapping[str, Any] = next((each for each in labels if str(each.get("version")).startswith("sglc ")), {})
    loads = [load for each in workers for load in each.get("engine_load", {}).get("loads", ())]
    told = {
        "model_path": own.get("model_path"),
        "tokenizer_hash": str(own.get("tokenizer_path", "")).removeprefix("sha256:"),
        "concurrency": sum(load.get("max_running_requests", 0) for load in loads),
    }
    model = model_of(told, template_name)
    if not model.exact:
        raise BackendError(
            "SGLC547", f"the gateway takes token ids for `{model.name}`, whose tokenizer is not here",
            hint=f"run `sglc models pull {model.name}`, or have the gateway ask its servers over HTTP",
        )  # fmt: skip
    return replace(model, over_grpc=True)


def model_of(info: Mapping[str, Any], template_name: str | None) -> ServerModel:
    """What `GET /get_model_info` tells.

    Args:
        template_name: of a registered chat template that counts instead of the model's own.

    Raises:
        UsageError: SGLC029, no such template.
        BackendError: SGLC513, the server's template is not valid; SGLC547, it tells no model.
    """
    name = info.get("model_path")
    if not isinstance(name, str):
        hint = "is it an sglc or SGLang server?"
        raise BackendError("SGLC547", "the server does not say which model it has", hint=hint)
    own = "tokenizer_hash" in info
    template = get_chat_template(template_name) if template_name is not None else None
    concurrency, scores = int(info.get("concurrency") or 64), bool(info.get("scores_tokens", True))
    if own and scores:
        here = _tokenizer_here(name, str(info["tokenizer_hash"]))
        if here is not None:
            tokenizer = here if template is None else here.with_template(jinja_of(template))
            stops = () if template is None else template.stops
            runs_plans = info.get("plan_version") == PLAN_VERSION and not stops
            return ServerModel(name, tokenizer, True, own, concurrency, scores, stops, runs_plans=runs_plans)
    jinja = info.get("chat_template") if template is None else None
    named = {key: text for key, text in (info.get("special_tokens") or {}).items() if isinstance(text, str)}
    stops = ()
    if not isinstance(jinja, str):
        template = template or get_chat_template_by_model_path(name)
        jinja, stops = jinja_of(template), template.stops
    image_token = ""
    if info.get("has_image_understanding"):  # where a picture stands is known of templates with a name alone
        known = template or get_chat_template_by_model_path(name)
        image_token = "" if known.name == "default" else known.image_token
    control = (*(info.get("control_tokens") or ()), *stops, *([image_token] if image_token else []))
    text = TextTokenizer(jinja, named, control, f"text of {name}")
    return ServerModel(name, text, False, own, concurrency, scores, stops, image_token)


def model_of_engine(models: Any, read: Callable[[str], Any], slots: Callable[[], int]) -> ServerModel:
    """What `GET /v1/models` of a vLLM or llama.cpp server tells. Prompts are ids: its tokenizer has to be here.

    Args:
        read: gives the ids that the server makes of a text.
        slots: how many requests a llama.cpp server runs at once.

    Raises:
        BackendError: SGLC547, it is none, or the tokenizer is not here.
    """
    data = models.get("data") if isinstance(models, Mapping) else None
    known = data[0] if isinstance(data, list) and data and isinstance(data[0], Mapping) else {}
    name, owner = known.get("id"), known.get("owned_by")
    if owner not in ("vllm", "llamacpp") or not isinstance(name, str):
        raise BackendError(
            "SGLC547", "the server does not say as SGLang, vLLM or llama.cpp do which model it has",
            hint="is it one of these, or an sglc server?",
        )  # fmt: skip
    tokenizer = load_tokenizer(path(name)) if name in REGISTRY else None
    if tokenizer is None or read(_PROBE) != tokenizer.encode(_PROBE):
        raise BackendError(
            "SGLC547",
            f"the server's model `{name}` has another tokenizer than any here",
            hint="name it as `sglc models list` does (vLLM: `--served-model-name`, llama.cpp: `--alias`); "
            "`sglc models pull` has it here",
        )  # fmt: skip
    if owner == "vllm":
        return ServerModel(name, tokenizer, True, False, _VLLM_ROWS, True, engine="vllm")
    return ServerModel(name, tokenizer, True, False, slots(), True, engine="llama.cpp", takes=_OF_LLAMA)


def _tokenizer_here(name: str, wanted: str) -> Any:
    """The tokenizer of a model that is on this machine and is the server's; None without one."""
    if name not in REGISTRY:
        return None  # a path there need not be the same here
    try:
        tokenizer = load_tokenizer(path(name))
    except SglcError:
        return None
    return tokenizer if tokenizer.hash == wanted else None
