"""Services that speak OpenAI's chat protocol with words of their own, each as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where a service is, the variable that has its key, and what its requests say in another way.

    `seed` is its name of that field. `always` stands in every request. `asks_usage`: streams have counts only
    where they are asked for.
    """

    url: str = ""
    key: str = ""
    seed: str = "seed"
    always: Mapping[str, Any] = field(default_factory=dict)
    asks_usage: bool = True


OPENAI = Dialect()
DIALECTS: Mapping[str, Dialect] = {
    # Its SDK's types: no `stream_options`, and the seed is `random_seed`.
    "mistral": Dialect("https://api.mistral.ai/v1", "MISTRAL_API_KEY", "random_seed", asks_usage=False),
    # Without this it leaves out what the model's provider does not take (its page on provider routing).
    "openrouter": Dialect(
        "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", always={"provider": {"require_parameters": True}}
    ),
}


def in_dialect(fields: Mapping[str, Any], dialect: Dialect) -> Mapping[str, Any]:
    """A request of OpenAI's as the service wants it; what the SDK has no argument for is in `extra_body`."""
    more = dict(dialect.always)
    if dialect.seed != "seed" and "seed" in fields:
        more[dialect.seed] = fields["seed"]
        fields = {name: value for name, value in fields.items() if name != "seed"}
    if not dialect.asks_usage and "stream_options" in fields:
        fields = {name: value for name, value in fields.items() if name != "stream_options"}
    return {**fields, "extra_body": {**fields.get("extra_body", {}), **more}} if more else fields
