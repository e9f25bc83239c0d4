"""Which kernels ncu replays when it is guided by another profiler's capture, and which launch of each."""

import json
import os
import re
import shutil
import sqlite3
import stat
import statistics
import sys
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import forked
import pandas as pd
import pytest
from jobs import change, make_job

from profpipe import plugins
from profpipe.ingest import kernel_classes as kernels, launch_tables
from profpipe.job import Case, Cause, Missing, Status, Tool
from profpipe.profilers import ncu
from profpipe.results import schema, store
from profpipe.results.manifest import Manifest
from profpipe.results.schema import KERNELS, Tables
from profpipe.results.tasks import TaskState
from profpipe.runner import guided_ncu
from profpipe.runner.slurm import records

ROOT = Path(__file__).parents[1]
DATA = Path(__file__).parent / "data" / "nsys-2025.3.1"

CASES = (Case("n=1", {"n": 1}), Case("n=2", {"n": 2}), Case("n=3", {"n": 3}))
JOB = make_job(
    workload="w", profiler="ncu", cases=CASES, folder=Path("/o/raw/w/ncu"), tool=Tool("ncu", "2025.3.1", "ncu"),
    python="python", cwd=Path("/p"), script=Path("/w.py"),
    options={"ncu": {"kernels": "guided", "top": 2, "set": "basic", "sections": [], "exclude": "nccl"}},
)  # fmt: skip


def captured(**cases):
    """Tables in which nsys saw these kernels (name -> ns) in these cases; torch saw others."""
    rows = [
        {"workload": "w", "case": case.replace("_", "="), "profiler": profiler, "kind": "kernel", "kernel": name,
         "calls": 1, "total_ns": float(ns), "source": f"raw/w/{profiler}/{case}"}
        for case, seen in cases.items() for profiler, names in seen.items() for name, ns in names.items()
    ]  # fmt: skip
    return Tables(kernels=schema.frame(KERNELS, rows))


def without_launches(_source):
    """A capture without single launches."""
    return launch_tables.no_launches()


def launched(*rows, case="n=1", iteration=0):
    """Single launches (kernel, grid, duration) of one case, in order."""
    rows = [
        {"case": case, "process": 7, "iteration": iteration, "kernel": kernel, "grid": grid, "block": "128x1x1",
         "start_ns": number, "duration_ns": ns}
        for number, (kernel, grid, ns) in enumerate(rows)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def top_kernels(data):
    return guided_ncu.top_kernels(guided_ncu.captured_kernels(data, JOB, CASES[0]), JOB)


def chosen(job):
    return {choice["kernel"]: choice for choice in json.loads(guided_ncu.guide_text(job))["kernels"]}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # From nsys before torch, without what ncu excludes.
        ({"nsys": {"a": 1, "b": 9, "c": 5}, "torch": {"z": 99}}, ("b", "c")),
        ({"torch": {"z": 99}}, ("z",)),
        ({"nsys": {"ncclDevKernel_AllReduce": 99, "a": 1, "b": 9, "c": 5}}, ("b", "c")),
    ],
)
def test_the_largest_kernels_of_a_case_are_those_of_its_best_capture(seen, expected):
    assert top_kernels(captured(n_1=seen)) == expected


def test_a_job_with_another_choice_has_another_folder():
    once, again, other = (
        guided_ncu.jobs([JOB], captured(n_1={"nsys": seen}), without_launches)[0].folder
        for seen in ({"a": 2}, {"a": 2}, {"b": 2})
    )
    assert once == again != other and once.parent == other.parent == JOB.folder


