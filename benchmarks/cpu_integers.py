"""How far the CPU's products with inputs of 16 bits move the default model: logits and KL against float32.

Over 4 x 256 tokens of real text, by format of the weights: those of the model's own file, and the same numbers
quantized again. Writes benchmarks/results/cpu-integers-<cpu>.json.
"""

from __future__ import annotations

import json
import pydoc_data.topics
import sys
from collections.abc import Iterator, Mapping

import gguf
import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import result_path, store
from sglc.bench.setting import commit, cpu_model
from sglc.runtime.executor.cpu_executor import CpuExecutor
from sglc.runtime.executor.executor_state import ExecutorState
from sglc.runtime.kernels.cpu_build import library
from sglc.runtime.model.packed_weights import PackedMatrix, pack_gguf, read_packed
from sglc.runtime.model.registry import prepare
from sglc.runtime.model.weights import load_config, load_weights
from sglc.runtime.step import Opened, Step
from sglc.runtime.tokenizer.tokenizer import load_tokenizer

CHUNK, CHUNKS = 256, 4
AGAIN = ("Q4_0", "Q4_1", "Q8_0")
INNER = ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def logits(executor: CpuExecutor, ids: list[int]) -> Tensor:
    """float64 [T, vocab] of one prompt in an empty cache."""
    row, none = np.zeros(1, np.int32), np.zeros(1, np.float32)
    places = np.arange(-(-len(ids) // 16), dtype=np.int32)
    step = Step(
        index=0, rows=row, decoding=0, sample=np.ones(1, np.bool_), lengths=np.array([len(ids)], np.int32),
        ids=np.array(ids, np.int32), pages=np.stack([0 * places, places, places], 1),
        opened=Opened(
            rows=row, seq_len=row, temperature=none, top_p=none + 1, top_k=row - 1, min_p=none,
            seeds=np.zeros(1, np.uint64), eos_from=row,
        ),
    )  # fmt: skip
    batch = ExecutorState(16).expand(step)
    model = executor._model
    hidden = model.forward(batch, torch.tensor(ids), executor._pool, 16, np.arange(len(ids)))
    return model.logits(hidden).double()


def again(weights: Mapping[str, Tensor], layers: int, name: str) -> Iterator[tuple[str, PackedMatrix]]:
    """The matrices of `weights` in the format `name`."""
    kind = gguf.GGMLQuantizationType[name]
    parts = {"model.embed_tokens": ["model.embed_tokens"]}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        parts[f"{at}.self_attn.qkv_proj"] = [f"{at}.self_attn.{part}_proj" for part in "qkv"]
        parts |= {f"{at}.{part}": [f"{at}.{part}"] for part in INNER}
    for target, sources in parts.items():
        whole = torch.cat([weights[f"{source}.weight"] for source in sources]).float().numpy()
        data = gguf.quantize(whole, kind)
        shape = np.array(whole.shape[::-1], np.uint64)
        packed = pack_gguf(gguf.ReaderTensor(target, kind, shape, whole.size, data.nbytes, 0, data, None))  # type: ignore[arg-type]
        assert packed is not None
        yield target, packed


def main() -> int:
    kernels = library()
    assert kernels is not None
    folder = prepare("smollm2")
    config = load_config(folder)
    pages = pydoc_data.topics.topics
    text = load_tokenizer(folder).encode("\n".join(pages[key] for key in sorted(pages)))
    prompts = [text[5000 * i : 5000 * i + CHUNK] for i in range(1, 1 + CHUNKS)]
    weights = load_weights(folder, config, torch.float32, "cpu")
    formats: dict[str, Mapping[str, PackedMatrix]] = {"of the file": read_packed(folder)}
    result: dict[str, object] = {
        "what": "the default model on the CPU: products with inputs of 16 bits against float32",
        "cpu": cpu_model(),
        "commit": commit(),
        "places": CHUNK * CHUNKS,
    }
    for name in ("of the file", *AGAIN):
        packed = formats.get(name) or dict(again(weights, config.layers, name))
        near, exact = (
            CpuExecutor(kernels, config, weights, packed, pages=CHUNK // 16, integers=integers)
            for integers in (True, False)
        )
        with torch.inference_mode():
            a, b = (torch.cat([logits(executor, ids) for ids in prompts]) for executor in (near, exact))
            kl = (b.softmax(-1) * (b.log_softmax(-1) - a.log_softmax(-1))).sum(-1)
            other = a.argmax(-1) != b.argmax(-1)
            best = b.topk(2).values
        result[name] = {
            "largest_logit_gap": float((a - b).abs().max()),
            "kl_mean": float(kl.mean()),
            "kl_largest": float(kl.max()),
            "other_likeliest_token": int(other.sum()),
            "largest_top_2_gap_of_those": float((best[:, 0] - best[:, 1])[other].max()) if other.any() else 0.0,
        }
        print(name, json.dumps(result[name]), flush=True)
    store(result_path("cpu-integers"), result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
