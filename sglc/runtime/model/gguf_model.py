"""A GGUF file rewritten as a model folder: config, tokenizer, float32 safetensors and packed codes. No torch.

Invariants: the folder is a function of the file alone; what the metadata leaves open, or the
runtime could not compute exactly, is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from sglc.errors import BackendError
from sglc.runtime.model.config import heads_problem, load_config, tensor_shapes
from sglc.runtime.model.packed_weights import PackedMatrix, joined, pack_gguf, write_packed
from sglc.runtime.model_files import Json, damaged_hint
from sglc.runtime.tokenizer.gguf_tokenizer import (
    BYTE_LEVEL,
    TokenizerSpec,
    tokenizer_definition,
    tokenizer_settings,
    unsupported,
)

Array = NDArray[np.float32]
_T = TypeVar("_T")

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_NAMED_TOKENS = ("bos", "eos", "eot", "eom", "unknown", "padding")
_SHARD_BYTES = 2 << 30  # of float32; more is never in memory at a time
_ROPE_FACTORS = "rope_freqs.weight"
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WITH_BIAS = {("qwen2", "attn_q"), ("qwen2", "attn_k"), ("qwen2", "attn_v")}


def convert(path: Path, folder: Path) -> None:
    """Write config.json, generation_config.json, tokenizer files and weights of `path` into `folder`.

    Args:
        path: a GGUF file of a Llama, Mistral, Qwen2 or Qwen3 model, of any quantization.
        folder: an existing empty folder. About 5 bytes a weight are written.

    Raises:
        BackendError: not a GGUF file, or one that is not supported (SGLC516).
    """
    source = _open(path)
    parts = source.maybe_integer("split.count") or 1
    if parts > 1:
        note = f"`{path.name}` is one of {parts} parts; `llama-gguf-split --merge` makes one file of them"
        raise unsupported("a GGUF file in parts", note)
    architecture = source.text("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise unsupported(
            f"a GGUF model of architecture `{architecture}`",
            f"supported: {', '.join(f'`{name}`' for name in _ARCHITECTURES)}",
        )
    spec = _tokenizer_spec(source)
    names = _names(source, architecture)
    config = _config(source, architecture, spec)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": list(spec.eos_ids)})
    _check_shapes(source, names, tensor_shapes(load_config(folder)))
    _write_json(folder / "tokenizer_config.json", tokenizer_settings(spec))
    _write_json(folder / "tokenizer.json", tokenizer_definition(spec))
    _write_weights(source, architecture, names, folder)
    write_packed(folder, _packed(source, architecture))


@dataclass(frozen=True, slots=True)
class _Source:
    """An open GGUF file: its metadata by type, and its tensors by name."""

    path: Path
    fields: Mapping[str, gguf.ReaderField]
    tensors: Mapping[str, gguf.ReaderTensor]

    def get(self, key: str) -> object:
        return self.fields[key].contents() if key in self.fields else None

    def text(self, key: str) -> str:
        value = self.maybe(str, key)
        if value is None:
            raise self.incomplete(key)
        return value

    def maybe(self, kind: type[_T], key: str) -> _T | None:
        value = self.get(key)
        if value is not None and not isinstance(value, kind):
            raise self.incomplete(key)
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.maybe_integer(key)
        value = default if value is None else value
        if value is None or value < 1:
            raise self.incomplete(key)
        return value

    def maybe_integer(self, key: str) -> int | None:
        """Given once for every layer, it is one if they are all the same."""
        value = self.get(key)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self.incomplete(key)
        return value

    def number(self, key: str, default: float) -> float:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.incomplete(key)
        # Numbers are float32: 1e-05 would come back as 9.99999975e-06, so its shortest form is taken.
        return float(str(np.float32(value)))

    def texts(self, key: str) -> list[str]:
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.incomplete(key)
        return value

    def incomplete(self, key: str) -> BackendError:
        return unsupported(
            f"`{self.path.name}`, whose metadata is incomplete,", f"`{key}` is missing or malformed"
        )


def _open(path: Path) -> _Source:
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        raise BackendError(
            "SGLC516", f"`{path}` cannot be read as GGUF", note=str(error), hint=damaged_hint(path, "file")
        ) from None
    return _Source(path, reader.fields, {tensor.name: tensor for tensor in reader.tensors})


def _tokenizer_spec(source: _Source) -> TokenizerSpec:
    prefix = "tokenizer.ggml."
    tokens, types = source.texts(f"{prefix}tokens"), source.get(f"{prefix}token_type")
    if not isinstance(types, list) or len(types) != len(tokens) or not all(isinstance(t, int) for t in types):
        raise source.incomplete(f"{prefix}token_type")
    ids = {name: source.maybe_integer(f"{prefix}{name}_token_id") for name in _NAMED_TOKENS}
    for name, id_ in ids.items():
        if id_ is not None and not 0 <= id_ < len(tokens):
            note = f"`{prefix}{name}_token_id` is {id_}, and there are {len(tokens)} tokens"
            raise unsupported(f"`{source.path.name}`, which names a token that it does not have,", note)
    ends = [ids[name] for name in ("eos", "eot", "eom")]
    if ends == [None] * len(ends):  # by which a text would never end
        raise source.incomplete(f"{prefix}eos_token_id")
    pre = source.maybe(str, f"{prefix}pre") or "default"
    # Files made before the key existed leave it out; of these families only Llama 3 adds bos.
    add_bos = source.maybe(bool, f"{prefix}add_bos_token")
    add_bos = pre == "llama-bpe" if add_bos is None else add_bos
    if add_bos and ids["bos"] is None:
        raise source.incomplete(f"{prefix}bos_token_id")
    model = source.text(f"{prefix}model")
    return TokenizerSpec(
        model=model,
        pre=pre,
        tokens=tokens,
        types=types,
        merges=_merges(source, tokens) if model == BYTE_LEVEL else [],
        add_bos=add_bos,
        bos_id=ids["bos"],
        eos_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        unk_id=ids["unknown"],
        pad_id=ids["padding"],
        template=source.maybe(str, "tokenizer.chat_template"),
    )


def _merges(source: _Source, tokens: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of tokens that become one, in their order."""
    key, known = "tokenizer.ggml.merges", frozenset(tokens)
    merges = []
    for merge in source.texts(key):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= known:
            raise unsupported(f"`{source.path.name}`, whose tokenizer is malformed,", f"`{key}` has `{merge}`")
        merges.append((left, right))
    return merges


