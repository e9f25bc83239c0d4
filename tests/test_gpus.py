"""Which GPU's rates a job is compared with. The GPUs are modelled on real ones, and NVML is a mock."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from report_study import ATTENTION, analyze, case_row, kernel_row, metric_row, tables

from profpipe.commands import rendering
from profpipe.ingest import job_tables
from profpipe.measure import machine, machine as device
from profpipe.results.manifest import Manifest, PeakRates, parse

H200 = {
    "name": "NVIDIA H200", "uuid": "GPU-aaaa-1", "compute_capability": [9, 0], "sm_count": 132,
    "max_sm_clock_hz": 1_980_000_000, "max_memory_clock_hz": 3_201_000_000, "memory_bus_bits": 6016,
}  # fmt: skip
L40S = {
    "name": "NVIDIA L40S", "uuid": "GPU-bbbb-2", "compute_capability": [8, 9], "sm_count": 142,
    "max_sm_clock_hz": 2_520_000_000, "max_memory_clock_hz": 9_001_000_000, "memory_bus_bits": 384,
}  # fmt: skip
TWIN = {**H200, "uuid": "GPU-aaaa-3"}
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


SMALLER = {**L40S, "sm_count": 100, "max_sm_clock_hz": 1_000_000_000}
EITHER = "unknown: which of several GPUs was used (NVIDIA H200, NVIDIA L40S)"
HIDDEN = "unknown: CUDA_VISIBLE_DEVICES shows no GPU"


def peaks_of(devices, environment, *described):
    return machine.peaks_of_job(devices, environment, described)


def seen(gpu):
    """What a process says of the GPU that it used."""
    return {"device": gpu["name"], "sm_count": gpu["sm_count"]}


@pytest.mark.parametrize(
    ("devices", "shown", "expected"),
    [
        # The rates are those of the GPU that the environment shows.
        ([H200, L40S, TWIN], {"CUDA_VISIBLE_DEVICES": "GPU-bbbb-2"}, L40S),
        ([H200, L40S, TWIN], {"CUDA_VISIBLE_DEVICES": "GPU-b"}, L40S),
        ([H200, L40S, TWIN], {"CUDA_VISIBLE_DEVICES": "1", **BY_BUS}, L40S),
        ([H200, L40S, TWIN], {"CUDA_VISIBLE_DEVICES": "2,0", **BY_BUS}, H200),
        ([H200, L40S, TWIN], {"CUDA_VISIBLE_DEVICES": " GPU-aaaa-3 , GPU-aaaa-1"}, H200),
        # They are unknown where GPUs of different rates may have been used. Equal GPUs share their rates.
        ([H200, L40S], {}, EITHER),
        ([H200, L40S], {"CUDA_VISIBLE_DEVICES": "1"}, EITHER),
        ([H200, L40S], {"CUDA_VISIBLE_DEVICES": "0,1", **BY_BUS}, EITHER),
        ([H200, TWIN], {}, H200),
        ([H200, TWIN], {"CUDA_VISIBLE_DEVICES": "1"}, H200),
        *(
            ([H200, L40S], {"CUDA_VISIBLE_DEVICES": own, **BY_BUS}, HIDDEN)
            for own in ("", "-1", "NoDevFiles", "7", "GPU-c")
        ),
        # A part of a GPU has not the rates of the whole.
        ([H200], {"CUDA_VISIBLE_DEVICES": "MIG-1234"}, "unknown for a part (MIG) of a GPU"),
        ([{**H200, "mig": True}], {}, "unknown for a part (MIG) of NVIDIA H200"),
        ([], {}, "unknown: no NVIDIA GPU"),
    ],
)
def test_without_a_device_of_the_process_the_rates_are_those_of_the_visible_gpus(devices, shown, expected):
    found = {"source": expected} if isinstance(expected, str) else device.peaks(expected)
    assert peaks_of(devices, shown) == found


@pytest.mark.parametrize(
    ("devices", "described", "expected"),
    [
        ([H200, L40S], [seen(L40S)], L40S),
        ([H200], [{"device": "cpu"}], "unknown: its process used the CPU"),
        ([], [{"device": "cpu"}], "unknown: no NVIDIA GPU"),
        ([H200, L40S], [seen(H200), seen(L40S)], EITHER),
        # Of two GPUs of one name the one with as many SMs was used.
        ([L40S, SMALLER], [seen(SMALLER)], SMALLER),
        ([], [{"device": "AMD Instinct MI300X", "sm_count": 304}], "unknown for AMD Instinct MI300X"),
    ],
)
def test_the_gpu_of_a_process_overrides_the_visible_ones(devices, described, expected):
    found = {"source": expected} if isinstance(expected, str) else device.peaks(expected)
    assert peaks_of(devices, {}, *described) == found


def test_a_part_of_a_gpu_has_the_flops_of_its_sms_and_no_known_bandwidth():
    rates = peaks_of([{**H200, "mig": True}], {}, {"device": "NVIDIA H200 MIG 1g.18gb", "sm_count": 16})
    assert rates["flops"]["fp16"] * 132 == device.peaks(H200)["flops"]["fp16"] * 16
    assert "bytes_per_s" not in rates and "16 SMs" in rates["source"]


def test_the_devices_of_a_job_are_read_from_all_its_records_and_only_where_torch_named_them(tmp_path):
    def record(name, *started):
        (tmp_path / name).write_text("".join(json.dumps({"event": "started", **one}) + "\n" for one in started))
        return tmp_path / name

    h200, l40s = {"device": "NVIDIA H200", "sm_count": 132}, {"device": "NVIDIA L40S", "sm_count": 142}
    of_torch = {"torch": "2.11.0"}
    first = record("job.jsonl", {"machine": h200, **of_torch}, {"machine": h200, **of_torch})
    second = record("job.rank1.jsonl", {"machine": l40s, **of_torch}, {"machine": {"device": "cpu"}})
    assert job_tables.read_devices([first, second, tmp_path / "none.jsonl"]) == [h200, l40s]
    at, other = (record(f"{n}.jsonl", {"machine": {**h200, "pci": f"00:{n}:00"}, **of_torch}) for n in ("1b", "1c"))
    assert job_tables.read_devices([at, at]) == [{**h200, "count": 1}], (
        "a process that followed another, on the same GPU"
    )
    assert job_tables.read_devices([at, other]) == [{**h200, "count": 2}]
    assert job_tables.read_devices([at, first]) == [h200], "not all say where they are"


def test_a_process_that_uses_a_second_gpu_is_not_headed_by_one(tmp_path):
    run = {
        "machine": {"gpus": [{"name": "NVIDIA H200"}] * 4},
        "jobs": [{"workload": "w", "profiler": "nsys", "status": "ok", "devices": [{"device": "H200", "count": 1}]}],
    }
    kernels = [kernel_row("n=1", ATTENTION, 10, 1e6, device=device) for device in (0, 1)]
    rendering.write_report(tmp_path, tables(cases=[case_row("n=1", "nsys")], kernels=kernels), Manifest.parse(run))
    assert "2 of 4 NVIDIA H200" in (tmp_path / "SUMMARY.md").read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("jobs", "subtitle"),
    [
        ([{"devices": [{"device": "NVIDIA H200", "count": 1}]}], "1 of 2 NVIDIA H200"),
        ([{"devices": [{"device": "NVIDIA H200", "count": n}]} for n in (1, 2)], "2 x NVIDIA H200"),
        ([{"devices": [{"device": "NVIDIA H200", "count": 1}]}, {"status": "skipped"}], "1 of 2 NVIDIA H200"),
        ([{"devices": [{"device": "NVIDIA H200", "count": 1}]}, {"devices": []}], "2 x NVIDIA H200"),
        ([{"devices": [{"device": "NVIDIA H200", "count": 1}]}, {"returncode": None}], "1 of 2 NVIDIA H200"),
        ([{"devices": [{"device": "NVIDIA H200"}]}], "2 x NVIDIA H200"),
        ([{"devices": [{"device": "cpu"}]}], "2 x NVIDIA H200"),
        ([], "2 x NVIDIA H200"),
    ],
)
def test_a_page_is_headed_by_the_gpus_that_were_used_where_the_jobs_say_it(tmp_path, jobs, subtitle):
    machine = {"gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]}
    ran = [{"workload": "w", "profiler": "plain", "status": "ok", "cases": ["n=1"], **job} for job in jobs]
    data = tables(cases=[case_row("n=1")], metrics=[metric_row("n=1", "time", 1e6)])
    rendering.write_report(tmp_path, data, Manifest.parse({"machine": machine, "jobs": ran}))
    assert subtitle in (tmp_path / "SUMMARY.md").read_text().splitlines()[0].split(" · ")


# --- in a run --------------------------------------------------------------------------------------------------------


def share_of_peak(**run):
    """Of a call of 5e11 FLOP in a millisecond, on a machine of 1e15 FLOP/s at most; and the rates' source."""
    data = tables(metrics=[metric_row("dtype=fp16", "time", 1e6), metric_row("dtype=fp16", "flops", 5e11, "flop")])
    data.cases["params"] = '{"dtype": "fp16"}'
    machine = {"gpus": [{"name": "A"}, {"name": "B"}], "peaks": {"flops": {"fp16": 1e15}, "source": "of A"}}
    (workload,) = analyze(data, {"machine": machine, **run}).workloads
    return workload.cases[0].of_peak_flops, workload.gpu.rates.source


