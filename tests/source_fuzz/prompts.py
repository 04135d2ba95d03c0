"""Productions of sglc's own language: generations, choices, turns, scopes, branches, calls, tools."""

from __future__ import annotations

from tests.source_fuzz.builder import ANYTHING, BASIC, RULED, Builder, production

_CHOICES = '["yes", "no", "stop"]'


@production(BASIC, weight=2)
def text_and_gen(b: Builder) -> None:
    b.line(f'{b.state} += "{b.words()}\\n"')
    b.gen()


@production(BASIC, weight=2)
def append_read(b: Builder) -> None:
    text = b.text()
    match b.random.randrange(3):
        case 0:
            b.line(f"{b.state} += {text}")
        case 1:
            b.line(f'{b.state} += "<" + {text} + ">" + sgl.gen("{(name := b.fresh("g"))}")')
            b.texts.append(f'{b.state}["{name}"]')
        case _:
            b.append(text)
    b.results.append(text)


@production(BASIC)
def gen_options(b: Builder) -> None:
    name = b.fresh("g")
    match b.random.randrange(5):
        case 0:
            b.line(f'{b.state} += "{b.words()}" + sgl.gen("{name}", n=2)')
            b.results.append(f'{b.state}["{name}"]')
            return
        case 1:
            b.gen(name, ', stop=["stop", "."]')
        case 2:
            b.gen(name, ', regex="(red|green|blue)"')
        case 3:
            b.gen(name, f", temperature=0, seed={b.random.randrange(9)}")
        case _:
            b.line(f"{b.state} += sgl.gen()")
            b.texts.append(f'{b.state}["gen"]')


@production(BASIC)
def same_name_again(b: Builder) -> None:
    b.gen("same")
    b.results.append(f'{b.state}["same"]')
    if b.chance(0.5):
        b.gen("same")


@production(BASIC)
def select_branch(b: Builder) -> None:
    name = b.fresh("c")
    b.line(f'{b.state} += "{b.words()}? " + sgl.select("{name}", choices={_CHOICES})')
    read = f'{b.state}["{name}"]'
    b.texts.append(read)
    with b.block(f'if {read} == "{b.pick("yes", "stop")}":'):
        b.steps()
    if b.chance(0.4):
        with b.block(f'elif {read} in ("no", "yes"):'):
            b.steps()
    if b.chance(0.5):
        with b.block("else:"):
            b.steps()
    b.results.append(read)


@production(BASIC)
def bool_branch(b: Builder) -> None:
    name = b.fresh("b")
    b.line(f'{b.state} += "{b.words()} true? " + sgl.gen("{name}", dtype=bool)')
    with b.block(f'if {b.state}["{name}"] == "True":'):
        b.steps()
    if b.chance(0.5):
        with b.block("else:"):
            b.steps()


@production(BASIC)
def enum_branch(b: Builder) -> None:
    b.need("Color")
    name = b.fresh("e")
    b.line(f'{b.state} += "{b.words()} color: " + sgl.gen("{name}", dtype=Color)')
    read = f'{b.state}["{name}"]'
    if b.chance(0.4):
        with b.block(f"match {read}:"):
            with b.block("case Color.RED:"):
                b.steps()
            with b.block("case _:"):
                b.steps()
    else:
        with b.block(f"if {read} {b.pick('is', '==')} Color.{b.pick('RED', 'BLUE')}:"):
            b.steps()
    b.results.append(read)
    b.append(f"{read}.value")


@production(RULED)
def typed_gen(b: Builder) -> None:
    name = b.fresh("d")
    read = f'{b.state}["{name}"]'
    match b.random.randrange(5):
        case 0:
            b.need("Point")
            b.line(f'{b.state} += sgl.gen("{name}", dtype=Point)')
            b.append(f"{read}.x")
        case 1:
            b.need("Person")
            b.line(f'{b.state} += sgl.gen("{name}", dtype=Person)')
            b.append(f"{read}.name")
        case 2:
            b.line(f'{b.state} += sgl.gen("{name}", dtype=list[int])')
            b.append(f"len({read})")
        case 3:
            b.line(f'{b.state} += sgl.gen("{name}", dtype=Literal["one", "two", 3])')
            b.append(f"{read} == 3")
        case _:
            b.line(f'{b.state} += sgl.gen("{name}", dtype=float)')
            b.append(f"float({read}) * 2")
    b.results.append(read)


