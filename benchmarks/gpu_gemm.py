"""Measures the products of decode steps on a CUDA device and finds each one's fastest config.

Every product of three models, at 1 to 256 rows, through cuBLAS and through candidate configs of
`sglc.runtime.kernels.gemm`, each replayed from a CUDA graph over rotating weights so that the L2 cache
does not hide the reads. A candidate counts only if it agrees with float32. Then whole layers as a chain.
Writes one JSON report (argument 1) as it goes, and the table of winners (--table); it stops when
--seconds have passed and keeps what it has. Candidates are compiled by processes that never see the
device, ahead of their turn.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from gemm_candidates import EPS, MODELS, Product, compile_config, every_config
from torch import Tensor
from torch.nn import functional

from sglc.runtime.kernels import gemm
from sglc.runtime.kernels.gemm_configs import (
    LIBRARY,
    M_BUCKETS,
    GemmConfig,
    Op,
    read_table,
    table_key,
    table_text,
)

BANDWIDTH = 4.226e12  # bytes a second: a device copy on the H200
ROTATE_BYTES = 400 << 20  # weights of one graph: several times the L2 cache
REPLAYS = 6
FINALISTS = 6  # of the configs for 16 rows, that fewer rows are tried with
CHAIN_LAYERS = 28
CHAIN_ROWS = (1, 8, 64, 256)
TOLERANCE = 2e-2  # relative norm of the error


class Operands:
    """One product's weights, several times, and what goes with them."""

    def __init__(self, product: Product, m: int, weights: list[Tensor]) -> None:
        generator = torch.Generator("cuda").manual_seed(m)
        kinds: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
        self.product, self.weights = product, weights
        self.x = torch.randn(m, product.k, **kinds)
        self.out = torch.empty(m, product.n, device="cuda", dtype=torch.bfloat16)
        self.residual = torch.randn(m, product.n, **kinds) if product.op == "residual" else None
        self.norm_weight = torch.rand(product.k, device="cuda", generator=generator) + 0.5
        self.half_norm = self.norm_weight.to(torch.bfloat16)
        self.normed = product.op in ("norm", "gated")

    def run(self, config: GemmConfig, weight: Tensor, pdl: bool = False) -> None:
        if config == LIBRARY:
            library(self.product.op, self.x, weight, self.half_norm, self.residual)
            return
        norm = (self.norm_weight, EPS) if self.normed else None
        gated = self.product.op == "gated"
        gemm.launch(config, self.x, weight, self.out, norm=norm, residual=self.residual, gated=gated, pdl=pdl)

    def reference(self) -> Tensor:
        x, weight = self.x.float(), self.weights[0]
        if self.normed:
            x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPS) * self.norm_weight
        y = torch.cat([x @ rows.float().T for rows in weight.split(16384)], dim=1)
        if self.product.op == "gated":
            gate, up = y.chunk(2, dim=1)
            y = functional.silu(gate) * up
        return y if self.residual is None else y + self.residual.float()


def library(op: Op, x: Tensor, weight: Tensor, norm_weight: Tensor, residual: Tensor | None) -> Tensor:
    """cuBLAS with separate kernels of torch."""
    if op in ("norm", "gated"):
        x = functional.rms_norm(x, norm_weight.shape, norm_weight, EPS)
    if residual is not None:
        return torch.addmm(residual, x, weight.t())
    y = functional.linear(x, weight)
    if op == "gated":
        gate, up = y.chunk(2, dim=1)
        y = functional.silu(gate) * up
    return y


def graph_us(body: Callable[[], object], parts: int) -> float:
    """Median microseconds of one of the `parts` of `body`, replayed from a CUDA graph."""
    body()  # loads every kernel, which a capture may not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / parts)
    return statistics.median(times[1:])


