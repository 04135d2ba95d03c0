"""What `config.json` says about a model of the Llama family, as frozen data. Imports no torch.

Invariants: a config that is accepted is computed exactly; whatever the runtime does not compute
(another architecture, activation, rope variant, a bias) is refused here, by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sglc.errors import BackendError
from sglc.runtime.model_files import Json, eos_ids, read_json

# model_type -> architecture name
SUPPORTED = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# Rope kind -> fields that it has no default for.
_WANTED = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ()}
_WINDOW = 4096  # of attention, where a config that asks for one has no `sliding_window`
_ELSEWHERE = "choose another model, or serve this one elsewhere and use its URL as the back end"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Stretched rotary positions: `kind` is `linear`, `llama3` or `yarn`; a kind reads only its fields."""

    kind: str
    factor: float
    original_max_len: int  # llama3, yarn: positions that the model was first trained on
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn: scales cos and sin; None: 0.1 ln(factor) + 1
    truncate: bool = True  # yarn: the ramp's bounds are rounded to whole dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of the Llama family. Weights carry Hugging Face's names and shapes (`tensor_shapes`).

    `heads * head_dim` need not be `hidden`. `qkv_bias`: q, k and v have a bias (Qwen2). `qk_norm`:
    RMS norm over head_dim on q and k before rope (Qwen3). `tied`: the head is the embedding.
    `max_len`: longest sequence, in tokens, that the runtime computes exactly.
    """

    architecture: str
    vocab_size: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    rms_eps: float
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    max_len: int
    eos_ids: tuple[int, ...]


def load_config(folder: Path) -> ModelConfig:
    """The config of a model folder.

    Raises:
        BackendError: no `config.json` (SGLC510); a model that the runtime cannot compute, or a
            field that is missing (SGLC517).
    """
    if not (folder / "config.json").is_file():
        raise BackendError(
            "SGLC510",
            f"`{folder}` holds no `config.json`",
            note="a model folder has config.json, model.safetensors and tokenizer.json",
            hint="give the folder that the model was saved to",
        )
    raw = read_json(folder / "config.json")
    model_type = _model_type(raw)
    _refuse_variants(raw, model_type)
    heads, hidden = _integer(raw, "num_attention_heads"), _integer(raw, "hidden_size")
    kv_heads = _integer(raw, "num_key_value_heads", heads)
    head_dim = _integer(raw, "head_dim", 128 if model_type == "qwen3" else max(hidden // heads, 1))
    if problem := heads_problem(heads, kv_heads, head_dim):
        note = "each key-value head belongs to as many heads, and rope turns pairs of a head's features"
        raise cannot_run(f"a model with {problem}", note, "fetch the model again")
    positions = _integer(raw, "max_position_embeddings")
    rope, max_len = _rope(raw), positions
    windowed = model_type == "mistral" or raw.get("use_sliding_window")
    if windowed and raw.get("sliding_window", _WINDOW) is not None:
        # Within the window, attention is full attention.
        max_len = min(positions, _integer(raw, "sliding_window", _WINDOW))
    return ModelConfig(
        architecture=SUPPORTED[model_type],
        vocab_size=_integer(raw, "vocab_size"),
        hidden=hidden,
        intermediate=_integer(raw, "intermediate_size"),
        layers=_integer(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=_positive(rope, "rope_theta", 10000.0),
        rope_scaling=_rope_scaling(rope, positions),
        rms_eps=_number(raw, "rms_norm_eps", 1e-6),
        tied=raw.get("tie_word_embeddings") is True,
        qkv_bias=model_type == "qwen2",
        qk_norm=model_type == "qwen3",
        max_len=max_len,
        eos_ids=eos_ids(folder),
    )


def cannot_run(what: str, note: str, hint: str = _ELSEWHERE) -> BackendError:
    """SGLC517: what the local runtime is not made for."""
    return BackendError("SGLC517", f"the local runtime cannot run {what}", note=note, hint=hint)


def quantized(note: str) -> BackendError:
    """SGLC517: weights in codes, which are read from GGUF files alone."""
    return cannot_run("quantized safetensors", note, "use the unquantized model, or a GGUF file of it")


def heads_problem(heads: int, kv_heads: int, head_dim: int) -> str:
    """Why attention has no meaning with these, or nothing."""
    if heads % kv_heads:
        return f"{heads} heads, which are no multiple of its {kv_heads} key-value heads"
    return f"heads of {head_dim} features, an odd number" if head_dim % 2 else ""


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight, in the order of the computation; a linear is [out, in]."""
    hidden, middle = config.hidden, config.intermediate
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.layers):
        attention = f"model.layers.{layer}.self_attn"
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (hidden,)
        for name, size in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{attention}.{name}_proj.weight"] = (size, hidden)
            if config.qkv_bias:
                shapes[f"{attention}.{name}_proj.bias"] = (size,)
        if config.qk_norm:
            shapes[f"{attention}.q_norm.weight"] = (config.head_dim,)
            shapes[f"{attention}.k_norm.weight"] = (config.head_dim,)
        shapes[f"{attention}.o_proj.weight"] = (hidden, q)
        shapes[f"model.layers.{layer}.post_attention_layernorm.weight"] = (hidden,)
        shapes[f"model.layers.{layer}.mlp.gate_proj.weight"] = (middle, hidden)
        shapes[f"model.layers.{layer}.mlp.up_proj.weight"] = (middle, hidden)
        shapes[f"model.layers.{layer}.mlp.down_proj.weight"] = (hidden, middle)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _model_type(raw: Json) -> str:
    architectures = raw.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else None
    for model_type, architecture in SUPPORTED.items():
        if name == architecture or (name is None and raw.get("model_type") == model_type):
            if raw.get("model_type", model_type) == model_type:
                return model_type
            raise BackendError(
                "SGLC517",
                f"`config.json` names a `{name}` and the `model_type` `{raw['model_type']}`",
                note=f"a `{name}` is of type `{model_type}`, and transformers goes by the type",
                hint="set `architectures` or `model_type` to what the model is",
            )
    raise cannot_run(
        f"a `{name or raw.get('model_type')}`",
        f"it runs {', '.join(f'`{architecture}`' for architecture in SUPPORTED.values())}",
        "choose one of these, or serve the model elsewhere and use its URL as the back end",
    )


