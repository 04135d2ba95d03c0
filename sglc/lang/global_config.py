"""`global_config`: SGLang's switches for a whole process.

Three have an effect: `default_backend`, `verbosity` (2 and more prints the final text of every run) and what
is set for a name that does not exist, which is an error. The others describe what is always so here:
rows of a batch share what they begin with, whether it was computed ahead or not; `concate_and_append` works
on texts; control tokens are never part of a text.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglc.execution.context import RunDefaults, keep_defaults_in


@dataclass(slots=True)
class GlobalConfig(RunDefaults):
    """The switches, with SGLang's defaults."""

    skip_special_tokens_in_output: bool = True
    spaces_between_special_tokens_in_out: bool = True
    enable_precache_with_tracing: bool = True
    enable_parallel_encoding: bool = True


global_config = GlobalConfig()
keep_defaults_in(global_config)
