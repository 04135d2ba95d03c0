"""`global_config`: SGLang's switches for a whole process.

Three have an effect: `default_backend`, `verbosity` (2 and more prints the final text of every run) and what
is set for a name that does not exist, which is an error. The others describe what is always so here:
rows of a batch share what they begin with, whether it was computed ahead or not; `concate_and_append` works
on texts; control tokens are never part of a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglc.execution.context import run_defaults


@dataclass(slots=True)
class GlobalConfig:
    """The switches, with SGLang's defaults."""

    skip_special_tokens_in_output: bool = True
    spaces_between_special_tokens_in_out: bool = True
    enable_precache_with_tracing: bool = True
    enable_parallel_encoding: bool = True

    @property
    def default_backend(self) -> Any:
        """The back end, or its name, of every run that names none."""
        return run_defaults.backend

    @default_backend.setter
    def default_backend(self, backend: Any) -> None:
        run_defaults.backend = backend

    @property
    def verbosity(self) -> int:
        """2 and more prints the final text of every run."""
        return run_defaults.verbosity

    @verbosity.setter
    def verbosity(self, level: int) -> None:
        run_defaults.verbosity = level


global_config = GlobalConfig()
