"""`sglang.lang.backend.vertexai`."""

from sglc.remote import VertexAI

__all__ = ["VertexAI"]
