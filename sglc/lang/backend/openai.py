"""`sglang.lang.backend.openai`."""

from sglc.remote import OpenAI

__all__ = ["OpenAI"]
