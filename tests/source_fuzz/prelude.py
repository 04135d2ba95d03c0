"""What the modules of random programs define besides the program: each piece under the name by which it is needed.

Whatever has effects writes what it did into `LOG`, so that doing it twice, too early or not at all is seen.
"""

from __future__ import annotations

from collections.abc import Iterable

_LOG = ("LOG",)

# name: (what it needs, source)
SNIPPETS: dict[str, tuple[tuple[str, ...], str]] = {
    "LOG": ((), "LOG = []"),
    "note": (_LOG, "def note(value):\n    LOG.append(value)\n    return value"),
    "COUNT": ((), 'COUNT = {"n": 0, "hits": [1]}'),
    "TOTAL": ((), "TOTAL = 0"),
    "NAMES": ((), 'NAMES = ("one", "two", "three")'),
    "STACK": ((), 'STACK = ["s1", "s2", "s3"]\nSEEN = set()'),
    "ITER": ((), 'ITER = iter([f"i{i}" for i in range(400)])'),
    "COUNTER": ((), "COUNTER = itertools.count(3)"),
    "NUMBERS": (_LOG, "def _numbers():\n    for i in range(400):\n        LOG.append(i)\n        yield i\n\n\nNUMBERS = _numbers()"),
    "RNG": ((), "RNG = random.Random(5)"),
    "BUFFER": ((), "BUFFER = io.StringIO()"),
    "Color": ((), 'class Color(enum.Enum):\n    RED = "red"\n    GREEN = "green"\n    BLUE = "blue"'),
    "Point": ((), "@dataclasses.dataclass\nclass Point:\n    x: int\n    label: str = \"p\"\n\n    def shown(self):\n        return f\"{self.label}/{self.x}\""),
    "Frozen": ((), "@dataclasses.dataclass(frozen=True)\nclass Frozen:\n    name: str\n    sizes: tuple = (1, 2)"),
    "Person": ((), "class Person(pydantic.BaseModel):\n    name: str\n    age: int = 3"),
    "Pair": ((), 'Pair = collections.namedtuple("Pair", ["left", "right"])'),
    "Quiet": ((), 'class Quiet:\n    kind = "quiet"\n\n    def __init__(self):\n        self.name = "q"\n        self.size = 2\n\n    def line(self, text):\n        return f"{self.kind} {self.name} {text}"\n\n\nQUIET = Quiet()'),
    "Settings": ((), 'class Settings:\n    limit = 2\n    words = ["w1", "w2"]'),
    "Box": (_LOG, """class Box:
    def __init__(self):
        self.reads = 0

    @property
    def value(self):
        self.reads += 1
        LOG.append(f"value {self.reads}")
        return f"v{self.reads}"

    @value.setter
    def value(self, new):
        LOG.append(("set", str(new)))
        self.reads = 0


BOX = Box()"""),
    "Ghost": (_LOG, """class Ghost:
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        LOG.append(name)
        return f"ghost {name}"


GHOST = Ghost()"""),
    "Loud": (_LOG, """class Loud:
    def __init__(self, size=3):
        self.size = size

    def __eq__(self, other):
        LOG.append(("eq", str(other)))
        return str(other) == "yes"

    def __hash__(self):
        LOG.append("hash")
        return 1

    def __bool__(self):
        LOG.append("bool")
        return len(LOG) % 2 == 0

    def __len__(self):
        LOG.append("len")
        return self.size

    def __contains__(self, item):
        LOG.append(("contains", str(item)))
        return "a" in str(item)

    def __add__(self, other):
        LOG.append(("add", str(other)))
        return f"loud+{other}"

    def __radd__(self, other):
        LOG.append(("radd", str(other)))
        return f"{other}+loud"

    def __iadd__(self, other):
        LOG.append(("iadd", str(other)))
        self.size += 1
        return self

    def __getitem__(self, key):
        LOG.append(("item", key))
        return f"item {key}"

    def __setitem__(self, key, value):
        LOG.append(("set item", key, str(value)))

    def __iter__(self):
        LOG.append("iter")
        return iter(["l1", "l2"])

    def __call__(self, *args):
        LOG.append(("call", [str(arg) for arg in args]))
        return f"called {len(LOG)}"

    def __str__(self):
        LOG.append("str")
        return f"loud {len(LOG)}"

    def __format__(self, spec):
        LOG.append(("format", spec))
        return f"formatted {len(LOG)}"

    def __lt__(self, other):
        LOG.append("lt")
        return True


LOUD = Loud()"""),
    "Manager": (_LOG, """class Manager:
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        LOG.append(("enter", self.name))
        return self.name

    def __exit__(self, kind, error, trace):
        LOG.append(("exit", self.name, kind is None))
        return self.swallow"""),
    "logged": (_LOG, """@contextlib.contextmanager
def logged(name):
    LOG.append(("begin", name))
    try:
        yield name
    finally:
        LOG.append(("end", name))"""),
    "adder": ((), """def _adder():
    count = 0

    def add(by=1):
        nonlocal count
        count += by
        return count

    return add


ADD = _adder()"""),
    "remembering": ((), "def remembering(text, seen=[]):\n    seen.append(str(text))\n    return len(seen)"),
    "fmt": ((), 'def fmt(text, mark="*"):\n    """A helper that only reads."""\n    return f"{mark}{text}{mark}"'),
    "turn": ((), 'def turn(state, name):\n    state += f"turn {name}: "\n    state += sgl.gen(name)\n    return state[name]'),
    "nested_help": ((), 'def spelled(items, depth=0):\n    if depth >= len(items):\n        return ""\n    return items[depth] + "-" + spelled(items, depth + 1)'),
    "passed": (_LOG, "def passed(function):\n    def inner(*args):\n        LOG.append(function.__name__)\n        return function(*args)\n\n    return inner\n\n\n@passed\ndef decorated(text):\n    return f\"dec {text}\""),
    "LOGGER": ((), """RECORDS = []


class _Keeping(logging.Handler):
    def emit(self, record):
        RECORDS.append((record.levelname, record.getMessage()))


LOGGER = logging.getLogger(__name__)
LOGGER.handlers = [_Keeping()]
LOGGER.setLevel("INFO")
LOGGER.propagate = False"""),
    "find": (_LOG, '@sgl.tool\ndef find(city: str) -> str:\n    LOG.append(("find", city))\n    return f"{city} found {len(LOG)}"'),
    "good": (_LOG, '@sgl.tool\ndef good(text: str) -> bool:\n    LOG.append(("good", text))\n    return len(text) % 2 == 0'),
    "several": (_LOG, '@sgl.tool\ndef several(text: str) -> list[str]:\n    LOG.append(("several", text))\n    return [text, f"more {len(LOG)}"]'),
    "record": (_LOG, '@sgl.tool\ndef record(data):\n    LOG.append(("record", data))\n    return {"n": len(LOG), "data": data}'),
    "take": (_LOG, '@sgl.tool\ndef take(thing) -> str:\n    LOG.append(("take", type(thing).__name__))\n    return f"took {type(thing).__name__}"'),
    "failing": (_LOG, '@sgl.tool\ndef failing(text: str) -> str:\n    LOG.append(("failing", text))\n    if len(LOG) % 2:\n        raise ValueError("odd")\n    return "even"'),
    "bump": (("COUNT", "Settings"), '@sgl.tool\ndef bump(text: str) -> str:\n    COUNT["n"] += 1\n    COUNT["hits"].append(text)\n    Settings.limit += 1\n    return str(COUNT["n"])'),
    "raise_level": ((), 'LEVEL = 1\n\n\n@sgl.tool\ndef raise_level(by: str) -> str:\n    global LEVEL\n    LEVEL += 1\n    return f"{by} {LEVEL}"'),
    "shout": ((), '@sgl.pure\ndef shout(text: str) -> str:\n    return text.upper() + "!"'),
    "longer": ((), "@sgl.pure\ndef longer(text: str) -> bool:\n    return len(text) > 6"),
    "inner": ((), '@sgl.function\ndef inner(s, topic, mark="?"):\n    s += f"About {topic}{mark} "\n    s += sgl.gen("idea")\n    s += sgl.select("sure", choices=["yes", "no"])\n    return {"idea": s["idea"], "sure": s["sure"]}'),
    "outer": (("inner",), '@sgl.function\ndef outer(s, topic):\n    s += f"Outer {topic}: "\n    s += sgl.gen("first")\n    made = inner(s["first"])\n    s += made["idea"]\n    return made["sure"]'),
    "inner_loud": (_LOG, '@sgl.function\ndef inner_loud(s, topic):\n    LOG.append("inner")\n    s += f"Loud {topic}: "\n    s += sgl.gen("idea")\n    return s["idea"] + str(len(LOG))'),
}  # fmt: skip


def with_what_they_need(names: Iterable[str]) -> list[str]:
    """The pieces in the order in which a module defines them."""
    wanted: dict[str, None] = {}

    def add(name: str) -> None:
        for needed in SNIPPETS[name][0]:
            add(needed)
        wanted[name] = None

    for name in names:
        add(name)
    return list(wanted)
