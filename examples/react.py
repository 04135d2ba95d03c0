"""Reason, act, observe: the model chooses between a search and an answer, for at most four rounds.

The tool is declared, so `sglc compile examples/react.py` sees both arms of every choice.

    sglc run examples/react.py --arg question="In which country was the creator of Linux born?"
"""

import sglc as sgl

EXAMPLE = """\
Question: In which country was the founder of Microsoft born?
Thought 1: I have to find the founder of Microsoft.
Action 1: Search [founder Microsoft]
Observation 1: Microsoft was founded by Bill Gates.
Thought 2: I have to find where Bill Gates was born.
Action 2: Search [Gates born]
Observation 2: Bill Gates was born in Seattle, United States.
Thought 3: Bill Gates was born in the United States.
Action 3: Finish
Answer: the United States

"""

FACTS = {
    "linux": "Linux was made by Linus Torvalds.",
    "torvalds": "Linus Torvalds was born in Helsinki, Finland.",
}


@sgl.tool
def search(query: str) -> str:
    """The first fact that a word of the query names."""
    words = query.lower().split()
    return next((fact for key, fact in FACTS.items() if key in words), "nothing found")


@sgl.function
def react(s, question):
    s += EXAMPLE + f"Question: {question}\n"
    for i in range(1, 5):
        s += f"Thought {i}:" + sgl.gen(f"thought_{i}", max_tokens=24, stop="\n", temperature=0) + "\n"
        s += f"Action {i}: " + sgl.select(f"action_{i}", choices=["Search", "Finish"])
        if s[f"action_{i}"] == "Finish":
            break
        s += " [" + sgl.gen(f"query_{i}", max_tokens=12, stop=["]", "\n"], temperature=0) + "]\n"
        s += f"Observation {i}: {search(s[f'query_{i}'])}\n"
    s += "\nAnswer:" + sgl.gen("answer", max_tokens=24, stop="\n", temperature=0)
    return s["answer"]
