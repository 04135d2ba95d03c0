"""`sglang.lang.backend.runtime_endpoint`."""

from sglc.lang.endpoints import RuntimeEndpoint
from sglc.lang.runtime import Runtime

__all__ = ["Runtime", "RuntimeEndpoint"]
