"""The op set. Required fields come first; the printer, parser and verifier follow from the classes.

arg          a program argument
guard        what a program takes for granted of its arguments
resume       a stream that an earlier run kept
root         an empty stream
append       literal or captured text at the end
control      control tokens (from `lower_roles`)
role_open    a chat turn begins
role_close   a chat turn ends
image        a picture at the end
scope_begin  a named section begins
scope_end    a named section ends
gen          decode a text
select       the most likely of several texts
fork         one stream, n equal branches
join         a variable's texts over the branches
format       texts and literals as one text
strip        a text without the white space round it
lower        a text in lower case
eq           whether two texts are equal
in_          whether one text occurs in another
not_         the opposite of a truth value
parse_json   the JSON value that a text spells
concat       texts and lists as one list
cond         one of two blocks, as a truth value says
switch       the block whose case a text equals
loop         a block again and again, as long as it says so
map          a block once for each item of a list
call         another program, with sites of its own
tool         a declared Python function, called once, in order or in none
pure_call    a declared Python function without effects
pack         plain data with values in it, as one JSON value
text_of      the text of a stream, or of its end
store        a variable that the program sets itself
prompt       the program's own prompt ends here
host_call    ordinary Python takes over here, or the program raises

`cond`, `switch`, `loop` and `map` hold their blocks as regions, which end in `yield`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from sglc.ir.core import Op, Program, Region, Site, Tree, Type, Value, op, values_in
from sglc.ir.sampling import Sampling

S, T, L, B, J = Type.STREAM, Type.TEXT, Type.LIST, Type.BOOL, Type.JSON

# What a declared function may give.
# An object is made by a class of the user's, and stays what it is.
GIVES = ("text", "bool", "list", "json", "object")
Gives = str  # one of them

# When a tool is called: behind all that stands before it; so too, though it is declared to need no order; or
# when its arguments are there (`overlap_tools`).
ORDERS = ("program", "free", "overlap")
Order = str  # one of them

# How `select` decides; the first is the default.
SELECT_METHODS = (
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)


@op("arg", variadic=True)
class Arg(Op):
    """A value that is given when the program runs, of type `kind` (`ir.pure.type_name`).

    `default` is what it is otherwise, and `holds` what objects of its class hold (`ir.facts.held_by`), both as
    `ir.facts` spells them.
    """

    name: str
    kind: str = "str"
    default: str | None = None
    holds: str | None = None


@op("guard")
class Guard(Op):
    """The program does what its source says where `fact` is `expected`, both as `ir.facts` spells them."""

    fact: str
    expected: str


@op("resume", S)
class Resume(Op):
    """A stream that an earlier segment kept. `turns` are its chat turns so far; a role still open is `role`."""

    name: str
    turns: tuple[str, ...] = ()
    role: str = ""


@op("root", S, pure=True)
class Root(Op):
    """The empty stream."""


@op("append", S, pure=True)
class Append(Op):
    """`stream` followed by text. Literals never become control tokens."""

    stream: Value
    text: Value | str


@op("control", S, pure=True)
class Control(Op):
    """`stream` followed by control tokens; `text` is how they are written."""

    stream: Value
    text: str
    ids: tuple[int, ...]


@op("role_open", S, pure=True)
class RoleOpen(Op):
    """Begin a chat turn of `role`."""

    stream: Value
    role: str


@op("role_close", S, pure=True)
class RoleClose(Op):
    """End the open chat turn, which is `role`'s."""

    stream: Value
    role: str


@op("image", S, pure=True)
class Image(Op):
    """`stream` followed by a picture; `data` is a data URI (RFC 2397)."""

    stream: Value
    data: Value | str


@op("scope_begin", S, pure=True)
class ScopeBegin(Op):
    """A section called `name` begins. A movable one may be moved by passes that are asked for."""

    stream: Value
    name: str
    movable: bool = False


@op("scope_end", S, pure=True)
class ScopeEnd(Op):
    """The innermost open section, which is `name`, ends."""

    stream: Value
    name: str


