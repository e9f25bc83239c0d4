"""The start of the program: ``profpipe`` and ``python -m profpipe`` are the same."""

# ruff: noqa: PTH109, PTH120 - pathlib and contextlib would be imported from that folder too
import os
import sys

# `python -m`, and an empty entry of PYTHONPATH, make Python look for modules in the current folder. That folder may be
# somebody else's results folder, whose files would be imported instead of modules.
try:
    _ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if (_HERE := os.path.realpath(os.getcwd())) != _ROOT:
        sys.path[:] = [path for path in sys.path if os.path.realpath(path or os.curdir) != _HERE]
except OSError:
    pass  # the current folder has been removed

from profpipe.cli import main

if __name__ == "__main__":
    sys.exit(main())
