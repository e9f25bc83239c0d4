"""Stands in for rocprofv3, rocprofv2 and rocprof (v1): takes their command lines and leaves files of their formats.

Runs the workload, and writes for each iteration of each of its cases a range, a launch and a kernel of 10 us, and for
each case a kernel of 1 us before its ranges. The names of the files, their columns and quotes are those of AMD's tools;
the numbers are made up.

fake_rocprof.py rocprofv3|rocprofv2|rocprof ARGUMENT...
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

KERNEL_TRACE = (
    "Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,"
    "End_Timestamp,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,Workgroup_Size_X,"
    "Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,Grid_Size_Z"
)
API_TRACE = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp"
STATS_V3 = "Name,Calls,TotalDurationNs,AverageNs,Percentage,MinNs,MaxNs,StdDev"
STATS_V1 = "Name,Calls,TotalDurationNs,AverageNs,Percentage"
RESULTS_V2 = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
    "Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID"
)
RESULTS_V1 = (
    "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,accum_vgpr,sgpr,wave_size,sig,obj,"
    "DispatchNs,BeginNs,EndNs,CompleteNs,DurationNs"
)

PID, KERNEL = 70, "void scale_kernel<float>(float*, int)"

Row = dict[str, Any]


def main(tool, *arguments):
    if tool == "rocprofv3" and arguments == ("--version",):
        print("      version: 1.0.0\n git_revision: 0\n")
        return 0
    if tool == "rocprofv3" and arguments == ("--help",):
        print("  -P, --collection-period (START):(TIME):(REPEAT)\n  --collection-period-unit\n  --selected-regions\n")
        return 0
    options, application = _read(tool, arguments)
    done = subprocess.run(application, check=False)
    {"rocprofv3": write_v3, "rocprofv2": write_v2, "rocprof": write_v1}[tool](options, list(_launches(application)))
    return done.returncode


def _read(tool, arguments):
    """Knows each tool's own options and no other, so that a wrong one ends here as it would there."""
    parser = argparse.ArgumentParser(prog=tool, allow_abbrev=False)
    flags = {
        "rocprofv3": ("--kernel-trace", "--memory-copy-trace", "--marker-trace", "--hip-trace", "--stats"),
        "rocprofv2": ("--kernel-trace", "--roctx-trace", "--hip-trace"),
        "rocprof": ("--hip-trace", "--roctx-trace", "--stats"),
    }
    for flag in flags[tool]:
        parser.add_argument(flag, action="store_true")
    parser.add_argument("-o", required=True)
    if tool != "rocprof":
        parser.add_argument("-d", required=True, type=Path)
    if tool == "rocprofv3":
        parser.add_argument("--collection-period", nargs="+")
        parser.add_argument("--collection-period-unit", choices=["hour", "min", "sec", "msec", "usec", "nsec"])
        parser.add_argument("--selected-regions", action="store_true")
        parser.add_argument("-f", choices=["csv"], required=True)
        if "--" not in arguments:
            parser.error("the application stands behind --")
    parser.add_argument("application", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    application = options.application
    return options, application[1:] if application[:1] == ["--"] else application


def _launches(application):
    """(case, correlation id, when it was launched, when it began on the GPU); case is empty outside the ranges."""
    spec = json.loads(Path(application[-1]).read_text(encoding="utf-8"))
    number = 0
    for case in spec["cases"]:
        for iteration in range(spec["repeats"] + 1):
            number += 1
            called = 1_000_000 * number
            # The GPU is far behind: whoever placed the kernels by time would get them all wrong.
            yield case["id"] if iteration else "", number, called, called + 5_000_000


def _duration(case):
    return 10_000 if case else 1_000


def write_v3(options, launches):
    def file(kind):
        return options.d / f"{options.o}_{kind}.csv"

    kernels, calls, markers = [], [], []
    for case, number, called, began in launches:
        where = {"Process_Id": PID, "Thread_Id": PID, "Correlation_Id": number}
        api = {"Domain": "HIP_RUNTIME_API", "Function": "hipLaunchKernel", **where}
        calls.append({**api, "Start_Timestamp": called, "End_Timestamp": called + 2_000})
        if case:
            marker = {**where, "Domain": "MARKER_CORE_RANGE_API", "Function": f"profpipe:{case}"}
            markers.append({**marker, "Start_Timestamp": called - 5_000, "End_Timestamp": called + 5_000})
        kernels.append(
            {
                "Kind": "KERNEL_DISPATCH", "Agent_Id": "Agent 2", "Stream_Id": 1, "Thread_Id": PID,
                "Dispatch_Id": number, "Kernel_Name": KERNEL, "Correlation_Id": number, "Start_Timestamp": began,
                "End_Timestamp": began + _duration(case),
            }
        )  # fmt: skip
    if options.kernel_trace:
        _write(file("kernel_trace"), KERNEL_TRACE, kernels)
        if options.stats:
            _write(file("kernel_stats"), STATS_V3, [_sum(launches)])
    if options.marker_trace:
        _write(file("marker_api_trace"), API_TRACE, markers)
    if options.hip_trace:
        _write(file("hip_api_trace"), API_TRACE, calls)


def write_v2(options, launches):
    rows = [
        {
            "Dispatch_ID": number, "GPU_ID": 2, "PID": PID, "TID": PID, "Kernel_Name": KERNEL, "Start_Timestamp": began,
            "End_Timestamp": began + _duration(case), "Correlation_ID": number,
        }
        for case, number, _, began in launches
    ]  # fmt: skip
    _write(options.d / f"results_{options.o}.csv", RESULTS_V2, rows)


def write_v1(options, launches):
    out = Path(options.o)
    rows = [
        {
            "Index": number, "KernelName": f"{KERNEL} [clone .kd]", "gpu-id": 1, "pid": PID, "tid": PID,
            "DispatchNs": called, "BeginNs": began, "EndNs": began + _duration(case), "DurationNs": _duration(case),
        }
        for case, number, called, began in launches
    ]  # fmt: skip
    _write(out, RESULTS_V1, rows)
    _write(out.with_suffix(".stats.csv"), STATS_V1, [_sum(launches)])
    hip = {"Name": "hipLaunchKernel", "Calls": len(launches), "TotalDurationNs": 2_000 * len(launches)}
    _write(out.with_suffix(".hip_stats.csv"), STATS_V1, [hip])
    out.with_suffix(".sysinfo.txt").write_text("ROCk module is loaded\n", encoding="utf-8")


def _sum(launches):
    durations = [_duration(case) for case, *_ in launches]
    mean = sum(durations) / len(durations)
    return {"Name": KERNEL, "Calls": len(durations), "TotalDurationNs": sum(durations), "AverageNs": mean,
            "Percentage": 100, "MinNs": min(durations), "MaxNs": max(durations), "StdDev": 0}  # fmt: skip


def _write(path, columns, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns.split(","), restval=0, quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
