"""Label a text by example: a few labelled cases, then the likeliest of two labels.

The examples are the same for every row of a batch, so a batch computes them once.

    sglc run examples/few_shot.py --arg review="The soup was cold and nobody came."
"""

import sglc as sgl

EXAMPLES = [
    ("A warm welcome and the best bread in town.", "positive"),
    ("We waited an hour and left hungry.", "negative"),
    ("I laughed from beginning to end.", "positive"),
    ("My phone broke after two days.", "negative"),
]


@sgl.function
def few_shot(s, review):
    for text, label in EXAMPLES:
        s += f"Review: {text}\nSentiment: {label}\n\n"
    s += f"Review: {review}\nSentiment:"
    s += sgl.select("label", choices=[" positive", " negative"])
