"""What holds where nothing runs but the runtime: in processes that it begins."""

from __future__ import annotations

import sys
from types import ModuleType

# Of the garbage collector: objects that it looks after, and how often it goes on to older ones. Requests make
# many and few cycles, and to look for them at Python's pace took 2 to 3 % of the time of a tree of thought.
COLLECTIONS = (100_000, 50, 50)


def spare_transformers() -> None:
    """Have xgrammar load without transformers, which takes half a second in each process that sees a grammar.

    It names three of its classes, for what a program may give it. Nobody gives it that here, and in somebody's
    own program transformers stays as it is.
    """
    unused = ModuleType("transformers")
    for name in ("LogitsProcessor", "PreTrainedTokenizerBase", "PreTrainedTokenizerFast"):
        setattr(unused, name, type(name, (), {}))
    sys.modules.setdefault("transformers", unused)
