"""Makes `models.json` of a wheel of LiteLLM: `make models-table`.

The wheel is read as the archive that it is; nothing of it is run or installed.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from sglc.backends.models.table import FLAGS, TABLE

_SOURCE = "litellm/model_prices_and_context_window_backup.json"
_MODES = ("chat", "completion")
# One vendor under several names.
_PROVIDERS = {"bedrock_converse": "bedrock", "text-completion-openai": "openai", "azure_text": "azure"}
_MILLION = 1e6
_PRICES = ("input_cost_per_token", "cache_read_input_token_cost", "output_cost_per_token")


def main() -> None:
    """Write the table of the wheel that the command line names."""
    wheel = Path(sys.argv[1])
    with zipfile.ZipFile(wheel) as archive:
        models = json.loads(archive.read(_SOURCE))
    rows = dict(sorted(_rows(models).items()))
    head = {
        "source": f"LiteLLM {wheel.name.split('-')[1]}, model_prices_and_context_window (MIT)",
        "date": f"read {date.today().isoformat()}",
        "flags": FLAGS,
        "unit": "flags, most tokens of a prompt and of an answer, the least of a kept prompt; US dollars per "
        "million tokens: prompt, kept prompt (null: no price of its own), answer",
    }
    told = ",\n".join(f' "{key}": {json.dumps(value)}' for key, value in head.items())
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    text = "{\n" + told + ',\n "models": {\n' + ",\n".join(lines) + "\n }\n}\n"
    TABLE.write_text(text, encoding="utf-8")


def _rows(models: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {}
    for name, model in models.items():
        if model.get("mode") not in _MODES:
            continue
        provider = str(model["litellm_provider"])
        provider = "vertex_ai" if provider.startswith("vertex_ai") else _PROVIDERS.get(provider, provider)
        key = name if name.startswith(f"{provider}/") else f"{provider}/{name}"
        flags = "".join(letter for letter, (fact, value) in FLAGS.items() if model.get(fact) == value)
        sizes = [_whole(model.get(fact)) for fact in ("max_input_tokens", "max_output_tokens")]
        rows[key] = [flags, *sizes, _whole(model.get("prompt_cache_min_tokens")), *_prices(model)]
    return rows


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _prices(model: Mapping[str, Any]) -> list[float | None]:
    """Prices of a million tokens; of a model that has none for its prompts, none at all."""
    prompt, kept, answer = (model.get(name) for name in _PRICES)
    if not prompt or answer is None:
        return []
    return [None if price is None else round(price * _MILLION, 6) for price in (prompt, kept, answer)]


if __name__ == "__main__":
    main()
