"""The readings of a GPU while a case runs, and the flags that follow from them.

NVML is a mock, because there is no GPU here. The rules of the flags need no GPU.
"""

import os
import sys
import time
from types import SimpleNamespace

import pytest

from profpipe.measure import conditions
from profpipe.measure.conditions import GpuConditions, Reading

MHZ = 1e6


def running(clocks_mhz, reasons=0, others=None):
    return GpuConditions(tuple(Reading(mhz * MHZ, 500.0, 60.0, reasons) for mhz in clocks_mhz), others)


# --- marks -----------------------------------------------------------------------------------------------------------


REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
NEAR, CAPPED = (Reading(mhz * MHZ, reasons=0x4, highest_hz=1980 * MHZ) for mhz in (1965, 1860))
FALLS = {"clock_spread": "SM clock between 1400 and 1980 MHz, median 1400 MHz"}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # Unknown, and undisturbed.
        (GpuConditions(), {}),
        (running([1980, 1965, 1980], others=0), {}),
        *(
            (running([1980] * 4, bit), {"throttled": f"throttled: {REASONS[bit]} in 100 % of 4 readings"})
            for bit in REASONS
        ),
        # A clock that the user set.
        *((running([1200] * 4, bit), {}) for bit in (0x2, 0x10, 0x100)),
        # A power cap close to the highest clock sets no flag, and neither does a reason in one of a hundred readings.
        (GpuConditions((NEAR,) * 20), {}),
        (
            GpuConditions((NEAR,) * 9 + (CAPPED,)),
            {
                "throttled": "throttled: software power cap in 10 % of 10 readings",
                "clock_spread": "SM clock between 1860 and 1965 MHz, median 1965 MHz",
            },
        ),
        (conditions.combine([running([1980] * 99), running([1980], 0x4)]), {}),
        (
            conditions.combine([running([1980] * 90), running([1980] * 10, 0x4)]),
            {"throttled": "throttled: software power cap in 10 % of 100 readings"},
        ),
        # Clocks more than 5 % apart.
        (running([1980, 1890]), {}),
        (running([1980, 1870]), {"clock_spread": "SM clock between 1870 and 1980 MHz, median 1925 MHz"}),
        (running([1980, 1500, 1980]), {"clock_spread": "SM clock between 1500 and 1980 MHz, median 1980 MHz"}),
        # Few readings do not count, such as the first 40 ms, until power runs into its cap; one of 19 is not few.
        (running([1980, 1980, *[1400] * 38]), {}),
        (running([1980] * 3 + [1400] * 37), FALLS),
        (running([1980] + [1400] * 18), FALLS),
        (running([1980], others=2), {"other_process": "other processes on the GPU: 2"}),
    ],
)
def test_flags_have_the_numbers_behind_them(seen, expected):
    assert seen.findings == expected


def test_metrics_carry_their_units():
    assert GpuConditions().metrics() == {}
    capped = running([1980, 1980, *[1400] * 38])
    assert (capped.sm_clock_min_hz, capped.sm_clock_max_hz) == (1400 * MHZ, 1400 * MHZ)
    seen = GpuConditions((Reading(1e9, 300.0, 50.0, 0), Reading(2e9, 500.0, 70.0, 0), Reading(1.8e9, None, None, 0)))
    assert seen.metrics() == {
        "sm_clock": (1.8e9, "Hz"),
        "sm_clock_min": (1e9, "Hz"),
        "sm_clock_max": (2e9, "Hz"),
        "power": (400.0, "W"),
        "power_max": (500.0, "W"),
        "temperature": (70.0, "degC"),
    }


def test_conditions_of_all_visits_are_combined():
    visits = [running([1980], others=None), running([1500], others=1), running([], others=0)]
    together = conditions.combine(visits)
    assert (together.sm_clock_min_hz, together.sm_clock_max_hz) == (1500 * MHZ, 1980 * MHZ)
    assert together.other_processes == 1
    assert conditions.combine([]) == GpuConditions()


