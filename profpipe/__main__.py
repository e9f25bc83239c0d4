"""``python -m profpipe`` is the same program as ``profpipe``."""

import sys

from profpipe.cli import main

sys.exit(main())
