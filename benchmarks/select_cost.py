"""What a `select` costs on the CPU: tokens passed through, steps and time, with and without rows that branch.

The default model in float32, a prompt of about 200 tokens, and choices of four kinds. `cold`: nothing is
cached; `warm`: the prompt is. Contenders take turns, times are medians. `apart` counts the tokens that the
choices would cost one by one. Writes benchmarks/results/select-cost-<cpu>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.machine import dated_setting, result_path, store
from benchmarks.questions import letter_prompt, questions
from sglc.errors import Loc
from sglc.ir.core import Site
from sglc.ir.plan.events import SelectDone
from sglc.ir.plan.segment import ExtendNode, OpenNode, Segment, SelectNode
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.machine import Machine
from sglc.runtime.executor.torch_executor import TorchExecutor
from sglc.runtime.model.registry import prepare
from sglc.runtime.model.weights import load_config, load_weights
from sglc.runtime.tokenizer.tokenizer import load_tokenizer

ROUNDS = 9
CHOICES = {
    "yes or no": (" yes", " no"),
    "four letters": (" A", " B", " C", " D"),
    "twenty cities": (
        " New York", " New Delhi", " New Orleans", " Newcastle", " San Francisco", " San Diego", " San José",
        " Santiago", " Saint Petersburg", " St. Louis", " Los Angeles", " Las Vegas", " London", " Londonderry",
        " Rio de Janeiro", " Rio Grande", " Buenos Aires", " Port Louis", " Port Moresby", " Port of Spain",
    ),
    "five sentences": (
        " The argument is convincing, because it names its sources and answers the strongest objection to it.",
        " The argument is convincing, although it leaves out what speaks against it.",
        " The argument is not convincing, because it rests on a single example that may well be an exception.",
        " The argument is not convincing, because it rests on a claim for which it gives no evidence at all.",
        " There is no argument in this text, only a description of what happened and of who was there.",
    ),
}  # fmt: skip


@dataclass(eq=False)
class Side:
    """One executor; `branching`: whether its rows may branch."""

    name: str
    executor: TorchExecutor
    branching: bool
    seconds: list[float] = field(default_factory=list)
    steps: int = 0

    def run(self, machine: Machine, prompt: str, choices: Sequence[str]) -> SelectDone:
        """One select, timed."""
        self.executor.trees = self.branching
        node = SelectNode(
            1, Site("f", (), "x"), tuple(choices), "token_length_normalized", Loc("p.py", 1, 1, 2)
        )
        found: list[SelectDone] = []
        begin = time.perf_counter()
        machine.submit(
            Segment((OpenNode(), ExtendNode(0, (prompt,)), node)),
            lambda event: found.append(event) if isinstance(event, SelectDone) else None,
            lambda: None,
        )
        before = machine.engine._next_step
        while not machine.idle:
            machine.step()
        self.seconds.append(time.perf_counter() - begin)
        self.steps = machine.engine._next_step - before
        return found[0]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder = prepare("smollm2")
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    executor = TorchExecutor(config, load_weights(folder, config, torch.float32, "cpu"), pages=512)
    shown, asked = questions()
    prompt = letter_prompt(shown, asked[0])
    result: dict[str, Any] = {
        "what": "one `select` of the default model on the CPU, float32; milliseconds",
        **dated_setting(),
        "threads": arguments.threads,
        "prompt_tokens": len(tokenizer.encode(prompt)),
    }
    for name, choices in CHOICES.items():
        part: dict[str, Any] = {}
        for state in ("cold", "warm"):
            sides = [Side("branching", executor, True), Side("chains", executor, False)]
            for turn in range(arguments.rounds + 1):
                for side in sides if turn % 2 else sides[::-1]:
                    machine = Machine(Engine(executor, EngineConfig()), tokenizer)
                    if state == "warm":
                        Side("", executor, True).run(machine, prompt, choices[:1])
                    done = side.run(machine, prompt, choices)
                    tokens = done.usage.computed + done.usage.scored
                    part.setdefault(f"{state} {side.name}", {}).update(tokens=tokens, steps=side.steps)
            for side in sides:
                part[f"{state} {side.name}"]["ms"] = round(statistics.median(side.seconds[1:]) * 1e3, 1)
        part["choices"] = len(choices)
        part["apart"] = sum(len(ids) - 1 for ids in done.choice_ids)
        result[name] = part
        print(f"{name}: {json.dumps(part)}", flush=True)
    store(result_path("select-cost"), result)


if __name__ == "__main__":
    main()
