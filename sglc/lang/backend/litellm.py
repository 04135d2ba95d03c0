"""`sglang.lang.backend.litellm`."""

from sglc.lang.endpoints import LiteLLM

__all__ = ["LiteLLM"]
