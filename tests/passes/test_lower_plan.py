"""Plans: what is in them, what they cost, and their JSON and text forms. Meaning is in test_semantics."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from sglc.errors import Loc, VerifyError
from sglc.ir.core import Site
from sglc.ir.plan.plan import (
    Block,
    CallStep,
    CondStep,
    Estimate,
    FunctionStep,
    HostStep,
    Joined,
    LoopStep,
    MapStep,
    Named,
    Param,
    Plan,
    PlanGuard,
    PromptEnd,
    SwitchStep,
    ValueStep,
    Within,
)
from sglc.ir.plan.plan_json import PLAN_VERSION, plan_from_json, plan_to_json
from sglc.ir.plan.plan_text import plan_text
from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
    Held,
    ImagePart,
    KeepNode,
    NodeResult,
    OpenNode,
    Segment,
    SelectNode,
    Slot,
)
from sglc.ir.sampling import Sampling
from sglc.ir.target import ControlText, Target
from sglc.ir.text.graph import dataflow, to_dot, to_mermaid, waves
from sglc.ir.text.printer import from_text, to_text
from sglc.passes.base import run_pipeline
from sglc.passes.lowering.lower_plan import lower_plan
from sglc.passes.pipelines import LOCAL
from tests.depth import at_depth, some_of
from tests.random_programs import random_program
from tests.templates import TEMPLATES, ByteTokenizer

CHATML = Target("local", ByteTokenizer(TEMPLATES["chatml"]))


def planned(body: str, params: str = "", target: Target = CHATML) -> Plan:
    lines = "".join(f"    {line.strip()}\n" for line in body.strip().splitlines())
    program, _ = run_pipeline(from_text(f"def f({params}):\n{lines}", "f.sglir"), target, LOCAL)
    return lower_plan(program, target)


def nodes(plan: Plan) -> tuple[object, ...]:
    (segment,) = plan.steps
    assert isinstance(segment, Segment)
    return segment.nodes


SECTIONS = """\
def f():
    s0 = root()
    s1 = scope_begin(s0, 'a')
    s2 = append(s1, 'Q: ')
    s3 = scope_end(s2, 'a')
    s4, t0 = gen(s3, 'x')
    s5 = scope_begin(s4, 'b')
    b0 = eq(t0, 'no')
    s9 = cond(b0):
        s6 = scope_begin(s5, 'c')
        s7, t1 = gen(s6, 'y')
        s8 = scope_end(s7, 'c')
        yield s8
    else:
        yield s5
    s10 = scope_end(s9, 'b')
    prompt(s10)
    return s10
"""


def test_sections_are_nothing_in_a_plan() -> None:
    """Wherever a stream is read from where one begins or ends: by ops, blocks, prompts, the return value."""
    plan = lower_plan(from_text(SECTIONS, "f.sglir"), CHATML)
    first, _, branch = plan.steps
    assert isinstance(first, Segment)
    open_, extend, gen, keep = first.nodes
    assert (open_, extend, keep) == (OpenNode(), ExtendNode(0, ("Q: ",)), KeepNode(2, "s4"))
    assert isinstance(gen, GenNode)
    assert isinstance(branch, CondStep)
    then, orelse = plan.blocks
    assert isinstance(then.steps[0], Segment)
    assert then.steps[0].nodes[0] == OpenNode("s4")
    assert (then.results[0], orelse.results[0]) == (Held("s7"), Held("s4"))
    assert plan.returns == branch.gives[0]
    assert isinstance(branch.gives[1], Slot)
    assert plan.variables[-1] == PromptEnd(Joined(("Q: ", Slot("t0"), branch.gives[1])), ())


def test_literal_gen_literal_gen_is_one_segment() -> None:
    plan = planned(
        """
        s0 = root()
        s1 = append(s0, 'Q: ')
        s2 = append(s1, q)
        s3, t0 = gen(s2, 'a', max_tokens=8)  # f.py:3:5-9
        s4 = append(s3, '\\nB:')
        s5, t1 = gen(s4, 'b', temperature=0)
        return t1
        """,
        "q",
    )
    first = GenNode(1, Site("f", (), "a"), Sampling(max_tokens=8), Loc("f.py", 3, 5, 9))
    assert nodes(plan)[:4] == (
        OpenNode(), ExtendNode(0, ("Q: ", Slot("q"))), first, ExtendNode(2, ("\nB:",)),
    )  # fmt: skip
    assert plan.names == ("q",)
    assert plan.steps[0].gives == (("t1", 2), ("t2", 4))
    assert plan.variables == (Named("a", Slot("t1")), Named("b", Slot("t2")))
    assert plan.returns == Slot("t2")
    assert plan.estimate == Estimate(calls=2, literal_tokens=6, max_new_tokens=136, critical_path=2)


def test_what_feeds_nothing_is_left_out_but_generations_stay() -> None:
    plan = planned(
        """
        s0 = root()
        s1 = append(s0, 'a')
        s2 = append(s1, 'nobody reads this')
        s3, s4 = fork(s1)
        t0 = format(('unused', q))
        s5, t1 = gen(s0, 'named')
        return
        """,
        "q",
    )
    assert [type(node) for node in nodes(plan)] == [OpenNode, GenNode]


DEAD = """\
def f():
    s0 = root()
    s1, t0 = gen(s0, 'x')
    switch(t0):
        case 'yes':
            yield
    return t0
