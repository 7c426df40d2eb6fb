"""`python -m unilab` is the command `unilab`."""

import sys

from unilab.cli import main

sys.exit(main())
