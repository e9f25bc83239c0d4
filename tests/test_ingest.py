"""Which parser reads a file, which files are refused, and which case and profiler the rows get."""

import gzip
import json
import os
import re
from pathlib import Path

import pytest
import seed_files
from fake_profiler import chrome_trace
from jobs import make_job

from profpipe.ingest import job_tables, kernel_classes, reader
from profpipe.ingest.reader import InputFile, Read, Refusal
from profpipe.job import Case, JobOutcome, Outcome, Status, Tool
from profpipe.results import schema
from profpipe.results.schema import CASES, KERNELS, METRICS, Tables

DATA = Path(__file__).parent / "data"

EVENTS = [
    {"event": "started", "profiler": "plain", "pid": 1, "time": 1.0, "machine": {}, "torch": "2.13.0"},
    {"event": "case_started", "case": "n=1", "params": {"n": 1}, "time": 1.0},
    {"event": "expects", "case": "n=1", "family": "fa2"},
    {"event": "samples", "case": "n=1", "unit": "ns", "clock": "perf_counter", "values": [5.0, 7.0, 6.0]},
    {"event": "case_ended", "case": "n=1", "status": "ok", "reason": "", "seconds": 0.5, "flags": []},
    {"event": "case_started", "case": "n=2", "params": {"n": 2}, "time": 2.0},
]


def written(folder, events=EVENTS):
    path = folder / "job.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def read(path, **known):
    (result,) = reader.ingest([InputFile(path, path.name, **known)])
    return result


def test_a_file_is_known_by_its_content_and_not_by_its_name(tmp_path):
    path = written(tmp_path).rename(tmp_path / "profile.sqlite")
    result = read(path)
    assert isinstance(result, Read) and result.parser == "events"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is a Git LFS pointer"),
        (b"<html><body>404</body></html>", "is in no format that profpipe reads"),
        (b"\x00\x01\x02" * 100, "is in no format that profpipe reads"),
        (gzip.compress(b"SQLite format 3\0" + bytes(100), mtime=0), "is compressed"),
    ],
)
def test_a_file_that_holds_no_profile_is_refused_with_what_and_remedy(tmp_path, content, what):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    result = read(path)
    assert isinstance(result, Refusal) and result.what.startswith(what) and result.remedy
    assert len(str(result).splitlines()) == 1


@pytest.mark.parametrize(
    ("formats", "parser"),
    [
        ("nsys (stats|trace)", "nsys_csv"),
        ("nsys (SQLite|Parquet)", "nsys_sqlite"),
        ("ncu", "ncu_csv"),
        ("torch trace", "torch_trace"),
        ("rocprof v[123], (CSV|kernels|markers|copies|counters)", "rocprof_csv"),
        ("rocprof v[13], stats", "rocprof_stats"),
        ("rocprof v[13], JSON", "rocprof_json"),
        ("rocpd|rocprof v1, database", "rocpd"),
        ("job.jsonl", "events"),
        ("hook", "hook"),
    ],
)
def test_each_format_is_known_by_its_parser_alone(tmp_path, formats, parser):
    known = reader.parsers()
    names = [name for name in seed_files.FORMATS if re.match(formats, name)]
    for name in names:
        path = seed_files.write(tmp_path, name)
        able = [each for each in known if path.is_file() or getattr(each, "READS_FOLDERS", False)]
        assert [reader.name_of(each) for each in able if each.sniff(path)] == [parser], name
    assert names


@pytest.mark.parametrize(
    "text",
    [
        "", '"', "NVR", "QDREP", "{}", '{"kernels": []}', "Name,Value\na,1\n", "<html><body>404</body></html>",
        "[rocprofv3] Fatal error: Command died\n", "PID,TID,DevId,Count,API Name,Kernel Name\n", "\0\1\2",
        "SQLite format 3\0", "\x1f\x8b not a zip", '[{"event": "started"}]', "version https://git-lfs.github.com/spec/v1\n",
    ],
)  # fmt: skip
def test_no_parser_takes_what_it_does_not_know(tmp_path, text):
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="latin-1")
    assert not [reader.name_of(each) for each in reader.parsers() if each.sniff(path)]


