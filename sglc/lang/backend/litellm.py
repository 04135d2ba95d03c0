"""`sglang.lang.backend.litellm`."""

from sglc.remote import LiteLLM

__all__ = ["LiteLLM"]