def test_the_launches_of_one_kernel_in_several_phases_count_together():
    data = captured(n_1={"nsys": {"a": 6, "b": 5}})
    rows = data.kernels.to_dict("records")
    twice = Tables(kernels=schema.frame(KERNELS, [*rows, *rows[1:]]))
    assert top_kernels(twice) == ("b", "a")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (({"a": 2}, {"b": 2}, {"a": 3, "c": 1}), [["n=1", "n=2"], ["n=3"]]),
        # A case that launches what was chosen for another one does not share its process: ncu counts launches over the
        # whole process, so they would move the number of the other's.
        (({"a": 9, "b": 8, "c": 1}, {"c": 9, "d": 8}, {"d": 1}), [["n=1", "n=3"], ["n=2"]]),
    ],
)
def test_cases_that_share_no_kernel_share_a_process_and_others_do_not(seen, expected):
    data = captured(**{f"n_{number}": {"nsys": names} for number, names in enumerate(seen, start=1)})
    made = guided_ncu.jobs([JOB], data, without_launches)
    assert [[case.id for case in job.cases] for job in made] == expected
    assert len({job.folder for job in made}) == 2


def test_a_case_without_a_capture_is_skipped_with_the_remedy():
    made = guided_ncu.jobs([JOB], captured(n_1={"nsys": {"a": 2}}), without_launches)
    left = made[-1]
    assert isinstance(left.tool, Missing) and "nsys or torch" in left.tool.remedy
    assert [case.id for case in left.cases] == ["n=2", "n=3"]


def test_a_job_whose_tool_is_missing_stays_as_it_is():
    missing = change(JOB, tool=Missing("ncu", "not here", "Install it."))
    assert guided_ncu.jobs([missing], Tables(), without_launches) == [missing]
    assert guided_ncu.guide_text(missing) == ""


def test_only_a_guided_ncu_job_waits():
    assert guided_ncu.is_guided(JOB)
    assert not guided_ncu.is_guided(change(JOB, options={"ncu": {"kernels": "all"}}))
    assert not guided_ncu.is_guided(change(JOB, profiler="nsys"))


def filtered(pattern, exclude="nccl", invocations=(1,)):
    """(kernel names' base, what stands before, in and behind the pattern of --kernel-id)."""
    given = {"pattern": pattern, "exclude": exclude, "invocations": list(invocations)}
    argv = ncu.commands(change(JOB, options={"ncu": {**JOB.dump_settings()["ncu"], **given}}))[0].argv
    kernel_id = argv[argv.index("--kernel-id") + 1]
    assert kernel_id.count(":") == 4, "ncu divides it by colons"
    return argv[argv.index("--kernel-name-base") + 1], kernel_id.split(":")


def test_without_single_launches_in_the_capture_the_first_launch_is_chosen():
    (job, *_) = guided_ncu.jobs([JOB], captured(n_1={"nsys": {"at::add_kernel<int>": 2}}), without_launches)
    assert chosen(job)["at::add_kernel<int>"] == {
        "case": "n=1", "kernel": "at::add_kernel<int>", "invocation": 1, "grid": "", "block": "", "alike": [],
        "launches": None, "share": None,
    }  # fmt: skip
    own = job.dump_settings()["ncu"]
    base, (context, stream, operator, pattern, invocation) = filtered(own["pattern"], invocations=own["invocations"])
    assert (base, context, stream, operator, invocation) == ("demangled", "", "", "regex", "1")
    assert re.search(pattern, "void at::add_kernel<int>(int)") and not re.search(pattern, "void at::sub_kernel(int)")
    assert not re.search(pattern, "ncclDevKernel at::add_kernel<int>(int)")


