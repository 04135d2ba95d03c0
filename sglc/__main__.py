"""`python -m sglc`."""

import sys

from sglc.cli.main import main

sys.exit(main())
