"""`sglang.lang.backend.openai`."""

from sglc.lang.endpoints import OpenAI as OpenAI
