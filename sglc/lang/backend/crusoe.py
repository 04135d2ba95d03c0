"""`sglang.lang.backend.crusoe`."""

from sglc.lang.endpoints import Crusoe

__all__ = ["Crusoe"]
