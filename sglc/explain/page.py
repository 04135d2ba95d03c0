"""A page."""

from typing import Any


def page(data: list[dict[str, Any]]) -> str:
    """A page."""
    return ""
