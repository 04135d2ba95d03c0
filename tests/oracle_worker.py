"""The runtime's process with the oracle: `python -m tests.oracle_worker FOLDER MODEL_FOLDER OPTIONS`."""

from __future__ import annotations

import sys
from pathlib import Path

from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.loading import LocalOptions, limits
from sglc.runtime.engine.machine import Machine
from sglc.runtime.engine.worker import main
from tests.oracle_backend import VOCAB_SIZE, Characters
from tests.reference.oracle import Oracle

PAGES = 20_000
MAX_LEN = 4_000  # tokens


def machine(options: LocalOptions, folder: Path) -> Machine:
    """The oracle under an engine with the limits of `options`."""
    max_rows, token_budget = limits(options, "cpu")
    oracle = Oracle(pages=PAGES, page_size=options.page_size, vocab_size=VOCAB_SIZE, eos_ids=Characters.eos_ids)
    config = EngineConfig(token_budget=token_budget, max_rows=max_rows, max_len=MAX_LEN)
    return Machine(Engine(oracle, config), Characters())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], machine))
