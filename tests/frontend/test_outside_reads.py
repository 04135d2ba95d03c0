"""A trace is made again when anything has changed that it read outside, wherever it found that."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.execution.result import Result
from sglc.frontend.tracing.reads import Reads, TooDeep, in_module, kept
from tests.depth import few
from tests.notebook import Notebook
from tests.source_fuzz.answers import HashBackend

_NUMBERS = count()
_CLASS = "class C:\n    mark = 'class'\n    def line(self): return self.mark\n\nc = C()\n"
_POINT = """
import dataclasses

@dataclasses.dataclass
class Point:
    x: int
    mark = "a"

    def line(self): return "a"
"""
_GIVEN = "@sgl.function\ndef program(s, p):\n    s += {} + sgl.gen('g')\n\np = Point(1)\n"
_INNER = "@sgl.function\ndef inner(s, x='1', more=['m']):\n    s += x + more[0] + MARK + sgl.gen('i')\n"
_CALLING = "@sgl.function\ndef program(s):\n    s += {}['i'] + sgl.gen('g')\n"
_HELPER = "MARK = 'a'\ndef f(x, y='1'): return x + y + MARK\n"
_PURE = "{}\n@sgl.pure\ndef f(x: str) -> str: return x + MARK\n"
_MODULE = (
    "import sys, types\nextra = types.ModuleType('extra_module')\nextra.level = 'a'\n"
    "sys.modules['extra_module'] = extra\n@sgl.function\ndef program(s):\n    {}\n    s += {} + sgl.gen('g')\n"
)

_ENUM = "import enum\nclass E(enum.Enum):\n    A = 'a'\nE.A.more = 'm'\n"
_NAMED = "from typing import NamedTuple\nclass N(NamedTuple):\n    v: str = 'a'\nn = N()\n"
_META = "class M(type): pass\nclass K(metaclass=M):\n    x = 'a'\nclass L: pass\n"
_OTHER = "{} = lambda self, *more: 'other'"

# What is defined, what the program says (or the program itself), what is changed then.
CHANGES: dict[str, tuple[str, str, str]] = {
    "global": ("MARK = 'a'", "MARK", "MARK = 'b'"),
    "deleted global": ("MARK = 'a'", "MARK if 'MARK' else ''", "del MARK"),
    "builtin": ("", "str(len('abc'))", "len = lambda x: 7"),
    "list": ("L = ['x'] * 100", "L[50]", "L[50] = 'y'"),
    "length": ("L = ['x']", "str(len(L))", "L.append('y')"),
    "nested": ("D = {'a': {'b': {'c': {'d': ('e', ['x'])}}}}", "D['a']['b']['c']['d'][1][0]",
               "D['a']['b']['c']['d'][1][0] = 'y'"),
    "default dict": ("import collections\nD = collections.defaultdict(list, k='a')", "D['k']", "D['k'] = 'b'"),
    "order": ("import collections\nD = collections.OrderedDict(a='1', b='2')", "'-'.join(D)",
              "D.move_to_end('a')"),
    "counter": ("import collections\nD = collections.Counter('aab')", "str(D['a'])", "D['a'] = 5"),
    "named tuple": ("import collections\nP = collections.namedtuple('P', 'l r')\nQ = P(['a'], 1)", "Q.l[0]",
                    "Q.l[0] = 'b'"),
    "set": ("S = {'a'}", "'there' if 'b' in S else 'not'", "S.add('b')"),
    "list of its own": ("class L(list): pass\nL1 = L(['a'])", "L1[0]", "L1[0] = 'b'"),
    "template": ("import string\nT = string.Template('$x a')", "T.substitute(x='1')", "T.template = '$x b'"),
    "helper": (_HELPER, "f('x')", "def f(x): return x + '!'"),
    "helper's global": (_HELPER, "f('x')", "MARK = 'b'"),
    "helper's default": (_HELPER, "f('x')", "f.__defaults__ = ('2',)"),
    "default of a keyword": ("def f(*, y='1'): return y", "f()", "f.__kwdefaults__['y'] = '2'"),
    "list as default": ("def f(y=['1']): return y[0]", "f()", "f.__defaults__[0][0] = '2'"),
    "object as default": (_CLASS + "def f(y=c): return y.mark", "f()", "c.mark = 'own'"),
    "code": (_HELPER + "def g(x): return x", "f('x')", "f.__code__ = g.__code__; f.__defaults__ = None"),
    "helper in a dict": (_HELPER + "T = {'f': f}", "T['f']('x')", "MARK = 'b'"),
    "default of a helper in a dict": (_HELPER + "T = {'f': f}", "T['f']('x')", "f.__defaults__ = ('2',)"),
    "partial": (_HELPER + "import functools\nq = functools.partial(f, '1')", "q('2')", "MARK = 'b'"),
    "partial's arguments": (_HELPER + "import functools\nq = functools.partial(f, **{'y': '2'})", "q('2')",
                            "q.keywords['y'] = '3'"),
    "wrapped": (_HELPER + "import functools\ndef deco(g):\n    @functools.wraps(g)\n    def inner(*a):\n"
                "        return g(*a) + '!'\n    return inner\nh = deco(f)", "h('x')", "MARK = 'b'"),
    "closure": ("def _made():\n    m = 'a'\n    def get(): return m\n    def put(v):\n        nonlocal m\n"
                "        m = v\n    return get, put\nGET, PUT = _made()", "GET()", "PUT('b')"),
    "class attribute": (_CLASS, "c.mark", "C.mark = 'other'"),
    "attribute over its class": (_CLASS, "c.mark", "c.mark = 'own'"),
    "attribute by name": (_CLASS, "getattr(c, 'mark')", "c.mark = 'own'"),
    "attribute that was not there": (_CLASS, "getattr(c, 'more', 'none')", "c.more = 'some'"),
    "attribute in a list": (_CLASS + "L = [c]", "L[0].mark", "c.mark = 'own'"),
    "attribute of what is passed": (_CLASS + "def f(o): return o.mark", "f(c)", "c.mark = 'own'"),
    "attribute of the fourth": (_CLASS + "c.c = C(); c.c.c = C(); c.c.c.c = C(); c.c.c.c.mark = 'a'",
                                "c.c.c.c.mark", "c.c.c.c.mark = 'b'"),
    "slot": ("class S:\n    __slots__ = ('m',)\nx = S(); x.m = 'a'", "x.m", "x.m = 'b'"),
    "method": (_CLASS, "c.line()", "C.line = lambda self: 'new'"),
    "self": (_CLASS, "c.line()", "c.mark = 'own'"),
    "base class": (_CLASS + "class D(C): pass\ndef f(k): return k.mark", "f(D)", "C.mark = 'other'"),
    "class method": ("class C:\n    m = 'a'\n    @classmethod\n    def f(cls): return cls.m", "C.f()",
                     "C.m = 'b'"),
    "static method": ("MARK = 'a'\nclass C:\n    @staticmethod\n    def f(): return MARK", "C.f()",
                      "MARK = 'b'"),
    "enum": ("import enum\nclass E(enum.Enum):\n    A = 'a'", "E.A.value",
             "class E(enum.Enum):\n    A = 'b'"),
    "field of an object": (_POINT + "D = {'p': Point(1)}", "str(D['p'].x)", "D['p'].x = 2"),
    "object that is shown": (_POINT + "P = Point(1)", "f'{P}'", "P.x = 2"),
    "object that is compared": (_POINT + "P = Point(1)", "str(P == Point(1))", "P.x = 2"),
    "object that is made": (_POINT + "@dataclasses.dataclass\nclass Q:\n    m: str = 'a'", "Q().m",
                            "Q.__init__.__defaults__ = ('b',)"),
    "class of an argument": (_POINT, _GIVEN.format("p.mark"), "Point.mark = 'b'"),
    "method of an argument": (_POINT, _GIVEN.format("p.line()"), "Point.line = lambda self: 'b'"),
    "global of an argument's method": (_POINT.replace('return "a"', "return MARK") + "\nMARK = 'a'",
                                       _GIVEN.format("p.line()"), "MARK = 'b'"),
    "class of an argument made anew": (_POINT, _GIVEN.format("p.line()"),
                                       _POINT.replace('"a"', '"b"') + "\np = Point(1)"),
    "older object of a class made anew": (_POINT + "old = Point(1)", _GIVEN.format("p.line()") + "p = Point(1)",
                                          _POINT.replace('"a"', '"b"') + "\np = Point(1)"),
    "class of an item made anew": (_POINT, _GIVEN.format("p[0].line()") + "p = [p]",
                                   _POINT.replace('"a"', '"b"') + "\np = [Point(1)]"),
    "program that is called": (_INNER + "MARK = 'a'", _CALLING.format("inner()"), "MARK = 'b'"),
    "program with fixed arguments": (_INNER + "MARK = 'a'\nI = inner.bind(x='2')", _CALLING.format("I()"),
                                     "I = inner.bind(x='3')"),
    "list as a program's default": (_INNER + "MARK = 'a'\nM = inner.definition.parameters[1].default",
                                    _CALLING.format("inner()"), "M[0] = 'other'"),
    "program in a dict": (_INNER + "MARK = 'a'\nT = {'i': inner}", _CALLING.format("T['i']()"), "MARK = 'b'"),
    "tool": ("@sgl.tool\ndef f(x: str) -> str: return x + '1'", "f('x')",
             "@sgl.tool\ndef f(x: str) -> str: return x + '2'"),
    "pure function": (_PURE.format("MARK = 'a'"), "f('x')", "@sgl.pure\ndef f(x: str) -> str: return x"),
    "pure function's global": (_PURE.format("MARK = 'a'"), "f('x')", "MARK = 'b'"),
    "pure function in a dict": (_PURE.format("MARK = 'a'") + "T = {'f': f}", "T['f']('x')", "MARK = 'b'"),
    "pure function, three deep": ("class K: pass\nk = K(); k.a = K(); k.a.b = K(); k.a.b.c = 'a'\n"
                                  "@sgl.pure\ndef f(x: str) -> str: return x + k.a.b.c",
                                  "f('x')", "k.a.b.c = 'b'"),
    # What is found the long way first is followed from where the short one leads, too.
    "pure function, two ways": ("class K: pass\nk = K(); k.a = K(); k.a.b = K(); k.z = k.a.b; k.z.c = K()\n"
                                "k.z.c.d = 'a'\n@sgl.pure\ndef f(x: str) -> str:\n"
                                "    return x + k.z.c.d + str(k.a.b is None)",
                                "f('x')", "k.z.c.d = 'b'"),
    "pure function, by name": ("class K: v = 'a'\nk = K()\n@sgl.pure\ndef f(x: str) -> str:\n"
                               "    return x + getattr(k, 'v')", "f('x')", "k.v = 'b'"),
    "pure function, order of a set": ("S = {0, 8}\n@sgl.pure\ndef f(x: str) -> str: return x + str(list(S))",
                                      "f('x')", "S = {8, 0}"),
    "order of a set": ("S = {0, 8}", "str(list(S))", "S = {8, 0}"),
    "bytearray": ("B = bytearray(b'a')", "str(B)", "B[:] = b'b'"),
    "memoryview": ("B = bytearray(b'a'); V = memoryview(B)", "str(bytes(V))", "B[:] = b'b'"),
    "view of a dict": ("D = {'k': 'a'}; V = D.items()", "str(list(V))", "D['k'] = 'b'"),
    "proxy of a dict": ("import types\nD = {'k': 'a'}; V = types.MappingProxyType(D)", "str(dict(V))",
                        "D['k'] = 'b'"),
    "text of the library's": ("import collections\nT = collections.UserString('a')", "str(T)", "T.data = 'b'"),
    "attribute of a member": (_ENUM, "E.A.more", "E.A.more = 'n'"),
    "value of a member": (_ENUM, "E.A.value", "E.A._value_ = 'n'"),
    "how a member is shown": (_ENUM, "f'{E.A}'", _OTHER.format("E.__str__")),
    "how an object is shown": (_POINT + "P = Point(1)", "f'{P}'", _OTHER.format("Point.__repr__")),
    "how an object is formatted": (_POINT + "P = Point(1)", "f'{P}'", _OTHER.format("Point.__format__")),
    "how an object is compared": (_POINT + "P = Point(1)", "str(P == Point(1))", _OTHER.format("Point.__eq__")),
    "how an object in a list is compared": (_POINT + "P = [Point(1)]", "str(Point(1) in P)",
                                            "Point.__eq__ = lambda self, other: False"),
    "whether an object is true": (_POINT + "P = Point(1)", "'yes' if P else 'no'",
                                  "Point.__bool__ = lambda self: False"),
    "how an object is made": (_POINT, "str(Point(1).x)",
                              "def _init(self, x): self.x = 7\nPoint.__init__ = _init"),
    "base of an object's class": (_POINT + "class Q(Point): pass\nP = Q(1)", "f'{P}'",
                                  _OTHER.format("Point.__str__")),
    "how an object gets attributes": (_CLASS, "getattr(c, 'more', 'none')", _OTHER.format("C.__getattr__")),
    "how a named tuple is shown": (_NAMED, "str(n)", _OTHER.format("N.__str__")),
    "default of a named tuple": (_NAMED, "N().v", "N.__new__.__defaults__ = ('b',)"),
    "how an exception is shown": ("class X(ValueError): pass\nx = X('a')", "str(x)",
                                 _OTHER.format("X.__str__")),
    "how a list has items": ("class L(list): pass\nL1 = L(['a'])", "L1[0]", _OTHER.format("L.__getitem__")),
    "class of a module": ("import types\nM = types.ModuleType('M')\nM.v = 'a'", "M.v",
                          "class K(types.ModuleType):\n"
                          "    v = property(lambda self: 'b', lambda self, v: None)\n"
                          "M.__class__ = K"),
    "property of a metaclass": (_META, "K.x", "M.x = property(lambda cls: 'b')"),
    "attribute of a metaclass that is asked": (_META, "getattr(K, 'more', 'none')",
                                               _OTHER.format("M.__getattr__")),
    "how a class has attributes": (_META, "K.x", _OTHER.format("M.__getattribute__")),
    "how a class makes objects": (_META + "import dataclasses\n@dataclasses.dataclass\nclass D(metaclass=M):\n"
                                  "    y: str = 'a'", "D().y",
                                  "L.y = 'b'; M.__call__ = lambda cls: L()"),
    "what belongs to a class": (_META, "str(isinstance('a', K))",
                                "M.__instancecheck__ = lambda cls, item: True"),
    "what is below a class": (_META, "str(issubclass(str, K))", "M.__subclasscheck__ = lambda cls, kind: True"),
    "class of an object": (_META + "k = K()", "str(isinstance(k, K))", "k.__class__ = L"),
    "class of an object that is asked": (_META + "k = K()", "type(k).__name__", "k.__class__ = L"),
    "class of an object that is shown": (_POINT + "P = Point(1)\nclass Q(Point): pass", "f'{P}'",
                                         "P.__class__ = Q"),
    "module": ("", _MODULE.format("import extra_module", "extra_module.level"), "extra.level = 'b'"),
    "name from a module": ("", _MODULE.format("from extra_module import level", "level"), "extra.level = 'b'"),
    "module in its place": ("", _MODULE.format("import extra_module", "extra_module.level"),
                            "extra = types.ModuleType('extra_module')\nextra.level = 'c'\n"
                            "sys.modules['extra_module'] = extra"),
}  # fmt: skip


def shown(result: Result) -> str:
    error = result.error()
    return result.text() if error is None else f"{type(error).__name__}: {error}"


def before_and_after(name: str, *modes: str) -> list[str]:
    """What the program says before and behind the change, in the modes given for each run."""
    defined, said, change = CHANGES[name]
    program = (
        said if "def program" in said else f"@sgl.function\ndef program(s):\n    s += {said} + sgl.gen('g')"
    )
    book = Notebook(f"reads_{next(_NUMBERS)}", textwrap.dedent(defined), program)
    made = []
    for number, mode in enumerate(modes):
        if number == 1:
            book.cell(change)
        given: dict[str, Any] = {"p": book.value("p")} if "(s, p)" in program else {}
        result = book.module.program.run(**given, backend=HashBackend(), seed=1, mode=mode)
        made.append(shown(result))
        if mode != "python":
            assert number or result.mode == "plan", result.why_python
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", few(CHANGES, 20))
def test_a_change_is_seen(name: str) -> None:
    expected = before_and_after(name, "python", "python", "python")
    assert before_and_after(name, "auto", "auto", "auto") == expected
    assert expected[0] != expected[1], "the change has to be one"


@pytest.mark.parametrize("name", ["helper in a dict", "self", "program with fixed arguments", "module"])
def test_what_is_compiled_is_compiled_again(name: str) -> None:
    defined, said, change = CHANGES[name]
    program = (
        said if "def program" in said else f"@sgl.function\ndef program(s):\n    s += {said} + sgl.gen('g')"
    )
    book = Notebook(f"reads_{next(_NUMBERS)}", textwrap.dedent(defined), program)
    first = book.module.program.trace()
    assert book.module.program.trace() is first
    book.cell(change)
    assert book.module.program.trace() != first


_CHECKING = """
RAN = []
class M(type):
    def __instancecheck__(cls, item): RAN.append(1); return True
    __subclasscheck__ = __instancecheck__
    def __getattr__(cls, name): RAN.append(1); return 'b'
    x = property(lambda cls: RAN.append(1) or 'c')
