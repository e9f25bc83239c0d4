"""Made-up runs of programs with steps, in the form in which ingestion stores them: no GPU ever gave these numbers."""

from report_study import case_row, kernel_row, metric_row

from profpipe.results.schema import CASES, KERNELS, METRICS, RANGES, STEPS, Tables, frame

GEMM, ELEMENTWISE, ADAM = "cutlass_gemm_bf16", "at::vectorized_elementwise_kernel", "multi_tensor_adam"
NCCL, HTOD, MEMSET = "ncclDevKernel_AllReduce_Sum_f32", "[CUDA memcpy Host-to-Device]", "[CUDA memset]"
_CLASSES = {GEMM: "gemm", ELEMENTWISE: "elementwise", ADAM: "optimizer", NCCL: "communication"}
_KINDS = {HTOD: "memcpy", MEMSET: "memset"}

#: The parts of a step in the order of the columns.
PARTS = ("compute_ns", "communication_ns", "copy_ns", "idle_launch_ns", "idle_blocked_ns", "idle_other_ns")


def step_row(case, step, parts, profiler="nsys", **more):
    """A row of `steps` from its six parts in ns, or from its time alone, as without a profiler."""
    row = {"workload": "w", "case": case, "profiler": profiler, "source": f"{profiler}.sqlite", "rank": 0, "device": 0}
    row |= {"step": step, "state": "steady", "rule": "optimizer", "process": 1, "start_ns": 1e8 * step}
    if isinstance(parts, (int, float)):
        row["wall_ns"] = parts
    else:
        own = dict(zip(PARTS, parts, strict=True))
        idle = own["idle_launch_ns"] + own["idle_blocked_ns"] + own["idle_other_ns"]
        row |= {**own, "idle_ns": idle, "wall_ns": sum(parts), "kernels": 285}
        row |= {"kernel_ns": own["compute_ns"] + own["communication_ns"]}
        row |= {"communication_total_ns": own["communication_ns"]}
    return {**row, **more}


def step_metrics(case, ns, profiler="nsys", ranks=(), n=22, **more):
    """The metric `step_time` of a case, and those of its ranks; an interval of 0.2 % to either side."""
    ends = {"n": n, "ci_low": 0.998 * ns, "ci_high": 1.002 * ns, "profiler": profiler}
    found = [metric_row(case, "step_time", ns, **ends, **more)]
    if profiler == "plain":
        found.append(metric_row(case, "time", ns, **ends, **more))
    for rank, own in enumerate(ranks):
        of_rank = {**ends, "ci_low": 0.998 * own, "ci_high": 1.002 * own, "subject": f"rank {rank}"}
        found.append(metric_row(case, "step_time", own, **of_rank))
    return found


def step_kernels(case, kernels, profiler="nsys", steps=24, ranks=1):
    """Rows of `kernels` over all steps and ranks, and the metrics of a step, from (launches, ns) of a step by name."""
    rows, metrics = [], []
    for name, (calls, ns) in kernels.items():
        kind = _KINDS.get(name, "kernel")
        more = {"kind": kind, "kernel_class": _CLASSES.get(name, kind), "profiler": profiler}
        for rank in range(ranks):
            where = {"process": rank + 1, "device": rank}
            rows.append(kernel_row(case, name, round(calls * steps), ns * steps, **more, **where))
        for metric, value, unit in (("step_kernel_time", ns, "ns"), ("step_launches", calls, "1")):
            metrics.append(metric_row(case, metric, value, unit, subject=name, profiler=profiler))
        if kind == "memcpy":
            size = {"subject": name, "profiler": profiler}
            metrics.append(metric_row(case, "step_copy_bytes", 12 * ns, "byte", **size))
    return rows, metrics


def step_tables(cases=(), kernels=(), metrics=(), steps=(), ranges=()):
    return Tables(
        frame(CASES, cases), frame(KERNELS, kernels), frame(RANGES, ranges), frame(METRICS, metrics),
        frame(STEPS, steps),
    )  # fmt: skip


