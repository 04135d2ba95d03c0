"""`sglang.lang.backend.vertexai`."""

from sglc.lang.endpoints import VertexAI as VertexAI
