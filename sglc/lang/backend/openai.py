"""`sglang.lang.backend.openai`."""

from sglc.lang.endpoints import OpenAI

__all__ = ["OpenAI"]
