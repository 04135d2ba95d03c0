"""`select` on the default model: transformers' log-probabilities, in one step that repeats no id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from sglc.errors import Loc
from sglc.ir.core import Site
from sglc.ir.plan.events import SelectDone
from sglc.ir.plan.segment import ExtendNode, OpenNode, Segment, SelectNode
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.machine import Machine
from sglc.runtime.executor.torch_executor import TorchExecutor
from sglc.runtime.model.weights import load_config, load_weights
from sglc.runtime.step import Step
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from tests.depth import some_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ids = tuple[int, ...]

CITIES = (
    " New York", " New Delhi", " New Orleans", " Newcastle", " San Francisco", " San Diego", " San José",
    " Santiago", " Saint Petersburg", " St. Louis", " Los Angeles", " Las Vegas", " London", " Londonderry",
    " Rio de Janeiro", " Rio Grande", " Buenos Aires", " Port Louis", " Port Moresby", " Port",
)  # fmt: skip

# Prompt and choices. What is said of each was looked up in the tokenizer.
CASES = {
    "prefixes of each other": ("The capital of France is", (" Paris", " Paris, of", " Par", " P", " Paris,")),
    "with and without a space": ("The capital of France is", (" Lyon", "Lyon", "  Lyon", "\nLyon", " lyon")),
    "merging with the prompt": ("This is unbeliev", ("able", "ably", "ers", " in")),
    "after a space": ("Answer: ", ("yes", "no", "  maybe")),
    "letters": ("Question: 2 + 2 = ?\nA. 3\nB. 4\nC. 5\nD. 6\nAnswer:", (" A", " B", " C", " D")),
    "characters of several bytes": ("日本の首都は", ("東京", "東京都", "大阪", "東", "京都")),
    "emoji that share bytes": ("I am so happy today ", ("😀", "😃", "😀😀", "😄!", "é")),
    "accents that merge": ("Un caf", ("é", "és", "e", "é crème", "éine")),
    "many": ("The city that I like best is", CITIES),
    "equal ones": ("yes or no? ", ("yes", "no", "yes")),
}  # fmt: skip


class Counting(TorchExecutor):
    """Remembers its steps."""

    steps: list[Step]

    def launch(self, step: Step):
        self.steps.append(step)
        return super().launch(step)


@dataclass
class Runtime:
    executor: Counting
    machine: Machine

    def select(
        self, prompt: str, choices: Sequence[str], method: str = "token_length_normalized"
    ) -> SelectDone:
        node = SelectNode(1, Site("f", (), "choice"), tuple(choices), method, Loc("program.py", 1, 1, 2))
        done: list[SelectDone] = []
        self.executor.steps = []
        self.machine.submit(
            Segment((OpenNode(), ExtendNode(0, (prompt,)), node)),
            lambda event: done.append(event) if isinstance(event, SelectDone) else None,
            lambda: None,
        )
        while not self.machine.idle:
            self.machine.step()
        return done[0]


@pytest.fixture(scope="module")
def executor(smollm2: Path) -> Counting:
    config = load_config(smollm2)
    executor = Counting(config, load_weights(smollm2, config, torch.float32, "cpu"), pages=512)
    executor.steps = []
    return executor


@pytest.fixture(scope="module")
def tokenizer(default_tokenizer: LocalTokenizer) -> LocalTokenizer:
    return default_tokenizer


@pytest.fixture
def runtime(tokenizer: LocalTokenizer, executor: Counting) -> Runtime:
    return Runtime(executor, Machine(Engine(executor, EngineConfig()), tokenizer))


@pytest.fixture(scope="module")
def transformers(smollm2: Path) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


def inner(choices: Sequence[Ids]) -> set[Ids]:
    """What has to be passed through behind the prompt."""
    return {ids[:i] for ids in choices for i in range(1, len(ids))}


def truth(model: PreTrainedModel, texts: Sequence[tuple[Ids, Ids]]) -> list[list[float]]:
    """Log-probabilities of each second part behind its first one."""
    longest = max(len(before) + len(after) for before, after in texts)
    ids = torch.zeros(len(texts), longest, dtype=torch.int64)
    for line, (before, after) in zip(ids, texts, strict=True):
        line[: len(before) + len(after)] = torch.tensor((*before, *after))  # nothing sees the zeros behind
    with torch.inference_mode():
        logprobs = model(ids).logits.log_softmax(-1)
    found = []
    for line, (before, after) in zip(logprobs, texts, strict=True):
        places = torch.arange(len(before) - 1, len(before) + len(after) - 1)
        found.append(line[places, torch.tensor(after)].tolist())
    return found


def compare(
    found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]], tolerance: float = 2e-4
) -> None:
    """Products of other sizes round in another way, and so do those of another processor."""
    for got, values in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, values, rtol=0, atol=tolerance)


def test_what_is_before_a_choice_is_encoded_once(
    runtime: Runtime, tokenizer: LocalTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = "Of all the cities that I have ever seen, the one that I like best is" * 3
    encode, encoded = runtime.machine.model.encode_behind, []

    def counted(ids: Sequence[int], text: str) -> tuple[int, ...]:
        encoded.append(text)
        return encode(ids, text)

    monkeypatch.setattr(runtime.machine.model, "encode_behind", counted)
    done = runtime.select(prompt, CITIES[:4])
    assert sum(map(len, encoded)) < len(prompt) + 10 * 5 + sum(map(len, CITIES[:4]))
    for text, ids in zip(CITIES, done.choice_ids, strict=False):
        assert [*done.prompt_ids, *ids] == tokenizer.encode_whole(prompt + text)


@pytest.mark.parametrize("case", some_of(list(CASES), 4, 6))
def test_scores_are_those_of_transformers(
    case: str, runtime: Runtime, transformers: PreTrainedModel, tokenizer: LocalTokenizer
) -> None:
    prompt, choices = CASES[case]
    cold = runtime.select(prompt, choices)
    (step,) = runtime.executor.steps  # prompt and all choices together
    assert step.ids.size == len(cold.prompt_ids) + len(inner(cold.choice_ids))
    warm = runtime.select(prompt, choices)
    (step,) = runtime.executor.steps
    # Of a cached prompt the last id, of the choices what they go through, once.
    assert step.ids.size == 1 + len(inner(warm.choice_ids))
    assert (warm.usage.computed, warm.usage.scored) == (1, len(inner(warm.choice_ids)))
    assert warm.usage.cached == warm.usage.prompt - 1 == len(warm.prompt_ids) - 1
    assert (warm.prompt_ids, warm.choice_ids) == (cold.prompt_ids, cold.choice_ids)
    for text, ids in zip(choices, warm.choice_ids, strict=True):
        whole = (*warm.prompt_ids, *ids)
        assert tokenizer.decode(whole) == prompt + text
        assert whole == tuple(tokenizer.encode(prompt + text))  # as the text would be read anywhere
    expected = truth(transformers, [(tuple(warm.prompt_ids), ids) for ids in warm.choice_ids])
    compare(cold.logprobs, expected)
    compare(warm.logprobs, expected)
    assert warm.decided == "continuation"
    assert warm.choice == np.argmax([np.mean(values) for values in warm.logprobs])


def test_the_cases_are_what_they_are_called(runtime: Runtime, tokenizer: LocalTokenizer) -> None:
    encode = tokenizer.encode

    def sizes(case: str) -> tuple[int, int]:
        """Ids of the choices but for their last ones: passed through once, and one choice after the other."""
        done = runtime.select(*CASES[case])
        return len(inner(done.choice_ids)), sum(len(ids) - 1 for ids in done.choice_ids)

    for case in ("merging with the prompt", "after a space", "accents that merge", "emoji that share bytes"):
        prompt, choices = CASES[case]
        assert len(runtime.select(prompt, choices).prompt_ids) < len(encode(prompt)), case
    assert sizes("letters") == (0, 0)
    for case in ("many", "prefixes of each other", "characters of several bytes", "emoji that share bytes"):
        once, each = sizes(case)
        assert once < each, case


def test_the_texts_alone_are_scored_in_the_same_step(runtime: Runtime, transformers: PreTrainedModel) -> None:
    prompt, choices = CASES["many"]
    runtime.select(prompt, choices)
    done = runtime.select(prompt, choices, "unconditional_likelihood_normalized")
    (step,) = runtime.executor.steps
    behind = inner(done.choice_ids)
    alone = {ids for ids in behind if any(choice[: len(ids)] == ids for choice in done.choice_ids)}
    # A row for the prompt, and one for each id that texts begin with, which is the prompt of that row.
    assert step.ids.size == 1 + len(behind) + len(alone)
    assert step.rows.size == 1 + len({ids[0] for ids in done.choice_ids if len(ids) > 1})
    assert all(logprobs[0] is None for logprobs in done.unconditional)
    longer = [i for i, ids in enumerate(done.choice_ids) if len(ids) > 1]
    expected = truth(transformers, [(ids[:1], ids[1:]) for ids in (done.choice_ids[i] for i in longer)])
    assert 5 < len(longer) < len(CITIES)
    compare([done.unconditional[i][1:] for i in longer], expected)  # type: ignore[misc]


def test_a_prompt_that_merges_as_a_whole_stays_as_it_is(runtime: Runtime, tokenizer: LocalTokenizer) -> None:
    encode = tokenizer.encode
    assert encode("Y")[0] not in (encode("Yes")[0], encode("You")[0])
    done = runtime.select("Y", ("es", "ou", "!"))
    assert done.prompt_ids == tuple(encode("Y"))
    assert done.choice_ids == tuple(tuple(encode(text)) for text in ("es", "ou", "!"))


@pytest.mark.parametrize("budget", [3, 8])
def test_a_trie_that_is_cut_gives_the_same(
    budget: int, runtime: Runtime, executor: Counting, tokenizer: LocalTokenizer
) -> None:
    whole = runtime.select(*CASES["many"])
    engine = Engine(executor, EngineConfig(token_budget=budget))
    runtime = Runtime(executor, Machine(engine, tokenizer))
    done = runtime.select(*CASES["many"])
    assert len(executor.steps) == -(-(len(done.prompt_ids) + len(inner(done.choice_ids))) // budget)
    compare(done.logprobs, whole.logprobs)


def test_a_large_trie_is_divided(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = runtime.select(*CASES["many"])
    monkeypatch.setattr("sglc.runtime.engine.engine.MOST_TOKENS", 3)
    done = runtime.select(*CASES["many"])
    (step,) = runtime.executor.steps  # the prompt is cached
    assert step.rows.size > 4
    assert whole.usage.scored <= done.usage.scored == step.ids.size - 1
    compare(done.logprobs, whole.logprobs, 2e-4)
