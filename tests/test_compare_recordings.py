"""``profpipe compare`` on single recordings: files of profilers, and results of ``ingest``."""

import gzip
import html
import json
import re
import shutil
import sqlite3
from pathlib import Path

import pandas as pd
import pytest
from report_study import check_golden

from profpipe import cli
from profpipe.analysis.compare_recordings import Extent, compare_recordings
from profpipe.analysis.steps import ONE_DEVICE
from profpipe.commands import ingest
from profpipe.results.schema import KernelChange

DATA = Path(__file__).parent / "data"
EXAMPLES = Path(__file__).parents[1] / "examples"
#: One kernel takes 80 us in A and 60 us in B; everything else is the same.
A, B = (DATA / "reported" / f"compare_{side}" / "trace.json" for side in ("before", "after"))
LM = DATA / "nsys-2025.3.1" / "training" / "lm_eager.sqlite"
GEMM, ADD = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "vectorized_elementwise_kernel"
HEAD = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """Leave room for every column and sentence."""
    monkeypatch.setenv("COLUMNS", "120")


def found(a, b):
    return compare_recordings(ingest.read_recordings([a]), ingest.read_recordings([b]))


def compared(capsys, *words):
    assert cli.main(["compare", *map(str, words)]) == 0
    return capsys.readouterr().out


def changed(path, change, source=B):
    """Write the trace ``source`` with changed events; those for which ``change`` returns None are left out."""
    trace = json.loads(source.read_text())
    trace["traceEvents"] = [kept for event in trace["traceEvents"] if (kept := change(event)) is not None]
    path.write_text(json.dumps(trace))
    return path


def sums(path, *kernels):
    rows = [f'50.0,{ns},{calls},{ns / calls},,,,,"{name}"' for name, calls, ns in kernels]
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return path


