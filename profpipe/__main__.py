"""``python -m profpipe`` is the same program as ``profpipe``."""

import sys
from pathlib import Path

# Python puts the current folder first, which may be a results folder of somebody else: its files would be imported in
# place of modules. Like the program ``profpipe``, import from the folder of the interpreter instead.
if sys.path and Path(sys.path[0]) == Path.cwd() and Path.cwd() not in Path(__file__).resolve().parents:
    sys.path[0] = str(Path(sys.executable).parent)

from profpipe.cli import main

sys.exit(main())
