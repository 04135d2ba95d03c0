"""The keys that the server answers to. Only their hashes are kept, and nothing that shows them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglc.errors import UsageError

SHARE = "sglc.share"  # of a request's scope: what its key is told from others by
ADMIN = "sglc.admin"  # likewise: that it is an admin's


@dataclass(frozen=True, slots=True)
class Keys:
    """Some keys, perhaps none."""

    _digests: tuple[bytes, ...] = field(default=(), repr=False)

    @staticmethod
    def of(texts: Iterable[str]) -> Keys:
        """These; each is one that `is_key`."""
        return Keys(tuple(_digest(text.encode()) for text in texts))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def have(self, given: bytes) -> bool:
        """Whether `given` is one of them. How long that takes does not tell which one, nor how near it was."""
        digest = _digest(given)
        found = False
        for own in self._digests:
            found |= hmac.compare_digest(own, digest)
        return found


def share_of(scope: Mapping[str, Any]) -> str:
    """Whose share of the runtime a request takes: that of its key, where keys are needed."""
    share: str = scope.get(SHARE, "")
    return share


def is_admin(scope: Mapping[str, Any]) -> bool:
    """Whether a request has come with an admin key."""
    return ADMIN in scope


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def is_key(text: str) -> bool:
    """Whether it can be sent as a bearer token."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def read_keys(path: str) -> list[str]:
    """The keys of a file: one a line; empty lines and those that begin with `#` are none.

    Raises:
        UsageError: SGLC002 it cannot be read; SGLC033 it has no key, or a line that is none.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError("SGLC002", f"`{path}` cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError("SGLC033", f"`{path}` has no keys: it is no text") from None
    keys = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        if not is_key(line):  # what stands there is not shown: most of it may be a key
            raise UsageError(
                "SGLC033", f"`{path}` line {number} is no key",
                hint="a key is a line of printable ASCII characters without spaces",
            )  # fmt: skip
        keys.append(line)
    if not keys:
        raise UsageError("SGLC033", f"`{path}` has no keys", hint="write one a line")
    return keys