def time_product(operands: Operands, call: Callable[[Tensor], object]) -> float:
    """Microseconds of `call` with one weight, each of several used in turn."""
    weights = operands.weights
    weight_bytes = weights[0].numel() * 2
    rounds = max(1, min(96 // len(weights), 2 * ROTATE_BYTES // (len(weights) * weight_bytes)))

    def body() -> None:
        for _ in range(rounds):
            for weight in weights:
                call(weight)

    return graph_us(body, rounds * len(weights))


def measure(operands: Operands, m: int, configs: list[GemmConfig]) -> dict[str, Any]:
    """Every config checked and timed; the fastest, and what the library takes."""
    product = operands.product
    wanted = operands.reference()
    norm = wanted.norm()
    tried, refused = [], []
    for config in configs:
        operands.out.fill_(float("nan"))
        try:
            operands.run(config, operands.weights[0], True)
            error = float((operands.out.float() - wanted).norm() / norm)
            if not error < TOLERANCE:
                refused.append({"config": asdict(config), "error": error})
                continue
            us = time_product(operands, partial(operands.run, config, pdl=True))
            tried.append((us, error, config))
        except Exception as failure:  # too much shared memory, say
            refused.append(
                {"config": asdict(config), "failure": f"{type(failure).__name__}: {str(failure)[:160]}"}
            )
    tried.sort(key=lambda entry: entry[0])
    library_us = time_product(operands, partial(operands.run, LIBRARY))
    bare_us = time_product(operands, partial(functional.linear, operands.x))
    floor_us = 1e6 * (product.weight_rows * product.k + m * (product.k + product.n)) * 2 / BANDWIDTH
    best = tried[0] if tried else (float("inf"), 0.0, LIBRARY)
    winner = best[2] if best[0] < library_us else LIBRARY
    return {
        "product": asdict(product), "m": m, "floor_us": round(floor_us, 2), "us": round(best[0], 2),
        "library_us": round(library_us, 2), "cublas_alone_us": round(bare_us, 2), "error": round(best[1], 5),
        "winner": asdict(winner), "refused": refused,
        "tried": [[round(us, 2), *asdict(config).values()] for us, _, config in tried],
    }  # fmt: skip


def random_weights(product: Product, cache: dict[tuple[int, int], list[Tensor]]) -> list[Tensor]:
    """Enough weights to pass the L2 cache several times; at least four, as of four layers."""
    shape = (product.weight_rows, product.k)
    if shape not in cache:
        count = max(4, min(48, ROTATE_BYTES // (2 * shape[0] * shape[1])))
        generator = torch.Generator("cuda").manual_seed(0)
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
        cache[shape] = [torch.randn(*shape, **options).mul_(0.02) for _ in range(count)]
    return cache[shape]


def chain_us(model: str, m: int, configs: dict[str, GemmConfig], pdl: bool) -> float:
    """Microseconds of a layer: norm+qkv, o+residual, norm+gate_up+silu, down+residual; no attention."""
    products = MODELS[model][:4]
    names = [product.name for product in products]
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [
        [torch.randn(product.weight_rows, product.k, **options).mul_(0.02) for product in products]
        for _ in range(CHAIN_LAYERS)
    ]
    hidden, attended = products[0].k, products[1].k
    half, full = (torch.ones(hidden, device="cuda", dtype=t) for t in (torch.bfloat16, torch.float32))
    x = torch.randn(m, hidden, **options)
    qkv, up = (torch.empty(m, product.n, **options) for product in products[:3:2])

    def step(name: str, op: Op, given: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        residual = out if op == "residual" else None
        if not configs or configs[name] == LIBRARY:
            return library(op, given, weight, half, residual)
        norm = None if residual is not None else (full, EPS)
        gated = op == "gated"
        gemm.launch(configs[name], given, weight, out, norm=norm, residual=residual, gated=gated, pdl=pdl)
        return out

    def body() -> None:
        h = x
        for weights in layers:
            q = step(names[0], "norm", h, weights[0], qkv)
            h = step(names[1], "residual", q[:, :attended], weights[1], h)
            u = step(names[2], "gated", h, weights[2], up)
            h = step(names[3], "residual", u, weights[3], h)

    return graph_us(body, CHAIN_LAYERS)


def time_chain(model: str, found: dict[str, GemmConfig]) -> Iterator[dict[str, Any]]:
    """Chains at `CHAIN_ROWS`: cuBLAS with torch's kernels, and the winners with and without PDL."""
    floor = sum(product.weight_rows * product.k for product in MODELS[model][:4]) * 2 / BANDWIDTH * 1e6
    for m in CHAIN_ROWS:
        configs = {
            product.name: found[table_key(product.op, m, product.n, product.k, "bfloat16")]
            for product in MODELS[model][:4]
            if table_key(product.op, m, product.n, product.k, "bfloat16") in found
        }
        if len(configs) == 4:
            yield {
                "model": model, "m": m, "floor_us": round(floor, 2),
                "library_us": round(chain_us(model, m, {}, False), 2),
                "ours_us": round(chain_us(model, m, configs, False), 2),
                "ours_pdl_us": round(chain_us(model, m, configs, True), 2),
                "configs": {name: asdict(config) for name, config in configs.items()},
            }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--table", type=Path, help="also put the winners into this table of the kernels")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rows", nargs="*", type=int, default=list(M_BUCKETS))
    parser.add_argument("--jobs", type=int, default=max((os.cpu_count() or 2) - 1, 1))
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    rows = sorted(options.rows, key=lambda m: (m != 16, m))  # 16 first: fewer rows start from its results
    points = [(p, m) for name in options.models for p in MODELS[name] for m in rows]
    tasks = list(dict.fromkeys((p, c, True) for p, m in points for c in every_config(p, m)))
    report: dict[str, Any] = {
        "what": "products of decode steps, bfloat16, CUDA graphs",
        "points": [],
        "chains": [],
    }
    found: dict[str, GemmConfig] = {}

    def save() -> None:
        # One point a line: with an indent each tried config would take nine.
        options.report.write_text(json.dumps(report).replace('{"product"', '\n{"product"') + "\n")
        if options.table:
            options.table.write_text(table_text(read_table(options.table) | found))

    # Forked before this process touches the device, so that the children need not.
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        compiled = dict(zip(tasks, (pool.apply_async(compile_config, (task,)) for task in tasks), strict=True))
        report |= {
            "device": torch.cuda.get_device_name(), "python": platform.python_version(),
            "torch": torch.__version__, "triton": triton.__version__, "bandwidth_bytes_per_s": BANDWIDTH,
            "columns_of_tried": ["us", *GemmConfig.__dataclass_fields__],
        }  # fmt: skip
        gemm.prepare(torch.device("cuda"))
        model, cache = "", dict[tuple[int, int], list[Tensor]]()
        finalists: dict[Product, list[GemmConfig]] = {}
        for product, m in points:
            if model != product.model:
                if model:
                    report["chains"] += time_chain(model, found)
                model, cache = product.model, {}
            configs = []
            for config in every_config(product, m, finalists.get(product)):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                try:
                    failure = compiled[product, config, True].get(timeout=left)
                except multiprocessing.TimeoutError:
                    break
                if failure:
                    print(product.name, config, failure, flush=True)
                else:
                    configs.append(config)
            if time.monotonic() > deadline:
                break
            point = measure(Operands(product, m, random_weights(product, cache)), m, configs)
            report["points"].append(point)
            if m == 16:
                finalists[product] = [GemmConfig(*row[1:]) for row in point["tried"][:FINALISTS]]
            found[table_key(product.op, m, product.n, product.k, "bfloat16")] = GemmConfig(**point["winner"])
            line = [
                product.model,
                product.name,
                m,
                *(point[f] for f in ("floor_us", "us", "library_us", "cublas_alone_us")),
            ]
            print(*line, point["tried"][:1], f"refused {len(point['refused'])}", flush=True)
            save()
        pool.terminate()
        if model:
            report["chains"] += time_chain(model, found)
        for chain in report["chains"]:
            print({key: value for key, value in chain.items() if key != "configs"}, flush=True)
        save()


if __name__ == "__main__":
    main()
