"""Productions of ordinary Python that stays inside the body: loops, local objects, texts, functions."""

from __future__ import annotations

from tests.source_fuzz.builder import ANYTHING, BASIC, RULED, Builder, in_fstring, production


@production(RULED)
def format_specs(b: Builder) -> None:
    spec = b.pick(":>9", ":<6", "!r", "!r:>12", ":^7")
    b.line(f'{b.state} += f"[{{{in_fstring(b.text())}{spec}}}]"')
    if b.ints:
        b.line(f"{b.state} += f'{{{b.random.choice(b.ints)}{b.pick(':03d', ':+', ':>5', ':x')}}} '")


@production(RULED, weight=1.5)
def text_methods(b: Builder) -> None:
    text = b.text()
    value = b.local("v", text + b.pick(
        ".strip()", ".upper()", ".title()", '.replace("a", "e")', "[:3]", "[::-1]", '.strip().split(" ")[0]',
        '.partition(",")[0]', ' + "!"', " * 2", '.removeprefix("A")', '.encode().decode()',
    ))  # fmt: skip
    b.texts.append(value)
    b.observe(value)


@production(RULED)
def text_facts(b: Builder) -> None:
    text = b.text()
    value = b.local("v", b.pick(
        f"len({text})", f'{text}.count("a")', f'{text}.find("o")', f"{text}.isdigit()", f'"a" in {text}',
        f'{text}.startswith("A")', f"{text} < 'm'", f"bool({text})", f"not {text}", f"isinstance({text}, str)",
        f"type({text}).__name__", f"'a' < {text} <= 'z'", f"hash({text}) == hash({text})",
    ))  # fmt: skip
    b.observe(value)


@production(RULED)
def regular_expressions(b: Builder) -> None:
    text = b.text()
    value = b.local("v", b.pick(
        f're.findall(r"[a-z]+", {text})', f're.sub(r"[aeiou]", "_", {text})', f're.split(r"[ ,]", {text})',
        f'bool(re.search(r"[0-9]", {text}))', f'(re.match(r" ?([A-Za-z]*)", {text}) or [""])[0]',
    ))  # fmt: skip
    b.observe(value)


@production(RULED)
def json_of_gen(b: Builder) -> None:
    name = b.fresh("j")
    schema = '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'
    b.line(f"{b.state} += sgl.gen(\"{name}\", json_schema='{schema}')")
    data = b.local("data", f'json.loads({b.state}["{name}"])')
    b.observe(f'{data}.get("name")' if b.chance(0.5) else f'{data}.get("age", 0) + 1')
    b.results.append(f"json.dumps({data}, sort_keys=True)")


@production(RULED)
def pure_functions(b: Builder) -> None:
    text = b.text()
    value = b.local("v", b.pick(
        f"sorted(set({text}.split()))", f'", ".join(sorted({text}.split()))', f"max([{text}, 'm'], key=len)",
        f"list(enumerate({text}.split()))", f"dict(zip('ab', [{text}, 1]))", f"repr({text})", f"str({text})",
        f"textwrap.shorten({text}, 9)", f"html.escape({text})", f"collections.Counter({text}).most_common(1)",
        f"string.Template('$x!').substitute(x={text})", f"'%s and %d' % ({text}, 3)",
        f"'{{}} {{x}}'.format({text}, x=1)", f"math.sqrt(len({text}))", f"sum(len(w) for w in {text}.split())",
        f"functools.reduce(lambda a, c: a + c, {text}.split(), '')", f"all(w for w in {text}.split())",
    ))  # fmt: skip
    b.observe(value)


@production(BASIC)
def known_loop(b: Builder) -> None:
    """A loop over what is known, whose generations have one name."""
    over = b.pick(
        "range(2)", "range(1, 4)", '["x", "y"]', "NAMES", 'enumerate(["p", "q"])', 'zip("ab", (1, 2))'
    )
    if over == "NAMES":
        b.need("NAMES")
    each = b.fresh("i")
    with b.block(f"for {each} in {over}:", loop=True):
        b.line(f'{b.state} += f"{b.words()} {{{each}}}: "')
        b.gen(b.pick("turn", b.fresh("g")))
        b.steps(0, 1)
        if b.level and b.chance(0.3):
            b.line(f"if {b.text()}.startswith('y'):")
            b.line(f"    {b.pick('break', 'continue')}")
            b.append(each)
    if b.level and b.chance(0.2):
        with b.block("else:"):
            b.steps(1, 1)


