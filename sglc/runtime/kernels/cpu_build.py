"""Compiles the CPU's kernels on first use, with the machine's own compiler, and loads them. No torch.

What is made is kept by source, compiler and processor, so a cache that moves to another machine is not used
there. Where no compiler is, or it fails, there are no such kernels, and torch computes.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sglc import knobs

SOURCE = Path(__file__).with_name("cpu_model.cpp")
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-pthread", "-w")
_COMPILE_S = 120  # about five seconds on one core


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where they cannot be made (`SGLC_DEBUG=1` says why)."""
    if not knobs.cpu_kernels():
        return None
    try:
        return ctypes.CDLL(str(build()))
    except (OSError, subprocess.SubprocessError) as error:
        if knobs.debug_level():
            reason = getattr(error, "stderr", None) or error
            print(f"sglc: no kernels for this CPU, torch's are taken: {reason}", file=sys.stderr, flush=True)
        return None


def build(*flags: str) -> Path:
    """The compiled kernels, made now if they are not there yet; `flags` come behind the usual ones.

    Raises:
        OSError: there is no compiler, the cache cannot be written, or what is there is another user's.
        subprocess.SubprocessError: it fails, or takes minutes.
    """
    found = compiler()
    flags = (*_FLAGS, *flags)
    state = os.stat(found)
    identity = (SOURCE.read_text(), " ".join(flags), found, str(state.st_mtime_ns), _processor())
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:24]
    file = knobs.cache_dir() / "kernels" / f"cpu-{digest}.so"
    if file.is_file():
        if file.stat().st_uid not in (0, os.getuid()):
            raise PermissionError(f"`{file}` is another user's")
        return file
    if wrong := named_in_vain():
        print(f"sglc: {wrong}, so `{found}` compiles the kernels for this CPU", file=sys.stderr)
    if sys.stderr.isatty():
        print("sglc: compiling kernels for this CPU, which is done once and takes seconds", file=sys.stderr)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        command = [found, *flags, "-o", str(made), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_S)
        made.replace(file)
    return file


def compiler() -> str:
    """The compiler that is taken.

    Raises:
        FileNotFoundError: there is none.
    """
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        if found := shutil.which(name):
            return found
    raise FileNotFoundError("there is no C++ compiler (c++, g++, clang++, or what `CXX` names)")


def named_in_vain() -> str:
    """What is wrong with `CXX`, if it names no compiler: another one is taken then."""
    name = os.environ.get("CXX", "")
    return f"`CXX` names `{name}`, which is not here" if name and shutil.which(name) is None else ""


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return platform.machine() + "".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))
