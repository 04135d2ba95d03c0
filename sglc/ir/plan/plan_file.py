"""A plan as the text of a file: its JSON, and beside it the hash of what it says.

The hash is that of the canonical JSON (sorted keys, no white space), so a file that was only laid out
anew is the same plan, and one in which anything else changed is refused.
"""

from __future__ import annotations

import json
from hashlib import blake2b

from sglc.errors import Loc, UsageError, VerifyError
from sglc.ir.plan.plan import Plan
from sglc.ir.plan.plan_json import plan_from_json, plan_to_json

_HASH_BYTES = 16


def plan_hash(plan: Plan) -> str:
    """What identifies a plan: equal plans have equal hashes, in every process (32 hexadecimal digits)."""
    return hash_of(plan_to_json(plan))


def hash_of(data: object) -> str:
    """That of a plan which is JSON."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return blake2b(canonical.encode(), digest_size=_HASH_BYTES).hexdigest()


def plan_to_text(plan: Plan) -> str:
    """The text of the plan's file."""
    data = plan_to_json(plan)
    written = hash_of(data)
    data = {"is": data.pop("is"), "version": data.pop("version"), "hash": written, **data}
    text = json.dumps(data, ensure_ascii=False, indent=1)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(data, indent=1)
    return text


def plan_from_text(text: str, name: str) -> Plan:
    """The plan of a file's text; `name` is that of the file.

    Raises:
        UsageError: SGLC008, no JSON; SGLC040, something changed in it since it was written.
        VerifyError: SGLC220 another version; SGLC221 no plan, with the path of what is wrong.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        loc = Loc(name, error.lineno, error.colno)
        hint = "a plan that runs is what `sglc compile PROG --emit json` writes"
        raise UsageError("SGLC008", f"this is no JSON: {error.msg}", loc, hint=hint) from None
    except ValueError as error:  # a number of too many digits
        raise UsageError("SGLC008", f"this is no JSON: {error}", Loc(name, 1)) from None
    except RecursionError:
        raise VerifyError("SGLC221", "this is no plan: it is too deep") from None
    written = data.pop("hash", None) if isinstance(data, dict) else None
    plan = plan_from_json(data)
    found = hash_of(data)
    if written != found:
        raise UsageError(
            "SGLC040", f"the plan in `{name}` is not as it was written", Loc(name, 1),
            note=f"its hash is {found}, and beside it stands {written or 'none'}",
            hint="compile the program again; what a plan says is changed in its program",
        )  # fmt: skip
    return plan
