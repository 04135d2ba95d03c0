"""Programs that read what generations make, in the ways in which people do; a program with its source."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import sglc as sgl
from sglc.execution.result import Result


def from_file(tmp_path: Path, source: str, name: str = "program") -> sgl.Function:
    """The program of a file, with its source."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(source))
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)
    return sgl.function(names[name])


HEAD = """
import json, re, sglc as sgl
from sglc import gen, select, user

def note(text):
    return "<" + text + ">"

def first(items):
    return items[0]

def turn(s, name):
    s += "t" + gen(name, max_tokens=3)
    s += user(s[name]) + s[name]
    s += f"({s[name]})"
"""

# Programs in which what is read goes into prompts and results, and nowhere else.
HANDED_ON = {
    "appended": """
        s += "a" + gen("x", max_tokens=3)
        s += s["x"]
        s += "b" + s["x"] + "c" + gen("y", max_tokens=3)
    """,
    "f-string": """
        s += f"Q {q}:" + gen("x", max_tokens=3)
        text = s["x"]
        s += f"{q!r:>9} {s['x']} {len(q):03d}{text}" + gen("y", max_tokens=3)
        s += f"<{f'[{text}]'}>{'%'}{{}}"
        s += user(f"{text}{q}")
    """,
    "turns": """
        s += user("a") + sgl.assistant(gen("x", max_tokens=3))
        s += user(s["x"])
        s.assistant(s["x"])
        s += sgl.system(content=f"again {s['x']}")
        with s.user():
            s += s["x"]
        s += sgl.assistant(gen("y", max_tokens=3))
    """,
    "a name": """
        s += "a" + gen("x", max_tokens=3)
        text = s["x"]
        line = "> " + text + "\\n"
        s += line
        s += f"{line}{text}" + gen("y", max_tokens=3)
        return {"line": line, "pair": (text, [text])}
    """,
    "an argument": """
        s += "a" + gen("x", max_tokens=3)
        s += q + s["x"] + q
        return q + s["x"]
    """,
    "returned": """
        s += "a" + gen("x", max_tokens=3) + gen("y", max_tokens=3)
        return {"x": s["x"], "both": [s["x"] + ", " + s["y"], s["y"].strip().lower()], "get": s.get_var("x")}
    """,
    "branches": """
        s += "a"
        forks = s.fork(2)
        for i, fork in enumerate(forks):
            fork += str(i) + gen("tip", max_tokens=3)
            fork += fork["tip"] + forks[0]["tip"] if i else "!"
        forks[1] += f"{forks[0]['tip']}"
        tips = s.join(forks)
        for name, tip in zip(["A", "B"], tips["tip"], strict=True):
            s += f"{name}: {tip}\\n"
        for text in s["tip"]:
            s += text
        left, right = s["tip"]
        s += left + s["tip"][1] + right + gen("sum", max_tokens=3)
        return s["tip"], tips["tip"][0]
    """,
    "nested branches": """
        outer = s.fork(2)
        for child in outer:
            child += "a"
            inner = child.fork(2)
            inner += gen("x", max_tokens=3)
            inner.join()
        outer.join()
        for group in s["x"]:
            for text in group:
                s += text
        s += s["x"][0][1]
        return s["x"]
    """,
    "choices": """
        s += "a" + gen("x", max_tokens=3) + gen("y", max_tokens=3)
        s += select("best", choices=[s["x"], s["y"], "none"])
        s += select("again", [s["y"], "none"])
        s += s["best"]
    """,
    "scopes and copies": """
        with s.var_scope("part"):
            s += "a" + gen("x", max_tokens=3)
        with s.copy() as c:
            c += c["part"] + gen("z", max_tokens=3)
        s += s["part"] + gen("y", max_tokens=3)
        return s["part"], s["z"]
    """,
    "one of two": """
        s += "a" + gen("x", max_tokens=3)
        s += s["x"] if q else "nothing"
        return s["x"] if len(q) > 100 else None
    """,
}

# Lines that need a text for something else.
LOOKED_AT = {
    "json": 's += json.dumps({"a": s["x"]})',
    "json.loads": 's += str(json.loads(json.dumps([s["x"]])))',
    "re": 's += "yes" if re.match("(?s).*", s["x"]) else "no"',
    "isinstance": 's += str(isinstance(s["x"], str))',
    "join": 's += "".join([s["x"], "b"])',
    "dict key": 's += {s["x"]: "found"}.get(s["x"], "lost")',
    "sorting": 's += sorted([s["x"], "b"])[0]',
    "a helper": 's += note(s["x"])',
    "a container to a helper": 's += first([s["x"]])',
    "a condition": 's += "yes" if s["x"] else "no"',
    "if": 'if s["x"] == "a": s += "a"',
    "and": 's += str(q and s["x"] and "b")',
    "or": 's += s["x"] or "b"',
    "not": 's += str(not s["x"])',
    "a comparison": 's += str("a" < s["x"] < "b")',
    "in": 's += str("a" in s["x"])',
    "a method": 's += s["x"].upper()',
    "a text method in a prompt": 's += s["x"].strip()',
    "a format": "s += f\"{s['x']:>9}\"",
    "a conversion": "s += f\"{s['x']!r}\"",
    "percent": 's += "%s!" % s["x"]',
    "times": 's += s["x"] * 2',
    "str": 's += str(s["x"])',
    "len": 's += str(len(s["x"]))',
    "an index": 's += s["x"][0]',
    "a slice": 's += s["x"][1:]',
    "a comprehension": 's += str([c for c in s["x"]])',
    "an assert": 'assert s["x"] != "nothing like it"',
    "a statement": 's["x"]',
    "a walrus": 's += (text := s["x"])',
    "two names": "a = b = s['x']; s += a",
    "bound twice": "a = ''; a = s['x']; s += a",
    "augmented": "a = ''; a += s['x']; s += a",
    "a closure": "a = s['x']; s += (lambda: a)()",
    "a lambda": "s += (lambda: s['x'])()",
    "a star": "s += ''.join([*s['x']])",
    "a set": "s += str(len({s['x'], 'b'}))",
    "a try": "\n    try: s += s['x']\n    except KeyError: pass",
    "an f-string for something else": "s += note(f\"{s['x']}\")",
    "a match": "\n    match s['x']:\n        case 'a': s += 'a'\n        case _: s += 'b'",
    "a file name": "\n    try: open('/nowhere/' + s['x'].strip('/\\0'))\n    except OSError: s += 'none'",
    "locals": "a = s['x']; s += str(len(locals()['a']))",
    "a list of it": "texts = [s['x']]; s += texts[0]",
    "an attribute": "note.seen = s['x']; s += note.seen",
    "a default": "s += (lambda a=s['x']: a)()",
}


def body_source(body: str) -> str:
    return f"{HEAD}\ndef program(s, q):\n{textwrap.indent(textwrap.dedent(body), '    ')}"


def line_source(line: str) -> str:
    head = f"{HEAD}\ndef program(s, q):\n    s += 'a' + gen('x', max_tokens=3)\n"
    return f"{head}    {line.lstrip()}\n    s += 'b' + gen('y', max_tokens=3)\n    return s.get_var('y')\n"


READS = {
    **{name: body_source(body) for name, body in HANDED_ON.items()},
    **{name: line_source(line) for name, line in LOOKED_AT.items()},
}


def outcome(result: Result) -> Any:
    return result.text(), result.ret_value, dict(result.variables), result.messages()
