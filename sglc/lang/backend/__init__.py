"""`sglang.lang.backend`: the classes of back ends, each under the module that it has there.

May import `lang.endpoints`, `lang.runtime` and the protocol of back ends.
"""
