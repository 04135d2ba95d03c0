"""`sglang.lang.backend.runtime_endpoint`."""

from sglc.remote import RuntimeEndpoint

__all__ = ["RuntimeEndpoint"]
