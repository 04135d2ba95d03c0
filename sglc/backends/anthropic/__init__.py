"""`anthropic:MODEL`, and Claude on Vertex AI: Anthropic's messages protocol through its SDK.

May import `backends.remote`, `backends.models` and everything below the back ends.
"""

from sglc.backends.anthropic.anthropic_backend import AnthropicBackend as AnthropicBackend
from sglc.backends.anthropic.anthropic_backend import AnthropicOptions as AnthropicOptions