def test_idle_readings_and_their_neighbours_do_not_count():
    watched = conditions.GpuMonitor(None)
    clocks = [(345, 1), (345, 1), (900, 0), (1500, 0), *[(1980, 0)] * 5, (1980, 0), (1700, 0), (345, 1)]
    watched.readings = [Reading(mhz * MHZ, reasons=bits) for mhz, bits in clocks]
    seen = watched.conditions()
    assert len(seen.readings) == 5
    assert seen.sm_clock_min_hz == seen.sm_clock_max_hz == 1980 * MHZ
    watched.readings = watched.readings[:1]
    assert watched.conditions() == GpuConditions(), "of a GPU that did nothing there is nothing to say"


def test_readings_before_the_measurement_are_dropped():
    watched = conditions.GpuMonitor(None)
    watched.readings = [Reading(345 * MHZ)]
    watched.clear()
    watched.readings += [Reading(1980 * MHZ)]
    assert watched.conditions().sm_clock_min_hz == 1980 * MHZ


class GpuOf:
    """A mock of a GPU: the given readings, one after another."""

    def __init__(self, *readings):
        self.reading = iter(readings).__next__


@pytest.mark.parametrize(
    ("bits", "mhz", "is_slowed"),
    [(0x4, 1500, True), (0x40, 1500, True), (0x4, 1965, False), (0x2, 1500, False), (0, 1500, False)],
)
def test_power_or_heat_slows_a_clock_that_is_noticeably_below_the_highest(bits, mhz, is_slowed):
    reading = Reading(mhz * MHZ, reasons=bits, highest_hz=1980 * MHZ)

    watched = conditions.GpuMonitor(GpuOf(reading))  # type: ignore[arg-type]
    watched.read()
    watched.clear()
    assert (reading.is_slowed, watched.is_slowed) == (is_slowed, is_slowed), "a reading before the measurement counts"


def test_a_lowered_clock_of_the_case_before_does_not_count_for_long():
    low, high = (Reading(mhz * MHZ, reasons=0x4, highest_hz=1980 * MHZ) for mhz in (1500, 1980))
    watched = conditions.GpuMonitor(GpuOf(*[low] * 5, *[high] * 20))  # type: ignore[arg-type]
    slowed = []
    for _ in range(25):
        watched.read()
        slowed.append(watched.is_slowed)
    assert (sum(slowed), slowed[-6:]) == (19, [False] * 6), "0.3 s from the last low reading on"


# --- reading NVML, a mock --------------------------------------------------------------------------------------------


