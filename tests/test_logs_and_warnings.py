"""Log records and warnings of a plan are those of the program's Python: class, place, and what filters say."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend

LOGGER = logging.getLogger(__name__)
PRIVATE = logging.Logger("private")


class _Louder(logging.Logger):
    def warning(self, msg: object, *args: Any, **named: Any) -> None:
        super().warning(f"{msg}!", *args, **named)


LOUDER = _Louder("louder")


class Odd(UserWarning):
    pass


def helper(text: str) -> str:
    LOGGER.warning("helped %s", text)
    warnings.warn(message="helped " + text, stacklevel=1)
    return text


@sgl.function
def says(s: Any) -> Any:
    s += "x" + sgl.gen("a")
    (LOGGER
        .warning("is %s",
                 s["a"]))  # fmt: skip
    warnings.warn("old " + s["a"], DeprecationWarning, stacklevel=1)
    for _ in range(2):
        warnings.warn("constant", category=RuntimeWarning, stacklevel=1)
    return helper(s["a"])


@sgl.function
def own_class(s: Any) -> None:
    s += "x" + sgl.gen("a")
    warnings.warn("own " + s["a"], Odd, stacklevel=1)


@sgl.function
def own_logger(s: Any) -> None:
    s += "x" + sgl.gen("a")
    PRIVATE.warning("p %s", s["a"])
    LOUDER.warning("l %s", s["a"])


def _backend() -> ScriptedBackend:
    return ScriptedBackend(lambda _: "one")


@contextmanager
def kept(*loggers: logging.Logger) -> Iterator[list[logging.LogRecord]]:
    """What they log meanwhile; pytest's own way is switched off where tests are to begin quickly."""
    records: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Kept()
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield records
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_records_and_warnings_have_the_program_s_place(mode: Any) -> None:
    with warnings.catch_warnings(record=True) as caught, kept(LOGGER) as records:
        warnings.simplefilter("always")
        assert says.run(backend=_backend(), mode=mode).ret_value == "one"
    first = says.definition.code.co_firstlineno
    assert [(r.getMessage(), r.pathname, r.lineno - first, r.funcName) for r in records] == [
        ("is one", __file__, 4, "says"),
        ("helped one", __file__, helper.__code__.co_firstlineno + 1 - first, "helper"),
    ]
    assert [(str(w.message), w.category, w.filename, w.lineno - first) for w in caught] == [
        ("old one", DeprecationWarning, __file__, 6),
        *[("constant", RuntimeWarning, __file__, 8)] * 2,
        ("helped one", UserWarning, __file__, helper.__code__.co_firstlineno + 2 - first),
    ]


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_filters_act_as_in_python(mode: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        says.run(backend=_backend(), mode=mode).sync()
        warnings.filterwarnings("error", category=DeprecationWarning, module=__name__.replace(".", r"\."))
        failed = says.run(backend=_backend(), mode=mode).error()
    assert [str(w.message) for w in caught] == ["old one", "constant", "helped one"]  # once a line
    assert isinstance(failed, DeprecationWarning)


def test_a_level_that_is_off_makes_no_record() -> None:
    level = LOGGER.level
    LOGGER.setLevel("ERROR")
    try:
        with warnings.catch_warnings(action="ignore"), kept(LOGGER) as records:
            says.run(backend=_backend(), mode="plan").sync()
    finally:
        LOGGER.setLevel(level)
    assert not records


@pytest.mark.parametrize("mode", ["auto", "python"])
def test_what_a_plan_cannot_name_is_left_to_python(mode: Any) -> None:
    with kept(PRIVATE, LOUDER) as records:
        with pytest.warns(Odd, match="own one"):
            own_class.run(backend=_backend(), mode=mode).sync()
        own_logger.run(backend=_backend(), mode=mode).sync()
    assert [record.getMessage() for record in records] == ["p one", "l one!"]


@sgl.function
def informs(s: Any) -> None:
    s += "x" + sgl.gen("a")
    LOGGER.info("is %s", s["a"])


@pytest.mark.parametrize("owner", [logging.Logger, LOGGER], ids=["class", "logger"])
@pytest.mark.parametrize("method", ["info", "_log"])
def test_a_method_that_is_patched_behind_the_plan_is_called(
    owner: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, seen = ScriptedBackend(lambda asked: "y"), list[tuple[Any, ...]]()
    assert informs.run(backend=backend, mode="plan").error() is None
    monkeypatch.setattr(LOGGER, "level", logging.INFO)
    monkeypatch.setattr(owner, method, lambda *given, **named: seen.append(given))
    LOGGER.manager._clear_cache()  # type: ignore[attr-defined]  # of what is enabled
    assert informs.run(backend=backend).error() is None
    assert [given[-2:] for given in seen] == [("is %s", "y" if method == "info" else ("y",))]


def test_a_category_that_is_no_warning_is_python_s_error() -> None:
    @sgl.function
    def wrong(s: Any) -> None:
        s += "x" + sgl.gen("a")
        warnings.warn("text", ValueError, stacklevel=1)  # type: ignore[arg-type]

    result = wrong.run(backend=ScriptedBackend(lambda asked: "y"))
    assert isinstance(result.error(), TypeError)
