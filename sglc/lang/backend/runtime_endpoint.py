"""`sglang.lang.backend.runtime_endpoint`."""

from sglc.lang.endpoints import RuntimeEndpoint

__all__ = ["RuntimeEndpoint"]
