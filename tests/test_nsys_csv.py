"""What `nsys stats` prints: recorded files, the real program's own output in each of its formats, and damaged ones."""

import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from profpipe import plugins
from profpipe.errors import UnreadableFile
from profpipe.results import schema

TRAINING = Path(__file__).parent / "data" / "nsys-2025.3.1" / "training" / "lm_eager.sqlite"

SUMMARY = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
75.0,3000,2,1500.0,1500.0,1000,2000,707.1,"void f<int, 4>(T1)"
25.0,1000,1,1000.0,1000.0,1000,1000,0.0,g
"""
TRACE = """Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,Device,Ctx,Strm,Name
10,1000,1,1,1,1,1,1,1,16,NVIDIA H200 (0),1,7,"void f<int, 4>(T1)"
20,2000,2,1,1,1,1,1,1,16,NVIDIA H200 (0),1,7,"void f<int, 4>(T1)"
30,1000,3,1,1,1,1,1,1,16,NVIDIA H200 (1),1,8,g
40,500,4,,,,,,,,NVIDIA H200 (1),1,8,[CUDA memcpy HtoD]
"""
OLD_TEXT = """CUDA Kernel Statistics:

 Time(%)  Total Time (ns)  Instances  Average      Minimum  Maximum  Name
 -------  ---------------  ---------  -----------  -------  -------  -------------
    90,0        2.650.453         41    64.645,0    64.000   65.249  kmeans_237_gpu
    10,0          294.495          1   294.495,0   294.495  294.495  other_gpu
