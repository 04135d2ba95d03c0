"""`sglang.lang.backend.anthropic`."""

from sglc.remote import Anthropic

__all__ = ["Anthropic"]