#: The numbers of one training step on an H200: torch's copy in its largest grid first, then in smaller ones.
COPIES = [("a", "16384x1x1", 24800), *[("a", "2048x1x1", ns) for ns in (6100, 6000, 6050, 6025, 6200)]]
#: cuBLAS runs one kernel in one grid on sums of different lengths; their median is like neither.
LENGTHS = [("a", "32x4x1", ns) for ns in (34049, 121473, 34400, 122592, 34432, 122657, 34784, 123168)]
ITERATIONS = pd.concat(
    [
        launched(("a", "1x1x1", 90), ("a", "2x1x1", 1)),
        launched(("a", "1x1x1", 10), ("a", "2x1x1", 50), ("a", "2x1x1", 50), iteration=1),
        launched(("a", "3x1x1", 1000)).assign(process=8),
    ]
)


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        # The grid with the most time, and of one grid the launches that are alike.
        (launched(*COPIES), (4, "2048x1x1", [2, 3, 4, 5, 6], 6, 30375 / 55175)),
        (launched(*LENGTHS), (4, "32x4x1", [2, 4, 6, 8], 8, 489890 / 627555)),
        # The last iteration of one process.
        (ITERATIONS, (2, "2x1x1", [2, 3], 3, 100 / 110)),
        # Older traces of torch have whole microseconds, of which a short kernel takes none.
        (launched(*[("a", "1x1x1", 0)] * 3), (1, "1x1x1", [1, 2, 3], 3, 1.0)),
    ],
)
def test_a_launch_of_those_that_take_the_most_time_is_chosen(launches, expected):
    (job, *_) = guided_ncu.jobs([JOB], captured(n_1={"nsys": {"a": 1}}), lambda _: launches)
    choice = chosen(job)["a"]
    *others, share = (choice[name] for name in ("invocation", "grid", "alike", "launches", "share"))
    assert tuple(others) == expected[:-1] and share == pytest.approx(expected[-1], abs=1e-4)


def test_a_capture_is_read_once_for_all_its_cases():
    read = []

    def read_source(source):
        read.append(source)
        return pd.concat([launched(("a", "1x1x1", 1)), launched(("b", "1x1x1", 1), case="n=2")])

    data = captured(n_1={"nsys": {"a": 1}}, n_2={"nsys": {"b": 1}})
    one_file = Tables(kernels=data.kernels.assign(source="raw/w/nsys/capture.sqlite"))
    guided_ncu.jobs([JOB], one_file, read_source)
    assert read == ["raw/w/nsys/capture.sqlite"]


def test_a_command_is_one_iteration_outside_any_case():
    own = change(JOB, script=None, command=("train",), cases=CASES[:1])
    launches = launched(("a", "1x1x1", 5), ("a", "1x1x1", 7), ("a", "1x1x1", 6), case="")
    (job,) = guided_ncu.jobs([own], captured(n_1={"nsys": {"a": 1}}), lambda _: launches)
    assert (chosen(job)["a"]["case"], chosen(job)["a"]["invocation"]) == ("n=1", 3)


def test_several_invocations_are_one_expression_without_a_colon():
    _, (*_, one) = filtered("a", invocations=[7])
    _, (*_, several) = filtered("a", invocations=[1, 5, 17])
    assert one == "7"
    found = [number for number in range(1, 200) if re.search(several, str(number))]
    assert found == [1, 5, 17] and ":" not in several


def test_a_dry_run_names_no_launch():
    argv = ncu.commands(guided_ncu.preview(JOB))[0].argv
    assert argv[argv.index("--kernel-id") + 1].endswith("2 largest kernels of each case):one launch of each")


def test_template_shapes_are_not_part_of_a_pattern():
    options = {**JOB.dump_settings()["ncu"], "pattern": "a", "invocations": [1]}
    argv = ncu.commands(change(JOB, options={"ncu": options}))[0].argv
    assert "--filter-mode" not in argv, "per-launch-config takes one kernel of those launched in one shape"


def test_a_pattern_with_colons_finds_the_same_names_without_them():
    _, (*_, pattern, _) = filtered("(?:at::a_kernel)|b_kernel", exclude="nccl::|(?:nvshmem)")
    assert all(re.search(pattern, name) for name in ("void at::a_kernel(int)", "b_kernel"))
    assert not any(re.search(pattern, name) for name in ("nccl::b_kernel", "nvshmem_b_kernel", "at::c_kernel"))


@pytest.mark.parametrize("recording", sorted(DATA.glob("*/*.sqlite")), ids=lambda path: path.stem)
def test_a_pattern_finds_its_kernel_among_real_names_and_few_others(recording):
    rows = sqlite3.connect(recording).execute(
        "select distinct s.value from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.demangledName"
    )
    names = [name for (name,) in rows]
    found = {name: [n for n in names if re.search(guided_ncu.pattern([kernels.normalise(name)]), n)] for name in names}
    assert all(name in hits for name, hits in found.items())
    assert sum(map(len, found.values())) <= 1.5 * len(names)


