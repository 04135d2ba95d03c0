"""What a lazy text is at a place that nobody foresaw."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import sglc as sgl
from sglc.frontend.language.function import define
from sglc.frontend.program.instance import Instance
from sglc.frontend.program.state import State
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.frontend.values.lazy_text import LazyText
from sglc.ir.sampling import Sampling


class Launches:
    """A launcher that knows every text, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def launch(self, recorded: Any) -> None:
        self.count += 1

    def text_of_site(self, site: Any) -> str:
        return " Text "

    def text_of_stream(self, handle: str) -> str:
        raise AssertionError(handle)

    call_of_site = launch_on = text_of_stream


USES: dict[str, Any] = {
    "bool": bool, "len": len, "list": list, "sorted": sorted, "hash": hash, "str": str, "repr": repr,
    "set": lambda text: {text, "a"}, "dict": lambda text: {text: 1}[" Text "],
    "==": lambda text: (text == " Text ", text != " Text ", text == "a", text == 3),
    "order": lambda text: (text < "b", text <= "b", text > "b", text >= "b", "a" < text < "c"),
    "in": lambda text: ("Text" in text, text in ("a", " Text ")),
    "index": lambda text: (text[1], text[1:3], text[::-1]), "iterate": lambda text: [c + "-" for c in text],
    "methods": lambda text: (text.upper(), text.split(), text.strip(" T"), text.replace("T", "t")),
    "format": lambda text: f"{text}|{text:>9}|{text!r}|{text!s}", "percent": lambda text: "%s!" % text,  # noqa: UP031
    
    "percent of it": lambda text: text % (), "times": lambda text: (text * 2, 2 * text),
    "+": lambda text: [str(text + "b"), str("b" + text), str(text + text)], "copy": copy.copy,
    "deepcopy": copy.deepcopy, "pickle": lambda text: pickle.loads(pickle.dumps(text)),
    "strip": lambda text: str(text.strip()), "lower": lambda text: str(text.strip().lower()),
    "match": lambda text: [1 for _ in "a" if text == " Text "],
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_an_unforeseen_use_gives_what_the_text_gives_after_one_launch(name: str) -> None:
    launcher = Launches()
    recorder = OpRecorder("f", Sampling(), symbolic=False)
    instance = Instance(recorder, launcher)  # type: ignore[arg-type]
    state = State(instance, recorder.new_stream(define(lambda s: None).loc))
    state += sgl.gen("x")
    text = LazyText((state._variables["x"],), instance.text_of)
    assert USES[name](text) == USES[name](" Text ")
    assert launcher.count == 1


def test_adding_something_that_is_no_text_fails_as_it_does_for_a_text() -> None:
    text = LazyText(("a",), lambda *_: "")
    for wrong in (3, None, [1]):
        with pytest.raises(TypeError):
            text + wrong
        with pytest.raises(TypeError):
            wrong + text  # type: ignore[operator]
