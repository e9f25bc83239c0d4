"""The energy that the GPUs of this process draw, by a counter of the driver.

The driver counts from Volta on, in mJ since it was loaded, and renews the counter every 20 to 100 ms
(``nvmlDeviceGetTotalEnergyConsumption`` of nvml.h). So energy exists for spans of seconds only. The counter is that
of the whole GPU and includes what other processes draw. A MIG instance has no counter.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, Dict, List, Optional

#: The counter is read at most once in so many seconds: a reading can take a millisecond.
_PERIOD_S = 1.0


class EnergyCounter:
    """The counters of all GPUs on which this process holds memory; ``library`` is ``torch.cuda``."""

    def __init__(self, library: Any) -> None:
        self._cuda = library
        self._read_s = -_PERIOD_S
        self._driver: Any = None
        self._nvml: Any = None
        #: By CUDA's ordinal; None: the driver counts no energy of this GPU.
        self._handles: Dict[int, Optional[ctypes.c_void_p]] = {}
        try:
            driver, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:  # a GPU of another vendor
            return
        if not nvml.nvmlInit_v2():
            self._driver, self._nvml = driver, nvml

    def read(self, at_once: bool = False) -> Dict[str, Any]:
        """Return the number of GPUs, and as ``energy`` the time (ns, monotonic) and the sum of the counters (mJ).

        Without ``at_once`` nothing is returned within a second of the last reading. ``energy`` is missing where a GPU
        has no counter.
        """
        now_s = time.monotonic()
        if now_s - self._read_s < _PERIOD_S and not at_once:
            return {}
        self._read_s = now_s
        devices = [device for device in range(self._cuda.device_count()) if self._cuda.max_memory_reserved(device)]
        reading: Dict[str, Any] = {"gpus": len(devices)}
        counts: List[Optional[int]] = [self._count(device) for device in devices]
        counters_mj = [count for count in counts if count is not None]
        if devices and len(counters_mj) == len(devices):
            reading["energy"] = [time.monotonic_ns(), sum(counters_mj)]
        return reading

    def _count(self, device: int) -> Optional[int]:
        if self._nvml is None:
            return None
        if device not in self._handles:
            self._handles[device] = self._handle(device)
        handle, counted = self._handles[device], ctypes.c_ulonglong()
        is_wrong = handle is None or self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(counted))
        return None if is_wrong else counted.value

    def _handle(self, device: int) -> Optional[ctypes.c_void_p]:
        """Return NVML's handle of CUDA's ``device``, which counts the visible GPUs only, by the address on the bus."""
        number, address, handle = ctypes.c_int(), ctypes.create_string_buffer(32), ctypes.c_void_p()
        mode, pending = ctypes.c_uint(), ctypes.c_uint()
        if (
            self._driver.cuDeviceGet(ctypes.byref(number), device)
            or self._driver.cuDeviceGetPCIBusId(address, len(address), number)
            or self._nvml.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(handle))
        ):
            return None
        # A GPU that cannot be divided has no such mode.
        is_known = not self._nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(mode), ctypes.byref(pending))
        return None if is_known and mode.value else handle
