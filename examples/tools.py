"""A host function between two generations: the model writes a sum, Python works it out.

`calculate` is ordinary Python, so the program runs as such, and waits where it reads `s["sum"]`. The answer
that goes back into the prompt is Python's, so it is right whenever the sum is.

    sglc run examples/tools.py --arg question="A box holds 12 eggs. How many eggs are in 7 boxes?"
"""

import ast
import operator

import sglc as sgl

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}

CASES = """\
Question: A pen costs 3 dollars. What do 4 pens cost?
Sum: 3 * 4
Result: 12
Answer: 4 pens cost 12 dollars.

Question: Tom had 20 marbles and lost 6. How many are left?
Sum: 20 - 6
Result: 14
Answer: 14 marbles are left.

Question: A bag holds 9 apples. How many apples are in 5 bags?
Sum: 9 * 5
Result: 45
Answer: 5 bags hold 45 apples.

"""


def calculate(text):
    """The value of a sum of numbers with + - * / and brackets; no other Python is evaluated."""
    try:
        return f"{evaluate(ast.parse(text.strip(), mode='eval').body):g}"
    except (SyntaxError, ValueError, ZeroDivisionError):
        return "unknown"


def evaluate(node):
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](evaluate(left), evaluate(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate(operand)
        case _:
            raise ValueError(ast.dump(node))


@sgl.function
def solve(s, question):
    s += f"{CASES}Question: {question}\nSum:"
    s += sgl.gen("sum", stop="\n", max_tokens=24, temperature=0)
    s += f"\nResult: {calculate(s['sum'])}\nAnswer:"
    s += sgl.gen("answer", stop="\n", max_tokens=32, temperature=0)
