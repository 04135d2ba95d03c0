"""The commands of `sglc`, a file each: what they take, what they do, what they print.

May import everything; nothing imports it.
"""

from sglc.cli.entry import main as main
