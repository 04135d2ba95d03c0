"""What holds in processes that sglc begins: what they import, how they collect garbage, when they end."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import sysconfig
from contextlib import suppress
from types import ModuleType

# Of the garbage collector: objects that it looks after, and how often it goes on to older ones. Requests make
# many and few cycles, and to look for them among older ones took 2 to 3 % of the time of a tree of thought.
# Among 10,000 new ones it took up to 15 ms, where these are prompts of thousands of ids.
COLLECTIONS = (700, 7_000, 50)
# Where `collect_if_due` finds better moments: most of a request's objects are gone by then.
LATE_COLLECTIONS = (10_000, *COLLECTIONS[1:])
_SWITCH_S = 0.00002
_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that began it ends, by kill -9, too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def keep_answering(collections: tuple[int, ...] = COLLECTIONS) -> None:
    """From now on no collection of garbage takes long, and other threads give way to this one at once.

    What was loaded is no garbage. For Python's lock a thread waits 5 ms, and each call that lets go of it, as
    many of torch do, may have it wait again; on Linux for 50 us more, unless it is said that time matters.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*collections)
    gc.enable()
    # One text at a time is encoded: threads of the tokenizer's own, one for each processor, would only wait.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.setswitchinterval(_SWITCH_S)
    with suppress(AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)


def collect_if_due() -> None:
    """Look for garbage, if that is due: nobody waits for this process now."""
    counts = gc.get_count()
    if counts[0] > COLLECTIONS[0]:
        due = [old for old in (1, 2) if counts[old] > COLLECTIONS[old]]
        gc.collect(max(due, default=0))


def python_path() -> str:
    """`PYTHONPATH` of a process that is to import what this one would.

    Python's own library is ahead: a process that starts with a folder of the program there would take an
    `enum.py` in it for Python's, which the program itself had before that folder was one to import from.
    """
    known = {sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED")}
    own = [path for path in sys.path if path in known]
    return os.pathsep.join([*own, *(os.path.abspath(path) for path in sys.path if path not in known)])


def spare_transformers() -> None:
    """Have xgrammar load without transformers, which takes half a second in each process that sees a grammar.

    It names three of its classes, for what a program may give it. Nobody gives it that here, and in somebody's
    own program transformers stays as it is.
    """
    unused = ModuleType("transformers")
    for name in ("LogitsProcessor", "PreTrainedTokenizerBase", "PreTrainedTokenizerFast"):
        setattr(unused, name, type(name, (), {}))
    sys.modules.setdefault("transformers", unused)
