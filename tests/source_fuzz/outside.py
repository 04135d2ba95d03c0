"""Productions that touch what the body did not make: effects, iterators, objects with code of their own."""

from __future__ import annotations

from tests.source_fuzz.builder import ANYTHING, RULED, Builder, in_fstring, production


@production(RULED, weight=1.5)
def printed(b: Builder) -> None:
    match b.random.randrange(3):
        case 0:
            b.line(f"print('seen', {b.text()})")
        case 1:
            b.need("LOGGER")
            b.line(f"LOGGER.{b.pick('info', 'warning', 'debug')}('saw %s', {b.text()})")
        case _:
            b.line("print('plain')")


@production(ANYTHING, weight=2)
def effect(b: Builder) -> None:
    """A statement that changes something of the user's."""
    text = b.text()
    match b.random.randrange(8):
        case 0:
            b.need("LOG")
            b.line(f"LOG.append({text})")
        case 1:
            b.need("COUNT")
            b.line('COUNT["n"] += 1')
            b.observe('COUNT["n"]')
        case 2:
            b.need("LOG", "note")
            b.observe(f"note({text})")
        case 3:
            b.need("STACK")
            b.line(f"STACK.append({text})")
            b.observe(b.pick("len(STACK)", "STACK.pop()", "STACK[0]"))
        case 4:
            b.need("STACK")
            b.line(f"SEEN.add({text})")
            b.observe("len(SEEN)")
        case 5:
            b.need("Quiet")
            b.line(f"QUIET.{b.pick('size', 'fresh')} = {b.pick('5', text)}")
            b.observe("QUIET.size")
        case 6:
            b.need("BUFFER")
            b.line(f"BUFFER.write(str({text}))")
        case _:
            b.need("Settings")
            b.line(
                b.pick("Settings.limit += 1", "Settings.words.append('w3')", "setattr(Settings, 'extra', 1)")
            )
            b.observe(b.pick("Settings.limit", "len(Settings.words)"))


@production(ANYTHING)
def global_statement(b: Builder) -> None:
    b.need("TOTAL")
    helper = b.fresh("count")
    with b.block(f"def {helper}():"):
        b.line("global TOTAL")
        b.line("TOTAL += 1")
        b.line("return TOTAL")
    b.observe(b.local("v", f"{helper}()"))


@production(ANYTHING, weight=1.5)
def outside_iterator(b: Builder) -> None:
    which = b.pick("ITER", "COUNTER", "NUMBERS")
    b.need(which)
    if b.chance(0.6):
        b.observe(b.local("v", f"next({which})"))
        return
    each = b.fresh("x")
    with b.block(f"for {each} in {which}:", loop=True):
        b.append(each)
        b.line("break")


@production(ANYTHING)
def outside_chance(b: Builder) -> None:
    b.need("RNG")
    b.observe(b.local("v", b.pick("RNG.randint(0, 9)", "RNG.choice(['u', 'v'])", "RNG.random() < 0.5")))


@production(ANYTHING, weight=1.5)
def object_with_property(b: Builder) -> None:
    if b.chance(0.6):
        b.need("Box")
        if b.chance(0.3):
            b.line(f"BOX.value = {b.text()}")
        b.observe(b.local("v", "BOX.value"))
    else:
        b.need("Ghost")
        b.observe(b.local("v", b.pick("GHOST.name", "getattr(GHOST, 'other')", "hasattr(GHOST, 'x')")))


@production(ANYTHING, weight=1.5)
def object_with_operators(b: Builder) -> None:
    b.need("Loud")
    text = b.text()
    value = b.pick(
        f"LOUD == {text}", f"{text} == LOUD", "bool(LOUD)", "len(LOUD)", f"{text} in LOUD",
        f"LOUD + {text}", f"{text} + LOUD", "LOUD[2]", "list(LOUD)", f"LOUD({text})", "str(LOUD)",
        "f'{LOUD:>4}'", "{LOUD: 1}[LOUD]",
        "LOUD < 3", "'yes' if LOUD else 'no'", "f'{LOUD}'",
    )  # fmt: skip
    b.observe(b.local("v", value))
    if b.chance(0.2):
        b.line(f"LOUD['k'] = {text}")
    if b.chance(0.2):
        with b.block("for word in LOUD:", loop=True):
            b.append("word")


