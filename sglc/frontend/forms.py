"""What `dtype` asks of a text: the regular expressions are SGLang's, so programs get the same texts."""

from __future__ import annotations

from dataclasses import dataclass

from sglc.errors import Loc, TraceError

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""


@dataclass(frozen=True, slots=True)
class Form:
    """A text matches `regex`; `stop` ends it where the value ends."""

    regex: str
    stop: tuple[str, ...] = ()


_FORMS = {
    "int": Form(REGEX_INT, (" ", "\n")),
    "float": Form(REGEX_FLOAT, (" ", "\n")),
    "bool": Form(REGEX_BOOL),
    "str": Form(REGEX_STR),
}


def form_of(dtype: object, loc: Loc) -> Form:
    """The form of a `dtype`, given as a type or by its name.

    Raises:
        TraceError: SGLC112, another type.
    """
    name = dtype.__name__ if isinstance(dtype, type) else dtype
    if not isinstance(name, str) or name not in _FORMS:
        raise TraceError("SGLC112", f"`dtype` is `{name}`", loc, note=f"dtypes: {', '.join(_FORMS)}")
    return _FORMS[name]