Report file moved to "/somewhere/else/report1.qdrep"
"""


def read(parser, folder, text, name="x.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert parser.sniff(path)
    parsed: schema.Tables = parser.parse(path)
    own = parsed.kernels[parsed.kernels["kind"] == "kernel"]
    assert own["total_ns"].sum() == (parsed.origin.total_ns or 0)
    assert own["calls"].sum() == parsed.origin.launches
    return parsed


def refusal(parser, folder, text):
    path = folder / "x.csv"
    path.write_text(text)
    assert parser.sniff(path)
    with pytest.raises(UnreadableFile) as refused:
        parser.parse(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- recorded files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "launches", "total_ns"),
    [
        ("nsys_generated/martisu1631998__kmeans-parallel/nsys2022_stats_multi_csv_with_banners.txt", 51, 8522475),
        ("nsys_generated/martisu1631998__kmeans-parallel/nsys2023_cuda_gpu_trace.csv", 51, 8522475),
        ("nsys_generated/martisu1631998__kmeans-parallel/nsys2023_stats_default.txt", 51, 8522475),
        ("nsys/martisu1631998__kmeans-parallel/prova1.txt", 41, 2650453),
        ("nsys/zx3xyy__assignment2-systems/nsys_stats_clean.txt", 18320, 8414493836),
    ],
)
def test_files_of_several_reports_count_each_kernel_once(parser, shared_data, name, launches, total_ns):
    assert parser.sniff(shared_data / name)
    origin = parser.parse(shared_data / name).origin
    assert (origin.launches, origin.total_ns) == (launches, total_ns)


def test_a_file_that_holds_only_a_message_of_nsys_is_refused_with_the_message(parser, shared_data):
    path = shared_data / "nsys" / "Zyyeric__mini-aegaeon" / "kern_sum.csv"
    assert parser.sniff(path)
    with pytest.raises(UnreadableFile, match="does not contain CUDA kernel data"):
        parser.parse(path)


# --- the real nsys ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def from_database():
    parsed: schema.Tables = plugins.load_module(plugins.builtin_folder("parsers") / "nsys_sqlite.py").parse(TRAINING)
    return parsed


def stats(nsys, folder, *options):
    """The output of the real `nsys stats` for the recorded training."""
    export = folder / "lm.sqlite"
    shutil.copyfile(TRAINING, export)
    return subprocess.run(
        [nsys, "stats", *options, export], capture_output=True, text=True, check=True, timeout=120
    ).stdout


@pytest.mark.parametrize("unit", ["nsec", "usec"])
@pytest.mark.parametrize("style", ["csv", "tsv", "column", "table"])
@pytest.mark.parametrize("report", ["gpukernsum", "gputrace", "gpusum", "gpukernsum,gputrace,gpumemtimesum,cudaapisum"])
def test_every_format_of_the_real_nsys_gives_the_totals_of_its_database(
    parser, nsys, tmp_path, from_database, report, style, unit
):
    parsed = read(parser, tmp_path, stats(nsys, tmp_path, "-r", report, "-f", style, "--timeunit", unit))
    assert parsed.origin.launches == from_database.origin.launches
    assert parsed.origin.total_ns == pytest.approx(from_database.origin.total_ns, abs=0.5)
    if style in ("csv", "tsv"):
        expected = from_database.kernels.groupby("kernel")[["calls", "total_ns"]].sum()
        found = parsed.kernels.groupby("kernel")[["calls", "total_ns"]].sum()
        if report == "gpukernsum":
            expected = expected.drop(index="[CUDA memset]")
        assert found.round(0).to_dict() == expected.to_dict()
    else:
        assert any("cut with an ellipsis" in note for note in parsed.origin.notes)


def test_ranges_of_the_real_nsys_nest_where_its_report_says_so(parser, nsys, tmp_path, from_database):
    parsed = read(parser, tmp_path, stats(nsys, tmp_path, "-q", "-r", "nvtxpptrace", "-f", "csv"))
    columns = ["process", "range", "instances", "wall_ns"]
    assert parsed.ranges[columns].to_dict() == from_database.ranges[columns].to_dict()
    assert parsed.origin.total_ns is None


def test_kernels_by_range_of_the_real_nsys_are_ranges_and_no_total(parser, nsys, tmp_path):
    parsed = read(parser, tmp_path, stats(nsys, tmp_path, "-q", "-r", "nvtxsum,nvtxkernsum", "-f", "csv"))
    forward = parsed.ranges.set_index("range").loc["forward"]
    # nsys places no kernel by time: backward has none in its report.
    assert (forward["instances"], forward["kernels"]) == (3, 222)
    assert parsed.origin.total_ns is None
    assert any("every range around it" in note for note in parsed.origin.notes)


def test_times_in_seconds_that_show_only_zeros_give_way_or_are_refused(parser, nsys, tmp_path):
    both = stats(nsys, tmp_path, "-r", "gputrace,gpukernsum", "-f", "csv", "--timeunit", "sec")
    assert any("rounded to 100 us" in note for note in read(parser, tmp_path, both).origin.notes)
    header, *rows = stats(nsys, tmp_path, "-q", "-r", "gputrace", "-f", "csv", "--timeunit", "sec").splitlines()
    short = "\n".join([header, *(row for row in rows if ",0.0000," in row)]) + "\n"
    assert "rounded to zero" in refusal(parser, tmp_path, short)


# --- which table counts ----------------------------------------------------------------------------------------------


def test_single_launches_come_before_summaries_and_the_notes_say_so(parser, tmp_path):
    parsed = read(parser, tmp_path, SUMMARY + "\n" + TRACE)
    assert (parsed.origin.launches, parsed.origin.total_ns) == (3, 4000)
    assert set(parsed.kernels["device"]) == {0, 1}
    assert parsed.origin.device == "NVIDIA H200"
    assert any(note.startswith("kernels are from cuda_gpu_trace") for note in parsed.origin.notes)


def test_a_trace_that_lacks_launches_gives_way_to_the_summary(parser, tmp_path):
    trace = "\n".join(TRACE.splitlines()[:2]) + "\n"
    parsed = read(parser, tmp_path, SUMMARY + "\n" + trace)
    assert (parsed.origin.launches, parsed.origin.total_ns) == (3, 4000)
    assert any("lacks 2 of the launches" in note for note in parsed.origin.notes)


def test_two_captures_in_one_file_add_up_and_one_printed_twice_does_not(parser, tmp_path):
    one = "Processing [one.sqlite] with [/opt/nsys/reports/gpukernsum.py]...\n" + SUMMARY + "\n"
    two = one.replace("one.sqlite", "two.sqlite")
    assert read(parser, tmp_path, one + two).origin.total_ns == 8000
    assert read(parser, tmp_path, one + one.replace("gpukernsum", "cuda_gpu_kern_sum")).origin.total_ns == 4000
    assert read(parser, tmp_path, SUMMARY + "\n" + SUMMARY).origin.total_ns == 4000


@pytest.mark.parametrize("coarse_first", [True, False])
def test_a_report_printed_in_two_units_counts_once_and_with_the_finer_times(parser, tmp_path, coarse_first):
    header, f, g = SUMMARY.splitlines()
    fine = "\n".join([header, f.replace("3000,2,1500.0,1500.0,1000,2000", "2345678,2,1172839.0,,,"), g])
    f_in_ms = f.replace("3000,2,1500.0,1500.0,1000,2000,707.1", "2.346,2,1.173,,,,")
    g_in_ms = g.replace("1000,1,1000.0,1000.0,1000,1000,0.0", "0.001,1,0.001,,,,")
    coarse = "\n".join([header.replace("(ns)", "(ms)"), f_in_ms, g_in_ms])
    both = "\n\n".join([coarse, fine, ""] if coarse_first else [fine, coarse, ""])
    origin = read(parser, tmp_path, both).origin
    assert (origin.launches, origin.total_ns, origin.notes) == (3, 2346678, ())
    # A file with other kernels, or with times that differ by more than rounding, is another report.
    for change in (("g\n", "h\n"), ("2.346,2,1.173", "2.348,2,1.174")):
        assert read(parser, tmp_path, both.replace(*change, 1)).origin.launches == 6


def test_single_launches_printed_in_two_units_count_once(parser, tmp_path):
    coarse = TRACE.replace("Duration (ns)", "Duration (us)").replace(",1000,", ",1.0,").replace(",2000,", ",2.0,")
    coarse = coarse.replace(",500,", ",0.5,")
    fine = TRACE.replace(",2000,", ",2004,").replace(",1000,1,", ",1003,1,")
    origin = read(parser, tmp_path, f"{coarse}\n{fine}").origin
    assert (origin.launches, origin.total_ns) == (3, 4007)


COPIES = """Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
100.0,500,1,500.0,500.0,500,500,0.0,[CUDA memcpy HtoD]
"""
RANGE_SUM = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range
100.0,900,3,300.0,300.0,100,500,0.0,PushPop,profpipe:a=1
"""
RANGE_KERNELS = """NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Min (ns),Max (ns),Kernel Name
profpipe:a=1,PushPop,1,1,3,2,3000,1500.0,1000,2000,g
"""