@production(ANYTHING, weight=3)
def try_around_tool(b: Builder) -> None:
    b.need("failing")
    b.line("try:")
    b.line(f"    {b.state} += failing({b.text()})")
    handler = b.pick("except:", "except Exception as error:", "except ValueError:", "except BaseException:")
    b.line(handler)
    if b.chance(0.5):
        b.line(f"    {b.state} += 'the tool failed '")
    else:
        b.need("LOG")
        b.line("    LOG.append('the tool failed')")
    if b.chance(0.3):
        b.line("else:")
        b.line(f"    {b.state} += 'the tool did it '")
    if b.chance(0.3):
        b.need("LOG")
        b.line("finally:")
        b.line("    LOG.append('tool finally')")
    b.gen()


@production(ANYTHING, weight=3)
def try_around_read(b: Builder) -> None:
    """A bare `except:` that would see whatever tracing raises there."""
    value = b.fresh("v")
    b.line("try:")
    b.line(
        f"    {value} = "
        + b.pick(
            f"int({b.text()})",
            f"{b.text()}.index('zz')",
            f"json.loads({b.text()})",
            f'{b.state}["nope"]',
            f"len({b.text()}) // 2",
        )
    )
    b.line(b.pick("except:", "except Exception:", "except BaseException as problem:"))
    b.line(f"    {value} = 'unreadable'")
    if b.chance(0.5):
        b.need("LOG")
        b.line(f"    LOG.append('{value}')")
    b.observe(value)


@production(ANYTHING)
def finally_with_effect(b: Builder) -> None:
    b.need("LOG")
    b.line("try:")
    b.indent += 1
    b.depth += 1
    b.gen()
    if b.chance(0.5):
        b.append(b.text())
    b.indent -= 1
    b.depth -= 1
    b.line("finally:")
    b.line(f"    LOG.append({b.pick(repr('finally'), b.text())})")


@production(ANYTHING)
def foreign_manager(b: Builder) -> None:
    match b.random.randrange(4):
        case 0:
            b.need("Manager")
            header = f"with Manager('m{b.fresh('')}') as name:"
        case 1:
            b.need("logged")
            header = f"with logged('l{b.fresh('')}') as name:"
        case 2:
            b.need("Manager")
            name = b.fresh("g")
            b.gen(name)
            with b.block("with Manager('swallows', swallow=True):"):
                b.line(f"{b.state} += 'before '")
                b.line(f'int("x" + {b.state}["{name}"])')
            return
        case _:
            with b.block("with contextlib.suppress(KeyError):"):
                b.line(f'{b.state} += {b.state}["nothing"]')
            return
    with b.block(header):
        b.append("name")
        b.steps(1, 1)


@production(ANYTHING, weight=0.7)
def outside_closure(b: Builder) -> None:
    match b.random.randrange(3):
        case 0:
            b.need("adder")
            b.observe(b.local("v", f"ADD({b.pick('', '2')})"))
        case 1:
            b.need("remembering")
            b.observe(b.local("v", f"remembering({b.text()})"))
        case _:
            b.need("passed")
            b.observe(b.local("v", f"decorated({b.text()})"))


@production(ANYTHING, weight=0.7)
def effect_in_expression(b: Builder) -> None:
    """Effects where no statement shows them: in a default, an f-string, a comprehension, a condition."""
    b.need("LOG", "note")
    text = b.text()
    match b.random.randrange(5):
        case 0:
            helper = b.fresh("h")
            with b.block(f"def {helper}(value=note('default')):"):
                b.line("return value")
            b.observe(f"{helper}()")
        case 1:
            b.line(f'{b.state} += f"{{note({in_fstring(text)})}} "')
        case 2:
            b.observe(b.local("v", "', '.join(note(x) for x in ['c', 'd'])"))
        case 3:
            with b.block(f"if note({text}) and note('second'):"):
                b.append(text)
        case _:
            b.line(f"{b.state} += sgl.gen(note('{b.fresh('g')}'))")


@production(ANYTHING, weight=0.7)
def argument_changed(b: Builder) -> None:
    """The caller's own list is changed."""
    mutable = [name for name in b.lists if name.isidentifier()]
    if not mutable:
        b.need("STACK")
        mutable = ["STACK"]
    name = b.random.choice(mutable)
    b.line(b.pick(f"{name}.append({b.text()})", f"{name}[0] = 'changed'", f"{name}.reverse()"))
    b.observe(f"len({name})")