@production(RULED)
def int_of_gen(b: Builder) -> None:
    name = b.fresh("n")
    b.line(f'{b.state} += "{b.words()} number: " + sgl.gen("{name}", dtype=int)')
    value = b.local("v", f'int({b.state}["{name}"]) {b.pick("+ 1", "* 2", "% 5", "// 2")}')
    b.ints.append(value)
    b.observe(value)


@production(BASIC, top=True)
def role_turns(b: Builder) -> None:
    match b.random.randrange(4):
        case 0:
            b.line(f'{b.state} += sgl.user("{b.words()}: " + {b.text()})')
        case 1:
            with b.block(f"with {b.state}.user():"):
                b.line(f'{b.state} += "{b.words()} "')
                b.line(f"{b.state} += {b.text()}")
        case 2:
            b.line(f'{b.state}.system("{b.words()}")')
        case _:
            b.line(f"{b.state} += sgl.user_begin()")
            b.line(f'{b.state} += f"{b.words()}"')
            b.line(f"{b.state} += sgl.user_end()")
    name = b.fresh("g")
    if b.chance(0.5):
        b.line(f'{b.state} += sgl.assistant(sgl.gen("{name}"))')
    else:
        with b.block(f"with {b.state}.assistant():"):
            b.line(f'{b.state} += "{b.words()} " + sgl.gen("{name}")')
    b.texts.append(f'{b.state}["{name}"]')


@production(BASIC, weight=1.7)
def variables(b: Builder) -> None:
    """Scopes, and variables that are assigned."""
    name = b.fresh("k")
    read = f'{b.state}["{name}"]'
    match b.random.randrange(5):
        case 0 | 4:
            with b.block(f'with {b.state}.var_scope("{name}"):'):
                b.line(f'{b.state} += "{b.words()} "')
                b.gen()
            b.texts.append(read)
        case 1:
            b.line(f'{b.state}["{name}"] = {b.text()}')
            b.texts.append(read)
        case 2:
            constant = b.pick("3", "None", "[1, 2]", '("a", 1.5)', '{"k": True}', '"text"')
            b.line(f'{b.state}.set_var("{name}", {constant})')
        case _:
            b.line(f'{b.state}["{name}"] = [{b.text()}, 2]')
    if b.chance(0.6):
        b.observe(read)
    if b.chance(0.2):
        b.results.append(f'("{name}" in {b.state}, "nope" in {b.state})')


@production(BASIC, weight=1.5)
def fork_join(b: Builder) -> None:
    forks, each, name = b.fresh("forks"), b.fresh("f"), b.fresh("t")
    state = b.state
    labels = b.chance(0.3)
    size = '["left", "right"]' if labels else str(b.random.choice((1, 2, 3)))
    b.line(f"{forks} = {state}.fork({size})")
    if b.chance(0.3):
        b.line(f'{forks} += "{b.words()}"')
    begun = len(b.lines)
    with b.block(f"for i_{each}, {each} in enumerate({forks}):"):
        b.state = each
        b.line(f'{each} += f"{b.words()} {{i_{each}}}{{{each}.label}}: "')
        b.gen(name)
        if b.depth < 4 and b.chance(0.6):
            b.step()
    in_turns = "assistant(" in "".join(b.lines[begun:])  # such a branch is no text that can be appended
    match b.random.randrange(4):
        case 0 if not in_turns:
            b.line(f'{state}.join({forks}, mode="concate_and_append")')
            b.results.append(f'[f["{name}"] for f in {forks}]')
        case 0 | 1:
            b.line(f"{forks}.join()")
            b.results.append(f'{state}["{name}"]')
            b.lists.append(f'{state}["{name}"]')
        case 2:
            joined = b.local("j", f"{state}.join({forks})")
            b.results.append(f'{joined}["{name}"]')
        case _:
            b.results.append(f'({forks}[0].label, {forks}[0]["{name}"], {forks}[-1].text())')
            b.append(f'{forks}[0]["{name}"]')


@production(BASIC)
def copied_state(b: Builder) -> None:
    each, name = b.fresh("f"), b.fresh("t")
    state = b.state
    with b.block(f"with {state}.copy() as {each}:"):
        b.state = each
        b.gen(name)
    b.append(f'{state}["{name}"][0]')


@production(BASIC)
def called_program(b: Builder) -> None:
    which = b.pick("inner", "outer", "inner")
    b.need(which)
    run = b.pick("", ".run")
    if which == "inner":
        mark = b.pick("", ', mark="!"', ', "~"')
        made = b.local("r", f"inner{run}({b.text()}{mark})")
        b.append(f'{made}["idea"]')
        b.results.append(f"{made}.ret_value")
    else:
        made = b.local("r", f"outer{run}({b.text()})")
        b.append(f'{made}["first"]')
        b.results.append(f"{made}.ret_value")


