"""Five-shot questions with four answers on the CPU: `select` against lm_eval's `hf` model.

Two ways to ask the same questions with the default model in float32:
  letters   as in MMLU: four answers with letters in the prompt, one of " A" .. " D" is wanted
  texts     as in ARC: one of four texts is wanted
Both sides run the same weights with the same threads, in processes that take turns; lm_eval scores as many
requests at once as is best for it, and sglc starts every round with an empty cache. Each side's answer is the
one with the highest log-probability; the answers have to be the same.

lm_eval gets an environment of its own in .cache/lm-eval, which shares torch and transformers with this one.
Writes benchmarks/results/five-shot-<cpu>.json and fails if a goal is missed or an answer differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sglc as sgl
from benchmarks.machine import ROOT, dated_setting, result_path, store
from benchmarks.questions import LETTERS, letter_prompt, questions, text_prompt
from sglc.backends.local import LocalBackend, LocalOptions

LM_EVAL = "0.4.13"
HOME = ROOT / ".cache" / "lm-eval"
ROUNDS = 5
GOALS = {"letters": 5.0, "texts": 5.0}  # times the questions per second of lm_eval
BATCHES = (1, 4, 16)  # requests at once that lm_eval is tried with
TOLERANCE = 1e-3  # of a text's log-probability


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts with the four texts that may follow each."""

    name: str
    prompts: tuple[str, ...]
    choices: tuple[tuple[str, ...], ...]
    right: tuple[int, ...]


def work() -> list[Work]:
    """The same questions in both ways."""
    shown, asked = questions()
    right = tuple(question.right for question in asked)
    letters = tuple(f" {letter}" for letter in LETTERS)
    return [
        Work("letters", tuple(letter_prompt(shown, each) for each in asked), (letters,) * len(asked), right),
        Work(
            "texts",
            tuple(text_prompt(shown, each) for each in asked),
            tuple(tuple(f" {text}" for text in each.answers) for each in asked),
            right,
        ),
    ]


class Peer:
    """lm_eval's process."""

    def __init__(self, folder: Path, threads: int, batch: int) -> None:
        script = Path(__file__).with_name("five_shot_peer.py")
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.process = subprocess.Popen(
            [HOME / "bin" / "python", script, folder, str(threads), str(batch)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.versions = self._read()

    def run(self, work: Work) -> tuple[float, np.ndarray]:
        """Seconds, and the log-probabilities [questions, 4]."""
        requests = [[p, c] for p, choices in zip(work.prompts, work.choices, strict=True) for c in choices]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"requests": requests}) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        return answer["seconds"], np.array(answer["logprobs"]).reshape(-1, 4)

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit("error: lm_eval's process has ended")
        found: dict[str, Any] = json.loads(line)
        return found


@sgl.function
def answer(s, prompt, choices):
    s += prompt
    s += sgl.select("answer", choices=choices)


class Ours:
    """The program above on the local back end."""

    def __init__(self) -> None:
        self.backend = LocalBackend(LocalOptions("smollm2", device="cpu"))
        self.backend.start()
        self.usage: dict[str, int] = {}

    def run(self, work: Work) -> tuple[float, np.ndarray]:
        """As `Peer.run`; nothing is cached before."""
        self.backend.flush_cache()
        rows = [
            {"prompt": prompt, "choices": list(choices)}
            for prompt, choices in zip(work.prompts, work.choices, strict=True)
        ]
        begin = time.perf_counter()
        states = answer.run_batch(rows, backend=self.backend)
        texts = [state["answer"] for state in states]
        seconds = time.perf_counter() - begin
        assert all(text in choices for text, choices in zip(texts, work.choices, strict=True))
        calls = [state.calls[0] for state in states]
        self.usage = {
            name: sum(getattr(call.usage, name) for call in calls)
            for name in ("prompt", "cached", "computed", "scored")
        }
        return seconds, np.array([[sum(values) for values in call.logprobs] for call in calls])


def prepare_peer() -> None:
    """lm_eval's environment, made once."""
    if (HOME / "ready").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True)
    site = next((HOME / "lib").glob("python*")) / "site-packages"
    (site / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    frozen = subprocess.run(
        [sys.executable, "-m", "pip", "freeze", "--exclude-editable"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    kept = HOME / "constraints.txt"
    kept.write_text("".join(line + "\n" for line in frozen.splitlines() if " @ " not in line))
    subprocess.run(
        [
            HOME / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--constraint",
            kept,
            f"lm_eval=={LM_EVAL}",
        ],
        check=True,
    )
    (HOME / "ready").touch()


def best_batch(folder: Path, threads: int, works: Sequence[Work]) -> int:
    """How many requests at once lm_eval is fastest with, over all `works`."""
    seconds = {}
    for batch in BATCHES:
        peer = Peer(folder, threads, batch)
        seconds[batch] = sum(peer.run(work)[0] for work in works)
        peer.close()
        print(f"lm_eval, {batch} at once: {seconds[batch]:.1f} s", file=sys.stderr, flush=True)
    return min(seconds, key=lambda batch: seconds[batch])


def compare(work: Work, ours: Ours, peer: Peer, rounds: int) -> dict[str, Any]:
    """One way's part of the result."""
    ours.run(work)  # not timed: kernels and memory are warm
    seconds: dict[str, list[float]] = {"sglc": [], "lm_eval": []}
    for turn in range(rounds):
        for name in ("sglc", "lm_eval") if turn % 2 else ("lm_eval", "sglc"):
            taken, found = (ours if name == "sglc" else peer).run(work)
            seconds[name].append(round(taken, 3))
            if name == "sglc":
                mine = found
            else:
                theirs = found
        print(
            f"  {work.name}: {seconds['sglc'][-1]:.2f} s, lm_eval {seconds['lm_eval'][-1]:.2f} s",
            file=sys.stderr,
        )
    median = {name: statistics.median(values) for name, values in seconds.items()}
    count = len(work.prompts)
    return {
        "questions": count,
        "seconds": seconds,
        "questions_per_s": {name: round(count / value, 2) for name, value in median.items()},
        "faster": round(median["lm_eval"] / median["sglc"], 2),
        "goal": GOALS[work.name],
        "different_answers": int((mine.argmax(1) != theirs.argmax(1)).sum()),
        "largest_difference": float(np.abs(mine - theirs).max()),
        "right": {"sglc": _right(mine, work), "lm_eval": _right(theirs, work)},
        "tokens": ours.usage,
    }


def _right(found: np.ndarray, work: Work) -> int:
    return int((found.argmax(1) == np.array(work.right)).sum())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=0, help="requests at once of lm_eval; 0: the best of some")
    arguments = parser.parse_args()
    prepare_peer()
    torch.set_num_threads(arguments.threads)
    works = work()
    ours = Ours()
    batch = arguments.batch or best_batch(ours.backend.folder, arguments.threads, works)
    peer = Peer(ours.backend.folder, arguments.threads, batch)
    result: dict[str, Any] = {
        "what": "five-shot questions with four answers, the default model on the CPU, float32; seconds a round",
        **dated_setting(),
        "threads": arguments.threads,
        "versions": {"torch": torch.__version__, **peer.versions},
        "lm_eval_batch": batch,
    }
    good = True
    for each in works:
        part = compare(each, ours, peer, arguments.rounds)
        result[each.name] = part
        good &= part["faster"] >= part["goal"] and not part["different_answers"]
        good &= part["largest_difference"] < TOLERANCE
        print(f"{each.name}: {json.dumps({key: part[key] for key in part if key != 'seconds'})}")
    peer.close()
    ours.backend.close()
    store(result_path("five-shot"), result)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
