"""What a plan that comes with a request may be. It is data, and nothing of it runs before this was looked at.

Where a bound is on what is in a plan, a block counts as often as it stands there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglc.errors import SglcError
from sglc.ir.ops import SELECT_METHODS
from sglc.ir.plan.plan import CallStep, LoopStep, Plan, Step, blocks_of, steps_of
from sglc.ir.plan.plan_file import hash_of
from sglc.ir.plan.plan_json import plan_from_json
from sglc.ir.plan.segment import ExtendNode, GenNode, Node, Segment, SelectNode, Slot
from sglc.ir.plan.segment import NodeResult as NodeText
from sglc.ir.plan.without_host import host_part
from sglc.ir.sampling import Sampling
from sglc.ir.target import ControlText
from sglc.ir.verify.fields import sampling_problem
from sglc.serve.bodies import MOST_CHARACTERS, MOST_IDS, MOST_STOPS
from sglc.serve.problems import Refusal, bad, refusal_of

MOST_ITEMS = 100_000  # of its JSON: objects, lists, texts, numbers
MOST_DEPTH = 64  # of its JSON
MOST_NESTED = 32  # blocks in each other
MOST_STEPS = 4_096
MOST_GENERATIONS = 1_024
MOST_VARIABLES = 1_024
MOST_TURNS = 1_000  # of one loop
_MOST_TOPS, _MOST = 20, 2**31  # as of `/generate`


def plan_of(given: Mapping[str, Any], samples: int, vocabulary: int) -> Plan:
    """The plan of a request, which may run here as far as the plan itself says.

    Args:
        given: its JSON, with or without the `hash` of a file.
        samples: of one generation, at most.
        vocabulary: ids of the model.

    Raises:
        Refusal: 400; `code` is that of the error with which a file is refused, or `plan_bounds`, `plan_host`.
    """
    check_json(given, "plan")
    data = dict(given)
    written = data.pop("hash", None)
    if written is not None and written != hash_of(data):
        raise bad("plan", "is not as it was written: its hash is another one", "SGLC040")
    if data.get("guards"):
        message = "has guards: see that they hold of the arguments, and send it without"
        raise bad("plan", message, "plan_guards")
    try:
        plan = plan_from_json(_without_defaults(data), _check_size)
    except SglcError as error:
        refusal = refusal_of(error)
        raise Refusal(400, refusal.message, param="plan", code=error.code) from None
    except RecursionError:
        raise bad("plan", "is too deep", "SGLC221") from None
    if host := host_part(plan):
        raise bad("plan", f"is not for a server: {host}", "plan_host")
    for step in steps_of(plan):
        if isinstance(step, Segment):
            for node in step.nodes:
                _check_node(node, samples, vocabulary)
    return plan


def check_json(given: Any, param: str) -> None:
    """Raises Refusal: there is more of it, it is deeper, or has larger numbers than anybody needs."""
    level, items, depth = [given], 0, 0
    while level:
        items, depth = items + len(level), depth + 1
        if items > MOST_ITEMS or depth > MOST_DEPTH:
            most = f"{MOST_ITEMS} items" if items > MOST_ITEMS else f"{MOST_DEPTH} levels"
            raise bad(param, f"has more than {most}", "plan_bounds")
        inner: list[Any] = []
        for item in level:
            if type(item) is dict:
                inner += item.values()
            elif type(item) is list:
                inner += item
            elif isinstance(item, int | float) and not abs(item) < 1e300:
                raise bad(param, "has a number that is too large", "plan_bounds")
        level = inner


def _without_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """Defaults are expressions of Python's, which nobody reads here: every argument is given."""
    params = data.get("params")
    if not isinstance(params, list) or not all(isinstance(param, dict) for param in params):
        return data
    bare = [param | {"default": None} if "default" in param else param for param in params]
    return data | {"params": bare}


