"""`sglang.lang.backend.base_backend`: what every back end is, for annotations."""

from sglc.ir.plan.backend import Backend as BaseBackend

__all__ = ["BaseBackend"]
