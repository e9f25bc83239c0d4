"""report.html has a page for each case, with what the tables and the raw files hold of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from report_study import every_table

from profpipe.analysis import analyze
from profpipe.commands import rendering
from profpipe.report import html_page as page, render
from profpipe.report.document import Chart, ChartKind, CodeBlock, plain
from profpipe.report.pages import paginate
from profpipe.report.sections import case_pages
from profpipe.report.text import write_section, write_text
from profpipe.results import raw_files, store
from profpipe.results.manifest import JobEntry, Manifest

ROOT = Path(__file__).resolve().parents[1]


def document_of(example, raw=None):
    data, run = store.load(ROOT / "examples" / example)
    return render.build(analyze.analyze(data, run), data, run, raw or render.NO_RAW_FILES)


@pytest.fixture(scope="module")
def attention():
    return document_of("h200-attention")


def page_of(document, case):
    return next(page for page in document.cases if page.id == case)


FA2 = "impl=fa2,mode=fwd,batch=2,heads=16,seqlen=8192"


def test_every_case_has_a_page_with_its_figures_and_those_alone(attention):
    page = page_of(attention, FA2)
    assert len(attention.cases) == 42
    assert plain(page.title) == "mode fwd, seqlen 8192, fa2"
    figures = next(table for table in every_table(page) if table.id == "figures")
    values = {plain(name.text): write_text(value.text) for name, value in figures.rows}
    section = attention.section("cases", "attention")
    assert section is not None
    wanted = ["fwd", "8192", "fa2"]
    times = next(
        {column.id: cell.number(column) for column, cell in zip(table.columns, row, strict=True)}
        for table in every_table(section)
        for row in table.rows
        if [plain(cell.text) for cell in row[:3]] == wanted and "interval" in {column.id for column in table.columns}
    )
    assert values["time"].split()[0] == times["time"] and values["TFLOP/s"] == times["tflops"]
    assert values["limited by"] == "arithmetic"


def test_it_has_the_kernels_the_figures_of_ncu_and_the_flags_with_their_meaning(attention):
    text = write_section(page_of(attention, FA2))
    assert "throttled: the GPU ran below its maximum clock" in text
    assert "Top kernels" in text and "flash_fwd_kernel" in text and "tensor %" in text
    assert "sage" not in text


def test_it_has_the_command_that_measures_this_case_alone(attention):
    codes = [block.text for block in page_of(attention, FA2).walk() if isinstance(block, CodeBlock)]
    assert codes[0].endswith("profpipe run pipeline.yaml --out h200 --set impl=fa2 --set mode=fwd --set seqlen=8192")


def test_the_options_of_a_case_stand_before_the_program():
    data, run = store.load(ROOT / "examples" / "own_program")
    (findings, *_) = analyze.analyze(data, run).workloads
    (case, *_) = [each for each in findings.cases if each.params["compile"] is True]
    run = replace(run, command=("profpipe", "run", "--", "python", "gpt.py"))
    command = case_pages.alone_command("gpt", case, run)
    assert command == ["profpipe", "run", "-w", "gpt", "--set", "compile=true", "--", "python", "gpt.py"]
    unset = case_pages.alone_command("gpt", replace(case, params={**case.params, "compile": None}), run)
    assert unset[4:6] == ["--set", "compile=null"]


def test_a_program_with_steps_shows_every_step_by_its_state():
    page = page_of(document_of("own_program"), "compile=true")
    strip = next(block for block in page.walk() if isinstance(block, Chart) and block.kind is ChartKind.STRIP)
    counts = {series.name: len(series.marks) for series in strip.series}
    steps = store.load(ROOT / "examples" / "own_program")[0].steps
    own = steps[(steps["workload"] == "gpt") & (steps["case"] == "compile=true") & (steps["profiler"] == "nsys")]
    states = own["state"].value_counts().to_dict()
    names = {"steady": "steady", "warmup": "warm-up", "outlier": "outlier"}
    assert counts == {names[state]: count for state, count in states.items()}


def test_samples_are_drawn_by_round():
    samples = tuple((1 + i // 500, 1e6 + i) for i in range(1000))
    page = page_of(document_of("h200-attention", ({("attention", FA2): samples}, {})), FA2)
    (strip,) = [block for block in page.walk() if isinstance(block, Chart) and block.kind is ChartKind.STRIP]
    assert [(series.name, len(series.marks)) for series in strip.series] == [("round 1", 500), ("round 2", 500)]


def test_thinning_keeps_the_least_and_the_largest_sample_and_the_order():
    samples = [(1, float(i % 97)) for i in range(10_000)]
    samples[4321] = (1, 1000.0)
    kept = case_pages.limit_samples(samples, 500)
    assert len(kept) <= 500 and max(kept)[1] == 1000.0 and min(kept)[1] == 0.0
    assert case_pages.limit_samples(samples, 20_000) is samples


@pytest.mark.slow
def test_many_samples_of_many_cases_keep_the_page_small():
    cases = [page.id for page in document_of("h200-attention").cases]
    raw = ({("attention", case): tuple((1, 1e6 + i) for i in range(10_000)) for case in cases}, {})
    made = page.render(document_of("h200-attention", raw), rendering.find_templates())
    assert len(made.encode()) < 3_500_000 and "largest" in made


# --- raw files -------------------------------------------------------------------------------------------------------


def a_run(folder, *jobs):
    (folder / "raw/w/plain").mkdir(parents=True)
    return Manifest(jobs=jobs or (JobEntry("w", "plain", ("n=1",), folder="raw/w/plain"),))


def event(**values):
    return json.dumps({"event": "samples", "case": "n=1", "metric": "time", "unit": "ns"} | values) + "\n"


def test_samples_of_all_rounds_are_read_and_a_repeated_round_counts_once(tmp_path):
    run = a_run(tmp_path)
    lines = event(round=1, values=[1, 2]) + event(round=2, values=[9]) + "noise of a library\n"
    lines += (
        event(round=2, values=[3.5]) + event(metric="time_cuda_graph", values=[7]) + event(case="other", values=[8])
    )
    (tmp_path / "raw/w/plain/job.jsonl").write_text(lines)
    assert raw_files.read(tmp_path, run)[0] == {("w", "n=1"): ((1, 1.0), (1, 2.0), (2, 3.5))}


def test_the_end_of_a_log_is_read_without_commands_and_with_relative_paths(tmp_path):
    run = a_run(tmp_path)
    lines = [f"line {i} of {tmp_path}/raw/w" for i in range(100)]
    (tmp_path / "raw/w/plain/output.txt").write_text("\n".join([*lines, "$ python t.py --token secret", "done"]))
    text = raw_files.read(tmp_path, run)[1]["raw/w/plain"]
    assert "secret" not in text and text.endswith("line 99 of raw/w\ndone")
    assert len(text.splitlines()) == 40


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "raw/link", ""])
def test_a_manifest_from_elsewhere_leads_to_no_file_outside_its_folder(tmp_path, name):
    outside, folder = tmp_path / "elsewhere", tmp_path / "run"
    outside.mkdir()
    (outside / "output.txt").write_text("private")
    run = a_run(folder, JobEntry("w", "plain", ("n=1",), folder=name))
    (folder / "raw/link").symlink_to(outside)
    assert raw_files.read(folder, run) == ({}, {})


def test_a_log_that_is_a_link_is_not_read(tmp_path):
    run = a_run(tmp_path)
    (tmp_path / "private").write_text("private")
    (tmp_path / "raw/w/plain/output.txt").symlink_to(tmp_path / "private")
    assert raw_files.read(tmp_path, run)[1] == {}


def test_logs_stand_below_the_report_and_each_case_leads_to_its_own():
    logs = {"raw/attention/nsys": "the last line"}
    data, run = store.load(ROOT / "examples" / "h200-attention")
    jobs = tuple(replace(job, folder=f"raw/attention/{job.profiler}") for job in run.jobs)
    run = replace(run, jobs=jobs)
    document = render.build(analyze.analyze(data, run), data, run, ({}, logs))
    section = document.section("logs")
    assert section is not None and "the last line" in write_section(section)
    assert "Logs: nsys" in write_section(page_of(document, FA2))


def test_no_page_of_a_case_is_in_markdown(attention):
    titles = {plain(page.title) for page in attention.cases}
    shown = {plain(section.title) for page in paginate(attention) for section in page.sections}
    assert len(titles) == 42 and not shown & titles
