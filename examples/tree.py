"""A small tree of thought: two plans for a goal, and two remarks on each plan.

Forks nest. After both joins `s["remark"]` is a list with one list of remarks for every plan.

    sglc run examples/tree.py --arg goal="learn to swim"
"""

import sglc as sgl

PLANS = ["cheap", "quick"]
REMARKS = ["advantage", "drawback"]


@sgl.function
def tree(s, goal):
    s += sgl.system("You answer in one short sentence.")
    plans = s.fork(PLANS)
    for plan, kind in zip(plans, PLANS, strict=True):
        plan += sgl.user(f"What is a {kind} way to {goal}?")
        plan += sgl.assistant(sgl.gen("plan", stop="\n", max_tokens=40, temperature=0))
        remarks = plan.fork(REMARKS)
        for remark, side in zip(remarks, REMARKS, strict=True):
            remark += sgl.user(f"What is one {side} of that?")
            remark += sgl.assistant(sgl.gen("remark", stop="\n", max_tokens=40, temperature=0))
        plan.join(remarks)
    s.join(plans)
