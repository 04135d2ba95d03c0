"""Names of requests and of sequences in the cache."""

from __future__ import annotations

Handle = int


RequestId = int