@pytest.mark.parametrize("captures", [1, 2])
def test_copies_and_ranges_of_two_captures_add_up_and_those_printed_twice_do_not(parser, tmp_path, captures):
    banner = "Processing [{}.sqlite] with [/opt/nsys/reports/{}.py]... \n\n"
    reports = {"kernsum": SUMMARY, "gpumemtimesum": COPIES, "nvtxsum": RANGE_SUM, "nvtxkernsum": RANGE_KERNELS}
    parts = (banner.format(time % captures, name) + text for time in range(2) for name, text in reports.items())
    parsed = read(parser, tmp_path, "\n".join(parts))
    (copy,) = parsed.kernels[parsed.kernels["kind"] == "memcpy"].itertuples()
    assert (copy.calls, copy.total_ns) == (captures, 500 * captures)
    (row,) = parsed.ranges.itertuples()
    assert (row.case, row.instances, row.wall_ns) == ("a=1", 3 * captures, 900 * captures)
    assert (row.kernels, row.kernel_ns) == (2 * captures, 3000 * captures)


def test_kernels_by_range_printed_in_two_units_count_once_and_with_the_finer_times(parser, tmp_path):
    coarse = RANGE_KERNELS.replace("(ns)", "(us)").replace("3000,1500.0,1000,2000", "3,1.5,1,2")
    for text in (f"{RANGE_KERNELS}\n{coarse}", f"{coarse}\n{RANGE_KERNELS.replace('3000', '3004')}"):
        (row,) = read(parser, tmp_path, text).ranges.itertuples()
        assert (row.kernels, row.kernel_ns) == (2, 3000 if text.startswith(RANGE_KERNELS) else 3004)


@pytest.mark.parametrize("pid", [1, 2])
def test_kernels_by_range_of_two_captures_without_a_banner_between_them_add_up(parser, tmp_path, pid):
    other = RANGE_KERNELS.replace("PushPop,1,1,3,2,3000", f"PushPop,{pid},1,3,2,3100")
    ranges = read(parser, tmp_path, f"{RANGE_KERNELS}\n{other}").ranges
    assert (ranges["kernels"].sum(), ranges["kernel_ns"].sum()) == (4, 6100)