def _refuse_variants(raw: Json, model_type: str) -> None:
    wanted: dict[str, object] = {"hidden_act": "silu", "mlp_bias": False, "partial_rotary_factor": 1.0}
    if model_type != "qwen2":  # the bias of a Qwen2 is on q, k and v, and always there
        wanted["attention_bias"] = False
    for key, value in wanted.items():
        if raw.get(key, value) not in (value, None):
            note = f"`config.json` asks for it; supported is `{value}`"
            raise cannot_run(f"a model with `{key}` `{raw[key]}`", note)
    if raw.get("quantization_config"):
        raise quantized("`config.json` has a `quantization_config`")


def _rope(raw: Json) -> Json:
    """Rope fields in one mapping: those of `rope_scaling`, or else of `rope_parameters`, as in transformers.

    Older files have some of them beside it.
    """
    scaling, parameters = (_mapping(raw.get(key)) for key in ("rope_scaling", "rope_parameters"))
    rope: Json = {"rope_theta": raw.get("rope_theta", 10000.0)} | dict(scaling or parameters)
    if parameters.get("rope_theta", rope["rope_theta"]) != rope["rope_theta"]:
        raise BackendError(
            "SGLC517",
            f"`config.json` has another `rope_theta` in `rope_parameters` than `{rope['rope_theta']}`",
            note="`rope_parameters` is not read where there is a `rope_scaling`",
            hint="put all of these fields into `rope_parameters`, and leave `rope_scaling` out",
        )
    if "original_max_position_embeddings" in raw:
        rope["original_max_position_embeddings"] = raw["original_max_position_embeddings"]
    for key, value in rope.items():
        if isinstance(value, Mapping) or (key == "partial_rotary_factor" and value not in (None, 1.0)):
            note = "it computes one rope for all layers, on whole heads"
            raise cannot_run(f"a model with rope's `{key}` `{value}`", note)
    return rope


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _rope_scaling(rope: Json, positions: int) -> RopeScaling | None:
    match rope.get("rope_type", rope.get("type", "default")):
        case "default":
            return None
        case ("linear" | "llama3" | "yarn") as kind:
            for key in _WANTED[kind]:
                if rope.get(key) is None:
                    raise _malformed(key, "number", None)
            original = _integer(rope, "original_max_position_embeddings", positions)
            factor = _positive(rope, "factor", positions / original)
            return RopeScaling(
                kind=kind,
                factor=factor,
                original_max_len=original,
                low_freq_factor=_number(rope, "low_freq_factor", 1.0),
                high_freq_factor=_number(rope, "high_freq_factor", 4.0),
                beta_fast=_number(rope, "beta_fast", 32.0) or 32.0,  # to transformers, 0 is none
                beta_slow=_number(rope, "beta_slow", 1.0) or 1.0,
                attention_factor=_attention_factor(rope, factor),
                truncate=rope.get("truncate") is not False,
            )
        case other:
            raise BackendError(
                "SGLC517",
                f"the local runtime does not know rope scaling of type `{other}`",
                note="it knows `default`, `linear`, `llama3` and `yarn`",
                hint=_ELSEWHERE,
            )


def _attention_factor(rope: Json, factor: float) -> float | None:
    """Yarn's factor on cos and sin where the config fixes it, itself or by two `mscale`s."""
    if rope.get("attention_factor") is not None:
        return _number(rope, "attention_factor", 1.0)
    match rope:
        case {"mscale": int(scale) | float(scale), "mscale_all_dim": int(all_dim) | float(all_dim)} if (
            scale and all_dim and factor > 1
        ):
            return (0.1 * scale * math.log(factor) + 1) / (0.1 * all_dim * math.log(factor) + 1)
        case _:
            return None


def _integer(raw: Json, key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _malformed(key, "whole number from 1", value)
    return value


def _positive(raw: Json, key: str, default: float) -> float:
    value = _number(raw, key, default)
    if value <= 0:
        raise _malformed(key, "number above 0", value)
    return value


def _number(raw: Json, key: str, default: float) -> float:
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise _malformed(key, "number", value)
    return float(value)


def _malformed(key: str, kind: str, value: object) -> BackendError:
    return BackendError(
        "SGLC517",
        f"`config.json` has no {kind} under `{key}`",
        note=f"it says `{value}`",
        hint="fetch the model again",
    )
