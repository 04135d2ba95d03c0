"""`python -m sglc`."""

import sys

from sglc.cli import main

sys.exit(main())
