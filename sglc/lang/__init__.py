"""SGLang's names and module paths, for programs that were written for it.

May import `api` and everything below; nothing but the package's own `__init__` imports it.
"""
