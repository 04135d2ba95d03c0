"""`sglang.lang.backend.litellm`."""

from sglc.lang.endpoints import LiteLLM as LiteLLM