@op("gen", S, T)
class Gen(Op):
    """Decode from `stream` until a stop string, `max_tokens` or the end of the turn. Not pure: it samples.

    `ahead`: tokens of one request of an API that may go on past it, to generations behind it; 0: none may.
    `cache_key`: what an API is told that keeps prompts, so that those which begin alike meet; "": nothing.
    Where whole turns are kept, it ends in how many.
    `unify`: it is made once for all that ask for the same, here and in other rows.
    `limit`: its `max_tokens` as a text, where only a run knows it; that of `sampling` stands for it till then.
    `hoist`: the arguments that the prompt begins with: rows in which they are equal begin alike.
    `fsm`: the size of the automaton that holds it, as `grammar.fsm_summary` says it; "": none does.
    `fused`: it and those beside it in its turn that are, too, are one JSON object of an API's answer.
    For engines that are told ahead: `next_use`, what its stream is wanted for next (`gen`, `tool NAME` for one
    behind that call, `later` where the program does not say, `never`; "": nobody looked); `most` tokens that it
    makes; tokens `behind` it on the longest chain of generations.
    """

    stream: Value
    site: Site
    sampling: Sampling = Sampling()
    ahead: int = 0
    cache_key: str = ""
    unify: bool = False
    hoist: tuple[str, ...] = ()
    fsm: str = ""
    fused: bool = False
    next_use: str = ""
    most: int = 0
    behind: int = 0
    limit: Value | None = None


@op("select", S, T)
class Select(Op):
    """The choice with the best score after `stream`, and the stream that ends with it.

    `cache_key` and what stands behind it are as of `gen`; its automaton is that of its choices.
    """

    stream: Value
    site: Site
    choices: tuple[Value | str, ...]
    method: str = SELECT_METHODS[0]
    cache_key: str = ""
    unify: bool = False
    hoist: tuple[str, ...] = ()
    fsm: str = ""
    fused: bool = False
    next_use: str = ""
    most: int = 0
    behind: int = 0


@op("fork", variadic=True, pure=True)
class Fork(Op):
    """As many equal branches of `stream` as the op has results; they decode as one group."""

    stream: Value
    labels: tuple[str, ...] = ()


@op("join", L, pure=True)
class Join(Op):
    """What the branches stored under the site's name, in branch order; None where one stored nothing."""

    site: Site
    values: tuple[Value | None, ...]


@op("format", T, pure=True)
class Format(Op):
    """Texts and literals joined into one text."""

    parts: tuple[Value | str, ...]


@op("strip", T, pure=True)
class Strip(Op):
    """`text` without the white space round it, as Python's `str.strip` sees it."""

    text: Value | str


@op("lower", T, pure=True)
class Lower(Op):
    """`text` in lower case, as Python's `str.lower` makes it."""

    text: Value | str


@op("eq", B, pure=True)
class Eq(Op):
    """Whether two texts are the same, character by character."""

    left: Value | str
    right: Value | str


@op("in_", B, pure=True)
class In(Op):
    """Whether `part` occurs in `text`."""

    part: Value | str
    text: Value | str


@op("not_", B, pure=True)
class Not(Op):
    """The opposite of `value`."""

    value: Value


@op("parse_json", J, pure=True)
class ParseJson(Op):
    """The JSON value that `text` spells (RFC 8259: no NaN); the run fails if it spells none."""

    text: Value | str


@op("concat", L, pure=True)
class Concat(Op):
    """Texts and the items of lists, in order, as one list."""

    items: tuple[Value | str, ...]


@op("cond", variadic=True)
class Cond(Op):
    """What `then` yields if `pred` is true, else what `orelse` yields. Their yields have the same types."""

    pred: Value
    then: Region
    orelse: Region


@op("switch", variadic=True)
class Switch(Op):
    """What the arm of the case yields that equals `value`, else what `default` yields.

    Without a default the cases are all that there is: the run fails at any other text.
    """

    value: Value
    cases: tuple[str, ...]
    arms: tuple[Region, ...]
    default: Region | None = None


@op("loop", variadic=True)
class Loop(Op):
    """Run `body` on `init`, then on what it yielded, at most `max_iters` times; the last yield is the result.

    `body` yields a truth value first, whether to go on, and behind it one value for each of `init`.
    """

    init: tuple[Value, ...]
    max_iters: int
    body: Region


@op("map", variadic=True)
class Map(Op):
    """Run `body` on each item of `items`, in any order; for each value it yields, a list of them.

    The items of a list are texts, those of a JSON value anything. Texts and lists make a list, others JSON.
    """

    items: Value
    body: Region


