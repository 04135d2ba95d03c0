"""`sglang.lang.backend.anthropic`."""

from sglc.lang.endpoints import Anthropic

__all__ = ["Anthropic"]