def job(**entry):
    return {"workload": "w", "profiler": "plain", **entry}


SLOW = {"flops": {"fp16": 5e14}, "source": "of B"}


def test_a_workload_is_compared_with_the_rates_of_its_own_jobs():
    on_b = job(devices=[{"device": "B"}], peaks=SLOW)
    assert share_of_peak(jobs=[on_b]) == (1.0, "of B")
    assert share_of_peak(jobs=[on_b, job(profiler="rocprof", devices=[])]) == (1.0, "of B"), "one that says nothing"
    assert share_of_peak(jobs=[{**on_b, "workload": "other"}]) == (0.5, "of A")
    assert share_of_peak(jobs=[on_b, job(profiler="nsys", devices=[{"device": "A"}])]) == (
        None, "unknown: its jobs ran on GPUs of different rates",
    )  # fmt: skip


def test_a_run_of_an_earlier_version_has_the_rates_of_its_machine():
    assert share_of_peak() == share_of_peak(jobs=[job()]) == (0.5, "of A")


def test_measured_rates_hold_only_for_the_gpu_that_they_were_measured_on():
    def source(measured, *names):
        machine = {"gpus": [{"name": "A"}], "peaks": {"source": "rule"}, "ceilings": measured}
        return share_of_peak(machine=machine, jobs=[job(devices=[{"device": name} for name in names])])[1]

    measured = {"device": "A", "flops": {"fp16": 6e14}, "source": "measured"}
    assert source(measured) == source(measured, "A") == "measured"
    assert source(measured, "B") == source(measured, "A", "B") == "rule"
    assert source({"flops": {"fp16": 6e14}, "source": "measured"}, "B") == "measured", "earlier records lack it"