@production(ANYTHING, weight=0.5)
def called_program_with_effects(b: Builder) -> None:
    b.need("inner_loud")
    made = b.local("r", f"inner_loud({b.text()})")
    b.append(f"{made}.ret_value")


@production(BASIC, weight=1.5)
def tools(b: Builder) -> None:
    match b.random.randrange(6):
        case 0:
            b.need("find")
            b.append(f"find({b.text()})")
        case 1:
            b.need("good")
            with b.block(f"if good({b.text()}):"):
                b.steps()
        case 2:
            b.need("several")
            found = b.local("many", f"several({b.text()})")
            b.results.append(found)
            b.append(f"{found}[0]")
        case 3:
            b.need("record")
            made = b.local("rec", f'record({{"a": {b.text()}, "b": [1, None, True]}})')
            b.results.append(made)
            if b.chance(0.5):
                b.append(f'{made}["n"]')
        case 4:
            b.need("shout")
            b.observe(f"shout({b.text()})")
        case _:
            b.need("find", "longer")
            b.line(f"find({b.text()})")
            with b.block(f"if longer({b.text()}):"):
                b.steps()


@production(BASIC, weight=0.8)
def tools_without_an_order(b: Builder) -> None:
    """Several of them, and others in program order between."""
    b.need("look_up")
    for _ in range(b.random.randrange(1, 4)):
        b.texts.append(b.local("k", f"look_up({b.text()})"))
        if b.chance(0.4):
            b.need("find")
            b.texts.append(b.local("k", f"find({b.text()})"))
    b.observe(b.texts[-1])


@production(RULED, weight=1.7)
def tool_given_an_object(b: Builder) -> None:
    """A tool is handed the caller's own objects, and what the body made."""
    b.need("take")
    text = b.text()
    thing = b.pick(
        "(1, 2)", "{'k': 1}", "NAMES", f"{{1: {text}, 'n': 5}}", f"[({text}, {{2: 3}})]",
        f"{{(1, 'a'): [{text}, 4]}}",
        "QUIET", "Point(2)", f"Pair({text}, 1)", f"collections.Counter({text})", "STACK",
    )  # fmt: skip
    needed = {"QUIET": "Quiet", "Point(2)": "Point", "NAMES": "NAMES", "STACK": "STACK"}
    b.need(
        *(snippet for name, snippet in needed.items() if name == thing), *["Pair"] * thing.startswith("Pair")
    )
    b.observe(b.local("v", f"take({thing})"))


@production(RULED, weight=1.3)
def tool_that_changes_what_it_is_given(b: Builder) -> None:
    """What is read of it before the tool is what it was; behind it that is something else."""
    b.need("push", "joined")
    if b.lists and b.chance(0.4):
        things = b.random.choice(b.lists)
    else:
        things = b.local("l", b.pick(f"[{b.text()}, 'b']", f"{{'a': {b.text()}}}", f"[[{b.text()}], 'c']"))
    before = b.local("v", b.pick(f"joined({things})", f"len({things})", f"list({things})", f"str({things})"))
    b.observe(f"push({things}, {b.text()})")
    b.observe(before)
    if b.chance(0.2):
        b.observe(b.pick(f"len({things})", f"joined({things})", things))
    elif things in b.lists:
        b.lists.remove(things)


@production(RULED, weight=1.5)
def tool_that_changes_state(b: Builder) -> None:
    """What the program reads behind the tool is no longer what it was."""
    if b.chance(0.3):
        b.need("set_depth")
        read = b.pick("DEPTH", "WIDTH", "NEVER")
        if b.chance(0.5):
            b.append(read)
        b.line(f"set_depth({b.text()})")
    elif b.chance(0.5):
        b.need("bump")
        read = b.pick('COUNT["n"]', "Settings.limit", 'len(COUNT["hits"])')
        if b.chance(0.5):
            b.append(read)
        b.line(f"bump({b.text()})")
    else:
        b.need("raise_level")
        read = "LEVEL"
        if b.chance(0.5):
            b.append(read)
        b.line(f'{b.state} += raise_level("{b.words()}")')
    if read == "NEVER" or b.chance(0.5):
        b.observe(read)