def test_a_missing_file_is_refused_and_the_others_are_still_read(tmp_path):
    path = written(tmp_path)
    results = list(reader.ingest([InputFile(tmp_path / "gone", "gone"), InputFile(path, path.name)]))
    assert isinstance(results[0], Refusal) and isinstance(results[1], Read)


def test_a_pipe_is_not_waited_for_and_a_folder_is_called_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    pipe, folder = (
        str(result) for result in reader.ingest(InputFile(tmp_path / name, name) for name in ("pipe", "folder"))
    )
    assert "is neither a file nor a folder" in pipe and "Name the files in it" in folder


def test_rows_carry_the_run_the_workload_and_the_file(tmp_path):
    result = read(written(tmp_path), run="r", workload="attention", profiler="plain")
    assert set(result.tables.cases["run"]) == {"r"} and set(result.tables.metrics["workload"]) == {"attention"}


def test_a_users_parser_comes_before_the_shipped_ones(tmp_path):
    (tmp_path / "parsers").mkdir()
    (tmp_path / "parsers" / "events.py").write_text(
        "from profpipe.results import schema as tables\nFORMATS = ('mine',)\n"
        "def sniff(path): return True\n"
        "def parse(path): return tables.Tables(origin=tables.Origin(format='mine'))\n"
    )
    (result,) = reader.ingest([InputFile(written(tmp_path), "x")], pipeline_dir=tmp_path)
    assert result.tables.origin.format == "mine"


def test_files_with_the_same_name_are_separate_workloads_and_a_file_given_twice_is_read_once(tmp_path):
    places = [tmp_path / "a" / "x" / "capture.sqlite", tmp_path / "b" / "x" / "capture.sqlite", tmp_path / "other.csv"]
    again = tmp_path / "b" / ".." / "a" / "x" / "capture.sqlite"
    (tmp_path / "b").mkdir()
    names = [source.workload for source in reader.sources_of_paths([*places, again])]
    assert names == ["a/x/capture.sqlite", "b/x/capture.sqlite", "other.csv"]


def outcome(folder, status="ok", reason="", ended=(), script=Path("/w.py"), profiler="plain", command=()):
    cases = (Case("n=1", {"n": 1}), Case("n=2", {"n": 2}), Case("n=3", {"n": 3}))
    job = make_job(
        workload="w", profiler=profiler, cases=cases if script else cases[:1], folder=folder, tool=Tool(profiler, ""),
        python="python", cwd=folder, script=script, command=command,
    )  # fmt: skip
    files = {folder / "job.jsonl": ""}
    end = Outcome(Status(status), details=reason)
    ends = {case: Outcome(Status(status), details=reason) for case, status, reason in ended}
    return JobOutcome(job, end, seconds=3.5, last_s=2.0, files=files, case_outcomes=ends)


def statuses(data):
    return dict(zip(data.cases["case"], data.cases["status"], strict=True))


def test_what_the_runner_saw_of_a_case_comes_before_what_its_process_wrote(tmp_path):
    result = read(written(tmp_path), workload="w", profiler="plain")
    ended = (("n=2", "timeout", "after 9 s"), ("n=3", "timeout", "after 9 s"))
    fates = job_tables.case_rows(outcome(tmp_path, "timeout", "after 9 s", ended), "r", result.tables.cases)
    assert statuses(job_tables.replace_cases(result.tables, fates)) == {"n=1": "ok", "n=2": "timeout", "n=3": "timeout"}


def test_a_case_that_was_never_tried_is_not_passed_over(tmp_path):
    result = read(written(tmp_path, EVENTS[:5]), workload="w", profiler="plain")
    fates = job_tables.case_rows(outcome(tmp_path), "r", result.tables.cases)
    assert statuses(fates) == {"n=2": "failed", "n=3": "failed"}
    assert "without trying this case" in fates.cases["reason"][0]


