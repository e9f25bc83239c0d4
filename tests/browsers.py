"""Where the tests and the benchmark of pages find a Chromium."""

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def chromium():
    """Return the browser to use: the one that PROFPIPE_TEST_CHROMIUM names, Debian's, or that of .ci/chromium."""
    names = ("chromium", "chromium-browser", "google-chrome", str(ROOT / ".cache/chromium/chromium"))
    return os.environ.get("PROFPIPE_TEST_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
