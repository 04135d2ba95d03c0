"""The default model at quick depth: its tokenizer and template with two layers of random weights.

Under the name `smollm2` this process and those that it starts find the small model, whose steps cost nothing.
It is in a cache of its own. What it says means nothing: a test of what the real model says is marked `model`.
At every depth but nightly it is the model of tests that ask for the fixture `small_model`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sglc import knobs
from sglc.errors import SglcError
from sglc.runtime.model.config import load_config, tensor_shapes
from sglc.runtime.model.registry import prepare
from tests.depth import DEPTH

_PLACE = ("tests", "small-2")  # in the real cache; counted up when the model changes
_SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


def use_small_default() -> None:
    """From here on `smollm2` is the small model, in processes that are started as well.

    It is made before any test: one that only names `smollm2` would fetch the real one into this cache for good.
    """
    os.environ["SGLC_CACHE"] = str(_cache().joinpath(*_PLACE))
    with suppress(SglcError):  # where the real one cannot be had, tests without a model run on
        small_default()


def _cache() -> Path:
    """The real one; a worker's was set by the process that started it."""
    cache = knobs.cache_dir()
    return cache.parents[len(_PLACE) - 1] if cache.parts[-len(_PLACE) :] == _PLACE else cache


def small_default() -> Path:
    """The small model's folder, made once for this machine."""
    cache = _cache()
    folder = cache.joinpath(*_PLACE, "models", "smollm2")
    if folder.exists():
        return folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLC_CACHE", str(cache))
        real = prepare("smollm2")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent))
    _shrink(real, staging)
    try:
        staging.rename(folder)
    except OSError:  # another worker was faster
        shutil.rmtree(staging)
    return folder


def says(text: str, words: str) -> bool:
    """Whether the default model's `text` has these words. Nothing can be expected of the small one's."""
    return DEPTH == "quick" or words in text


def _shrink(real: Path, folder: Path) -> None:
    for path in real.glob("*.json"):
        shutil.copyfile(path, folder / path.name)
    config = json.loads((real / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | _SHAPE), encoding="utf-8")
    random = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    for name, shape in tensor_shapes(load_config(folder)).items():
        if name.endswith("norm.weight"):
            weights[name] = np.ones(shape, np.float32)
            continue
        # What the layers add outweighs the embedding of the last token, else it would be said again for ever.
        scale = 0.35 if name == "model.embed_tokens.weight" else 2.0 / np.sqrt(shape[-1])
        weights[name] = (scale * random.standard_normal(shape)).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
