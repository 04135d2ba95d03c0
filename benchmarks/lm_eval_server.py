"""Scores of lm-evaluation-harness through `sglc serve`, beside those of its own transformers model.

The same weights, float32, 48 questions of four choices (benchmarks/lm_eval_tasks): once through the harness's
`local-completions`, which sends token ids and reads the log-probabilities of the echoed prompt, and once
through its `hf`. Accuracies must be equal, and every choice's log-likelihood within 1e-3.

The harness runs in an environment of its own, .cache/lm-eval, made on first use; torch comes from this one.
Writes benchmarks/results/lm-eval-<cpu>.json and fails if anything differs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from machine import ROOT, commit, cpu_model, result_path

from sglc.runtime.model.registry import prepare

TOLERANCE = 1e-3
HARNESS = ROOT / ".cache" / "lm-eval"


def harness() -> Path:
    """The program `lm_eval`, installed if it is not there yet."""
    program = HARNESS / "bin" / "lm_eval"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", HARNESS], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (HARNESS / "lib" / version / "site-packages" / "torch-of-sglc.pth").write_text(
            sysconfig.get_paths()["purelib"] + "\n"
        )
        install = [HARNESS / "bin" / "pip", "install", "--constraint", ROOT / "constraints.txt", "lm_eval[api]"]
        subprocess.run(install, check=True, stdout=sys.stderr)
    return program


def version() -> str:
    """Of the harness."""
    ask = "from importlib.metadata import version; print(version('lm_eval'))"
    told = subprocess.run([HARNESS / "bin" / "python", "-c", ask], check=True, capture_output=True, text=True)
    return told.stdout.strip()


@contextmanager
def server() -> Iterator[str]:
    """`sglc serve` with the default model; gives its address."""
    command = [
        sys.executable,
        "-m",
        "sglc.cli",
        "serve",
        "--port",
        "0",
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        ready = re.fullmatch(r"sglc: serving smollm2 at (\S+)\n", line)
        if ready is None:
            raise SystemExit(line + process.stderr.read())
        try:
            yield ready[1]
        finally:
            process.terminate()


def evaluate(program: Path, kind: str, **arguments: Any) -> dict[str, Any]:
    """What the harness finds: accuracies, and of each question the (log-likelihood, greedy) of its choices."""
    with tempfile.TemporaryDirectory() as folder:
        given = ",".join(f"{name}={value}" for name, value in arguments.items())
        command = [
            program, "--model", kind, "--model_args", given, "--tasks", "general", "--log_samples",
            "--include_path", ROOT / "benchmarks" / "lm_eval_tasks", "--output_path", folder,
        ]  # fmt: skip
        if kind == "hf":
            command += ["--device", "cpu", "--batch_size", "1"]
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **offline}, stdout=sys.stderr)
        (results,) = Path(folder).rglob("results_*.json")
        (samples,) = Path(folder).rglob("samples_general_*.jsonl")
        scores = json.loads(results.read_text())["results"]["general"]
        answers = {}
        for line in samples.read_text().splitlines():
            sample = json.loads(line)
            answers[sample["doc_id"]] = [
                (float(score), str(greedy) == "True") for ((score, greedy),) in sample["resps"]
            ]
    return {
        "acc": scores["acc,none"],
        "acc_norm": scores["acc_norm,none"],
        "choices": [answers[number] for number in sorted(answers)],
    }


def main() -> int:
    program = harness()
    folder = prepare("smollm2")
    with server() as url:
        ours = evaluate(
            program, "local-completions", model="smollm2", base_url=f"{url}/v1/completions", tokenizer=folder,
            tokenizer_backend="huggingface", num_concurrent=4, max_retries=1,
        )  # fmt: skip
    theirs = evaluate(program, "hf", pretrained=folder, dtype="float32")
    pairs = [
        (one, other)
        for choices, others in zip(ours["choices"], theirs["choices"], strict=True)
        for one, other in zip(choices, others, strict=True)
    ]
    worst = max(abs(one - other) for (one, _), (other, _) in pairs)
    unlike = sum(greedy != other for (_, greedy), (_, other) in pairs)
    result = {
        "what": "lm-evaluation-harness on the default model: through sglc serve, and through transformers",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "commit": commit(),
        "lm_eval": version(),
        "questions": len(ours["choices"]),
        "choices": len(pairs),
        "sglc serve": {"acc": ours["acc"], "acc_norm": ours["acc_norm"]},
        "transformers": {"acc": theirs["acc"], "acc_norm": theirs["acc_norm"]},
        "largest difference of a log-likelihood": worst,
        "choices whose greedy flag differs": unlike,
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    same = all(ours[name] == theirs[name] for name in ("acc", "acc_norm"))
    if not same or worst > TOLERANCE or unlike:
        print("the results differ", file=sys.stderr)
        return 1
    path = result_path("lm-eval")
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"-> {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
