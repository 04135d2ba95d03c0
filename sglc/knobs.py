"""Every environment variable of sglc's own (`SGLC_*`), in one place. A bad value is an error, never ignored."""

from __future__ import annotations

import os
from pathlib import Path

from sglc.errors import UsageError


def debug_level() -> int:
    """`SGLC_DEBUG`: 0 nothing | 1 time of every pass | 2 IR after every pass | 3 scheduler steps."""
    raw = os.environ.get("SGLC_DEBUG", "0")
    if raw not in ("0", "1", "2", "3"):
        raise UsageError("SGLC001", f"`SGLC_DEBUG` is `{raw}`", hint="set it to 0, 1, 2 or 3")
    return int(raw)


def dump_dir() -> Path | None:
    """`SGLC_DUMP`: folder that receives the IR after every pass, as `PROGRAM-HASH/01-fold_text.sglir`."""
    raw = os.environ.get("SGLC_DUMP", "")
    return Path(raw) if raw else None


def model() -> str:
    """`SGLC_MODEL`: the model behind the `local` back end; the embedded default without it."""
    return os.environ.get("SGLC_MODEL", "") or "smollm2"


def api_key() -> str | None:
    """`SGLC_API_KEY`: the bearer token for servers of `http://` and `grpc://` where Python says none."""
    raw = os.environ.get("SGLC_API_KEY", "")
    if not raw.isascii() or not raw.isprintable() or " " in raw:  # not shown: most of it may be a key
        raise UsageError(
            "SGLC001", "`SGLC_API_KEY` is no key", hint="a key is of printable ASCII characters without spaces"
        )
    return raw or None


def cpu_kernels() -> bool:
    """`SGLC_CPU_KERNELS`: on, models on the CPU run by kernels that are compiled here; off, by torch."""
    raw = os.environ.get("SGLC_CPU_KERNELS", "on")
    if raw not in ("on", "off"):
        raise UsageError("SGLC001", f"`SGLC_CPU_KERNELS` is `{raw}`", hint="set it to on or off")
    return raw == "on"


def cache_dir() -> Path:
    """`SGLC_CACHE`: where models and their converted forms are kept (default: `~/.cache/sglc`)."""
    raw = os.environ.get("SGLC_CACHE", "")
    if raw:
        return Path(raw)
    return Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache") / "sglc"