@production(RULED, weight=1.5)
def loop_over_texts(b: Builder) -> None:
    """A loop over a list that is an argument, or one that was generated."""
    known = b.pick('["x", b_two]', '("u", "v")').replace("b_two", b.text())
    over = b.random.choice(b.lists) if b.lists and b.chance(0.7) else b.pick(known, f"{b.text()}.split()")
    each = b.fresh("w")
    with b.block(f"for {each} in {over}:", loop=True):
        b.append(each)
        if b.chance(0.6):
            b.gen()


@production(RULED)
def comprehensions(b: Builder) -> None:
    over = (
        b.random.choice(b.lists)
        if b.lists and b.chance(0.5)
        else b.pick('["x", "yy"]', "range(3)", f"{b.text()}.split()")
    )
    value = b.local("v", b.pick(
        f"[str(x) + '.' for x in {over}]", f"{{str(x): i for i, x in enumerate({over})}}",
        f"sorted({{str(x) for x in {over}}})",
        f"[y for x in {over} if str(x) != 'x' for y in (x, 1)]", f"len([x for x in {over}])",
    ))  # fmt: skip
    b.observe(value)


@production(RULED)
def generator_expression_joined(b: Builder) -> None:
    over = (
        b.random.choice(b.lists)
        if b.lists and b.chance(0.5)
        else b.pick('["x", "yy"]', "range(3)", f"[{b.text()}, 'z']")
    )
    value = b.local("v", f'"{b.pick(", ", "|")}".join(f"<{{x}}>" for x in {over} if x != "yy")')
    b.texts.append(value)
    b.observe(value)


@production(RULED)
def while_loop(b: Builder) -> None:
    count, state = b.fresh("n"), b.state
    b.line(f"{count} = 0")
    match b.random.randrange(3):
        case 0:
            with b.block(f"while {count} < {b.random.choice((1, 2, 3))}:", loop=True):
                b.line(f"{count} += 1")
                b.gen("again")
                b.steps(0, 1)
        case 1:
            b.line(f'{state} += sgl.select("more", choices=["go", "end"])')
            with b.block(f'while {state}["more"] == "go" and {count} < 3:', loop=True):
                b.line(f"{count} += 1")
                b.line(f'{state} += " more? " + sgl.select("more", choices=["go", "end"])')
        case _:
            with b.block(f"while (w_{count} := {b.text()}) and {count} < 2:", loop=True):
                b.line(f"{count} += 1")
                b.append(f"w_{count}")
                b.gen()
    b.observe(count)


@production(RULED)
def walrus(b: Builder) -> None:
    name = b.fresh("w")
    with b.block(f"if ({name} := {b.text()}){b.pick('', '.strip()')} != 'no':"):
        b.append(name)
    b.results.append(name)


@production(RULED)
def conditions(b: Builder) -> None:
    """Reads in conditions of every form."""
    text, other = b.text(), b.text()
    condition = b.pick(
        f'"a" in {text}', f'{text} == "yes"', f"len({text}) > 5", f"{text} and {other}", f"not {text}",
        f"{text} != {other}", f"{text} > {other}", f'{text}.strip() in ("yes", "no")',
        f"any([{text} == 'a', {other}])",
    )  # fmt: skip
    if b.chance(0.3):
        b.observe(b.local("v", f"{text} if {condition} else 'other'"))
        return
    with b.block(f"if {condition}:"):
        b.steps()
    if b.chance(0.4):
        with b.block("else:"):
            b.steps(1, 1)


@production(RULED, weight=1.2)
def match_statement(b: Builder) -> None:
    text = b.text()
    subject = b.pick(text, f"{text}.split()", f"({text}, 1)", '{"kind": "a", "n": 2}')
    with b.block(f"match {subject}:"):
        for case in ("'yes' | 'no'", "[first, *rest]", "(str() as first, 1)", '{"kind": kind}', "[]"):
            if b.chance(0.5):
                with b.block(f"case {case}:"):
                    b.steps(1, 1)
        with b.block("case _:"):
            b.steps(1, 1)