def test_several_kernels_are_one_pattern():
    pattern = guided_ncu.pattern(["at::a_kernel<float>", "b_kernel"])
    assert all(re.search(pattern, name) for name in ("void at::native::a_kernel<float>(int)", "b_kernel(int)"))
    assert not re.search(pattern, "ab_kernel")


# --- with recorded captures ------------------------------------------------------------------------------------------


@pytest.fixture
def steps(tmp_path):
    """A recorded training step, three times over, with the ranges that the harness would have opened around each."""
    path = tmp_path / "steps.sqlite"
    shutil.copyfile(DATA / "training" / "lm_eager.sqlite", path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("update NVTX_EVENTS set text = 'profpipe:n=1' where text like 'step\\_%' escape '\\'")
        database.commit()
    return path


def counted(path):
    """By kernel: (grid, block, ns) of its launches in the last step, in the order of the calls, by SQL alone.

    A step has all work that any thread of the process launched between the begin and the end of its range.
    """
    rows = sqlite3.connect(path).execute(
        """
        select s.value, k.gridX || 'x' || k.gridY || 'x' || k.gridZ, k.blockX || 'x' || k.blockY || 'x' || k.blockZ,
            k.end - k.start
        from CUPTI_ACTIVITY_KIND_KERNEL k
        join StringIds s on s.id = k.demangledName
        join CUPTI_ACTIVITY_KIND_RUNTIME r on r.correlationId = k.correlationId
        join (select start, end from NVTX_EVENTS where text = 'profpipe:n=1' order by start desc limit 1) step
            on r.start >= step.start and r.end <= step.end
        order by r.start
        """
    )
    found = defaultdict(list)
    for name, *launch in rows:
        found[kernels.normalise(name)].append(tuple(launch))
    return found


def test_ordinals_and_shapes_are_those_that_sql_counts_in_the_last_step_of_a_real_capture(steps):
    parser = plugins.load_module(plugins.builtin_folder("parsers") / "nsys_sqlite.py")
    options = {"ncu": {**JOB.dump_settings()["ncu"], "top": 40}}
    data = parser.parse(steps).set_columns(workload="w", profiler="nsys", source="raw/steps")
    (job,) = guided_ncu.jobs([change(JOB, cases=CASES[:1], options=options)], data, lambda _: parser.launches(steps))
    truth = counted(steps)
    assert sum(map(len, truth.values())) == 241 and len(chosen(job)) == len(truth)
    for name, choice in chosen(job).items():
        seen = truth[name]
        alike = [seen[number - 1] for number in choice["alike"]]
        grid, block, ns = seen[choice["invocation"] - 1]
        assert (grid, block) == (choice["grid"], choice["block"]) and choice["launches"] == len(seen)
        assert {launch[:2] for launch in alike} == {(grid, block)} and choice["invocation"] in choice["alike"]
        middle = statistics.median(launch[2] for launch in alike)
        assert abs(ns - middle) == min(abs(launch[2] - middle) for launch in alike)
        whole = sum(launch[2] for launch in seen)
        assert choice["share"] == pytest.approx(sum(launch[2] for launch in alike) / whole, abs=1e-4)
    assert list(job.guided.invocations) == sorted({choice["invocation"] for choice in chosen(job).values()})


# --- what ncu left out -----------------------------------------------------------------------------------------------


def profiled(data, *kernels, case="n=1"):
    """``data`` with what ncu saw of a case."""
    rows = [
        {"workload": "w", "case": case, "profiler": "ncu", "kind": "kernel", "kernel": name, "calls": 1,
         "total_ns": 1.0, "source": "raw/w/ncu/guided-1/capture.ncu-rep"}
        for name in kernels
    ]  # fmt: skip
    return replace(data, kernels=pd.concat([data.kernels, schema.frame(KERNELS, rows)], ignore_index=True))


def test_a_kernel_that_ncu_left_out_gets_a_separate_job():
    data = captured(n_1={"nsys": {"a": 9, "b": 8}}, n_2={"nsys": {"c": 9, "d": 8}})
    (job, *_) = guided_ncu.jobs(
        [JOB], data, lambda _: launched(("a", "1x1x1", 9), ("b", "1x1x1", 1), ("b", "2x1x1", 7))
    )
    (again,) = guided_ncu.missed_kernels([job], profiled(profiled(data, "a"), "c", "d", case="n=2"))
    assert chosen(again) == {"b": chosen(job)["b"]} and [case.id for case in again.cases] == ["n=1"]
    assert again.folder.parent == job.folder.parent and again.folder != job.folder
    assert guided_ncu.adds_kernels(again) and not guided_ncu.adds_kernels(job)
    own = again.dump_settings()["ncu"]
    _, (*_, pattern, invocation) = filtered(own["pattern"], invocations=own["invocations"])
    assert invocation == "2" and re.search(pattern, "b(int)") and not re.search(pattern, "a(int)")


def test_ncu_runs_once_if_it_found_all_kernels_or_none():
    data = captured(n_1={"nsys": {"a": 9, "b": 8}})
    made = guided_ncu.jobs([JOB], data, without_launches)
    assert guided_ncu.missed_kernels(made, profiled(data, "a", "b")) == []
    assert guided_ncu.missed_kernels(made, data) == [], "the job failed as a whole"
    assert guided_ncu.missed_kernels(made, profiled(data, "a", "b", case="")) == [], (
        "a command of the user's opens no case's range"
    )


def test_the_kernels_of_a_failed_case_get_no_further_job():
    data = captured(n_1={"nsys": {"a": 300, "b": 200}})
    made = guided_ncu.jobs([JOB], data, without_launches)
    missed = guided_ncu.missed_kernels(made, profiled(data, "a"))
    assert [job.guided.chosen[0].kernel for job in missed] == ["b"]
    rows = [{"workload": "w", "case": "n=1", "profiler": "ncu", "status": "timeout"}]
    failed = replace(profiled(data, "a"), cases=schema.frame(schema.CASES, rows))
    assert guided_ncu.missed_kernels(made, failed) == []


def test_cases_with_an_unchanged_choice_stay_in_their_job():
    """A case that had no capture then has one now: it does not draw those that are done into another process."""
    one, both = {"n_1": {"nsys": {"a": 300}}}, {"n_1": {"nsys": {"a": 300}}, "n_2": {"nsys": {"b": 300}}}
    first = guided_ncu.jobs([JOB], captured(**one), without_launches)
    assert [job.folder.name for job in first][1:] == ["unguided"]
    earlier = {JOB.folder: [guided_ncu.chosen(first[0])]}
    again = guided_ncu.jobs([JOB], captured(**both), without_launches, earlier)
    assert [[case.id for case in job.cases] for job in again] == [["n=1"], ["n=2"], ["n=3"]]
    assert again[0] == first[0]
    together = guided_ncu.jobs([JOB], captured(**both), without_launches)
    assert [[case.id for case in job.cases] for job in together] == [["n=1", "n=2"], ["n=3"]]
    otherwise = captured(n_1={"nsys": {"c": 300}}, n_2={"nsys": {"b": 300}})
    assert guided_ncu.jobs([JOB], otherwise, without_launches, earlier) == guided_ncu.jobs(
        [JOB], otherwise, without_launches
    )


# --- a whole run -----------------------------------------------------------------------------------------------------

#: Stand-ins for the two tools, for both need a GPU: they run the workload, and their files were recorded on an H200.
NSYS = """
import shutil, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("NVIDIA Nsight Systems version 2025.3.1.0")
elif words[0] == "export":
    shutil.copyfile(sys.argv[0] + ".sqlite", words[words.index("-o") + 1])
else:
    open(words[words.index("-o") + 1], "w").write("report")
    at = words.index("-m")
    sys.exit(subprocess.run(words[at - 1:]).returncode)
"""
NCU = """
import shutil, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("Version 2025.3.1.0 (build 36398880)")
elif "|" not in words[words.index("--kernel-id") + 1]:
    print("==WARNING== No kernels were profiled.")
else:
    shutil.copyfile(sys.argv[0] + ".ncu-rep", words[words.index("-o") + 1])
    at = words.index("-m")
    sys.exit(subprocess.run(words[at - 1:]).returncode)
"""
PIPELINE = """
version: 1
name: guided
defaults: {profilers: [nsys, ncu], warmup: 0, repeats: 1, ncu: {kernels: guided, top: 3}}
workloads:
  sdpa: {script: sdpa.py}
"""


@pytest.fixture
def sdpa(tmp_path, shared_data):
    """A recorded capture in which every kernel has ten launches of one duration, and cuDNN's first takes a tenth more.

    ncu's report of the same program has two launches of each of its three kernels, as the list 1, 2 would give.
    """
    path = tmp_path / "sdpa.sqlite"
    shutil.copyfile(shared_data / "h200" / "sdpa_capture_range.sqlite", path)
    with closing(sqlite3.connect(path)) as database:
        whole = "(select min(start) from NVTX_EVENTS), end = (select max(end) + 1000000000 from NVTX_EVENTS)"
        database.execute("delete from NVTX_EVENTS where rowid > 1")
        database.execute(f"update NVTX_EVENTS set text = 'profpipe:default', textId = null, start = {whole}")
        database.execute("update CUPTI_ACTIVITY_KIND_KERNEL set end = start + 1000")
        named = "demangledName in (select id from StringIds where value like ?)"
        for name in ("%flash_fwd_kernel%", "fmha_cutlassF%", "cudnn_generated%"):
            database.execute(f"update CUPTI_ACTIVITY_KIND_KERNEL set end = start + 100000 where {named}", [name])
        first = f"(select min(rowid) from CUPTI_ACTIVITY_KIND_KERNEL where {named})"
        slower = f"update CUPTI_ACTIVITY_KIND_KERNEL set end = end + 10000 where rowid = {first}"
        database.execute(slower, ["cudnn_generated%"])
        database.commit()
    return path


def profpipe(folder, *arguments):
    path = f"{folder / 'tools'}{os.pathsep}{os.environ['PATH']}"
    paths = f"{ROOT}{os.pathsep}{Path(__file__).parent / 'no_torch'}"
    return forked.run(folder, *arguments, env={**os.environ, "PATH": path, "PYTHONPATH": paths})


@pytest.fixture
def guided_run(tmp_path, sdpa, shared_data):
    """Runs the pipeline with the stand-ins: (its folder, its tables, its record, what it printed)."""
    pytest.importorskip("ncu_report", reason="the package ncu-report is not installed")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, program in (("nsys", NSYS), ("ncu", NCU)):
        (tools / name).write_text(f"#!{sys.executable}\n{program}")
        (tools / name).chmod(stat.S_IRWXU)
    sdpa.rename(tools / "nsys.sqlite")
    shutil.copyfile(shared_data / "h200" / "sdpa_basic.ncu-rep", tools / "ncu.ncu-rep")
    (tmp_path / "sdpa.py").write_text("def build(params):\n    return lambda: None\n")
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)

    def run(*options):
        done = profpipe(tmp_path, "run", *options)
        folder = (tmp_path / "out" / "latest").resolve()
        return folder, *store.load(folder), done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_a_kernel_that_is_not_in_ncus_report_is_profiled_once_more_and_alone(guided_run):
    """The recorded report has three of the four. Asked for one kernel, the stand-in profiles none, as ncu would."""
    folder, data, record, printed = guided_run("--set", "defaults.ncu.top=4")
    seen = data.kernels[data.kernels["profiler"] == "ncu"]
    assert seen["calls"].tolist() == [1, 1, 1], printed
    assert len(data.metrics[(data.metrics["profiler"] == "ncu") & (data.metrics["subject"] != "")]) > 10
    first, alone = [job for job in record.jobs if job.profiler == "ncu"]
    choices = [json.loads((folder / job.folder / "guide.json").read_text())["kernels"] for job in (first, alone)]
    assert [len(kernels) for kernels in choices] == [4, 1]
    assert choices[1][0] in choices[0] and choices[1][0]["kernel"] not in set(seen["kernel"])
    assert (first.status, alone.status) == ("ok", "failed")
    assert data.cases[data.cases["profiler"] == "ncu"]["status"].tolist() == ["ok"]