class Nvml:
    """A mock of pynvml: two GPUs with different clocks."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_FI_DEV_POWER_INSTANT = 1, 0, 186

    def __init__(self):
        self.uuids = ["GPU-aaaa1111-0000", "GPU-bbbb2222-0000"]
        self.pids = [os.getpid()]
        self.inits = 0

    def nvmlInit(self):
        self.inits += 1

    def nvmlDeviceGetCount(self):
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= len(self.uuids):
            raise self.NVMLError("invalid argument")
        return index

    def nvmlDeviceGetUUID(self, handle):
        return self.uuids[handle]

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 1000 * (handle + 1)

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return 1980

    def nvmlDeviceGetFieldValues(self, handle, fields):
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=650_000))]

    def nvmlDeviceGetPowerUsage(self, handle):
        return 600_000

    def nvmlDeviceGetTemperature(self, handle, sensor):
        raise self.NVMLError("not supported")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return 0x4

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.pids]


@pytest.fixture
def nvml(monkeypatch):
    library = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    conditions.open_gpu.cache_clear()
    yield library
    conditions.open_gpu.cache_clear()


def torch_that_sees(uuid, initialised=True):
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: initialised,
            current_device=lambda: 0,
            get_device_properties=lambda device: SimpleNamespace(uuid=uuid),
        )
    )


def clock_of(device=None):
    with conditions.monitor_gpu(device) as watched:
        pass
    return watched.conditions().sm_clock_hz


def test_the_gpu_is_read_until_the_block_ends_and_once_more(nvml):
    with conditions.monitor_gpu() as watched:
        deadline = time.monotonic() + 10
        while len(watched.readings) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
    count = len(watched.readings)
    seen = watched.conditions()
    assert count >= 4 and len(seen.readings) == count
    assert (seen.sm_clock_hz, seen.power_w, seen.temperature_c) == (1000 * MHZ, 650.0, None)
    assert {(reading.highest_hz, reading.reasons) for reading in seen.readings} == {(1980 * MHZ, 0x4)}
    time.sleep(0.05)
    assert len(watched.readings) == count


@pytest.mark.parametrize(
    ("counted_mhz", "highest_mhz", "kept"),
    [
        ((1979, 1981), 1980, True),
        ((1979, 1955, 1975), 1980, True),
        ((1979, 1955, 1950), 1980, False),
        ((), 1980, False),
        ((1979,), None, False),
    ],
)
def test_the_highest_clock_was_kept_where_the_gpu_counted_it_in_the_median(counted_mhz, highest_mhz, kept):
    reading = Reading(highest_hz=None if highest_mhz is None else highest_mhz * MHZ)
    assert GpuConditions((reading,), counted_hz=tuple(mhz * MHZ for mhz in counted_mhz)).kept_highest_clock is kept


def test_a_measurement_on_a_cpu_has_no_gpu_readings(nvml):
    for device, readings in (("cpu", 0), ("cuda", 1)):
        with conditions.monitor_device(device) as watched:
            pass
        assert len(watched.readings) == readings
        assert (watched.conditions().other_processes is None) is (device == "cpu")


def test_a_block_that_is_over_at_once_has_one_reading(nvml):
    assert clock_of() == 1000 * MHZ


def test_nvml_is_opened_once_a_process(nvml):
    for _ in range(3):
        clock_of()
    assert nvml.inits == 1


def test_the_device_of_this_process_is_found_by_its_uuid(nvml, monkeypatch):
    assert clock_of("GPU-bbbb2222-0000") == 2000 * MHZ
    assert clock_of("cccc") is None
    monkeypatch.setitem(sys.modules, "torch", torch_that_sees("bbbb2222-0000"))
    assert clock_of() == 2000 * MHZ


@pytest.mark.parametrize(
    ("visible", "device", "clock"),
    [
        ("1", None, 2000 * MHZ),
        ("1,0", 1, 1000 * MHZ),
        ("GPU-bbbb", 0, 2000 * MHZ),
        ("", None, None),
        ("-1", 0, None),
        ("MIG-aaaa1111", 0, None),
        ("0", 1, None),
        ("7", 0, None),
    ],
)
def test_without_torch_the_environment_selects_the_device(nvml, monkeypatch, visible, device, clock):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert clock_of(device) == clock


def test_old_drivers_and_bindings_are_called_by_the_old_names(nvml, monkeypatch):
    monkeypatch.delattr(Nvml, "nvmlDeviceGetCurrentClocksEventReasons")
    monkeypatch.setattr(Nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda *_: 0x40, raising=False)
    monkeypatch.delattr(Nvml, "NVML_FI_DEV_POWER_INSTANT")
    with conditions.monitor_gpu() as watched:
        pass
    assert {reading.reasons for reading in watched.readings} == {0x40}
    assert watched.conditions().power_w == 600.0


def test_a_driver_older_than_the_binding_is_called_by_the_old_name(nvml, monkeypatch):
    def function_not_found(*_):
        raise Nvml.NVMLError("Function Not Found")

    monkeypatch.setattr(Nvml, "nvmlDeviceGetCurrentClocksEventReasons", function_not_found)
    monkeypatch.setattr(Nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda *_: 0x20, raising=False)
    with conditions.monitor_gpu() as watched:
        pass
    assert {reading.reasons for reading in watched.readings} == {0x20}


@pytest.mark.parametrize(
    ("pids", "has_context", "others"),
    [
        (["own"], True, 0),
        (["own", 7, 8], True, 2),
        ([4711], True, 0),  # a container: this process, under the host's number
        ([4711, 4712], True, 1),
        ([4711], False, 1),
        ([], True, None),  # a container that shows no process at all
        ([], False, 0),
    ],
)
def test_other_processes_are_counted_where_nvml_lists_them(nvml, monkeypatch, pids, has_context, others):
    nvml.pids = [os.getpid() if pid == "own" else pid for pid in pids]
    monkeypatch.setitem(sys.modules, "torch", torch_that_sees("aaaa1111-0000", has_context))
    with conditions.monitor_gpu() as watched:
        pass
    assert watched.conditions().other_processes == others


def test_without_nvml_nothing_is_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    conditions.open_gpu.cache_clear()
    with conditions.monitor_gpu() as watched:
        pass
    assert watched.conditions() == GpuConditions()
    conditions.open_gpu.cache_clear()


def test_an_error_in_the_block_is_raised_and_ends_the_readings(nvml):
    with pytest.raises(KeyError), conditions.monitor_gpu() as watched:
        raise KeyError
    count = len(watched.readings)
    time.sleep(0.05)
    assert len(watched.readings) == count


def test_a_counted_clock_replaces_the_clock_of_nvml():
    seen = GpuConditions(
        tuple(Reading(1980 * MHZ, 700.0, 60.0, 0x4, 1980 * MHZ) for _ in range(10)), counted_hz=(1.8e9,)
    )
    assert seen.sm_clock_hz == seen.sm_clock_min_hz == seen.sm_clock_max_hz == 1.8e9
    assert list(seen.findings) == ["throttled"], "NVML reports an older clock"
    late = GpuConditions(
        tuple(Reading(1770 * MHZ, 700.0, 60.0, 0x4, 1980 * MHZ) for _ in range(10)), counted_hz=(1.97e9,)
    )
    assert late.findings == {}
    both = conditions.combine([seen, late])
    assert both.counted_hz == (1.8e9, 1.97e9) and list(both.findings) == ["throttled", "clock_spread"]


@pytest.mark.parametrize(
    ("median", "found"), [(1.9800e9, []), (1.9650e9, []), (1.9575e9, ["throttled"]), (1.9450e9, ["throttled"])]
)
def test_a_clock_that_is_a_little_lower_most_of_the_time_is_throttling(median, found):
    """2 % below is too little where it is a twentieth of the counts; half of them move the median time."""
    capped = tuple(Reading(1980 * MHZ, 700.0, 60.0, 0x4, 1980 * MHZ) for _ in range(10))
    counts = (*[1.945e9] * 2, *[median] * 16, *[1.98e9] * 12)
    assert list(GpuConditions(capped, counted_hz=counts).findings) == found


def test_one_low_clock_count_of_many_is_not_flagged_as_throttled():
    capped = tuple(Reading(1980 * MHZ, 700.0, 60.0, 0x4, 1980 * MHZ) for _ in range(10))
    assert GpuConditions(capped, counted_hz=(1.9e9, *[1.975e9] * 29)).findings == {}
    assert list(GpuConditions(capped, counted_hz=(1.9e9, 1.9e9, *[1.975e9] * 28)).findings) == ["throttled"]


def test_a_count_above_the_highest_clock_is_dropped():
    seen = GpuConditions((Reading(1980 * MHZ, 700.0, 60.0, 0x4, 1980 * MHZ),), counted_hz=(2.1e9, 1.8e9, 1.99e9))
    assert (seen.sm_clock_min_hz, seen.sm_clock_max_hz) == (1.8e9, 1.99e9)
    assert GpuConditions(counted_hz=(2.1e9,)).sm_clock_hz == 2.1e9, "no highest is known"
