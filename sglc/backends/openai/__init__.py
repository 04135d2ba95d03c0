"""`openai:MODEL` and servers that speak OpenAI's API: what a model takes, the wire, joint answers.

May import `backends.remote` and everything below the back ends.
"""

from sglc.backends.openai.openai_backend import OpenAIBackend as OpenAIBackend
from sglc.backends.openai.openai_backend import OpenAIOptions as OpenAIOptions