@pytest.mark.slow
def test_a_run_shows_only_the_launches_that_its_capture_chose(guided_run):
    folder, data, record, printed = guided_run()
    seen = data.kernels[data.kernels["profiler"] == "ncu"].set_index("kernel_family")
    assert seen["calls"].tolist() == [1, 1, 1], printed
    assert seen["total_ns"].to_dict() == {"fa2": 784000, "cudnn": 423264, "cutlass_fmha": 1604224}
    (job,) = [job for job in record.jobs if job.profiler == "ncu"]
    (kernel_id,) = [word for word in job.argv[0] if word.startswith("::regex:")]
    assert kernel_id.endswith(":^(1|2)$")
    guide = json.loads((folder / job.folder / "guide.json").read_text())
    choices = {entry["kernel"].startswith("cudnn"): entry["invocation"] for entry in guide["kernels"]}
    assert choices == {True: 2, False: 1} and {entry["launches"] for entry in guide["kernels"]} == {10}
    summary = (folder / "details.md").read_text()
    assert summary.count("launch 1 of 10 of") == 2 and summary.count("launch 2 of 10 of cudnn") == 1
    assert "launches left out: 3" in summary


@pytest.mark.slow
def test_a_job_that_another_job_has_replaced_is_removed_from_the_record(guided_run, tmp_path):
    """As where a case had no capture for want of room, and a run that went on made it."""
    folder, _, record, _ = guided_run()
    (job,) = [job for job in record.jobs if job.profiler == "ncu"]
    stood = replace(job, folder=f"{Path(job.folder).parent}/unguided", status=Status.SKIPPED, reason="no capture")
    shutil.rmtree(folder / Path(job.folder))
    left = [entry for entry in record.jobs if entry != job]
    replace(record, jobs=(*left, stood), ended=None).save(folder)
    done = profpipe(tmp_path, "resume", str(folder))
    assert done.returncode == 0, done.stderr
    data, record = store.load(folder)
    assert [entry.folder for entry in record.jobs if entry.profiler == "ncu"] == [job.folder]
    assert (data.kernels["profiler"] == "ncu").sum() == 3
    assert "no capture" not in (folder / "SUMMARY.md").read_text()