@production(RULED)
def nested_functions(b: Builder) -> None:
    made, text = b.fresh("h"), b.text()
    match b.random.randrange(4):
        case 0:
            with b.block(f"def {made}(value, mark='-'):"):
                b.line(f"return mark + value + {text}")
            b.observe(b.local("v", f"{made}({b.text()}{b.pick('', ', mark=str(1)')})"))
        case 1:
            b.line(f"{made} = lambda value: (value, {text})")
            b.observe(b.local("v", f"{made}({b.text()})[0]"))
        case 2:
            count = b.local("n", "0")
            with b.block(f"def {made}():"):
                b.line(f"nonlocal {count}, {b.state}")
                b.line(f"{count} += 1")
                b.line(f'{b.state} += f"call {{{count}}} "')
            b.line(f"{made}()")
            b.line(f"{made}()")
            b.observe(count)
        case _:
            with b.block(f"def {made}(n):"):
                b.line(f"return '' if n == 0 else {made}(n - 1) + 'r'")
            b.observe(f"{made}(3)")


@production(RULED)
def local_containers(b: Builder) -> None:
    text = b.text()
    made = b.fresh("l")
    match b.random.randrange(5):
        case 0:
            b.line(f"{made} = [{text}, 'b']")
            b.line(f"alias_{made} = {made}")
            b.line(f"alias_{made}.append({b.text()})")
            b.line(f"{made} += ['c']")
            b.observe(f"len({made})")
            b.observe(b.pick(f"{made}[-1]", f"{made}", f"'|'.join({made})", f"{made}.pop()"))
        case 1:
            b.line(f"{made} = {{'a': {text}, 'n': 1}}")
            b.line(f"{made}['b'] = {b.text()}")
            b.line(f"{made}.setdefault('c', []).append(1)")
            b.observe(b.pick(f"{made}", f"sorted({made})", f"{made}['b']", f"{made}.get('zz', 'none')"))
        case 2:
            b.line(f"{made} = {{'x', 'y'}}")
            b.line(f"{made}.add('x')")
            b.observe(f"sorted({made})")
        case 3:
            b.line(f"{made}, *rest_{made} = ['p', {text}, 3]")
            b.line(f"{made}, rest_{made} = rest_{made}, {made}")
            b.observe(made)
        case _:
            b.line(f"{made} = ({text}, 2.5, None, True)")
            b.results.append(made)
            b.observe(f"{made}[1:3]")


@production(RULED, weight=1.2)
def local_records(b: Builder) -> None:
    made = b.fresh("p")
    match b.random.randrange(7):
        case 0 | 1:
            b.need("Point")
            b.line(f"{made} = Point(1, {b.text()})")
            b.line(f"{made}.x += 2")
            b.observe(f"{made}.shown()")
            b.results.append(made)
        case 2 | 3:
            b.need("Frozen")
            b.line(f"{made} = Frozen({b.text()})")
            b.observe(f"{made}.name + str({made}.sizes)")
            b.results.append(made)
        case 4 | 5:
            b.need("Pair")
            b.line(f"{made} = Pair({b.text()}, right=2)")
            b.observe(f"{made}.left")
            b.results.append(made)
        case _:
            b.need("Person")
            b.line(f"{made} = Person(name={b.text()})")
            b.observe(f"{made}.name")
            b.results.append(made)


@production(RULED)
def helpers(b: Builder) -> None:
    """The user's own functions and methods, which only read."""
    match b.random.randrange(4):
        case 0:
            b.need("fmt")
            b.observe(f"fmt({b.text()}{b.pick('', ', mark=str(2)', ', *[str(7)]')})")
        case 1:
            b.need("nested_help")
            b.observe("spelled(['x', 'y', 'z'])")
        case 2:
            b.need("Quiet")
            b.observe(f"QUIET.{b.pick('name', 'size', 'kind')}")
            b.observe(f"QUIET.line({b.text()})")
        case _:
            b.need("Settings", "NAMES")
            b.observe(
                b.pick("Settings.limit", "NAMES[1]", "Settings.words[0]", "len(NAMES)", "' '.join(NAMES)")
            )


@production(RULED, weight=1.3)
def raised_and_caught(b: Builder) -> None:
    """An exception of the program's own, which it catches."""
    error = b.fresh("err")
    asked = b.text() if b.chance(0.3) else b.local("v", b.text())
    b.line("try:")
    b.line(f"    if {asked} {b.pick('==', '!=')} 'yes':")
    b.line("        raise ValueError('own')")
    if b.chance(0.25):
        b.line(f"    {b.state} += str(int({asked}))")
    b.line(f"    {b.state} += 'quiet '")
    b.line(f"except {b.pick('ValueError', 'Exception', '(KeyError, ValueError)')} as {error}:")
    b.line(f"    {b.state} += f'caught {{{error}}} '")
    if b.chance(0.5):
        b.line("finally:")
        b.line(f"    {b.state} += 'finally '")
    b.gen()


