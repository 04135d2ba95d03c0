"""Every program of the benchmark, with its size on each device.

On CUDA sizes are those of the paper's list where it gives them; on the CPU a program takes seconds. `smallest`
is what tests run.
"""

from __future__ import annotations

from sglc.bench.programs import shots, trees, turns
from sglc.bench.programs.workload import Workload

WORKLOADS = (
    Workload(
        name="mmlu", make=shots.mmlu,
        sizes={
            "cuda": {"groups": 8, "questions": 64, "prefix": 1500, "question": 100},
            "cpu": {"groups": 3, "questions": 8, "prefix": 160, "question": 16},
            "smallest": {"groups": 2, "questions": 3, "prefix": 33, "question": 5},
        },
        in_flight=512,
    ),
    Workload(
        name="few-shot", make=shots.few_shot,
        sizes={
            "cuda": {"subjects": 32, "questions": 16, "example": 120, "question": (40, 120)},
            "cpu": {"subjects": 6, "questions": 6, "example": 24, "question": (8, 24)},
            "smallest": {"subjects": 2, "questions": 3, "example": 5, "question": (3, 6)},
        },
    ),
    Workload(
        name="hellaswag", make=shots.hellaswag,
        sizes={
            "cuda": {"rows": 256, "example": 80, "context": (30, 60), "ending": 25},
            "cpu": {"rows": 16, "example": 16, "context": (8, 16), "ending": 6},
            "smallest": {"rows": 3, "example": 2, "context": (3, 6), "ending": 2},
        },
    ),
    Workload(
        name="react", make=turns.react,
        sizes={
            "cuda": {
                "rows": 128, "examples": 800, "question": 30, "rounds": 6, "outs": (40, 20), "observation": 100,
            },
            "cpu": {
                "rows": 8, "examples": 120, "question": 8, "rounds": 3, "outs": (8, 4), "observation": 16,
            },
            "smallest": {
                "rows": 2, "examples": 9, "question": 3, "rounds": 2, "outs": (3, 2), "observation": 4,
            },
        },
    ),
    Workload(
        name="tot", make=trees.tree_of_thought,
        sizes={
            "cuda": {"programs": 32, "prefix": 600, "branches": (8, 4), "adds": (50, 20), "outs": (200, 100)},
            "cpu": {"programs": 4, "prefix": 96, "branches": (3, 2), "adds": (8, 4), "outs": (12, 8)},
            "smallest": {"programs": 2, "prefix": 20, "branches": (3, 2), "adds": (5, 3), "outs": (4, 2)},
        },
        in_flight=1024,
    ),
    Workload(
        name="skeleton", make=trees.skeleton_of_thought,
        sizes={
            "cuda": {"rows": 64, "shared": 300, "question": 40, "points": 8, "outs": (80, 120)},
            "cpu": {"rows": 6, "shared": 64, "question": 8, "points": 4, "outs": (8, 12)},
            "smallest": {"rows": 2, "shared": 9, "question": 3, "points": 3, "outs": (3, 2)},
        },
    ),
    Workload(
        name="judge", make=trees.judge,
        sizes={
            "cuda": {"rows": 64, "essay": 800, "aspects": 5, "outs": (100, 80)},
            "cpu": {"rows": 6, "essay": 120, "aspects": 4, "outs": (10, 8)},
            "smallest": {"rows": 2, "essay": 12, "aspects": 3, "outs": (2, 2)},
        },
    ),
    Workload(
        name="json", make=trees.json_fields,
        sizes={
            "cuda": {"rows": 64, "document": 4000},
            "cpu": {"rows": 6, "document": 300},
            "smallest": {"rows": 2, "document": 20},
        },
    ),
    Workload(
        name="chat-short", make=turns.chat,
        sizes={
            "cuda": {"rows": 128, "shared": 60, "turns": 4, "said": (256, 512), "answers": (4, 8)},
            "cpu": {"rows": 8, "shared": 24, "turns": 4, "said": (24, 48), "answers": (2, 4)},
            "smallest": {"rows": 2, "shared": 4, "turns": 2, "said": (3, 6), "answers": (1, 2)},
        },
    ),
    Workload(
        name="chat-long", make=turns.chat,
        sizes={
            "cuda": {"rows": 128, "shared": 60, "turns": 4, "said": (256, 512), "answers": (256, 512)},
            "cpu": {"rows": 4, "shared": 24, "turns": 4, "said": (24, 48), "answers": (16, 32)},
            "smallest": {"rows": 2, "shared": 4, "turns": 2, "said": (3, 6), "answers": (4, 6)},
        },
    ),
    Workload(
        name="rag", make=turns.rag,
        sizes={
            "cuda": {
                "rows": 128, "examples": 400, "library": 64, "passage": 200, "found": 3, "question": 30,
                "outs": (16, 80, 16),
            },
            "cpu": {
                "rows": 8, "examples": 64, "library": 12, "passage": 32, "found": 3, "question": 8,
                "outs": (4, 12, 4),
            },
            "smallest": {
                "rows": 2, "examples": 6, "library": 4, "passage": 5, "found": 2, "question": 3,
                "outs": (2, 3, 2),
            },
        },
    ),
)  # fmt: skip
BY_NAME = {workload.name: workload for workload in WORKLOADS}
