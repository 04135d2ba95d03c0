"""Grade an essay on three aspects side by side, then decide on it with the grades in view.

The three branches share the essay: its prompt is computed once, whatever their number.
The default model is far too small to grade well; the program is the same for a better one.

    sglc run examples/judge.py --batch examples/essays.jsonl --json
"""

import sglc as sgl

ASPECTS = ["Clarity", "Creativity", "Evidence"]


@sgl.function
def grade_essay(s, essay):
    s += f"Evaluate this essay:\n{essay}\n"
    forks = s.fork(ASPECTS)
    for f, aspect in zip(forks, ASPECTS, strict=True):
        f += f"Rate the {aspect} from 1 to 5: "
        f += sgl.gen("score", stop=["\n", ".", " "], max_tokens=4, temperature=0)
    results = s.join(forks)
    for aspect, score in zip(ASPECTS, results["score"], strict=True):
        s += f"{aspect}: {score}\n"
    s += "Verdict: the essay is "
    s += sgl.select("verdict", choices=["weak", "fair", "strong"])
    return results