def test_results_of_ingest_show_the_kernel_that_became_faster(tmp_path, capsys):
    for name, path in (("before", A), ("after", B)):
        assert cli.main(["ingest", str(path), "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    text = compared(capsys, tmp_path / "before", tmp_path / "after")
    assert re.search(rf"{ADD}\S+ +add +shrank +4 +4 +320.0 +240.0 +-80.0\n", text)
    assert re.search(rf"{GEMM} +gemm +4 +4 +200.0 +200.0 +0\n", text)
    assert "A holds 64 launches of 4160 us and B 64 launches of 3520 us" in text


def test_the_parts_of_a_step_add_up_to_its_difference_exactly():
    (change,) = found(A, B).changes
    a, b = change.a, change.b
    assert change.extent is Extent.STEP and (a.kernel_ns, b.kernel_ns) == (4_160_000, 3_520_000)
    parts = {part: b.parts.ns[part] - a.parts.ns[part] for part in a.parts.ns}
    assert sum(parts.values()) == change.difference_ns
    classes = {name: b.parts.classes[name] - a.parts.classes[name] for name in a.parts.classes}
    assert classes == {"add": -80_000, "gemm": 0} and sum(classes.values()) == parts["compute"]


def test_the_page_of_two_steps_is_the_golden_one(tmp_path, capsys, regenerate):
    for name, path in (("A.json", A), ("B.json", B)):
        shutil.copy(path, tmp_path / name)
    text = compared(capsys, tmp_path / "A.json", tmp_path / "B.json")
    check_golden("compare_recordings.txt", text, regenerate)


def test_a_recording_has_no_difference_to_its_copy_and_is_not_compared_with_itself(tmp_path, capsys):
    text = compared(capsys, LM, shutil.copy(LM, tmp_path))
    assert text == "A step takes 7.84 ms in A and in B: no difference in any part or kernel, under nsys.\n"
    (tmp_path / "link.sqlite").symlink_to(LM)
    assert cli.main(["compare", str(LM), str(tmp_path / "link.sqlite")]) == 2
    assert "A and B are the same run: lm_eager.sqlite. Name two runs." in capsys.readouterr().err


def test_kernels_that_appear_vanish_and_change_their_launches_are_named(tmp_path):
    def change(event):
        if event.get("cat") != "kernel":
            return event
        number = event["args"]["correlation"]
        if ADD in event["name"]:
            return {**event, "name": "my_softmax(float*)"} if number % 8 == 0 else event
        return {**event, "name": GEMM.replace("128x256", "64x128")}

    (own,) = found(B, changed(tmp_path / "b.json", change)).changes
    changes = {kernel.name: kernel.change for kernel in own.kernels}
    add = next(name for name in changes if ADD in name)
    assert changes[add] is KernelChange.LAUNCHES
    assert changes["my_softmax(float*)"] is KernelChange.APPEARED
    assert changes[GEMM] is KernelChange.EXCHANGED
    assert list(own.renamed_classes) == [("gemm", 200_000, 200_000)]


def test_autotuned_names_of_the_same_work_are_said_to_be_so(tmp_path, capsys):
    def change(event):
        return {**event, "name": event["name"].replace("128x256", "64x128")}

    text = compared(capsys, B, changed(tmp_path / "b.json", change))
    assert "Kernels with other names that take about as long in all: gemm (200.0 us in A, 200.0 us in B)." in text
    assert re.search(r"nvjet_tst_128x256\S* →? ?\S* +gemm +other name +4 +4 ", text)
    assert cli.main(["compare", str(B), str(tmp_path / "b.json"), "--json=full"]) == 0
    kernels = [each for case in json.loads(capsys.readouterr().out)["cases"] for each in case["kernels"]]
    assert any("128x256" in each["kernel"] and "64x128" in each["b_kernel"] for each in kernels)


def test_a_recording_without_steps_is_compared_as_a_whole_with_one_that_has_them(tmp_path, capsys):
    first = changed(
        tmp_path / "first.json", lambda e: e if e.get("ts", 0) < 1250 and e.get("cat") != "user_annotation" else None
    )
    (own,) = found(A, first).changes
    assert own.extent is Extent.RECORDING and own.without == ("B",)
    assert own.b.parts.wall_ns - own.a.parts.wall_ns == own.difference_ns
    text = " ".join(compared(capsys, A, first).split())
    assert "B does not have steps, so the times are of whole recordings" in text
    assert "so the sums may be of unequal work" in text


def test_files_with_sums_only_are_compared_by_the_sums_of_their_kernels(tmp_path, capsys, regenerate):
    a = sums(tmp_path / "a_cuda_gpu_kern_sum.csv", (GEMM, 10, 1_000_000), ("my_kernel(float*)", 10, 500_000))
    b = sums(tmp_path / "b_cuda_gpu_kern_sum.csv", (GEMM, 10, 900_000), ("other_kernel(int*)", 20, 400_000))
    (own,) = found(a, b).changes
    assert own.extent is Extent.KERNELS and own.difference_ns == -200_000
    check_golden("compare_sums.txt", compared(capsys, a, b), regenerate)


def test_times_of_different_profilers_are_not_compared(tmp_path, capsys, regenerate):
    csv = sums(tmp_path / "a_cuda_gpu_kern_sum.csv", (GEMM, 40, 1_000_000))
    text = compared(capsys, csv, B)
    assert not re.search(r"\d (ns|us|ms)\b|%", text)
    check_golden("compare_profilers.txt", text, regenerate)


def test_gpus_that_differ_are_named(tmp_path, capsys):
    other = tmp_path / "b.json"
    other.write_text(B.read_text().replace("NVIDIA H100 80GB HBM3", "NVIDIA H200"))
    text = compared(capsys, A, other)
    assert "The GPUs differ: A was recorded on NVIDIA H100 80GB HBM3, B on NVIDIA H200." in text


def test_a_gate_is_refused_because_single_recordings_have_no_verdict(capsys):
    assert cli.main(["compare", str(A), str(B), "--gate", "5"]) == 2
    assert "single recordings cannot tell a difference from noise" in capsys.readouterr().err


def test_a_refused_comparison_leaves_no_page(tmp_path, capsys):
    page = tmp_path / "both.html"
    assert cli.main(["compare", str(A), str(B), "--gate", "5", "--html", str(page)]) == 2
    assert not page.exists()


def test_one_page_shows_the_bars_of_both_sides_in_one_scale_and_the_kernels(tmp_path, capsys):
    page = tmp_path / "both.html"
    text = compared(capsys, A, B, "--html", str(page))
    shown = page.read_text(encoding="utf-8").partition("<main")[2]
    answer = html.escape(text.splitlines()[0])
    places = [shown.index(part) for part in (answer, "<svg", "compute: add", "vectorized_elementwise_kernel")]
    assert places == sorted(places)
    later = shutil.copytree(EXAMPLES / "own_program", tmp_path / "later")
    record = (later / "run.json").read_text(encoding="utf-8")
    (later / "run.json").write_text(record.replace('"started": "2026-', '"started": "2027-'), encoding="utf-8")
    metrics = pd.read_parquet(later / "metrics.parquet")
    metrics.loc[metrics["unit"] == "ns", ["value", "ci_low", "ci_high"]] *= 1.5
    metrics.to_parquet(later / "metrics.parquet")
    assert cli.main(["compare", str(EXAMPLES / "own_program"), str(later), "--html", str(page)]) == 0
    shown = page.read_text(encoding="utf-8").partition("<main")[2]
    places = [shown.index(part) for part in ("6 without a verdict", "<svg", "gpt/compile=false</code>", 'class="fold"')]
    assert places == sorted(places) and "nvjet" in shown
    assert cli.main(["compare", str(A), str(B), "--html", str(tmp_path / "none" / "both.html")]) == 2


def test_files_match_by_name_and_the_last_one_left_on_each_side_matches_too(tmp_path, capsys):
    folders = {"a": {"x.json": A, "old.json": B}, "b": {"x.json": B, "new.json": B}, "c": {"y.json": B, "z.json": B}}
    for folder, files in folders.items():
        (tmp_path / folder).mkdir()
        copies = [str(shutil.copy(path, tmp_path / folder / name)) for name, path in files.items()]
        assert cli.main(["ingest", *copies, "--out", str(tmp_path / f"{folder}.out")]) == 0
    capsys.readouterr()
    text = compared(capsys, tmp_path / "a.out", tmp_path / "b.out")
    assert "\nold.json → new.json\n" in text and text.startswith("x.json: A step takes") and "Only" not in text
    assert cli.main(["compare", str(tmp_path / "a.out"), str(tmp_path / "c.out")]) == 2
    assert "A holds x.json, old.json; B holds y.json, z.json" in capsys.readouterr().err
    shutil.copy(B, tmp_path / "c" / "x.json")
    files = map(str, sorted((tmp_path / "c").iterdir()))
    assert cli.main(["ingest", *files, "--out", str(tmp_path / "c.out")]) == 0
    capsys.readouterr()
    text = compared(capsys, tmp_path / "a.out", tmp_path / "c.out")
    assert "Only A holds old.json." in text and "Only B holds y.json and z.json." in text


def test_ranks_match_by_number_and_a_missing_one_is_named(tmp_path, shared_data, capsys):
    both, one = tmp_path / "both.sqlite", tmp_path / "one.sqlite"
    both.write_bytes(gzip.decompress((shared_data / "steps" / "ddp.sqlite.gz").read_bytes()))
    shutil.copy(both, one)
    with sqlite3.connect(one) as database:
        ((pid,),) = database.execute("SELECT max(globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
        for kind in ("KERNEL", "MEMCPY", "MEMSET"):
            database.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{kind} WHERE globalPid = ?", (pid,))
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE globalTid & ~16777215 = ?", (pid,))
    text = compared(capsys, both, one)
    assert "B has no rank 1; the kernels below are means over all ranks of a side." in text
    # Of two ranks other steps are steady than of one alone.
    assert re.search(r"\n0 +16\.\d+ +16\.6 ", text) and not re.search(r"\n1 +\d", text)
    same = compare_recordings(ingest.read_recordings([both]), ingest.read_recordings([both])).changes[0]
    assert same.is_same and list(same.a.ranks) == [(0, ONE_DEVICE), (1, ONE_DEVICE)]


def four_gpus(folder, shared_data, *changes):
    """Copy the recording of one process on four GPUs, and change its kernels."""
    path = folder / f"{len(list(folder.iterdir()))}.sqlite"
    path.write_bytes((shared_data / "reported" / "one_process_four_gpus.sqlite").read_bytes())
    with sqlite3.connect(path) as database:
        for change in changes:
            database.execute(change.format("CUPTI_ACTIVITY_KIND_KERNEL"))
    return path


#: Too little for steps to recur; the GPUs 0, 2, 10 and 11.
WITHOUT_STEPS = "DELETE FROM {0} WHERE start > (SELECT min(start) FROM {0}) + 5000000"
RENUMBERED = "UPDATE {0} SET deviceId = deviceId + 9 - deviceId / 3 WHERE deviceId % 2"
SLOWER = "UPDATE {0} SET end = end + 10 WHERE deviceId = 10"


@pytest.mark.parametrize("is_without_steps", [True, False])
def test_each_gpu_of_a_process_has_its_parts(tmp_path, shared_data, capsys, is_without_steps):
    changes = [RENUMBERED, *([WITHOUT_STEPS] if is_without_steps else [])]
    a, b = (four_gpus(tmp_path, shared_data, *changes, *more) for more in ([], [SLOWER]))
    names = [f"0, GPU {number}" for number in (0, 2, 10, 11)]
    text = compared(capsys, a, b)
    assert re.findall(r"^(\d+, GPU \d+) +\d", text, re.MULTILINE) == names
    (case,) = json.loads(compared(capsys, a, b, "--json=full"))["cases"]
    assert list(case["ranks"]) == names and case["of"] == ("recording" if is_without_steps else "step")
    # The mean over four GPUs, of which one has other times.
    assert case["parts"]["compute"]["difference_ns"] > 0
    own = found(a, b).changes[0].b
    walls = [parts.wall_ns for parts in own.ranks.values()]
    assert own.parts.wall_ns == pytest.approx(sum(walls) / 4, abs=1)


def test_processes_with_different_gpus_are_compared_over_those_that_both_have(tmp_path, shared_data, capsys):
    four = four_gpus(tmp_path, shared_data, WITHOUT_STEPS, RENUMBERED)
    one = four_gpus(tmp_path, shared_data, WITHOUT_STEPS, "DELETE FROM {0} WHERE deviceId")
    text = " ".join(compared(capsys, four, one).split())
    assert "The sides have no GPU in common, so these are means over all GPUs of each: A has GPU 0 of rank 0, " in text
    assert "and B has rank 0." in text and "has no rank" not in text
    (case,) = json.loads(compared(capsys, one, four, "--json=full"))["cases"]
    assert case["ranks"] == {} and case["of"] == "recording"
    two = four_gpus(tmp_path, shared_data, WITHOUT_STEPS, RENUMBERED, "DELETE FROM {0} WHERE deviceId > 2")
    text = " ".join(compared(capsys, four, two).split())
    assert "They are means over the GPUs that both sides have." in text
    assert (
        "B has no GPU 10 of rank 0 and GPU 11 of rank 0; the kernels below are means over all GPUs of a side." in text
    )
    # Nothing differs on the two GPUs. The kernels are of four and of two, and their classes do not divide the time.
    assert "The largest parts of the difference" not in text and "compute: gemm" not in text
    change = found(four, two).changes[0]
    assert change.a.parts == change.b.parts and not change.a.parts.classes


def test_the_json_document_has_the_parts_and_the_kernels(capsys):
    document = json.loads(compared(capsys, A, B, "--json=full"))
    (case,) = document["cases"]
    assert document["kind"] == "compare_recordings" and case["of"] == "step"
    assert sum(part["difference_ns"] for part in case["parts"].values()) == case["difference_ns"]
    assert case["compute"]["add"] == {"a_ns": 320_000, "b_ns": 240_000, "difference_ns": -80_000}
    assert [kernel["cause"] for kernel in case["kernels"]] == ["time", "unchanged"]
    assert [warning["kind"] for warning in document["warnings"]] == ["no_verdict"]


def test_a_recording_without_kernels_is_refused_with_what_to_do(capsys):
    assert cli.main(["compare", str(A), str(DATA / "torch-2.13" / "training_cpu.json.gz")]) == 2
    error = capsys.readouterr().err
    assert "B holds no GPU kernels with times. Record the kernels with nsys, torch or rocprof." in error


def test_a_file_that_no_parser_reads_is_refused_with_its_reason(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("nothing here\n")
    assert cli.main(["compare", str(A), str(tmp_path / "notes.txt")]) == 1
    assert "notes.txt: is in no format that profpipe reads" in capsys.readouterr().err