@production(BASIC)
def structured_ops(b: Builder) -> None:
    name = b.fresh("g")
    state = b.state
    match b.random.randrange(4):
        case 0:
            then, other = b.fresh("then"), b.fresh("other")
            with b.block(f"def {then}():"):
                b.line('return "taken"')
            with b.block(f"def {other}():"):
                b.line('return "left"')
            b.line(f'{state} += sgl.select("{name}", choices={_CHOICES})')
            b.append(f'sgl.cond(sgl.eq({state}["{name}"], "yes"), {then}, {other})')
        case 1:
            b.gen(name)
            b.append(f'{state}["{name}"].strip().lower()')
        case 2:
            b.gen(name)
            b.line(
                f'sgl.cond(sgl.contains("a", {state}["{name}"]), lambda: {state}.assistant("a") and None, '
                "lambda: None)"
            )
        case _:
            b.line(f'{state} += sgl.select("{name}", choices={_CHOICES})')
            arms = ", ".join(f'"{word}": lambda: "{word}!"' for word in ("yes", "no", "stop"))
            b.append(f'sgl.switch({state}["{name}"], {{{arms}}})')


@production(BASIC, weight=1.5)
def generations_in_forms(b: Builder) -> None:
    """What stands in an arm, an iteration or an item of a structured form has samples of its own."""
    _form(b)
    b.results.append(b.gen(_one_name(b)))


def _one_name(b: Builder) -> str:
    """Of many generations; each branch has its own, since the meta data of a name is of all states."""
    return "same" if b.state == "s" else f"each_{b.state}"


def _form(b: Builder) -> None:
    state, body, other = b.state, b.fresh("body"), b.fresh("body")
    match b.random.randrange(4):
        case 0:
            again = f'return sgl.not_(sgl.contains("a", {state}["{_one_name(b)}"]))'
            _form_body(b, body, b.pick("", again))
            b.line(f"sgl.loop({body}, {b.random.randint(1, 3)})")
        case 1:
            name = b.fresh("m")
            with b.block(f"def {body}(item):"):
                b.state = b.local("f", f"{state}.fork(1)[0]")
                b.append("item")
                b.line(f"return {_in_form(b)}")
            b.line(f"{name} = sgl.map([{b.text()}, {b.text()}], {body})")
            b.observe(f"{name}[1]")
        case two:
            name = b.fresh("c")
            b.line(f'{state} += sgl.select("{name}", choices={_CHOICES})')
            _form_body(b, body)
            _form_body(b, other)
            if two == 2:
                b.line(f'sgl.cond(sgl.eq({state}["{name}"], "yes"), {body}, {other})')
            else:
                default = b.pick("", f", {other}")
                b.line(f'sgl.switch({state}["{name}"], {{"yes": {body}, "no": {other}}}{default})')


def _form_body(b: Builder, name: str, end: str = "") -> None:
    with b.block(f"def {name}({b.state}={b.state}):"):
        _in_form(b)
        if end:
            b.line(end)


def _in_form(b: Builder) -> str:
    """Gives what reads the last generation."""
    read = b.gen(_one_name(b))
    match b.random.randrange(4):
        case 0:
            b.need("inner")
            made = b.local("r", f"inner({b.text()})")
            b.append(f'{made}["idea"]')
        case 1 if b.depth < 3:
            _form(b)
        case 2:
            b.gen(_one_name(b))
        case _:
            b.append(read)
    return read


@production(RULED)
def helper_with_state(b: Builder) -> None:
    b.need("turn")
    name = b.fresh("g")
    value = b.local("v", f'turn({b.state}, "{name}")')
    b.texts += [value, f'{b.state}["{name}"]']
    b.results.append(value)


@production(RULED, weight=1.2)
def whole_prompt(b: Builder) -> None:
    match b.random.randrange(5):
        case 0 | 1 | 2:
            b.results.append(b.local("v", f"len({b.state}.text())"))
        case 3:
            b.results.append(b.local("v", f"{b.state}.messages()"))
        case _:
            name = b.fresh("g")
            b.gen(name)
            b.observe(f'{b.state}.get_meta_info("{name}")["finish_reason"]["type"]')


@production(RULED)
def early_return(b: Builder) -> None:
    condition = b.pick(f"{b.text()} == 'yes'", f"'a' in {b.text()}", f"len({b.text()}) > 12")
    with b.block(f"if {condition}:"):
        if b.chance(0.5):
            b.steps(1, 1)
        b.line(f"return {b.text()}" if b.chance(0.7) else "return")


@production(BASIC)
def select_return(b: Builder) -> None:
    name = b.fresh("c")
    b.line(f'{b.state} += "{b.words()}? " + sgl.select("{name}", choices=["go", "end"])')
    with b.block(f'if {b.state}["{name}"] == "end":'):
        b.line(f'return ("early", {b.state}["{name}"])')
