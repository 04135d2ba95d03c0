"""`sglang.lang.backend.crusoe`."""

from sglc.remote import Crusoe

__all__ = ["Crusoe"]
