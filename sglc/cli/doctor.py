"""`sglc doctor`: what this machine has, and what was chosen on it for models that run here."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from collections.abc import Generator, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sglc import knobs
from sglc.cli.options import Commands
from sglc.errors import BackendError

_VECTORS = ("avx", "amx", "fma", "f16c", "asimd", "sve", "i8mm")  # how instruction sets begin that matter


def add_doctor(commands: Commands) -> None:
    """Add `doctor` to the commands of `sglc`."""
    doctor = commands.add_parser(
        "doctor",
        help="show this machine, and what was chosen on it for local models",
        description="Show this machine, and what was chosen on it for models that run here. What the first run "
        "would compile and measure is compiled and measured now; no model is fetched.",
    )
    doctor.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    for key, said in _found():
        print(f"{key}: {said}", flush=True)
    return 0


def _found() -> Iterator[tuple[str, str]]:
    yield "processor", _cpu_info("model name") or platform.processor() or platform.machine()
    sets = (_cpu_info("flags") or _cpu_info("Features")).split()
    yield "instructions", " ".join(one for one in sets if one.startswith(_VECTORS)) or "not known"
    try:
        yield "torch", version("torch")
        from sglc.runtime.engine.loading import LocalOptions, placed
        from sglc.runtime.executor.cpu_executor import free_cores

        device, dtype = placed(LocalOptions(knobs.model()))
    except (ImportError, PackageNotFoundError) as error:
        yield "torch", f"{error}: models cannot run here (`pip install sglc[local]`)"
        return
    yield "device", f"{device}, {dtype}"
    cores = free_cores()
    yield "cores", f"{cores} of {os.cpu_count()} are free to this process"
    compiled = yield from _kernels(cores)
    yield from _model(compiled)


def _kernels(cores: int) -> Generator[tuple[str, str], None, bool]:
    """What a CPU computes by: compiled kernels and their products, or torch. Gives whether there are any."""
    from sglc.runtime.executor.cpu_choice import chosen, told
    from sglc.runtime.kernels import cpu_build

    if not knobs.cpu_kernels():
        yield "kernels", "none, as `SGLC_CPU_KERNELS=off` asks: torch computes"
        return False
    try:
        wrong = cpu_build.named_in_vain()
        yield "compiler", cpu_build.compiler() + (f" ({wrong})" if wrong else "")
        yield "kernels", str(cpu_build.build())
    except (OSError, subprocess.SubprocessError) as error:
        yield "kernels", f"none, torch computes: {getattr(error, 'stderr', None) or error}"
        return False
    library = cpu_build.library()
    if library is None:
        yield "kernels", "none, torch computes: what was compiled cannot be loaded"
        return False
    seconds, file = chosen(library, cores)
    yield "products", f"{told(seconds)} (kept in {file})"
    return True


def _model(compiled: bool) -> Iterator[tuple[str, str]]:
    """How the default model is multiplied on a CPU."""
    from sglc.runtime.engine.loading import LocalOptions
    from sglc.runtime.executor.cpu_model import fits
    from sglc.runtime.model.config import load_config
    from sglc.runtime.model.packed_weights import read_packed
    from sglc.runtime.model.registry import REGISTRY, path, prepare

    name = knobs.model()
    try:
        folder = path(name) if name in REGISTRY else prepare(name)
        config = load_config(folder)
    except BackendError as error:
        yield "model", f"{name}: {error.message}"
        return
    yield "model", f"{name}, in {folder}"
    if not compiled:
        return
    if not fits(config, LocalOptions(name).page_size):
        yield "matrices", "of sizes that the kernels do not take: torch computes"
    elif packed := read_packed(folder):
        kinds = [matrix.kind.name for matrix in packed.values()]
        count = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
        yield (
            "matrices",
            f"{count}; those of codes (Q4, Q8) by what `products` says, with `--dtype float32` by floats",
        )
    else:
        yield "matrices", "of floats, multiplied as they are"


def _cpu_info(key: str) -> str:
    """The first line of that name in what Linux tells of its processors; "" without one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
