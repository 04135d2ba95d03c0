"""`python -m sglc.cli`."""

import sys

from sglc.cli.main import main

sys.exit(main())
