"""What machine this is. The GPUs' own answers need a GPU; the rules that follow from them do not."""

import pytest

from profpipe.measure import machine

#: As NVML described an H200 to this module (driver 580).
H200 = {
    "name": "NVIDIA H200", "compute_capability": [9, 0], "sm_count": 132, "max_sm_clock_hz": 1_980_000_000,
    "max_memory_clock_hz": 3_201_000_000, "memory_bus_bits": 6016,
}  # fmt: skip


def test_peaks_follow_from_the_device_by_a_rule_that_is_named():
    peaks = machine.peaks(H200)
    # 132 SMs, 4096 FLOP per clock: the data sheet's 989 TFLOP/s at its 1830 MHz, here at the highest clock, 1980 MHz.
    assert peaks["flops"]["fp16"] == pytest.approx(989.4e12 * 1980 / 1830, rel=1e-3)
    assert peaks["bytes_per_s"] == pytest.approx(4.8e12, rel=0.01)
    assert "132 SMs x 1980 MHz" in peaks["source"] and "6016 bits" in peaks["source"]


@pytest.mark.parametrize(
    ("name", "capability", "sm_count", "clock_mhz", "tflops"),
    [
        # The data sheets' dense TFLOP/s of fp16 with fp32 accumulation, at their boost clocks.
        ("NVIDIA GeForce RTX 4090", (8, 9), 128, 2520, 165.2),
        ("NVIDIA L40S", (8, 9), 142, 2520, 362.05),
        ("NVIDIA GeForce RTX 3090", (8, 6), 82, 1695, 71.2),
        ("NVIDIA A10", (8, 6), 72, 1695, 125.0),
        ("Tesla T4", (7, 5), 40, 1590, 65.1),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1410, 312.0),
    ],
)
def test_chips_sold_as_geforce_have_half_the_rate_of_the_same_chips_for_servers(
    name, capability, sm_count, clock_mhz, tflops
):
    gpu = {"name": name, "compute_capability": capability, "sm_count": sm_count, "max_sm_clock_hz": clock_mhz * 10**6}
    assert machine.peaks(gpu)["flops"]["fp16"] == pytest.approx(tflops * 1e12, rel=0.015)


def test_geforce_has_the_full_rate_where_sums_are_kept_in_16_bits():
    gpu = {"name": "NVIDIA GeForce RTX 4090", "compute_capability": (8, 9), "sm_count": 128, "max_sm_clock_hz": 2520e6}
    peaks = machine.peaks(gpu)
    assert peaks["flops_in_16_bits"]["fp16"] == 2 * peaks["flops"]["fp16"]
    assert "int8" not in peaks["flops_in_16_bits"]
    assert "flops_in_16_bits" not in machine.peaks({**gpu, "name": "NVIDIA L40S"})


def test_a_gpu_of_an_unknown_kind_has_unknown_peaks_and_no_default():
    peaks = machine.peaks({"name": "Future", "compute_capability": [99, 0], "sm_count": 1, "max_sm_clock_hz": 1})
    assert peaks == {"source": "unknown for Future"}


def test_without_a_clock_only_the_bandwidth_is_known():
    known = {key: value for key, value in H200.items() if key != "max_sm_clock_hz"}
    assert set(machine.peaks(known)) == {"bytes_per_s", "source"}


def test_the_machine_is_described_without_naming_host_or_user():
    described = machine.machine([{**H200, "uuid": "GPU-1"}])
    assert {"gpus", "cpu", "os", "python"} <= set(described) and described["gpus"] == [H200]
    assert not {"hostname", "user", "node"} & set(described)


def test_versions_of_absent_packages_are_absent():
    assert "no-such-package" not in machine.packages(["no-such-package", "pandas"])
