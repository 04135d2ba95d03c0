"""Rewrites of programs, and their lowering to plans. Passes see a `Target`, never a back end.

Importing this package registers every pass; passes never import each other. `register` is how a user adds
one of their own (docs/passes.md). May import: errors, knobs, ir, and the helpers in `chat` and `lowering`.
"""

import sglc.passes.cache_hints
import sglc.passes.chat_turns
import sglc.passes.compile_constraints
import sglc.passes.engine_hints
import sglc.passes.fold_text
import sglc.passes.fuse_gens
import sglc.passes.hoist_prefix
import sglc.passes.inline_calls
import sglc.passes.legalize
import sglc.passes.lower_roles
import sglc.passes.overlap_tools
import sglc.passes.prune
import sglc.passes.reorder
import sglc.passes.share_prefixes
import sglc.passes.speculate
import sglc.passes.unify  # noqa: F401
from sglc.ir.remark import Remark
from sglc.passes.base import Exactness, Kind, Rewrite, register

__all__ = ["Exactness", "Kind", "Remark", "Rewrite", "register"]
