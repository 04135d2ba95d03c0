"""`python -m sglc.cli`."""

import sys

from sglc.cli import main

sys.exit(main())
