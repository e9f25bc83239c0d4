"""Code that runs inside the process of the workload. It imports the standard library, torch and NVML only."""

import time
from typing import Final

#: When the process imported this package: its interpreter has started, and its other imports follow.
BEGAN: Final = time.monotonic()