def _config(source: _Source, architecture: str, spec: TokenizerSpec) -> Json:
    key = f"{architecture}."
    heads, hidden = source.integer(f"{key}attention.head_count"), source.integer(f"{key}embedding_length")
    head_dim = source.integer(f"{key}attention.key_length", hidden // heads)
    kv_heads = source.integer(f"{key}attention.head_count_kv", heads)
    if problem := heads_problem(heads, kv_heads, head_dim):
        raise unsupported(f"a GGUF model with {problem},", f"`{key}attention` says so")
    if source.maybe(bool, f"{key}attention.causal") is False:
        raise unsupported("a GGUF model whose attention is not causal", "what is generated sees what is before")
    if source.maybe_integer(f"{key}rope.dimension_count") not in (None, head_dim):
        raise unsupported("a GGUF model with rope on a part of each head", f"head size is {head_dim}")
    if source.maybe_integer(f"{key}expert_count"):
        raise unsupported("a GGUF mixture of experts", "supported are dense models")
    theta = source.number(f"{key}rope.freq_base", 10000.0)
    if theta <= 0:
        raise source.incomplete(f"{key}rope.freq_base")
    return {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": len(spec.tokens),
        "hidden_size": hidden,
        "intermediate_size": source.integer(f"{key}feed_forward_length"),
        "num_hidden_layers": source.integer(f"{key}block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": source.integer(f"{key}context_length"),
        "rms_norm_eps": source.number(f"{key}attention.layer_norm_rms_epsilon", 1e-6),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(source, key, theta, head_dim),
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "attention_bias": False,
        "bos_token_id": spec.bos_id,
        "eos_token_id": spec.eos_ids[0] if spec.eos_ids else None,
        "dtype": "float32",
    }


def _rope_scaling(source: _Source, key: str, theta: float, head_dim: int) -> Json | None:
    """As llama.cpp reads it: a factor without a type is linear."""
    scaling = f"{key}rope.scaling."
    kind = source.maybe(str, f"{scaling}type") or "linear"
    factor = source.number(f"{scaling}factor", source.number(f"{key}rope.scale_linear", 0.0)) or 1.0
    if factor < 0:
        raise source.incomplete(f"{scaling}factor")
    # What is computed with one value only.
    kept = {"yarn_ext_factor": float(kind == "yarn"), "yarn_attn_factor": 1.0, "yarn_log_multiplier": 0.0}
    if kind != "yarn":
        kept["attn_factor"] = 1.0
    if _ROPE_FACTORS in source.tensors:
        kept["factor"] = 1.0
    for name, value in kept.items():
        found = source.number(f"{scaling}{name}", value)
        if found != value:
            raise unsupported(f"a GGUF model with `{scaling}{name}` {found}", f"supported is {value}")
    if _ROPE_FACTORS in source.tensors:
        return _llama3_scaling(_dequantized(source.tensors[_ROPE_FACTORS]), theta, head_dim)
    match kind:
        case "none":
            return None
        case "linear":
            return None if factor == 1 else {"rope_type": "linear", "factor": factor}
        case "yarn":
            yarn: Json = {"rope_type": "yarn", "factor": factor}
            original = source.maybe_integer(f"{scaling}original_context_length")
            if original is not None:
                yarn["original_max_position_embeddings"] = original
            for side in ("fast", "slow"):
                if f"{scaling}yarn_beta_{side}" in source.fields:
                    yarn[f"beta_{side}"] = source.number(f"{scaling}yarn_beta_{side}", 0.0)
            magnitude = source.number(f"{scaling}attn_factor", 1.0)
            if magnitude != 1:
                yarn["attention_factor"] = magnitude * (0.1 * math.log(max(factor, 1.0)) + 1.0)
            return yarn
        case _:
            raise unsupported(f"GGUF rope scaling of type `{kind}`", "supported: `linear`, `yarn`, Llama 3's")


def _llama3_scaling(factors: Array, theta: float, head_dim: int) -> Json:
    """The parameters behind Llama 3's rope factors, float32 [head_dim / 2], of which a file has only these."""
    low, high, original = 1.0, 4.0, 8192  # every Llama 3 has these; the check below tells if not
    factor = round(float(factors.max()), 3)
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    wanted = 1 / ((1 - smooth) / factor + smooth)
    if factors.shape != wanted.shape or not np.allclose(factors, wanted, rtol=1e-3):
        raise unsupported("a GGUF model with its own rope factors", "they are not those of a Llama 3")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _write_weights(source: _Source, architecture: str, names: Mapping[str, str], folder: Path) -> None:
    """`model.safetensors`, or shards with an index above `_SHARD_BYTES`."""
    heads = source.integer(f"{architecture}.attention.head_count")
    kv_heads = source.integer(f"{architecture}.attention.head_count_kv", heads)
    tensors = [tensor for name, tensor in source.tensors.items() if name != _ROPE_FACTORS]
    shards = _sharded(tensors)
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        weights: dict[str, Array] = {}
        for tensor in shard:
            values = _dequantized(tensor)
            if architecture == "llama" and ".attn_q." in tensor.name:
                values = _interleaved_to_halves(values, heads)
            elif architecture == "llama" and ".attn_k." in tensor.name:
                values = _interleaved_to_halves(values, kv_heads)
            weights[names[tensor.name]] = np.ascontiguousarray(values)
        several = f"model-{number:05}-of-{len(shards):05}.safetensors"
        file = "model.safetensors" if len(shards) == 1 else several
        save_file(weights, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(weights, file)
    if len(shards) > 1:
        total = sum(tensor.n_elements for tensor in tensors) * 4
        index_file = folder / "model.safetensors.index.json"
        _write_json(index_file, {"metadata": {"total_size": int(total)}, "weight_map": index})


def _packed(source: _Source, architecture: str) -> Iterator[tuple[str, PackedMatrix]]:
    """The matrices that the CPU's kernels can take in the width that they have in the file."""
    order = {}
    if architecture == "llama":
        heads = source.integer(f"{architecture}.attention.head_count")
        of_kind = {"q": heads, "k": source.integer(f"{architecture}.attention.head_count_kv", heads)}
        for part, count in of_kind.items():
            rows = int(source.tensors[f"blk.0.attn_{part}.weight"].shape[1])
            order[part] = _interleaved_to_halves(np.arange(rows), count)

    def one(name: str, order: NDArray[np.int64] | None = None) -> PackedMatrix | None:
        return pack_gguf(source.tensors[f"{name}.weight"], order)

    found = [
        (packed, one(name))
        for name, packed in _OUTER.items()
        if name != "output_norm" and f"{name}.weight" in source.tensors
    ]
    for layer in range(source.integer(f"{architecture}.block_count")):
        name, packed = f"blk.{layer}", f"model.layers.{layer}"
        found.append(
            (f"{packed}.self_attn.qkv_proj", joined([one(f"{name}.attn_{p}", order.get(p)) for p in "qkv"]))
        )
        for part in ("attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            found.append((f"{packed}.{_INNER[part]}", one(f"{name}.{part}")))
    for where, matrix in found:
        if matrix is not None:
            yield where, matrix


def _sharded(tensors: Sequence[gguf.ReaderTensor]) -> list[list[gguf.ReaderTensor]]:
    shards: list[list[gguf.ReaderTensor]] = [[]]
    size = 0
    for tensor in tensors:
        n_bytes = int(tensor.n_elements) * 4
        if shards[-1] and size + n_bytes > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += n_bytes
    return shards


def _dequantized(tensor: gguf.ReaderTensor) -> Array:
    try:
        return gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    except NotImplementedError:
        raise unsupported(f"GGUF quantization `{tensor.tensor_type.name}`", f"`{tensor.name}` has it") from None


def _interleaved_to_halves(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Undo the row order of GGUF's Llama: in each head, rows (2 i, 2 i + 1) go to (i, i + d / 2)."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _names(source: _Source, architecture: str) -> dict[str, str]:
    """Hugging Face's names of the tensors that the model has, by GGUF's; the file has these and no others."""
    names = {f"{outer}.weight": f"{theirs}.weight" for outer, theirs in _OUTER.items()}
    for layer in range(source.integer(f"{architecture}.block_count")):
        for inner, theirs in _INNER.items():
            if inner in ("attn_q_norm", "attn_k_norm") and architecture != "qwen3":
                continue
            for kind in ("weight", "bias") if (architecture, inner) in _WITH_BIAS else ("weight",):
                names[f"blk.{layer}.{inner}.{kind}"] = f"model.layers.{layer}.{theirs}.{kind}"
    for name in source.tensors:
        if name not in names and name != _ROPE_FACTORS:
            raise unsupported(f"the GGUF tensor `{name}`", f"a `{architecture}` that can be computed has none")
    for name in names:
        if name not in source.tensors and name != "output.weight":  # without a head it is the embedding
            raise unsupported(f"a GGUF file without the tensor `{name}`", f"every `{architecture}` has it")
    return names


def _check_shapes(source: _Source, names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, tensor in source.tensors.items():
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if name != _ROPE_FACTORS and shape != shapes[names[name]]:
            raise BackendError(
                "SGLC516", f"`{source.path}` has `{name}` of shape {shape}, not {shapes[names[name]]}",
                note="the other shape follows from the file's metadata", hint="fetch the file again",
            )  # fmt: skip


def _write_json(path: Path, data: Mapping[str, object]) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
