"""`local`: the runtime of this package, in a thread (CPU) or in a process of its own (CUDA).

May import the runtime and everything below it.
"""

from sglc.backends.local.local_backend import LocalBackend as LocalBackend
from sglc.backends.local.local_backend import LocalOptions as LocalOptions
