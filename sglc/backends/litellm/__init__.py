"""`litellm:MODEL`: any model by LiteLLM's name for it, asked in OpenAI's words.

May import `backends.openai`, `backends.remote`, `backends.models` and everything below the back ends.
"""

from sglc.backends.litellm.litellm_backend import LiteLLMBackend as LiteLLMBackend
