"""What accompanies a run without being a part of it: recordings, replays, time lines, OpenTelemetry spans.

`observer` implements `execution.observer` and is opened by `api`. May import: `execution` and what is below.
"""
