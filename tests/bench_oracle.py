"""The back end that counts what benchmark programs ask of the engine: an oracle in place of the model."""

from __future__ import annotations

from dataclasses import replace

from sglc.backends.local import LocalBackend, LocalOptions
from sglc.bench.programs.vocabulary import shape_folder
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.machine import Machine
from tests.reference.oracle import Oracle

# Rows come when their threads have made them: one that meets a page half written computes the rest itself.
PAGE_SIZE = 16


class OnOracle(LocalBackend):
    """The local back end with the made-up tokenizer of a shape, over an executor without a model."""

    def __init__(self, pages: int, max_len: int = 4_000, rows: int | None = None) -> None:
        super().__init__(LocalOptions(f"dummy:{shape_folder('tiny')}", device="cpu", max_rows=rows))
        self.pages, self.max_len = pages, max_len

    def _load(self) -> Machine:
        tokenizer = self.target.tokenizer
        assert tokenizer is not None
        oracle = Oracle(pages=self.pages, page_size=PAGE_SIZE, vocab_size=10_240, eos_ids=tokenizer.eos_ids)
        config = EngineConfig(max_len=self.max_len)
        if (rows := self.options.max_rows) is not None:
            config = replace(config, max_rows=rows)
        return Machine(Engine(oracle, config), tokenizer)
