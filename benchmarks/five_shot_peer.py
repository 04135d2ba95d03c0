"""The lm_eval side of five_shot.py: runs in an environment of its own, one round for each line it reads.

A line is a JSON object {"requests": [[context, continuation], ...]}; the answer is one line with the log-
probability of each continuation and the seconds that this took.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.metadata import version

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM


def main() -> None:
    """Arguments: the model's folder, threads, requests at once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("threads", type=int)
    parser.add_argument("batch", type=int)
    arguments = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr  # what the libraries print is no answer
    torch.set_num_threads(arguments.threads)
    model = HFLM(pretrained=arguments.folder, device="cpu", dtype="float32", batch_size=arguments.batch)
    print(
        json.dumps({"lm_eval": version("lm_eval"), "transformers": version("transformers")}),
        file=answers,
        flush=True,
    )
    for line in sys.stdin:
        requests = json.loads(line)["requests"]
        instances = [
            Instance("loglikelihood", {}, (context, continuation), i)
            for i, (context, continuation) in enumerate(requests)
        ]
        begin = time.perf_counter()
        found = model.loglikelihood(instances, disable_tqdm=True)
        seconds = time.perf_counter() - begin
        print(
            json.dumps({"logprobs": [value for value, _ in found], "seconds": seconds}),
            file=answers,
            flush=True,
        )


if __name__ == "__main__":
    main()
