"""A model's weights as torch tensors: safetensors mapped from disk, or random ones.

Invariants: the result has exactly the names and shapes of `tensor_shapes(config)`; anything else
is an error before the first step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch

from sglc.errors import BackendError
from sglc.runtime.model.config import ModelConfig, RopeScaling, load_config, quantized, tensor_shapes
from sglc.runtime.model_files import STAMP, Json, damaged_hint, read_json

__all__ = ["ModelConfig", "RopeScaling", "dummy_weights", "load_config", "load_weights"]

_HEAD = "lm_head.weight"
_TABLE = "rotary_emb.inv_freq"  # older files have it; it follows from the config
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def load_weights(
    folder: Path, config: ModelConfig, dtype: torch.dtype | None, device: torch.device | str
) -> dict[str, torch.Tensor]:
    """Weights of a folder by Hugging Face's names, no tied head, in `dtype` (None: the file's own).

    A folder that `models.prepare("dummy:...")` made has random ones. On the CPU and in the
    file's own dtype the tensors are read-only views of the file: their memory is the page cache.

    Raises:
        BackendError: no safetensors, a tensor that is missing, has another shape or is not the model's
            (SGLC518); or one that is quantized (SGLC517).
    """
    if read_json(folder / STAMP).get("weights") == "random":
        return dummy_weights(config, dtype or torch.float32, device)
    shapes = tensor_shapes(config)
    weights: dict[str, torch.Tensor] = {}
    for path, names in _shards(folder, shapes).items():
        with _opened(path, device) as file:
            present = frozenset(file.keys())
            _refuse_others(folder, present, shapes)
            for name in names:
                if name not in present:
                    raise _wrong(folder, f"has no tensor `{name}`")
                tensor = file.get_tensor(name)
                if tuple(tensor.shape) != shapes[name]:
                    raise _wrong(folder, f"has `{name}` of shape {tuple(tensor.shape)}, not {shapes[name]}")
                if tensor.dtype not in _FLOATS:
                    kind = str(tensor.dtype).removeprefix("torch.")
                    raise quantized(f"`{path}` has `{name}` in {kind}")
                weights[name] = tensor.to(dtype)
    head = _head(folder, device) if config.tied else None
    if head is not None and not torch.equal(head.to(dtype), weights["model.embed_tokens.weight"]):
        raise BackendError(
            "SGLC518",
            f"`{folder}` has an `{_HEAD}` that is not its embedding",
            note="`config.json` says `tie_word_embeddings`; transformers does not tie such a head",
            hint="set `tie_word_embeddings` to false in `config.json`",
        )
    return weights


def dummy_weights(
    config: ModelConfig, dtype: torch.dtype, device: torch.device | str, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Random weights: normal with sigma 0.02; norms are ones. Equal for equal seed, dtype and device."""
    generator = torch.Generator(device).manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in tensor_shapes(config).items():
        tensor = torch.empty(shape, dtype=dtype, device=device)
        is_norm = name.endswith("norm.weight")
        weights[name] = tensor.fill_(1.0) if is_norm else tensor.normal_(0.0, 0.02, generator=generator)
    return weights


def _shards(folder: Path, shapes: dict[str, tuple[int, ...]]) -> dict[Path, list[str]]:
    """File -> names of the tensors wanted from it."""
    index = _index(folder)
    if index is not None:
        _refuse_others(folder, index, shapes)
        shards: dict[Path, list[str]] = {}
        for name in shapes:
            if name not in index:
                raise _wrong(folder, f"has no tensor `{name}`")
            shards.setdefault(folder / str(index[name]), []).append(name)
        for path in shards:
            if not path.is_file():
                raise _wrong(folder, f"lacks `{path.name}`")
        return shards
    single = folder / "model.safetensors"
    if not single.is_file():
        raise _wrong(folder, "holds no `model.safetensors`")
    return {single: list(shapes)}


def _index(folder: Path) -> Json | None:
    """Which shard has a tensor; None if there is one file, which transformers reads before shards, too."""
    index = read_json(folder / "model.safetensors.index.json").get("weight_map")
    return index if isinstance(index, dict) and not (folder / "model.safetensors").is_file() else None


def _head(folder: Path, device: torch.device | str) -> torch.Tensor | None:
    """The head in the files, if there is one."""
    path = folder / str((_index(folder) or {}).get(_HEAD, "model.safetensors"))
    if not path.is_file():
        return None
    with _opened(path, device) as file:
        return file.get_tensor(_HEAD) if _HEAD in frozenset(file.keys()) else None


@contextmanager
def _opened(path: Path, device: torch.device | str) -> Iterator[Any]:
    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
            yield file
    except safetensors.SafetensorError as error:
        raise BackendError(
            "SGLC518", f"`{path}` cannot be read as safetensors", note=str(error), hint=damaged_hint(path)
        ) from None


def _refuse_others(folder: Path, present: Collection[str], shapes: Collection[str]) -> None:
    """What nobody takes, such as a bias or a layer more, would be missing in what is computed."""
    for name in sorted(present):
        if name not in shapes and name != _HEAD and not name.endswith(_TABLE):
            raise BackendError(
                "SGLC518",
                f"`{folder}` has the tensor `{name}`, which is not computed",
                note="a model that is as its `config.json` says has none",
                hint="put into `config.json` what the model is, or save it without this tensor",
            )


def _wrong(folder: Path, problem: str) -> BackendError:
    return BackendError(
        "SGLC518",
        f"`{folder}` {problem}",
        note="weights are read from model.safetensors, or from the shards of its index",
        hint="fetch the model again, or save it with `save_pretrained(folder, safe_serialization=True)`",
    )
