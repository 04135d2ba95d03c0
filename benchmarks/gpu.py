"""Times the torch executor on a CUDA device with random weights in the shape of Qwen3-0.6B, bfloat16.

Plain PyTorch, no graphs, no kernels of our own: the figure that the tuned runtime has to beat. Each
workload is measured against its floor, the bytes that a step must read at the device's bandwidth.
Writes one JSON file (argument 1).
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from sglc.ir.sampling import Sampling
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.executor.torch_executor import TorchExecutor
from sglc.runtime.model.weights import dummy_weights, load_config

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True, "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-06, "max_position_embeddings": 40960, "eos_token_id": 151645, "bos_token_id": 151643,
}  # fmt: skip
BANDWIDTH = 4.226e12  # bytes a second: a device copy on the H200
ROUNDS = 3


def run(target: Engine, rows: int, prompt: int, out: int) -> tuple[float, float]:
    """Seconds until every row has its first token, and from there to the end."""
    sampling = Sampling(max_tokens=out, temperature=0.0, ignore_eos=True)
    generator = torch.Generator().manual_seed(rows)
    for _ in range(rows):
        ids = torch.randint(0, 150_000, (prompt,), generator=generator).tolist()
        target.gen(target.extend(None, ids), sampling, [0], eos_ids=())
    began, first, seen = time.perf_counter(), 0.0, 0
    while not target.idle:
        for event in target.step():
            seen += type(event).__name__ == "Token"
        if not first and seen >= rows:
            first = time.perf_counter()
    assert seen == rows * out
    return first - began, time.perf_counter() - first


def main(path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        config = load_config(Path(folder))
    weights = dummy_weights(config, torch.bfloat16, "cuda")
    weight_bytes = sum(weight.numel() * 2 for weight in weights.values())
    kv_bytes = 2 * config.layers * config.kv_heads * config.head_dim * 2
    executor = TorchExecutor(
        config, weights, device="cuda", dtype=torch.bfloat16, page_size=16, pages=20_000, eos_ids=(), depth=2
    )
    results = []
    for rows, prompt, out in ((1, 128, 128), (16, 256, 64), (64, 256, 64), (256, 256, 32)):
        times = []
        for _ in range(ROUNDS + 1):  # the first warms up
            target = Engine(executor, EngineConfig(token_budget=8192, max_rows=256, max_len=2048))
            times.append(run(target, rows, prompt, out))
        prefill_s = statistics.median(t[0] for t in times[1:])
        decode_s = statistics.median(t[1] for t in times[1:])
        step_s = decode_s / (out - 1)
        floor_s = (weight_bytes + rows * (prompt + out / 2) * kv_bytes) / BANDWIDTH
        results.append(
            {
                "rows": rows, "prompt_tokens": prompt, "out_tokens": out, "prefill_s": round(prefill_s, 5),
                "decode_s": round(decode_s, 5), "step_ms": round(1e3 * step_s, 3),
                "floor_step_ms": round(1e3 * floor_s, 3), "times_floor": round(step_s / floor_s, 2),
                "out_tokens_per_s": round(rows * (out - 1) / decode_s, 1),
            }
        )  # fmt: skip
        print(results[-1], flush=True)
    report = {
        "what": "torch executor, eager, random weights in the shape of Qwen3-0.6B, bfloat16",
        "device": torch.cuda.get_device_name(), "python": platform.python_version(),
        "torch": torch.__version__, "rounds": ROUNDS, "bandwidth_bytes_per_s": BANDWIDTH, "results": results,
    }  # fmt: skip
    Path(path).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