@pytest.mark.slow
def test_a_job_for_one_kernel_that_a_full_disk_stopped_runs_again(guided_run, tmp_path):
    folder, _, record, _ = guided_run("--set", "defaults.ncu.top=4")
    alone = next(job for job in record.jobs if job.profiler == "ncu" and job.status == "failed")
    replace(record.with_job(replace(alone, cause=Cause.DISK_FULL)), ended=None).save(folder)
    profpipe(tmp_path, "resume", str(folder))
    again = Manifest.load(folder)
    (entry,) = [job for job in again.jobs if job.folder == alone.folder]
    assert entry.cause is not Cause.DISK_FULL and again.ended


@pytest.mark.slow
def test_a_task_that_slurm_starts_again_does_not_profile_its_kernels_again(guided_run, tmp_path):
    """sbatch is a stand-in, which runs nothing."""
    tools = tmp_path / "tools"
    (tools / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tools / "sbatch").chmod(stat.S_IRWXU)
    folder, *_ = guided_run("--slurm")
    profpipe(tmp_path, "task", str(folder), "0")
    first = records.read_records(folder)[0]
    running = replace(first.task, state=TaskState.RUNNING)
    replace(first, manifest=replace(first.manifest, tasks=(running,))).save(folder)
    profpipe(tmp_path, "task", str(folder), "0")
    again = records.read_records(folder)[0]
    assert (again.task.attempt, again.task.state) == (2, TaskState.DONE)
    assert [job.profiler for job in first.manifest.jobs].count("ncu") == 1
    assert [job.folder for job in again.manifest.jobs] == [job.folder for job in first.manifest.jobs]
    assert again.tables["kernels"] == first.tables["kernels"]