class K(metaclass=M):
    x = 'a'
"""


@pytest.mark.parametrize("said", ["isinstance('a', K)", "issubclass(str, K)", "getattr(K, 'y', '')", "K.x"])
def test_a_metaclass_is_not_asked_while_tracing(said: str) -> None:
    program = f'@sgl.function\ndef program(s):\n    s += f"{{{said}}}" + sgl.gen("g")\n'
    book = Notebook(f"reads_{next(_NUMBERS)}", _CHECKING, program)
    book.module.program.trace()
    assert not book.value("RAN")
    result = book.module.program.run(backend=HashBackend(), seed=1)
    assert result.text().startswith("c" if said == "K.x" else "b" if "y" in said else "True")


def test_what_is_not_read_is_no_reason_to_trace_again() -> None:
    """An attribute of the name of a global; a method that Python binds at each look."""
    defined = (
        "import collections, types\ncount = [0]\nBOX = types.SimpleNamespace(count='a')\n"
        "COUNTS = collections.Counter('aab')\n@sgl.pure\ndef f(x: str) -> str: return x + BOX.count"
    )
    program = (
        "@sgl.function\ndef program(s):\n    s += f('x') + BOX.count + sgl.gen('g')\n\n"
        "@sgl.function\ndef counting(s):\n    s += f'{COUNTS.most_common(1)}' + sgl.gen('g')\n"
    )
    book = Notebook(f"reads_{next(_NUMBERS)}", defined, program)
    first = book.module.program.trace()
    whys = []
    for _ in range(3):
        whys += [book.module.counting.run(backend=HashBackend()).why_python]
        assert book.module.program.run(backend=HashBackend()).mode == "plan"
        book.cell("count.append(1)")
    assert book.module.program.trace() is first
    assert len(set(whys)) == 1, whys


def test_an_older_object_is_of_its_own_class() -> None:
    """Objects of a class that a later cell has made anew keep their methods."""
    defined, program, change = CHANGES["older object of a class made anew"]
    made = []
    for mode in ("python", "auto"):
        book = Notebook(f"reads_{next(_NUMBERS)}", defined, program)
        texts = []
        for step in ("", "", change, "", "p = old", "", ""):
            book.cell(step)
            result = book.module.program.run(p=book.value("p"), backend=HashBackend(), seed=1, mode=mode)
            texts.append(shown(result))
        made.append(texts)
    assert made[0] == made[1]
    assert made[0][1] != made[0][2] != made[0][5]


def test_an_older_tool_is_called_as_it_was() -> None:
    """A plan finds tools by their names, which belong to the newest: others are Python's."""
    book = Notebook(
        f"reads_{next(_NUMBERS)}",
        "@sgl.tool\ndef f(x: str) -> str: return x + '1'\nold = f",
        "@sgl.tool\ndef f(x: str) -> str: return x + '2'",
        "@sgl.function\ndef program(s):\n    s += old('a') + f('b') + sgl.gen('g')",
    )
    result = book.module.program.run(backend=HashBackend(), seed=1)
    assert result.text().startswith("a1b2")
    assert "older" in result.why_python


