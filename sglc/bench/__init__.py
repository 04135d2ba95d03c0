"""`sglc bench`: fixed workloads on the runtime, each next to the least time that its bytes and FLOPs take."""
