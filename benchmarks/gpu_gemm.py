"""Measures the products of decode steps on a CUDA device and finds each one's fastest config.

Every product of three models, at 1 to 256 rows, through cuBLAS and through candidate configs of
`sglc.runtime.kernels.gemm`, each replayed from a CUDA graph over rotating weights so that the L2 cache
does not hide the reads. A candidate counts only if it agrees with float32. Then whole layers as a chain,
in which the fastest few of each product compete once more: there they overlap with their neighbours.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from benchmarks.gemm_candidates import EPS, MODELS, Operands, Product, compile_config, every_config, head_store
from sglc.runtime.kernels import gemm
from sglc.runtime.kernels.gemm_configs import (
    LIBRARY,
    M_BUCKETS,
    GemmConfig,
    read_table,
    table_key,
    table_text,
)
from sglc.runtime.kernels.pointwise import empty_squares, row_squares

BANDWIDTH = 4.226e12  # bytes a second: a device copy on the H200
ROTATE_BYTES = 400 << 20  # weights of one graph: several times the L2 cache
REPLAYS = 6
FINALISTS = 6  # of the configs for 16 rows, that fewer rows are tried with
CHAIN_LAYERS = 28
CHAIN_BYTES = 1 << 31  # of the weights of a chain, at most
CHAIN_ALTERNATIVES = 3  # of each product, that are tried in the chain
TOLERANCE = 2e-2  # relative norm of the error


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


def time_product(weights: list[Tensor], call: Callable[[Tensor], object]) -> float:
    """Microseconds of `call` with one weight, each of several used in turn."""
    weight_bytes = weights[0].numel() * 2
    rounds = max(1, min(96 // len(weights), 2 * ROTATE_BYTES // (len(weights) * weight_bytes)))

    def body() -> None:
        for _ in range(rounds):
            for weight in weights:
                call(weight)

    return graph_us(body, rounds * len(weights))


def measure(product: Product, m: int, weights: list[Tensor], configs: list[GemmConfig]) -> dict[str, Any]:
    """Every config checked and timed; the fastest, and what the library takes."""
    operands = Operands(product, m, "cuda")
    wanted = operands.reference(weights[0])
    norm = wanted.norm()
    tried, refused = [], []
    for config in configs:
        operands.out.fill_(float("nan"))
        if operands.store is not None:
            operands.store.pool.fill_(float("nan"))
        try:
            operands.run(config, weights[0], True)
            error = float((operands.result() - wanted).norm() / norm)
            if not error < TOLERANCE:
                refused.append({"config": asdict(config), "error": error})
                continue
            us = time_product(weights, partial(operands.run, config, pdl=True))
            tried.append((us, error, config))
        except Exception as failure:  # too much shared memory, say
            refused.append(
                {"config": asdict(config), "failure": f"{type(failure).__name__}: {str(failure)[:160]}"}
            )
    tried.sort(key=lambda entry: entry[0])
    library_us = time_product(weights, partial(operands.run, LIBRARY, pdl=True))
    bare_us = time_product(weights, partial(functional.linear, operands.x))
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


class Chain:
    """Layers of a model at `m` rows without their attention, whose queries stand for its result."""

    def __init__(self, model: str, m: int, weights: list[list[Tensor]]) -> None:
        self.products = MODELS[model][:4]
        self.weights = weights
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        hidden = self.products[0].k
        self.x = torch.randn(m, hidden, **options)
        self.squares = empty_squares(m, hidden, "cuda")
        self.qkv, self.up = (torch.empty(m, product.n, **options) for product in self.products[:3:2])
        self.store = head_store(self.products[0], m, "cuda")

    def us(self, configs: Sequence[GemmConfig], pdl: bool) -> float:
        """Microseconds of a layer."""
        first, second, third, fourth = configs
        scale, x = (self.squares, EPS), self.x

        def body() -> None:
            row_squares(x, self.squares)
            for qkv, o, gate_up, down in self.weights:
                queries = gemm.qkv(
                    x, qkv, self.store, scale=scale, out=self.qkv, pdl=pdl, config=first
                ).flatten(1)
                gemm.linear(queries, o, residual=x, squares=self.squares, out=x, pdl=pdl, config=second)
                gemm.gated(x, gate_up, scale=scale, out=self.up, pdl=pdl, config=third)
                gemm.linear(self.up, down, residual=x, squares=self.squares, out=x, pdl=pdl, config=fourth)

        return graph_us(body, len(self.weights))


def chain_weights(model: str) -> list[list[Tensor]]:
    """Weights of layers; of as many as fit into `CHAIN_BYTES`."""
    products = MODELS[model][:4]
    layer_bytes = 2 * sum(product.weight_rows * product.k for product in products)
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    return [
        [torch.randn(product.weight_rows, product.k, **options).mul_(0.02) for product in products]
        for _ in range(max(2, min(CHAIN_LAYERS, CHAIN_BYTES // layer_bytes)))
    ]


def refine(chain: Chain, configs: list[GemmConfig], others: list[list[GemmConfig]], deadline: float) -> float:
    """Replace each of `configs` by whichever of its `others` makes the chain faster; microseconds then."""
    best = chain.us(configs, True)
    for at, alternatives in enumerate(others):
        for config in alternatives:
            if time.monotonic() > deadline:
                return best
            if config == configs[at]:
                continue
            us = chain.us([*configs[:at], config, *configs[at + 1 :]], True)
            if us < 0.995 * best:
                best, configs[at] = us, config
    return best


def time_chain(
    model: str, points: list[dict[str, Any]], found: dict[str, GemmConfig], deadline: float
) -> Iterator[dict[str, Any]]:
    """Chains at every number of rows: the library, the products' winners, and these refined, into `found`."""
    products = MODELS[model][:4]
    floor = sum(product.weight_rows * product.k for product in products) * 2 / BANDWIDTH * 1e6
    weights = chain_weights(model)
    tried = {table_key_of(point): [GemmConfig(*row[1:]) for row in point["tried"]] for point in points}
    for m in M_BUCKETS:
        keys = [table_key(product.op, m, product.n, product.k, "bfloat16") for product in products]
        if not all(key in tried for key in keys):
            continue
        chain = Chain(model, m, weights)
        configs = [found[key] for key in keys]
        library, apart, alone = (
            chain.us([LIBRARY] * 4, False),
            chain.us(configs, False),
            chain.us(configs, True),
        )
        others = [tried[key][:CHAIN_ALTERNATIVES] for key in keys]
        if m <= 16:
            others = [[*few, *(replace(config, early=True) for config in few[:1])] for few in others]
        refined = refine(chain, configs, others, deadline)
        found |= dict(zip(keys, configs, strict=True))
        yield {
            "model": model, "m": m, "floor_us": round(floor, 2), "library_us": round(library, 2),
            "ours_us": round(apart, 2), "ours_pdl_us": round(alone, 2), "refined_us": round(refined, 2),
            "configs": {product.name: asdict(c) for product, c in zip(products, configs, strict=True)},
        }  # fmt: skip


def table_key_of(point: dict[str, Any]) -> str:
    product = Product(**point["product"])
    return table_key(product.op, point["m"], product.n, product.k, "bfloat16")


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
    tasks = list(dict.fromkeys((p, c) for p, m in points for c in every_config(p, m)))
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
                    report["chains"] += time_chain(model, report["points"], found, deadline)
                    save()
                model, cache = product.model, {}
            configs = []
            for config in every_config(product, m, finalists.get(product)):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                try:
                    failure = compiled[product, config].get(timeout=left)
                except multiprocessing.TimeoutError:
                    break
                if failure:
                    print(product.name, config, failure, flush=True)
                else:
                    configs.append(config)
            if time.monotonic() > deadline:
                break
            point = measure(product, m, random_weights(product, cache), configs)
            report["points"].append(point)
            if m == 16:
                finalists[product] = [GemmConfig(*row[1:]) for row in point["tried"][:FINALISTS]]
            found[table_key_of(point)] = GemmConfig(**point["winner"])
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
            report["chains"] += time_chain(model, report["points"], found, deadline)
        for chain in report["chains"]:
            print({key: value for key, value in chain.items() if key != "configs"}, flush=True)
        save()


if __name__ == "__main__":
    main()
