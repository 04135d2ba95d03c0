"""`sglang.lang.ir`: the regular expressions that programs take from there, and the class of programs."""

from sglc.api.function import Function as SglFunction
from sglc.frontend.outputs.output_form import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR

__all__ = ["REGEX_BOOL", "REGEX_FLOAT", "REGEX_INT", "REGEX_STR", "SglFunction"]