def _check_size(plan: Plan) -> None:
    """Everything that goes through a plan takes time for this, and is not begun with larger ones.

    Raises:
        Refusal: it is too large. SglcError is for what is no plan at all, which is found later.
    """
    sizes: list[tuple[int, int, int, int]] = []  # by block: steps, generations, depth, variables
    held: set[int] = set()
    for block in (*plan.blocks, plan.body):
        steps, generations, depth, variables = len(block.steps), 0, 0, len(block.variables)
        for step in block.steps:
            if isinstance(step, Segment):
                generations += sum(isinstance(node, GenNode | SelectNode) for node in step.nodes)
            _check_turns(step)
            for number in blocks_of(step):
                if not 0 <= number < len(sizes):
                    continue  # no plan
                if number in held and not isinstance(step, CallStep):
                    raise bad("plan", f"has block {number} twice", "plan_bounds")
                held.add(number)
                inner = sizes[number]
                steps, generations = steps + inner[0], generations + inner[1]
                depth, variables = max(depth, inner[2]), variables + inner[3]
        sizes.append((steps, generations, depth + 1, variables))
        bounds = (MOST_STEPS, MOST_GENERATIONS, MOST_NESTED, MOST_VARIABLES)
        names = ("steps", "generations", "blocks in each other", "variables")
        for name, count, most in zip(names, sizes[-1], bounds, strict=True):
            if count > most:
                raise bad("plan", f"has {count} {name}, and a server takes {most}", "plan_bounds")
    if any("." in param.kind for param in plan.params):
        raise bad("plan", "has arguments of classes, which are the caller's", "plan_host")


def _check_turns(step: Step) -> None:
    if isinstance(step, LoopStep) and step.max_iters > MOST_TURNS:
        message = f"has a loop of {step.max_iters} turns, and a server takes {MOST_TURNS}"
        raise bad("plan", message, "plan_bounds")


def _check_node(node: Node, samples: int, vocabulary: int) -> None:
    """Whether the runtime may be asked for it."""
    wrong = ""
    match node:
        case ExtendNode(_, parts):
            for part in parts:
                if isinstance(part, ControlText):
                    if not part.ids or not all(0 <= id_ < vocabulary for id_ in part.ids):
                        wrong = f"has ids in `{part.text}` that the model lacks"
                elif not isinstance(part, str | Slot | NodeText):
                    wrong = f"puts a `{type(part).__name__}` into a prompt, which models of ids do not take"
        case GenNode(sampling=sampling):
            wrong = sampling_problem(sampling) or _beyond(sampling, samples)
        case SelectNode(choices=choices, method=method):
            if not choices or len(choices) > samples:
                wrong = f"chooses of {len(choices)} texts, and a server takes 1 to {samples}"
            elif method not in SELECT_METHODS:
                wrong = f"chooses by `{method}`"
    if wrong:
        raise bad("plan", wrong, "invalid_value")


def _beyond(sampling: Sampling, samples: int) -> str:
    """The first field that is larger than `/generate` takes it."""
    stops = (*sampling.stop, *sampling.stop_regex)
    ids: Sequence[int] = (*sampling.stop_token_ids, *(id_ for id_, _ in sampling.logit_bias))
    large = {
        "n": sampling.n > samples,
        "stop": len(stops) > MOST_STOPS or sum(map(len, stops)) > MOST_CHARACTERS,
        "stop_token_ids": len(ids) > MOST_IDS or max(ids, default=0) >= _MOST,
        "top_logprobs": sampling.top_logprobs > _MOST_TOPS,
        "max_tokens": max(sampling.max_tokens, sampling.min_tokens) >= _MOST,
        "logprobs_from": (sampling.logprobs_from or 0) >= _MOST,
        "logit_bias": any(not abs(bias) < 3e38 for _, bias in sampling.logit_bias),
    }
    return next((f"has a `{name}` that is too large" for name, out in large.items() if out), "")
