"""`sglc bench`: fixed workloads on the runtime, each next to the least time that its bytes and FLOPs take.

May import everything below the top: the runtime directly for its KV API, `api` for whole programs.
"""
