"""Which modules of sglc a warm run goes through: `python -m tests.modules_entered BACKEND` names them."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType
from typing import Any

import sglc as sgl


@sgl.function
def answered(s: Any, question: str) -> None:
    s += "Question: " + question + "\nAnswer:" + sgl.gen("answer", max_tokens=4)


def entered(backend: str) -> list[str]:
    """The modules whose functions a run of one generation calls, in any thread, when others came before it."""
    found: set[str] = set()
    looking = False

    def look(frame: FrameType, event: str, _: Any) -> None:
        if looking and event == "call":
            found.add(str(frame.f_globals.get("__name__")))

    threading.setprofile(look)  # of the threads that sglc begins, with the first run
    for number in range(3):
        answered.run(question=f"What is {number}?", backend=backend).text()
    gc.collect()  # generators that were left behind are entered once more, to be closed
    sys.setprofile(look)
    looking = True
    answered.run(question="What is 3?", backend=backend).text()
    looking = False
    sys.setprofile(None)
    return sorted(name for name in found if name.partition(".")[0] == "sglc")


if __name__ == "__main__":
    modules = entered(sys.argv[1])
    print(len(modules), *modules)
