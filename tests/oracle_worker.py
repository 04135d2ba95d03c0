"""The runtime's process with the oracle: `python -m tests.oracle_worker FOLDER MODEL_FOLDER OPTIONS`.

The model `quick` is an oracle that believes what it reads: a step takes it a twentieth of the time. `slow` is
such a one whose steps take a fifth of a second, of which it sleeps most. `quick:500` has a cache of 500 pages.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.loading import LocalOptions, limits
from sglc.runtime.engine.machine import Machine
from sglc.runtime.engine.worker import main
from sglc.runtime.step import I32, U64, Batch, Step
from tests.oracle_backend import VOCAB_SIZE, Characters
from tests.reference.oracle import Oracle, terms_of

SLEEP_S = 0.2
PAGES = {"oracle": 3_000, "quick": 20_000, "slow": 20_000}  # the first one's cache is full soon
MAX_LEN = 4_000  # tokens


class QuickOracle(Oracle):
    """Says what the oracle says, and checks nothing."""

    def _check(self, step: Batch) -> None:
        pass

    def _claim(self, step: Batch, slots: I32) -> None:
        pass

    def _read(self, step: Batch, tokens: I32) -> U64:
        """From the hash of the history before each row's first token on."""
        assert not step.trees
        firsts = step.starts[:-1]
        before = step.positions[firsts] - 1
        pages = step.pages[np.arange(firsts.size), before // self.page_size]
        known = self._hash[pages * self.page_size + before % self.page_size]
        known = np.where(before < 0, np.uint64(0), known)
        sums = np.cumsum(terms_of(tokens, step.positions), dtype=np.uint64)
        skipped = np.where(firsts > 0, sums[firsts - 1], np.uint64(0))
        hashes: U64 = sums + np.repeat(known - skipped, np.diff(step.starts))
        self._hash[step.slots] = hashes
        return hashes


class SlowOracle(QuickOracle):
    """Sleeps before each step."""

    def launch(self, step: Step) -> int:
        """As of every executor."""
        time.sleep(SLEEP_S)
        return super().launch(step)


KINDS = {"oracle": Oracle, "quick": QuickOracle, "slow": SlowOracle}


def machine(options: LocalOptions, folder: Path) -> Machine:
    """The oracle under an engine with the limits of `options`."""
    max_rows, token_budget = limits(options, "cpu")
    name, _, pages = options.model.partition(":")
    kind = KINDS[name]
    oracle = kind(
        pages=int(pages or PAGES[name]),
        page_size=options.page_size,
        vocab_size=VOCAB_SIZE,
        eos_ids=Characters.eos_ids,
        trees=kind is Oracle,
    )
    config = EngineConfig(token_budget=token_budget, max_rows=max_rows, max_len=MAX_LEN)
    return Machine(Engine(oracle, config), Characters())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], machine))