def test_a_case_that_the_runner_ended_has_the_parameters_that_its_process_recorded(tmp_path):
    started = {"event": "case_started", "case": "n=2", "params": {"n": 2, "dtype": "fp16"}, "time": 1.0}
    with (tmp_path / "job.jsonl").open("w") as stream:
        stream.write(json.dumps(started) + "\n")
    fates = job_tables.case_rows(outcome(tmp_path, "crashed", "killed"), "r", schema.empty(CASES))
    params = dict(zip(fates.cases["case"], map(json.loads, fates.cases["params"]), strict=True))
    assert params == {"n=1": {"n": 1}, "n=2": {"n": 2, "dtype": "fp16"}, "n=3": {"n": 3}}


def test_a_skipped_job_gives_each_case_a_row_with_the_reason(tmp_path):
    fates = job_tables.case_rows(outcome(tmp_path, "skipped", "no ncu. Install it."), "r", schema.empty(CASES))
    assert statuses(fates) == {"n=1": "skipped", "n=2": "skipped", "n=3": "skipped"}
    assert set(fates.cases["reason"]) == {"no ncu. Install it."} and fates.cases["seconds"].isna().all()


def test_the_wall_time_of_a_command_stands_beside_the_numbers_of_its_steps(tmp_path):
    ended = outcome(tmp_path, script=None, command=("true",))
    assert statuses(job_tables.case_rows(ended, "r", schema.empty(CASES))) == {"n=1": "ok"}
    key = {"run": "r", "workload": "w", "case": "n=1", "profiler": "plain"}
    steps = Tables(metrics=schema.frame(METRICS, [{**key, "metric": "time", "value": 1.0}]))
    metrics = job_tables.add_process_wall(steps, ended, "r").metrics
    assert dict(zip(metrics["metric"], metrics["value"], strict=True)) == {"time": 1.0, "process_wall": 2e9}
    assert job_tables.add_process_wall(steps, outcome(tmp_path), "r") is steps


def test_the_whole_file_of_a_command_belongs_to_its_case(tmp_path):
    result = read(DATA / "nsys-2025.3.1" / "training" / "lm_eager.sqlite", case="size=small")
    assert set(result.tables.kernels["case"]) == {"size=small"}
    assert result.tables.origin.unattributed_ns == 0


def test_rows_of_a_second_try_take_the_place_of_the_firsts():
    key = {"workload": "w", "profiler": "plain", "case": "n=1"}
    old = Tables(
        cases=schema.frame(CASES, [{**key, "status": "crashed"}, {**key, "case": "n=2", "status": "ok"}]),
        metrics=schema.frame(METRICS, [{**key, "metric": "time", "value": 1.0}]),
    )
    new = Tables(
        cases=schema.frame(CASES, [{**key, "status": "ok"}]),
        metrics=schema.frame(METRICS, [{**key, "metric": "time", "value": 2.0}]),
    )
    merged = job_tables.replace_cases(old, new)
    assert statuses(merged) == {"n=1": "ok", "n=2": "ok"}
    assert merged.metrics["value"].tolist() == [2.0]


def test_a_users_rules_decide_the_class(tmp_path):
    rules = kernel_classes.user_rules([{"pattern": "gemm", "class": "conv", "family": "mine"}])
    path = DATA / "nsys-2025.3.1" / "training" / "lm_eager.sqlite"
    (result,) = reader.ingest([InputFile(path, path.name)], rules=rules)
    found = result.tables.kernels
    assert set(found[found["kernel"].str.contains("gemm")]["kernel_class"]) == {"conv"}


def test_expectations_are_read_past_a_line_cut_by_a_kill(tmp_path):
    path = written(tmp_path)
    with path.open("a") as stream:
        stream.write('{"event": "case_en')
    assert job_tables.expected_families(path) == {"n=1": "fa2"}
    assert job_tables.expected_families(tmp_path / "none") == {}