def test_a_list_that_holds_itself_is_left_to_python() -> None:
    book = Notebook(
        f"reads_{next(_NUMBERS)}", "L = ['a']\nL.append(L)",
        "@sgl.function\ndef program(s):\n    s += L[0] + sgl.gen('g')",
    )  # fmt: skip
    result = book.module.program.run(backend=HashBackend(), seed=1)
    assert result.text().startswith("a")
    assert "without an end" in result.why_python
    with pytest.raises(TooDeep):
        kept(book.module.L)


def test_what_changed_is_told() -> None:
    reads = Reads()
    names: dict[str, Any] = {"MARK": 1}
    reads.add(in_module, names, "MARK")
    reads.add(in_module, names, "OTHER")
    assert reads.changed() == ""
    names["MARK"] = 1.0
    assert reads.changed() == "global MARK"
    names |= {"MARK": 1, "OTHER": None}
    assert reads.changed() == "global OTHER"


@pytest.mark.parametrize("mode", ["auto", "python"])
def test_the_same_helper_in_a_later_cell_has_its_place_there(mode: Any) -> None:
    helper = "def say(s):\n    s += 'a' + sgl.gen('g', max_tokens=3)"
    program = "@sgl.function\ndef program(s):\n    s += 'x'\n    say(s)"
    book = Notebook(f"reads_{next(_NUMBERS)}", helper, program)
    lines = []
    for cell in ("", f"# said\n\n{helper}", ""):
        book.cell(cell)
        backend = HashBackend()
        book.module.program.run(backend=backend, mode=mode).sync()
        lines += [call.loc.partition(":")[0] for call in backend.calls_made]
    assert lines == ["2", "4", "4"]


