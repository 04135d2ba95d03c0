"""The certificate that the server shows, and its key."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from sglc.errors import UsageError


@dataclass(frozen=True, slots=True)
class Certificate:
    """Two files in PEM form, or one that has both."""

    cert: str
    key: str | None = None

    def check(self) -> None:
        """See that they are there and go together.

        Raises:
            UsageError: SGLC002 one cannot be read; SGLC034 they do not, or are something else.
        """
        for path in (self.cert, self.key or self.cert):
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise UsageError("SGLC002", f"`{path}` cannot be read: {error.strerror or error}") from None
        try:
            # A password would be asked for at the terminal, if none were given.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key, password="")
        except ssl.SSLError as error:
            mismatch = error.reason == "KEY_VALUES_MISMATCH"
            what = "the key is another one's" if mismatch else "they are no certificate and key in PEM form"
            raise UsageError(
                "SGLC034", f"`{self.cert}` cannot be served with `{self.key or self.cert}`: {what}",
                hint="the key stands in its file without a password",
            ) from None  # fmt: skip