"""


@pytest.mark.parametrize("default", ["", "        case _:\n            yield\n"])
def test_a_branch_that_nothing_reads_stays_where_no_case_may_fit(default: str) -> None:
    program = from_text(DEAD.replace("    return", f"{default}    return"), "f.sglir")
    plan = lower_plan(program, CHATML)
    assert any(isinstance(step, SwitchStep) for step in plan.steps) == (not default)


def test_a_stream_between_two_readers_has_a_node_of_its_own() -> None:
    plan = planned(
        """
        s0 = root()
        s1 = append(s0, 'shared')
        s2 = append(s1, 'a')
        s3 = append(s1, 'b')
        s4, t0 = gen(s2, 'x')
        s5, t1 = gen(s3, 'y')
        return
        """
    )
    extends = [node for node in nodes(plan) if isinstance(node, ExtendNode)]
    assert extends == [ExtendNode(0, ("shared",)), ExtendNode(1, ("a",)), ExtendNode(1, ("b",))]
    assert plan.estimate.literal_tokens == 8  # the shared prefix counts once
    assert plan.estimate.critical_path == 1


def test_text_of_one_branch_in_another() -> None:
    plan = planned(
        """
        s0 = root()
        s1, s2 = fork(s0)
        s3, t0 = gen(s1, 'x', fork=(0,))
        s4 = append(s2, t0)
        s5, t1 = select(s4, 'y', (t0, 'no', q), fork=(1,))
        return
        """,
        "q",
    )
    assert nodes(plan)[1:] == (
        ForkNode(0, 2),
        GenNode(1, Site("f", (0,), "x"), Sampling(), Loc("f.sglir", 4, 5, 17)),
        ExtendNode(1, (NodeResult(2),)),
        SelectNode(
            3,
            Site("f", (1,), "y"),
            (NodeResult(2), "no", Slot("q")),
            "token_length_normalized",
            Loc("f.sglir", 6, 5, 20),
            unify=True,
        ),
    )
    assert plan.variables == ()  # variables of branches are named by a join
    assert plan.estimate.critical_path == 2


def test_the_newest_occurrence_of_a_name_is_the_variable() -> None:
    plan = planned(
        """
        s0 = root()
        s1, t0 = gen(s0, 'x')
        s2, t1 = gen(s1, 'x', occurrence=1)
        l0 = join('y', (t0, None))
        l1 = join('y', (l0, t1), occurrence=1)
        return l1
        """
    )
    assert plan.variables == (Named("x", Slot("t1")), Named("y", ((Slot("t0"), None), Slot("t1"))))
    assert plan.returns == ((Slot("t0"), None), Slot("t1"))


def test_returned_texts_and_streams() -> None:
    plan = planned(
        """
        s1, t0 = gen(s0, 'x')
        t1 = format(('<', t0, q, '>'))
        return {'text': t1, 'streams': (s1, {'again': s1}), 'q': q, 'n': 1.5}
        """,
        "q, s0: resume('k0')",
    )
    assert nodes(plan)[0] == OpenNode("k0")
    assert nodes(plan)[2:] == (KeepNode(1, "streams.0"), KeepNode(1, "streams.1.again"))
    assert plan.returns == {
        "text": Joined(("<", Slot("t0"), Slot("q"), ">")),
        "streams": (Held("streams.0"), {"again": Held("streams.1.again")}),
        "q": Slot("q"),
        "n": 1.5,
    }
    assert plan.names == ("q",)


def test_host_call_comes_last_and_alone_it_needs_no_segment() -> None:
    plan = planned("host_call('why')\nreturn")
    assert plan.steps == (HostStep("why", Loc("f.sglir", 2, 5, 14)),)
    plan = planned("s0 = root()\ns1, t0 = gen(s0, 'x')\nhost_call('why', reads=(t0,))\nreturn")
    assert [type(step) for step in plan.steps] == [Segment, HostStep]


def test_control_tokens_reach_the_plan_and_name_their_tokenizer() -> None:
    plan = planned("s0 = root()\ns1 = role_open(s0, 'user')\ns2, t0 = gen(s1, 'x')\nreturn")
    assert nodes(plan)[1] == ExtendNode(0, (ControlText("<|im_start|>", (258,)), "user\n"))
    assert plan.tokenizer == "byte-tokenizer"
    assert planned("s0 = root()\nreturn", target=Target("t")).tokenizer == ""


def test_a_dumped_program_gives_the_same_plan() -> None:
    """What `--dump-ir` prints can be compiled instead of the program."""
    for seed in range(at_depth(8, 12, 30)):
        program = random_program(seed, chat=True)
        dumped = from_text(to_text(program, locs=True), "dump.sglir")
        assert to_text(dumped, locs=True) == to_text(program, locs=True)
        one, two = (lower_plan(run_pipeline(p, CHATML, LOCAL)[0], CHATML) for p in (program, dumped))
        assert json.dumps(plan_to_json(one)) == json.dumps(plan_to_json(two))
        assert plan_text(one) == plan_text(two)


# -- JSON --------------------------------------------------------------------------------------------

EVERYTHING = Plan(
    version=PLAN_VERSION,
    program="f",
    target="local",
    tokenizer="abc",
    params=(Param("a"), Param("b c", "int", "3", loc=Loc("p.py", 1))),
    guards=(PlanGuard("operator.gt(a, 'b')", "True", Loc("p.py", 2)),),
    steps=(
        Segment(
            (
                OpenNode(),
                OpenNode("k0"),
                OpenNode("k1"),
                ExtendNode(0, ("text \ud800", ControlText("<x>", (1, 2)), Slot("a"), ImagePart(Slot("a")))),
                GenNode(
                    3,
                    Site("f", (0, 1), "x", 2),
                    Sampling(n=2, stop=("\n",), seed=2**64 - 1, logit_bias=((3, -0.5),)),
                    Loc("f.py", 1, 2, 3),
                ),
                SelectNode(4, Site("f", (), "y"), ("no", Slot("a"), NodeResult(4)), "m", Loc("f.py", 4)),
                ForkNode(5, 3),
                KeepNode(6, "streams.0"),
                KeepNode(6, "streams.1"),
            ),
            (("t0", 4), ("t1", 5)),
        ),
        ValueStep("b0", "eq", (Slot("t0"), "yes"), Loc("f.py", 5)),
        CondStep(Slot("b0"), 0, 1, (Slot("t2"), Held("s1")), Loc("f.py", 6)),
        SwitchStep(Slot("t2"), ("x",), (2, 2), (), Loc("f.py", 7)),
        LoopStep((Slot("t2"), Held("s1")), 4, 3, (Slot("t3"), Held("s2")), Loc("f.py", 8)),
        FunctionStep(
            "l0", "search", (Slot("t3"), {"is": 1}), {"key": (None, 1.5)}, "list", True, "free", Loc("f.py", 9)
        ),
        MapStep(Slot("l0"), 4, (Slot("l1"),), Loc("f.py", 10)),
        CallStep(Site("f", (), "g"), ("text", Held("s2")), 5, (Slot("t4"),), Loc("f.py", 11)),
        HostStep("why", Loc("f.py", 5, 6, 7), (Slot("t4"), Held("streams.0"))),
    ),
    variables=(Named("x", (Slot("t0"), None)), Within(2), Named("is", Slot("t1"))),
    returns={"is": "map", "items": (Joined(("a", Slot("a"), Slot("t0"))), 1, -0.5, True, None, {})},
    estimate=Estimate(1, 2, 3, 4),
    outputs=("x", "is"),
    blocks=(
        Block((), (), ("yes", Held(None)), (Named("z", Slot("t0")),)),
        Block((), (HostStep("here", Loc("f.py", 12)),), ()),
        Block((), (), ()),
        Block((Slot("t5"), Held("s3")), (), (True, Slot("t5"), Held("s3"))),
        Block((Slot("t6"),), (ValueStep("t7", "format", (Slot("t6"), "!"), Loc("f.py", 13)),), (Slot("t7"),)),
        Block((Slot("p"), Held("k0")), (), (Slot("p"),)),
    ),
)


def test_json_is_exact() -> None:
    text = json.dumps(plan_to_json(EVERYTHING))
    again = plan_from_json(json.loads(text))
    assert again == EVERYTHING
    assert json.dumps(plan_to_json(again)) == text
    assert plan_text(again) == plan_text(EVERYTHING)


def test_another_version_is_refused() -> None:
    data = plan_to_json(EVERYTHING)
    for version in (0, 1, PLAN_VERSION + 1, None, str(PLAN_VERSION), True, float(PLAN_VERSION)):
        with pytest.raises(VerifyError) as caught:
            plan_from_json({**data, "version": version})
        assert caught.value.code == ("SGLC221" if version == PLAN_VERSION else "SGLC220")


@pytest.mark.parametrize("data", [None, [], "plan", {}, {"is": "segment"}, 3], ids=str)
def test_what_is_no_plan_is_refused(data: object) -> None:
    with pytest.raises(VerifyError) as caught:
        plan_from_json(data)
    assert caught.value.code == "SGLC221"


def test_every_damaged_place_is_refused_or_another_plan() -> None:
    """Replace each item of the JSON in turn: an error that names the place, never a crash."""
    data = json.loads(json.dumps(plan_to_json(EVERYTHING)))
    refused = 0
    every = list(_paths(data))
    paths = some_of(every, 25, 80)
    for path in paths:
        wrongs: tuple[object, ...] = (None, -1, "wrong", [], {"is": "gen"}, True, 1.5)
        for wrong in wrongs:
            damaged = copy.deepcopy(data)
            place: Any = damaged
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = wrong
            try:
                plan = plan_from_json(damaged)
            except VerifyError as error:
                refused += 1
                code = error.code
            else:
                code = ""
                assert isinstance(plan, Plan)
            assert code in ("", "SGLC220", "SGLC221")
    assert refused > 500 * len(paths) // len(every)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("steps", 0, "nodes", 3, "stream"), 3),  # reads itself
        (("steps", 0, "nodes", 3, "stream"), -1),
        (("steps", 0, "nodes", 8, "stream"), 7),  # a keep makes no stream
        (("steps", 0, "nodes", 5, "choices", 2, "node"), 3),  # an extend makes no text
        (("steps", 0, "nodes", 5, "choices", 2, "node"), 6),  # a later node
        (("steps", 0, "gives", 0, 1), 3),  # an extend makes no text
        (("steps", 1, "operands", 0, "name"), "t2"),  # a later step gives it
        (("steps", 2, "then"), 6),
        (("steps", 4, "body"), -1),
        (("blocks", 4, "results", 0, "name"), "nothing"),
        (("blocks", 5, "results", 0, "name"), "a"),  # a called program sees nothing of its caller
        (("variables", 0, "value", 0, "name"), "nothing"),
        (("variables", 1, "step"), 1),  # no blocks
        (("variables", 1, "step"), 10),
        (("returns", "items", "items", 0, "parts", 2, "name"), "t9"),
        (("steps", 5, "args", 0, "name"), "l0"),  # what it gives itself
    ],
    ids=str,
)
def test_references_to_nothing_are_refused(path: tuple[str | int, ...], wrong: int) -> None:
    data: Any = json.loads(json.dumps(plan_to_json(EVERYTHING)))
    place = data
    for key in path[:-1]:
        place = place[key]
    assert place[path[-1]] != wrong
    place[path[-1]] = wrong
    with pytest.raises(VerifyError, match=r"reads|outside") as caught:
        plan_from_json(data)
    assert caught.value.code == "SGLC221"


@pytest.mark.parametrize(
    ("path", "wrong", "what"),
    [
        (("steps", 1, "operation"), "add", "unknown operation"),
        (("steps", 1, "operands"), ["x"], "operands"),
        (("steps", 3, "cases"), ["x", "y", "z"], "blocks for"),
        (("steps", 4, "max_iters"), 0, "times"),
        (("steps", 4, "init"), ["x"], "does not fit"),
        (("steps", 5, "gives"), "stream", "gives a `stream`"),
        (("steps", 7, "args", 1), "x", "something else"),
        (("blocks", 0, "results"), ["yes"], "does not fit"),
        (("blocks", 3, "params", 1, "name"), None, "not named"),
        (("steps", 1, "name"), "t0", "twice"),
        (("steps", 2, "then"), 0, ""),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(path: tuple[str | int, ...], wrong: object, what: str) -> None:
    data: Any = json.loads(json.dumps(plan_to_json(EVERYTHING)))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    if not what:
        assert plan_from_json(data) == EVERYTHING
        return
    with pytest.raises(VerifyError, match=what) as caught:
        plan_from_json(data)
    assert caught.value.code == "SGLC221"


def test_missing_and_unknown_fields_are_refused() -> None:
    data = json.loads(json.dumps(plan_to_json(EVERYTHING)))
    for change in ({"extra": 1}, None):
        damaged = copy.deepcopy(data)
        if change is None:
            del damaged["steps"][0]["nodes"][4]["site"]
        else:
            damaged["steps"][0]["nodes"][4].update(change)
        with pytest.raises(VerifyError, match="SGLC221"):
            plan_from_json(damaged)


def _paths(data: Any, path: tuple[Any, ...] = ()) -> Any:
    if path:
        yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, part in items:
        yield from _paths(part, (*path, key))


# -- the graph view ----------------------------------------------------------------------------------

TREE = """\
def f(q):
    s0 = root()
    s1 = append(s0, q)
    s2, s3 = fork(s1)
    s4, t0 = gen(s2, 'a', fork=(0,))
    s5, t1 = gen(s3, 'b', fork=(1,))
    s6 = append(s1, t1)
    s7, t2 = select(s6, 'c', ('"yes"', 'no'))
    return t2
"""


def test_waves() -> None:
    program = from_text(TREE, "f.sglir")
    assert [[op.mnemonic for op in wave] for wave in waves(program)] == [["gen", "gen"], ["select"]]
    assert waves(from_text("def f():\n    s0 = root()\n    return\n", "f.sglir")) == ()
    for seed in range(30):
        plan = lower_plan(run_pipeline(random_program(seed, chat=True), CHATML, LOCAL)[0], CHATML)
        assert plan.estimate.critical_path == len(waves(random_program(seed, chat=True)))


def test_drawings_name_every_op() -> None:
    program = from_text(TREE, "f.sglir")
    graph = dataflow(program)
    assert len(graph) == len(program.ops) + 1
    dot, mermaid = to_dot(program), to_mermaid(program)
    assert dot.count("label=") == len(graph)
    assert dot.count("->") == mermaid.count("-->") == graph.number_of_edges()
    assert "('\\\"yes\\\"', 'no')" in dot
    assert '"yes"' not in mermaid