@op("tool", variadic=True)
class Tool(Op):
    """What the declared function `name` returns; it is called once, as `order` says. `gives` is its type."""

    name: str
    args: tuple[Tree, ...] = field(hash=False)
    named: Mapping[str, Tree] = field(default_factory=dict, hash=False)
    gives: Gives = GIVES[0]
    order: Order = ORDERS[0]


@op("pure_call", variadic=True, pure=True)
class PureCall(Op):
    """What the declared function `name` returns, which depends on its arguments alone."""

    name: str
    args: tuple[Tree, ...] = field(hash=False)
    named: Mapping[str, Tree] = field(default_factory=dict, hash=False)
    gives: Gives = GIVES[0]


@op("pack", J, pure=True)
class Pack(Op):
    """Plain data with texts, truth values, lists and JSON values in it, as one JSON value."""

    tree: Tree = field(hash=False)


@op("text_of", T, pure=True)
class TextOf(Op):
    """What `stream` says behind `since`, which it goes on from (None: all of it), chat markup included."""

    stream: Value
    since: Value | None = None


@op("store")
class Store(Op):
    """From here on the variable `name` of the run is `value`, whatever generation had that name before."""

    name: str
    value: Tree = field(hash=False)


@op("prompt")
class Prompt(Op):
    """The program's own prompt ends as `stream`: a result shows its text, and its chat turns.

    `turns` are what these consist of, made by `passes.prompt_turns` while turns are still turns.
    """

    stream: Value
    turns: Tree = field(default=(), hash=False)


@op("call", variadic=True)
class Call(Op):
    """Run `program` on `args`, in the order of its parameters; the results are all values it returns.

    The program reads nothing from outside, numbers its values by itself, and its sites stand behind
    `site` at run time. Results are in the order of `values_in` its return tree.
    """

    site: Site
    args: tuple[Value | str, ...]
    program: Program


@op("host_call")
class HostCall(Op):
    """From here the rest of the function runs as ordinary Python: why, and the call that needs it.

    With `error`, the name of an exception, nothing follows: the program raises it here, with `reason`, or
    the text that it reads, as its message. That may stand where Python could not come back to.
    """

    reason: str
    reads: tuple[Value, ...] = ()
    error: str = ""


ASKED, _RUNS = (Gen, Select), (Loop, Call)  # as tuples: quicker than unions
CONTINUING = (*ASKED, *_RUNS)  # what may go on from streams by itself: `continued`


def argument_type(kind: str) -> Type:
    """The type of an `Arg` of that kind."""
    return {"str": T, "bool": B}.get(kind, J)


def types_of(o: Op, names: int) -> tuple[Type, ...]:
    """The types of the results that the op must have; for a fork, of `names` branches."""
    if o.result_types is not None:
        return o.result_types
    match o:
        case Arg():
            return (argument_type(o.kind),)
        case Fork():
            return (S,) * names
        case Cond() | Switch():
            # An arm that hands over to Python comes back with nothing, so it has no say.
            back = [region for region in arms_of(o) if not hands_over(region)]
            return tuple(value.type for value in back[0].results) if back else ()
        case Loop():
            return tuple(value.type for value in o.init)
        case Map():
            return tuple(L if value.type in (T, L) else J for value in o.body.results)
        case Call():
            return tuple(value.type for value in values_in(o.program.returns))
        case Tool() | PureCall():
            return () if o.gives not in GIVES else (J,) if o.gives == "object" else (Type(o.gives),)
    raise AssertionError(o.mnemonic)


def arms_of(o: Cond | Switch) -> tuple[Region, ...]:
    """The regions of which one runs, in the order of the text."""
    if isinstance(o, Cond):
        return (o.then, o.orelse)
    return o.arms if o.default is None else (*o.arms, o.default)


def hands_over(region: Region) -> bool:
    """Whether the region ends in ordinary Python instead of its `yield`."""
    return bool(region.ops) and isinstance(region.ops[-1], HostCall)


def continued(o: Op) -> tuple[Value, ...]:
    """Streams that the op goes on from by itself: on one path only one op may do so without a `fork`."""
    if isinstance(o, ASKED):
        return (o.stream,)
    if isinstance(o, _RUNS):
        items = o.init if isinstance(o, Loop) else o.args
        return tuple([item for item in items if isinstance(item, Value) and item.type is S])
    return ()
