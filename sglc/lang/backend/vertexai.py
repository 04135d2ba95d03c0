"""`sglang.lang.backend.vertexai`."""

from sglc.lang.endpoints import VertexAI

__all__ = ["VertexAI"]