def test_a_name_of_sglc_that_is_patched_behind_a_plan_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Notebook(
        f"reads_{next(_NUMBERS)}",
        "@sgl.function\ndef program(s):\n    s += 'a' + sgl.gen('g') + sgl.select('c', ['x'])",
    )
    program, backend = book.module.program, HashBackend()
    before = program.run(backend=backend, seed=1).text()
    with monkeypatch.context() as patched:
        # Not as it is written: where some code stores a name, a variable of that name may change behind a tool.
        patched.setattr("sglc." + "".join(("g", "en")), lambda name: f"patched {name} ")
        assert program.run(backend=backend, seed=1).text() == "apatched g x"
    again = program.run(backend=backend, seed=1)
    assert (again.mode, again.text()) == ("plan", before)


class Registry(type):
    names = ("a",)

    def __iter__(cls) -> Iterator[str]:
        return iter(cls.names)

    def __len__(cls) -> int:
        return len(cls.names)


class Listed(metaclass=Registry):
    pass


def test_what_a_metaclass_answers_is_not_taken_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    @sgl.function
    def told(s: Any) -> None:
        s += f"{len(Listed)}: {','.join(Listed)}." + sgl.gen("a", max_tokens=2)

    backend = ScriptedBackend(lambda asked: "x")
    assert told.run(backend=backend).text() == "1: a.x"
    monkeypatch.setattr(Registry, "names", ("a", "b"))
    assert told.run(backend=backend).text() == "2: a,b.x"


class Current(dict[str, Any]):
    """Globals of another class: what is current stands elsewhere."""

    now: Any = None

    def __getitem__(self, name: str) -> Any:
        return self.now if name == "MARK" else super().__getitem__(name)


def test_globals_of_another_class_are_looked_up_as_they_do() -> None:
    names, reads = Current(MARK=object()), Reads()
    names.now = names.get("MARK")
    reads.add(in_module, names, "MARK")
    assert reads.changed() == ""
    names.now = object()
    assert reads.changed() == "global MARK"
