"""Explanations as one HTML page that needs nothing else: no network, no library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any


def page(explanations: Sequence[Mapping[str, Any]]) -> str:
    """The page for explanations as plain data, with `analysis` beside `estimate` where there was a run."""
    # Whatever stands in a prompt: nothing of it can end the script that holds it.
    data = json.dumps(list(explanations), ensure_ascii=False).replace("<", "\\u003c")
    data = data.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    names = ", ".join(str(one["estimate"]["program"]) for one in explanations)
    title = names.replace("&", "&amp;").replace("<", "&lt;")
    parts = {"TITLE": title, "CSS": _file("page.css"), "JS": _file("page.js"), "DATA": data}
    pieces = _file("page.html").split("%%")  # every second one names a part
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _file(name: str) -> str:
    return files("sglc.explain.render").joinpath(name).read_text(encoding="utf-8")