def test_an_attempt_that_was_cut_off_counts_for_no_case_and_no_time_is_lost(tmp_path):
    path = chrome_trace(tmp_path / "trace.json", {"n=1": 10.0, "n=2": 20.0})
    (result,) = reader.ingest([InputFile(path, path.name, set_aside=frozenset({"n=2"}))])
    rest, origin = result.tables, result.tables.origin
    assert dict(zip(rest.kernels["case"], rest.kernels["total_ns"], strict=True)) == {"n=1": 10e3, "": 20e3}
    assert rest.ranges["case"].tolist() == ["n=1"] and set(rest.timeline["case"]) == {"n=1"}
    assert (origin.attributed_ns, origin.unattributed_ns, origin.total_ns) == (10e3, 20e3, 30e3)
    assert origin.details[-1] == "an attempt that was cut off is set aside: n=2"


def test_rows_of_an_earlier_attempt_are_replaced_from_every_file(tmp_path):
    key = {"workload": "w", "profiler": "plain", "kernel": "k"}
    sources = {"raw/w/plain/capture.sqlite": 0, "raw/w/plain-other/capture.sqlite": 1, "raw/v/plain/x.sqlite": 1}
    rows = [{**key, "case": "n=1", "source": source} for source in sources]
    rows[2]["workload"] = "v"
    cases = [{"workload": "w", "profiler": "plain", "case": case, "status": "ok"} for case in ("n=1", "n=9")]
    stored = Tables(cases=schema.frame(CASES, cases), kernels=schema.frame(KERNELS, rows))
    left = job_tables.drop_folder(stored, "raw/w/plain", ("w", "plain", ["n=1"]))
    assert left.kernels["source"].tolist() == [source for source, stays in sources.items() if stays]
    assert left.cases["case"].tolist() == ["n=9"]
    assert left.metrics is stored.metrics


def test_the_rows_of_a_folder_go_and_what_is_named_like_it_stays():
    sources = ["raw/w/ncu/guided-1/x.csv", "raw/w/ncu/guided-12/x.csv", ""]
    rows = [{"workload": "w", "profiler": "ncu", "kernel": "k", "case": "n=1", "source": source} for source in sources]
    stored = Tables(kernels=schema.frame(KERNELS, rows))
    left = job_tables.drop_folder(stored, "raw/w/ncu/guided-1")
    assert left.kernels["source"].tolist() == sources[1:] and left.metrics is stored.metrics


def test_kernels_of_a_further_job_are_added_to_those_of_their_case():
    own = {"workload": "w", "profiler": "ncu", "case": "a"}

    def tables_of(kernel, value, status, source):
        kernels_ = [{**own, "kernel": kernel, "calls": 1, "total_ns": value, "source": source}]
        metrics = [{**own, "subject": subject, "metric": "m", "value": value} for subject in ("", kernel)]
        return Tables(
            cases=schema.frame(CASES, [{**own, "status": status}]),
            kernels=schema.frame(KERNELS, kernels_),
            metrics=schema.frame(METRICS, metrics),
        )

    stored = tables_of("k1", 1.0, "ok", "first")
    for value in (5.0, 2.0):  # a second try takes the place of the first
        stored = job_tables.add_kernels(stored, tables_of("k2", value, "failed", "alone"))
    assert stored.kernels.set_index("kernel")["total_ns"].to_dict() == {"k1": 1.0, "k2": 2.0}
    assert stored.metrics.set_index("subject")["value"].to_dict() == {"": 1.0, "k1": 1.0, "k2": 2.0}
    assert stored.cases["status"].tolist() == ["ok"]


def test_the_merge_keeps_every_column_of_the_tables():
    merged = job_tables.replace_cases(Tables(), Tables(kernels=schema.frame(KERNELS, [{"kernel": "k", "calls": 1}])))
    assert list(merged.kernels.columns) == KERNELS.names
