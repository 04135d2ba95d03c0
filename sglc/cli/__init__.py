"""The commands of `sglc`, a file each: what they take, what they do, what they print.

May import everything; nothing imports it.
"""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code. What interrupts it, also while this is loaded, ends it well."""
    try:
        from sglc.cli.entry import run_command
    except KeyboardInterrupt:
        import sys

        print("sglc: interrupted", file=sys.stderr)
        return 130
    return run_command(argv)