@production(RULED, weight=1.3)
def caught_if_it_fails(b: Builder) -> None:
    """What only a run knows may fail, where the program catches that."""
    value = b.fresh("v")
    text = b.text() if b.chance(0.6) else b.local("v", b.text())
    tried, errors = b.random.choice((
        (f"int({text})", ("ValueError", "(KeyError, ValueError)")),
        (f"float({text}.strip()) * 2", ("ValueError", "Exception")),
        (f'json.loads({text})["name"]', ("(ValueError, TypeError, LookupError)", "Exception")),
        (f"{text}.index('e')", ("ValueError",)),
        (f"['p', 'q', 'r'][len({text}) % 5]", ("IndexError", "LookupError")),
        (f"{{'yes': 1, 'no': 2}}[{text}]", ("KeyError", "LookupError")),
        (f"12 // (len({text}) % 3)", ("ZeroDivisionError", "(ValueError, ArithmeticError)")),
    ))  # fmt: skip
    if b.chance(0.4):
        with b.block("try:"):
            _caught(
                b, value, tried, (*errors, "UnicodeError", "json.JSONDecodeError"), ["raise", "raise OSError"]
            )
        with b.block("except (ValueError, LookupError, TypeError, ArithmeticError, OSError):"):
            b.line(f"{value} = 'outer'")
            b.gen()
    else:
        _caught(b, value, tried, errors, [f"return {value}", *(["continue", "break"] if b.loop else [])])
    b.observe(value)


def _caught(b: Builder, value: str, tried: str, errors: tuple[str, ...], leaving: list[str]) -> None:
    with b.block("try:"):
        b.line(f"{value} = {tried}")
        if b.chance(0.2):
            b.append(value)
    named = b.fresh("err") if b.chance(0.4) else ""
    if b.chance(0.3):
        with b.block("except UnicodeError:"):
            b.line(f"{value} = 'no characters'")
    with b.block(f"except {b.pick(*errors)}{named and f' as {named}'}:"):
        b.line(f"{value} = {f'str({named})' if named else repr('failed')}")
        if b.chance(0.4):
            b.steps(1, 1)
        if b.chance(0.3):
            b.line(b.pick(*leaving))
    if b.chance(0.3):
        with b.block("else:"):
            b.append(value)
    if b.chance(0.2):
        with b.block("finally:"):
            b.line(f"{b.state} += 'finally '")


@production(RULED)
def asked_until_it_fits(b: Builder) -> None:
    """A form that the model has to write is asked for again where it does not."""
    name, value = b.fresh("g"), b.fresh("v")
    b.line(f"{value} = None")
    with b.block(f"for {b.fresh('i')} in range({b.pick('2', '3')}):", loop=True):
        b.gen(name)
        with b.block("try:"):
            b.line(f'{value} = {b.pick("int", "json.loads")}({b.state}["{name}"])')
            if b.chance(0.5):
                b.line("break")
        with b.block("except ValueError:"):
            b.line(f"{b.state} += 'That is none, again: '")
        if b.chance(0.3):
            with b.block("else:"):
                b.line("break")
    b.observe(value)


@production(RULED)
def odds_and_ends(b: Builder) -> None:
    made = b.fresh("o")
    match b.random.randrange(6):
        case 0:
            b.line(f"{made} = {b.text()}")
            b.line(f"assert isinstance({made}, str), 'no text'")
            b.line(f"del {made}")
        case 1:
            b.line(f"{made} = other_{made} = {b.text()}")
            b.observe(f"{made} is other_{made}")
        case 2:
            b.line(f"{made}: str = {b.text()}")
            b.line(f"{made} += '+'")
            b.texts.append(made)
            b.append(made)
        case 3:
            b.line(f"import json as json_{made}")
            b.observe(f"json_{made}.dumps([{b.text()}])")
        case 4:
            b.line(f"print({b.text()}, 'printed', sep='|', file={b.pick('None', 'sys.stdout')})")
        case _:
            b.line(f"{made} = [*{b.text()}.split(), *('s', 't')]")
            b.observe(made)


@production(ANYTHING, weight=0.5)
def local_generator(b: Builder) -> None:
    made = b.fresh("y")
    with b.block(f"def {made}():"):
        b.line(f"yield {b.text()}")
        b.line("yield from ('k', 'l')")
    b.observe(f"'-'.join({made}())")
