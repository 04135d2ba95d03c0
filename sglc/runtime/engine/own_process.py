"""What holds in processes that sglc begins: what they import, how they collect garbage, when they end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import sysconfig
from types import ModuleType

# Of the garbage collector: objects that it looks after, and how often it goes on to older ones. Requests make
# many and few cycles, and to look for them among older ones took 2 to 3 % of the time of a tree of thought.
# Among 10,000 new ones it took up to 15 ms, where these are prompts of thousands of ids.
COLLECTIONS = (2_000, 2_500, 50)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that began it ends, by kill -9, too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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