def test_kernels_by_name_join_the_one_place_where_a_process_has_that_range(parser, tmp_path):
    trace = """Start (ns),End (ns),Duration (ns),Name,PID,TID,Lvl,NumChild,RangeId,ParentId,RangeStack
0,1000,1000,profpipe:a=1,1,1,0,2,1,,:1
10,100,90,forward,1,1,1,0,2,1,:1:2
200,500,300,"aten::mm, op_id = 3",1,1,1,1,3,1,:1:3
300,400,100,forward,1,1,2,0,4,3,:1:3:4
0,800,800,profpipe:a=1,2,2,0,0,5,,:5
"""
    inside = """NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Kernel Name
profpipe:a=1,PushPop,1,1,1,7,70,g
profpipe:a=1,PushPop,2,2,1,1,10,g
forward,PushPop,1,1,2,5,50,g
"aten::mm, op_id = 3",PushPop,1,1,1,4,40,g
"""
    rows = read(parser, tmp_path, f"{trace}\n{inside}").ranges
    by_range = {(row.process, row.case, row.range): (row.wall_ns, row.kernels) for row in rows.itertuples()}
    assert (
        by_range[1, "a=1", ""] == (1000, 7)
        and by_range[2, "a=1", ""] == (800, 1)
        and by_range[1, "a=1", "aten::mm"] == (300, 4)
    )
    assert pd.isna(by_range[1, "a=1", "forward"][1]) and pd.isna(by_range[1, "a=1", "aten::mm > forward"][1])


def test_rows_by_launch_shape_become_one_kernel(parser, tmp_path):
    text = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),GridXYZ,BlockXYZ,Name
60.0,30,2,15.0,15.0,10,20,7.0710678,  20   32    1, 128    1    1,k
40.0,20,1,20.0,20.0,20,20,0.0,  80   32    1, 128    1    1,k
"""
    (row,) = read(parser, tmp_path, text).kernels.to_dict("records")
    assert (row["calls"], row["total_ns"], row["min_ns"], row["max_ns"]) == (3, 50, 10, 20)
    assert row["stddev_ns"] == pytest.approx(5.7735, abs=1e-3)
    assert pd.isna(row["median_ns"])


def test_tables_of_mpi_and_opengl_are_not_taken_for_kernels(parser, tmp_path):
    mpi = "Processing [x.sqlite] with [/opt/reports/openmp_sum.py]...\n" + SUMMARY + "\n"
    assert "no table" in refusal(parser, tmp_path, mpi)
    kernel = "Processing [x.sqlite] with [/opt/reports/gpukernsum.py]...\n" + SUMMARY
    assert read(parser, tmp_path, mpi + kernel).origin.launches == 3


def test_a_case_is_recognised_by_the_name_of_its_range(parser, tmp_path):
    text = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range
60.0,300,3,100.0,100.0,100,100,0.0,PushPop,:profpipe:impl=fa2
40.0,200,3,66.0,66.0,60,80,1.0,PushPop,:forward
"""
    ranges = read(parser, tmp_path, text).ranges[["case", "range", "instances", "wall_ns"]]
    assert ranges.to_numpy().tolist() == [["impl=fa2", "", 3, 300], ["", "forward", 3, 200]]


# --- spellings -------------------------------------------------------------------------------------------------------


def test_numbers_of_a_locale_with_decimal_commas_are_read(parser, tmp_path):
    parsed = read(parser, tmp_path, OLD_TEXT)
    assert (parsed.origin.launches, parsed.origin.total_ns) == (42, 2650453 + 294495)
    kernel = parsed.kernels.set_index("kernel").loc["kmeans_237_gpu"]
    assert (kernel["mean_ns"], kernel["min_ns"], kernel["max_ns"]) == pytest.approx((64645, 64000, 65249), abs=0.5)


@pytest.mark.parametrize("group", [",", "'", "\u202f", "\u00a0"])
def test_thousands_may_be_separated_in_any_way(parser, tmp_path, group):
    text = OLD_TEXT.replace(",", "#").replace(".", group).replace("#", ".")
    assert read(parser, tmp_path, text).origin.total_ns == 2650453 + 294495


