"""`http://host:port`: servers that speak sglc's or SGLang's own protocol.

May import `backends.remote` and everything below the back ends.
"""

from sglc.backends.http.hint_fields import DIALECTS as DIALECTS
from sglc.backends.http.http_backend import ServerBackend as ServerBackend
from sglc.backends.http.http_backend import ServerOptions as ServerOptions
