"""One chat question and its answer, in the chat format that the model was trained on.

Temperature 0 takes the likeliest token each time, so the answer is the same on every run.

    sglc run examples/quickstart.py --arg question="What is the capital of France?"
"""

import sglc as sgl


@sgl.function
def quickstart(s, question):
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=48, temperature=0))
