"""What every plan must obey, checked when one comes from a file: it can then be run without further checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sglc.errors import VerifyError
from sglc.ir.core import Type
from sglc.ir.facts import names_in
from sglc.ir.ops import GIVES, ORDERS
from sglc.ir.plan.plan import (
    Block,
    CallStep,
    CondStep,
    Derived,
    FunctionStep,
    HostStep,
    Joined,
    LoopStep,
    MapStep,
    Named,
    OutputTree,
    Plan,
    PromptEnd,
    PromptPrefix,
    Step,
    SwitchStep,
    ValueStep,
    blocks_of,
)
from sglc.ir.plan.plan_texts import check_texts
from sglc.ir.plan.segment import (
    GenNode,
    Held,
    ImagePart,
    KeepNode,
    NodeResult,
    OpenNode,
    ReleaseNode,
    Segment,
    SelectNode,
    Slot,
)
from sglc.ir.plan.uses import Name, Uses, block_ends, gives_of
from sglc.ir.pure import STORED
from sglc.ir.values import OPERATIONS


def check_plan(plan: Plan) -> None:
    """Blocks hold earlier blocks, their parameters and results fit, every name is given before it is read, and
    texts are texts.

    Raises:
        VerifyError: SGLC221, with the path of the fault.
    """
    _check_params(plan)
    for number, block in enumerate(plan.blocks):
        _check_blocks(block.steps, plan.blocks[:number], f".blocks[{number}]")
    _check_blocks(plan.steps, plan.blocks, "")
    uses = Uses(plan.blocks)
    for number, block in enumerate(plan.blocks):
        _check_block(block, plan.blocks, uses, f".blocks[{number}]")
    _check_block(plan.body, plan.blocks, uses, "")
    known = dict.fromkeys([*plan.body.params, *(name for step in plan.steps for name in gives_of(step))])
    reads = [name for step in plan.steps for name in uses.reads(step)]
    for name in (*reads, *block_ends(plan.body)):
        # A stream that nothing gives is one that an earlier run may have kept.
        if isinstance(name, Slot) and name not in known:
            raise _wrong("", f"reads `{name.name}`, which nothing gives")
    for number, prefix in enumerate(plan.leads):
        _check_prefix(prefix, plan.names, f".leads[{number}]")
    check_texts(plan)


def _check_params(plan: Plan) -> None:
    """Defaults and facts are spelled so that a run can read them."""
    try:
        for param in plan.params:
            if any(text is not None and names_in(text) for text in (param.default, param.holds)):
                raise _wrong(".params", f"has no value as default of `{param.name}`")
        for guard in plan.guards:
            if names_in(guard.fact) - {*plan.names}:
                raise _wrong(".guards", f"is about an argument that is not there: `{guard.fact}`")
    except ValueError as error:
        raise _wrong("", str(error)) from None


def _check_prefix(prefix: PromptPrefix, params: Sequence[str], path: str) -> None:
    """A prompt prefix reads arguments only, through operations on one text."""
    for part in prefix:
        if isinstance(part, Slot) and part.name not in params:
            raise _wrong(path, f"reads `{part.name}`, which is no argument")
        if isinstance(part, Derived):
            if part.operation not in ("strip", "lower"):
                raise _wrong(path, f"has an unknown operation `{part.operation}`")
            _check_prefix(part.parts, params, path)


def _check_blocks(steps: Sequence[Step], blocks: Sequence[Block], path: str) -> None:
    """The blocks of steps are there, and take and give what the steps give and take."""
    for number, step in enumerate(steps):
        here = f"{path}.steps[{number}]"
        for held in blocks_of(step):
            if not 0 <= held < len(blocks):
                raise _wrong(here, f"reads block {held}")
        match step:
            case HostStep() if number + 1 < len(steps):
                raise _wrong(here, "hands over to Python before the end")
            case ValueStep() if step.operation not in OPERATIONS:
                raise _wrong(here, f"has an unknown operation `{step.operation}`")
            case ValueStep() if OPERATIONS[step.operation].operands not in (None, len(step.operands)):
                raise _wrong(here, f"has {len(step.operands)} operands")
            case ValueStep():
                takes = OPERATIONS[step.operation].takes
                if not all(_may_be(operand, takes) for operand in step.operands):
                    raise _wrong(here, f"has an operand that `{step.operation}` does not take")
            case FunctionStep() if step.function.endswith(STORED) and (len(step.args) != 1 or step.named):
                raise _wrong(here, f"calls what reads a text with {len(step.args)} arguments")
            case FunctionStep() if step.gives not in GIVES:
                raise _wrong(here, f"gives a `{step.gives}`")
            case FunctionStep() if step.order not in ORDERS:
                raise _wrong(here, f"is called in the order `{step.order}`")
            case CondStep():
                if not _may_be(step.pred, (Type.BOOL,)):
                    raise _wrong(here, "decides by what is no truth value")
                _check_arms((blocks[step.then], blocks[step.orelse]), step.gives, here)
            case SwitchStep():
                if len(step.arms) - len(step.cases) not in (0, 1):
                    raise _wrong(here, f"has {len(step.arms)} blocks for {len(step.cases)} cases")
                if not _may_be(step.value, (Type.TEXT,)):
                    raise _wrong(here, "decides by what is no text")
                _check_arms([blocks[arm] for arm in step.arms], step.gives, here)
            case LoopStep():
                sizes = (len(step.init), len(step.init) + 1, len(step.init))
                body = blocks[step.body]
                _check_sizes(body, sizes, len(step.gives), here)
                _check_streams(step.init, body.params, here)
                _check_streams(body.results[1:], body.params, here)
                _check_streams(body.params, step.gives, here)
                if not _may_be(body.results[0], (Type.BOOL,)):
                    raise _wrong(here, "goes on by what is no truth value")
                if step.max_iters < 1:
                    raise _wrong(here, f"runs {step.max_iters} times")
            case MapStep():
                if not _may_be(step.items, (Type.LIST,)):
                    raise _wrong(here, "runs over what is no list")
                _check_sizes(blocks[step.body], (1, len(step.gives), len(step.gives)), len(step.gives), here)
            case CallStep():
                called = blocks[step.body]
                sizes = (len(step.args), len(step.gives), len(step.gives))
                _check_sizes(called, sizes, len(step.gives), here)
                _check_streams(step.args, called.params, here)
                _check_streams(called.results, step.gives, here)


def _check_arms(arms: Sequence[Block], gives: Sequence[Name], path: str) -> None:
    for arm in arms:
        hands_over = bool(arm.steps) and isinstance(arm.steps[-1], HostStep)
        _check_sizes(arm, (0, 0 if hands_over else len(gives), len(gives)), len(gives), path)
        if not hands_over:
            _check_streams(arm.results, gives, path)


def _check_streams(values: Sequence[OutputTree], names: Sequence[Name], path: str) -> None:
    """What names stand for is a stream where they are those of streams, and only there."""
    for name, value in zip(names, values, strict=True):
        if isinstance(name, Held) != isinstance(value, Held):
            raise _wrong(path, f"gives something else than what `{name.name}` is")


# What a tree of a plan can be that gives a value of a type; what a `Slot` stands for is known when it runs.
_MAY_BE: Mapping[Type, tuple[type, ...]] = {
    Type.TEXT: (str, Slot, Joined), Type.BOOL: (bool, Slot), Type.LIST: (tuple, Slot),
}  # fmt: skip


def _may_be(value: OutputTree, types: Sequence[Type]) -> bool:
    return Type.JSON in types or any(isinstance(value, _MAY_BE[one]) for one in types)


def _check_sizes(block: Block, sizes: tuple[int, int, int], gives: int, path: str) -> None:
    params, results, given = sizes
    if (len(block.params), len(block.results), gives) != (params, results, given):
        raise _wrong(path, "holds a block that does not fit")


def _check_block(block: Block, blocks: Sequence[Block], uses: Uses, path: str) -> None:
    """Names are given once, and before they are read; nodes read earlier nodes."""
    own: dict[Name, None] = {}
    for name in (*block.params, *(name for step in block.steps for name in gives_of(step))):
        if name.name is None:
            raise _wrong(path, "gives a stream that is not named")
        if name in own:
            raise _wrong(path, f"gives `{name.name}` twice")
        own[name] = None
    given = dict.fromkeys(block.params)
    for number, step in enumerate(block.steps):
        here = f"{path}.steps[{number}]"
        if isinstance(step, Segment):
            _check_segment(step, here)
        for name in uses.reads(step):
            if name in own and name not in given:
                raise _wrong(here, f"reads `{name.name}` before it is given")
        if isinstance(step, CallStep):
            _check_closed(blocks[step.body], uses, here)
        given.update(dict.fromkeys(gives_of(step)))
    for number, variable in enumerate(block.variables):
        if isinstance(variable, PromptEnd) and not isinstance(variable.text, _MAY_BE[Type.TEXT]):
            raise _wrong(path, "has a prompt at its end that is no text")
        if isinstance(variable, PromptEnd):
            for before, count in variable.stood:
                if not (0 <= before < len(block.steps) and 0 <= count <= len(variable.parts)):
                    raise _wrong(f"{path}.variables[{number}]", f"says what stood before step {before}")
        if isinstance(variable, Named | PromptEnd):
            continue
        held = blocks_of(block.steps[variable.step]) if 0 <= variable.step < len(block.steps) else ()
        if not held:
            raise _wrong(f"{path}.variables[{number}]", f"reads the blocks of step {variable.step}")


def _check_closed(called: Block, uses: Uses, path: str) -> None:
    """A called program reads nothing from outside."""
    own = dict.fromkeys([*called.params, *(name for step in called.steps for name in gives_of(step))])
    for name in (*(name for step in called.steps for name in uses.reads(step)), *block_ends(called)):
        if name not in own:
            raise _wrong(path, f"calls what reads `{name.name}` from outside")


def _check_segment(segment: Segment, path: str) -> None:
    """Each node reads only earlier ones, and a text only from a node that makes one."""
    for index, node in enumerate(segment.nodes):
        here = f"{path}.nodes[{index}]"
        match node:
            case OpenNode(int()) | KeepNode(handle=int()) | ReleaseNode():
                raise _wrong(here, "names a stream by a number")
            case OpenNode():
                continue
            case _ if not 0 <= node.stream < index or isinstance(
                segment.nodes[node.stream], KeepNode | ReleaseNode
            ):
                raise _wrong(here, f"reads node {node.stream}")
        for part in (*getattr(node, "parts", ()), *getattr(node, "choices", ())):
            found = part.data if isinstance(part, ImagePart) else part
            if isinstance(found, NodeResult) and not _is_text(segment, found.node, index):
                raise _wrong(here, f"reads the text of node {found.node}")
    for name, index in segment.gives:
        if not _is_text(segment, index, len(segment.nodes)):
            raise _wrong(path, f"gives `{name}`, which reads the text of node {index}")


def _is_text(segment: Segment, node: int, before: int) -> bool:
    return 0 <= node < before and isinstance(segment.nodes[node], GenNode | SelectNode)


def _wrong(path: str, problem: str) -> VerifyError:
    return VerifyError("SGLC221", f"this is no plan: `{path or '.'}` {problem}")
