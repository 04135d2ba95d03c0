"""llama.cpp over the workloads of `cpu.py`: one process of an environment of its own, nothing of sglc.

    python cpu_peer.py MODEL.gguf WORKLOADS.json THREADS ROUNDS

`WORKLOADS.json`: [{"name", "prompts": [[id, ...]], "new_tokens", "prefix"}]. Every prompt is one sequence;
all of them are decoded together (what `llama-server -np N -cb` does), greedily, ends of turns ignored. A
shared prefix is computed once, and its cells are every sequence's (`llama_memory_seq_cp`). One JSON object on
stdout: by workload the seconds of every round and the ids of the last one; `system_info`, `version`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import llama_cpp as lib  # type: ignore[import-not-found]
import numpy as np

STEP = 2048  # tokens of one call


class Peer:
    """One context for up to `sequences` sequences of `cells` tokens together."""

    def __init__(self, model: object, threads: int, cells: int, sequences: int) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = cells, sequences, True
        params.n_batch, params.n_ubatch = STEP, 512
        params.n_threads = params.n_threads_batch = threads
        self.context = lib.llama_init_from_model(model, params)
        assert self.context, "no context"
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self.batch = lib.llama_batch_init(STEP, 0, 1)

    def decode(self, tokens: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        """Run (id, position, sequence, sample) tokens -> sequence: likeliest next id."""
        made: dict[int, int] = {}
        for begin in range(0, len(tokens), STEP):
            part = tokens[begin : begin + STEP]
            self.batch.n_tokens = len(part)
            for i, (token, position, sequence, wanted) in enumerate(part):
                self.batch.token[i], self.batch.pos[i] = token, position
                self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
                self.batch.logits[i] = wanted
            assert lib.llama_decode(self.context, self.batch) == 0
            for i, (_, _, sequence, wanted) in enumerate(part):
                if wanted:
                    logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(self.context, i), (self.vocab,))
                    made[sequence] = int(logits.argmax())
        return made

    def run(self, prompts: list[list[int]], new_tokens: int, prefix: int) -> list[list[int]]:
        memory = lib.llama_get_memory(self.context)
        lib.llama_memory_clear(memory, True)
        if prefix:
            self.decode([(token, i, 0, False) for i, token in enumerate(prompts[0][:prefix])])
            for sequence in range(1, len(prompts)):
                lib.llama_memory_seq_cp(memory, 0, sequence, 0, prefix)
        last = self.decode(
            [
                (token, i, sequence, i == len(prompt) - 1)
                for sequence, prompt in enumerate(prompts)
                for i, token in enumerate(prompt)
                if i >= prefix
            ]
        )
        outputs = [[last[sequence]] for sequence in range(len(prompts))]
        for step in range(new_tokens - 1):
            last = self.decode([(last[s], len(prompt) + step, s, True) for s, prompt in enumerate(prompts)])
            for sequence, output in enumerate(outputs):
                output.append(last[sequence])
        return outputs


def main() -> None:
    path, work = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    threads, rounds = int(sys.argv[3]), int(sys.argv[4])
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    result: dict[str, object] = {
        "version": lib.__version__,
        "system_info": lib.llama_print_system_info().decode(),
    }
    for part in work:
        prompts, new = part["prompts"], part["new_tokens"]
        cells = sum(len(prompt) + new for prompt in prompts) + 256
        peer = Peer(model, threads, cells, len(prompts))
        peer.run(prompts, 2, part["prefix"])  # not timed
        seconds, outputs = [], []
        for _ in range(rounds):
            begin = time.perf_counter()
            outputs = peer.run(prompts, new, part["prefix"])
            seconds.append(round(time.perf_counter() - begin, 3))
            print(f"  llama.cpp {part['name']}: {seconds[-1]} s", file=sys.stderr, flush=True)
        lib.llama_free(peer.context)
        result[part["name"]] = {"seconds": seconds, "outputs": outputs}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