_STATES = ("warmup", *["steady"] * 20, "outlier", "steady", "steady")

#: A command with a matrix of one axis, and its baseline.
COMPILED = {
    "name": "train",
    "started": "2026-11-23T09:51:00+00:00",
    "machine": {"gpus": [{"name": "Made-up GPU"}]},
    "pipeline": {
        "workloads": {
            "w": {
                "command": ["python", "bench.py", "--compile={compile}"],
                "matrix": {"compile": [False, True]},
                "baseline": {"compile": False},
                "items_per_step": 8192,
                "item_name": "tokens",
            }
        }
    },
}


def compiled():
    """A training loop eager and compiled under plain, nsys and torch; the host limits the eager one."""
    cases, kernels, metrics, steps = [], [], [], []
    for case, ms, parts, own in (
        ("compile=false", 33.2, (22e6, 0.0, 0.3e6, 9e6, 1.5e6, 0.4e6), {GEMM: (98, 12e6), ELEMENTWISE: (180, 9e6)}),
        ("compile=true", 26.9, (25e6, 0.0, 0.3e6, 1e6, 0.4e6, 0.2e6), {GEMM: (98, 12e6), ELEMENTWISE: (60, 12e6)}),
    ):
        cases += [case_row(case, profiler) for profiler in ("plain", "nsys", "torch")]
        own = {**own, ADAM: (4, 1e6), HTOD: (2, 0.3e6)}
        rows, numbers = step_kernels(case, own)
        kernels += rows
        metrics += numbers
        metrics += [metric_row(case, "peak_allocated", 12.5 * 2**30, "byte"), metric_row(case, "process_wall", 3e10)]
        coverage = {"profiler": "nsys"}
        metrics.append(metric_row(case, "step_coverage", 99.1, "%", **coverage))
        for profiler, slower in (("plain", 1.0), ("nsys", 1.008), ("torch", 1.041)):
            metrics += step_metrics(case, slower * 1e6 * ms, profiler)
        for step, state in enumerate(_STATES):
            stretched = [*parts[:3], parts[3] + 2e8 * (state == "outlier") + 4e7 * (state == "warmup"), *parts[4:]]
            steps.append(step_row(case, step, stretched, state=state))
            steps.append(step_row(case, step, sum(stretched) / 1.008, "plain", state=state))
        excess = {"profiler": "nsys", "subject": "rank 0 step 21"}
        metrics.append(metric_row(case, "step_outlier_idle_launch", 2e8, **excess))
    return step_tables(cases, kernels, metrics, steps), COMPILED


def two_ranks():
    """One file with DistributedDataParallel on two GPUs; rank 1 is late, so rank 0 waits in its all-reduce."""
    own = {GEMM: (98, 10e6), ELEMENTWISE: (180, 2e6), NCCL: (3, 3.2e6), HTOD: (2, 0.1e6)}
    kernels, metrics = step_kernels("", own, ranks=2)
    steps = []
    for rank, parts in enumerate(((12e6, 4.2e6, 0.1e6, 0.1e6, 0.2e6, 0.0), (12e6, 1.0e6, 0.1e6, 3.3e6, 0.2e6, 0.0))):
        where = {"rank": rank, "device": rank, "process": rank + 1, "rule": "pattern"}
        for step, state in enumerate(_STATES):
            longer = 5e6 * (state == "outlier") + 8e7 * (state == "warmup")
            steps.append(step_row("", step, (parts[0], parts[1] + longer, *parts[2:]), state=state, **where))
        late = {"profiler": "nsys", "subject": f"rank {rank} step 21"}
        metrics.append(metric_row("", "step_outlier_communication", 5e6, **late))
    metrics += step_metrics("", 16.6e6, ranks=(16.6e6, 16.6e6))
    metrics.append(metric_row("", "step_coverage", 98.0, "%", profiler="nsys"))
    return step_tables(kernels=kernels, metrics=metrics, steps=steps), {"name": "ddp", "is_run": False}