@pytest.mark.parametrize(
    ("unit", "factor"), [("(us)", 1e3), ("(ms)", 1e6), ("(sec)", 1e9), ("(nsec)", 1), (":dur_us", 1e3)]
)
def test_the_header_states_the_unit(parser, tmp_path, unit, factor):
    text = SUMMARY.replace(" (ns)", unit if unit.startswith(":") else f" {unit}")
    parsed = read(parser, tmp_path, text)
    assert parsed.origin.total_ns == 4000 * factor
    assert parsed.kernels["max_ns"].max() == 2000 * factor


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-8"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_any_encoding_and_line_end_is_read(parser, tmp_path, encoding, newline):
    text = ("$ nsys stats report.nsys-rep\n" + SUMMARY).replace("\n", newline)
    assert read(parser, tmp_path, text.encode(encoding)).origin.total_ns == 4000


def test_semicolons_and_quoted_decimal_commas_are_read(parser, tmp_path):
    text = SUMMARY.replace('"void f<int, 4>(T1)"', "void f<int# 4>(T1)").replace(",", ";").replace(".", ",")
    parsed = read(parser, tmp_path, text.replace("#", ","))
    assert parsed.origin.total_ns == 4000
    assert parsed.kernels["mean_ns"].max() == 1500


def test_a_name_with_commas_needs_no_quotes(parser, tmp_path):
    assert read(parser, tmp_path, SUMMARY.replace('"', "")).kernels["kernel"].tolist()[0].startswith("f<int, 4")


def test_names_cut_with_an_ellipsis_are_counted(parser, tmp_path):
    parsed = read(parser, tmp_path, SUMMARY.replace('"void f<int, 4>(T1)"', "void at::native::elementwise_ker…"))
    assert any(note.startswith("1 kernel names are cut") for note in parsed.origin.notes)


# --- refusing --------------------------------------------------------------------------------------------------------


def test_a_file_cut_in_its_last_row_is_refused(parser, tmp_path):
    assert "cut short" in refusal(parser, tmp_path, SUMMARY[:-30])


def test_a_table_cut_between_rows_says_how_much_it_holds(parser, tmp_path):
    parsed = read(parser, tmp_path, "\n".join(SUMMARY.splitlines()[:2]) + "\n")
    assert parsed.origin.notes == ("the table was cut: its rows make up 75.0 % of the kernel time",)


def test_a_header_without_rows_is_refused(parser, tmp_path):
    assert "no table" in refusal(parser, tmp_path, SUMMARY.splitlines()[0] + "\n")


def test_error_lines_are_refused_with_what_they_say(parser, tmp_path):
    text = (
        "Processing [x.sqlite] with [gpukernsum.py]...\nERROR: Report 'gpukernsum.py' encountered an internal error\n"
    )
    assert "internal error" in refusal(parser, tmp_path, text)


@pytest.mark.parametrize("broken", ["30…", "30..00", "3000e999", "٣٠٠٠"])
def test_a_broken_number_is_refused(parser, tmp_path, broken):
    assert "where a number should" in refusal(parser, tmp_path, SUMMARY.replace("3000", broken))


@pytest.mark.parametrize("broken", ["7.5", "1e30", "-1e30"])
@pytest.mark.parametrize("column", ["instances", "stream", "process of a range"])
def test_a_count_or_an_id_that_is_a_fraction_or_too_large_is_refused(parser, tmp_path, column, broken):
    text = {
        "instances": SUMMARY.replace("1000,1,1000.0", f"1000,{broken},1000.0"),
        "stream": TRACE.replace(",1,8,g", f",1,{broken},g"),
        "process of a range": RANGE_KERNELS.replace("PushPop,1,", f"PushPop,{broken},"),
    }[column]
    assert "where a whole number up to 2^53 should" in refusal(parser, tmp_path, text)


@pytest.mark.parametrize("ordinal", ["٣", "0٣", "9" * 10, "9" * 400])
def test_a_name_of_a_device_that_ends_in_no_ordinal_stays_a_name(parser, tmp_path, ordinal):
    kernels = read(parser, tmp_path, TRACE.replace("H200 (1)", f"H200 ({ordinal})")).kernels
    assert kernels.set_index("kernel")["device"].dropna().to_dict() == {"f<int, 4>": 0}
    assert len(kernels) == 3


def test_a_row_that_contradicts_itself_is_refused(parser, tmp_path):
    assert "times mean are not the total in the row of 'g'" in refusal(
        parser, tmp_path, SUMMARY.replace("25.0,1000,1", "25.0,9000,1")
    )


def test_a_file_with_api_calls_only_has_no_kernels(parser, tmp_path):
    text = SUMMARY.replace("Instances", "Num Calls")
    assert "holds no kernels" in refusal(parser, tmp_path, text)