NVML = f"""
GPUS = {[H200, L40S]!r}
NVML_CLOCK_SM, NVML_CLOCK_MEM = "max_sm_clock_hz", "max_memory_clock_hz"

class NVMLError(Exception):
    pass

class Memory:
    total = 48 << 30

def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return len(GPUS)
def nvmlDeviceGetHandleByIndex(index): return GPUS[index]
def nvmlDeviceGetName(gpu): return gpu["name"]
def nvmlDeviceGetUUID(gpu): return gpu["uuid"]
def nvmlSystemGetDriverVersion(): return "580.1"
def nvmlSystemGetCudaDriverVersion_v2(): return 13000
def nvmlDeviceGetMemoryInfo(gpu): return Memory
def nvmlDeviceGetCudaComputeCapability(gpu): return gpu["compute_capability"]
def nvmlDeviceGetNumGpuCores(gpu): return 128 * gpu["sm_count"]
def nvmlDeviceGetMaxClockInfo(gpu, clock): return gpu[clock] // 1_000_000
def nvmlDeviceGetMemoryBusWidth(gpu): return gpu["memory_bus_bits"]
def nvmlDeviceGetEnforcedPowerLimit(gpu): raise NVMLError
def nvmlDeviceGetMigMode(gpu): raise NVMLError
"""

PIPELINE = """
version: 1
workloads:
  first: {command: ["true"], profilers: [plain], env: {CUDA_VISIBLE_DEVICES: GPU-bbbb-2}}
  second: {command: ["true"], profilers: [plain]}
"""


@pytest.mark.slow
def test_a_run_records_the_rates_of_each_job_where_they_are_not_the_machines_and_names_no_gpu(tmp_path):
    # Not in the current folder, from which no process of profpipe's own imports.
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml" / "pynvml.py").write_text(NVML)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    paths = os.pathsep.join([str(tmp_path / "nvml"), str(Path(__file__).resolve().parents[1])])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    done = subprocess.run(
        [sys.executable, "-m", "profpipe", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**environment, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = (tmp_path / "out" / "latest").resolve()
    record = Manifest.load(folder)
    unknown = "unknown: which of several GPUs was used (NVIDIA H200, NVIDIA L40S)"
    assert record.machine.peaks == PeakRates(source=unknown)
    assert {entry.workload: entry.peaks for entry in record.jobs} == {
        "first": parse(PeakRates, device.peaks(L40S)), "second": None,
    }  # fmt: skip
    summary, info = ((folder / name).read_text() for name in ("details.md", "gpu_info.txt"))
    (rates,) = (line for line in summary.splitlines() if line.startswith("- peak rates of first: fp16 "))
    assert unknown in summary and "; dense FLOP/s = 142 SMs" in rates
    assert "peak rates of first under plain\n  fp16: " in info
    assert "NVIDIA H200 and NVIDIA L40S" in summary.splitlines()[0]
    assert "GPU-bbbb-2" not in (folder / "run.json").read_text() + summary + info
