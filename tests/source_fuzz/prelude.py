"""What the modules of random programs define besides the program, each piece under the name that needs it.

Whatever has effects writes what it did into `LOG`, so that doing it twice, too early or not at all is seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_TEXT = """\
#: LOG
LOG = []
#: note <- LOG
def note(value):
    LOG.append(value)
    return value
#: COUNT
COUNT = {"n": 0, "hits": [1]}
#: TOTAL
TOTAL = 0
#: NAMES
NAMES = ("one", "two", "three")
#: STACK
STACK = ["s1", "s2", "s3"]
SEEN = set()
#: ITER
ITER = iter([f"i{i}" for i in range(400)])
#: COUNTER
COUNTER = itertools.count(3)
#: NUMBERS <- LOG
def _numbers():
    for i in range(400):
        LOG.append(i)
        yield i


NUMBERS = _numbers()
#: RNG
RNG = random.Random(5)
#: BUFFER
BUFFER = io.StringIO()
#: Color
class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"
#: Point
@dataclasses.dataclass
class Point:
    x: int
    label: str = "p"

    def shown(self):
        return f"{self.label}/{self.x}"
#: Frozen
@dataclasses.dataclass(frozen=True)
class Frozen:
    name: str
    sizes: tuple = (1, 2)
#: Person
class Person(pydantic.BaseModel):
    name: str
    age: int = 3
#: Pair
Pair = collections.namedtuple("Pair", ["left", "right"])
#: Quiet
class Quiet:
    kind = "quiet"

    def __init__(self):
        self.name = "q"
        self.size = 2

    def line(self, text):
        return f"{self.kind} {self.name} {text}"


QUIET = Quiet()
#: Settings
class Settings:
    limit = 2
    words = ["w1", "w2"]
#: Box <- LOG
class Box:
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


BOX = Box()
#: Ghost <- LOG
class Ghost:
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        LOG.append(name)
        return f"ghost {name}"


GHOST = Ghost()
#: Loud <- LOG
class Loud:
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


LOUD = Loud()
#: Manager <- LOG
class Manager:
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        LOG.append(("enter", self.name))
        return self.name

    def __exit__(self, kind, error, trace):
        LOG.append(("exit", self.name, kind is None))
        return self.swallow
#: logged <- LOG
@contextlib.contextmanager
def logged(name):
    LOG.append(("begin", name))
    try:
        yield name
    finally:
        LOG.append(("end", name))
#: adder
def _adder():
    count = 0

    def add(by=1):
        nonlocal count
        count += by
        return count

    return add


ADD = _adder()
#: remembering
def remembering(text, seen=[]):
    seen.append(str(text))
    return len(seen)
#: fmt
def fmt(text, mark="*"):
    return f"{mark}{text}{mark}"
#: turn
def turn(state, name):
    state += f"turn {name}: "
    state += sgl.gen(name)
    return state[name]
#: nested_help
def spelled(items, depth=0):
    if depth >= len(items):
        return ""
    return items[depth] + "-" + spelled(items, depth + 1)
#: passed <- LOG
def passed(function):
    def inner(*args):
        LOG.append(function.__name__)
        return function(*args)

    return inner


@passed
def decorated(text):
    return f"dec {text}"
#: LOGGER
RECORDS = []


class _Keeping(logging.Handler):
    def emit(self, record):
        RECORDS.append((record.levelname, record.getMessage()))


LOGGER = logging.getLogger(__name__)
LOGGER.handlers = [_Keeping()]
LOGGER.setLevel("INFO")
LOGGER.propagate = False
#: find <- LOG
@sgl.tool
def find(city: str) -> str:
    LOG.append(("find", city))
    return f"{city} found {len(LOG)}"
#: good <- LOG
@sgl.tool
def good(text: str) -> bool:
    LOG.append(("good", text))
    return len(text) % 2 == 0
#: several <- LOG
@sgl.tool
def several(text: str) -> list[str]:
    LOG.append(("several", text))
    return [text, f"more {len(LOG)}"]
#: record <- LOG
@sgl.tool
def record(data):
    LOG.append(("record", data))
    return {"n": len(LOG), "data": data}
#: take <- LOG
@sgl.tool
def take(thing) -> str:
    LOG.append(("take", thing if type(thing) in (list, dict, tuple) else type(thing).__name__))
    return f"took {type(thing).__name__}"
#: look_up
LOOKED, LOOKING = set(), threading.Lock()


@sgl.tool(ordered=False)
def look_up(text: str) -> str:
    # Which calls there were is seen, and not in which order.
    with LOOKING:
        LOOKED.add((text, sum(one == text for one, _ in LOOKED)))
    return f"{text} looked up"
#: push <- LOG
@sgl.tool
def push(things, text: str) -> str:
    LOG.append(("push", list(things)))
    if isinstance(things, dict):
        things[text] = len(LOG)
    else:
        things.append(text)
    return f"pushed {len(things)}"
#: joined
@sgl.pure
def joined(things) -> str:
    return "+".join(map(str, things))
#: failing <- LOG
@sgl.tool
def failing(text: str) -> str:
    LOG.append(("failing", text))
    if len(LOG) % 2:
        raise ValueError("odd")
    return "even"
#: bump <- COUNT, Settings
@sgl.tool
def bump(text: str) -> str:
    COUNT["n"] += 1
    COUNT["hits"].append(text)
    Settings.limit += 1
    return str(COUNT["n"])
#: set_depth
DEPTH, WIDTH = 1, 2
NEVER = ("set", 1)


@sgl.tool
def set_depth(text: str) -> str:
    setattr(sys.modules[__name__], "DEPTH", len(text))
    sys.modules[__name__].WIDTH += 1
    return "set"
#: raise_level
LEVEL = 1


@sgl.tool
def raise_level(by: str) -> str:
    global LEVEL
    LEVEL += 1
    return f"{by} {LEVEL}"
#: shout
@sgl.pure
def shout(text: str) -> str:
    return text.upper() + "!"
#: longer
@sgl.pure
def longer(text: str) -> bool:
    return len(text) > 6
#: inner
@sgl.function
def inner(s, topic, mark="?"):
    s += f"About {topic}{mark} "
    s += sgl.gen("idea")
    s += sgl.select("sure", choices=["yes", "no"])
    return {"idea": s["idea"], "sure": s["sure"]}
#: outer <- inner
@sgl.function
def outer(s, topic):
    s += f"Outer {topic}: "
    s += sgl.gen("first")
    made = inner(s["first"])
    s += made["idea"]
    return made["sure"]
#: inner_loud <- LOG
@sgl.function
def inner_loud(s, topic):
    LOG.append("inner")
    s += f"Loud {topic}: "
    s += sgl.gen("idea")
    return s["idea"] + str(len(LOG))
"""

# name: (what it needs, source)
SNIPPETS: dict[str, tuple[tuple[str, ...], str]] = {
    name: (tuple(filter(None, needs.removeprefix(" <- ").split(", "))), source.strip("\n"))
    for name, needs, source in re.findall(r"^#: (\w+)( <- .*)?\n((?:(?!#: ).*\n)*)", _TEXT, re.M)
}


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
