"""`sglang.lang.backend.anthropic`."""

from sglc.lang.endpoints import Anthropic as Anthropic
