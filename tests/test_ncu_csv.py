"""What ncu prints: both CSV pages and the text page, of several versions, locales and kinds of damage."""

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from profpipe import plugins
from profpipe.errors import UnreadableFile
from profpipe.ingest import kernel_classes, ncu, reader

DATA = Path(__file__).parent / "data" / "ncu-2025.3"
RAW = DATA / "attention_h200.raw.csv.gz"
DETAILS = DATA / "attention_h200.details.csv.gz"

Write = Callable[[str | bytes], Path]

HEADER = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream"'
LONG = f'{HEADER},"Section Name","Metric Name","Metric Unit","Metric Value"'


@pytest.fixture
def printed(tmp_path):
    """Writes what ncu may have printed and gives the file's path."""

    def write(text):
        path = tmp_path / "ncu.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def row(number, metric, unit, value, kernel="k(int)", section="S"):
    return f'"{number}","7","app","host","{kernel}","1","13","{section}","{metric}","{unit}","{value}"'


def duration(number, unit, value, **more):
    return row(number, "gpu__time_duration.sum", unit, value, **more)


def values(parsed):
    return dict(zip(parsed.metrics["metric"], parsed.metrics["value"], strict=True))


# --- real files ------------------------------------------------------------------------------------------------------


def test_the_raw_page_of_an_h200_adds_up_to_what_its_cells_say(parser):
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(RAW.read_bytes()).decode())))
    microseconds = [float(r["gpu__time_duration.sum"].replace(",", "")) for r in rows[1:]]
    assert rows[0]["gpu__time_duration.sum"] == "us"
    parsed = parser.parse(RAW)
    assert parsed.origin.launches == len(microseconds) == 76
    assert parsed.origin.total_ns == pytest.approx(sum(microseconds) * 1000)
    assert parsed.origin.device == "NVIDIA H200"


def test_the_details_page_names_the_same_metrics_as_the_raw_page_of_the_same_run(parser):
    """The labels of the details page are translated; the raw page has the metrics themselves."""
    raw, details = parser.parse(RAW), parser.parse(DETAILS)
    keys = ["case", "subject", "metric", "unit"]
    both = raw.metrics.merge(details.metrics, on=keys, suffixes=("", "_details"))
    figures = details.metrics[~details.metrics["metric"].str.startswith("rule:")]
    assert len(both) == len(figures) and both["metric"].nunique() >= 20
    # The details page rounds to three or four digits, and "Waves Per SM" to two decimals.
    error = (both["value"] - both["value_details"]).abs()
    assert (error <= both["value"].abs() * 0.01 + 0.006).all()
    assert details.origin.launches == raw.origin.launches
    assert details.origin.total_ns == pytest.approx(raw.origin.total_ns, rel=1e-3)
    assert "rounded to three digits" in details.origin.notes[0] and not raw.origin.notes


def test_kernels_stand_in_the_nvtx_ranges_that_were_open_at_their_launch(parser):
    for path in (RAW, DETAILS):
        parsed = parser.parse(path)
        assert parsed.kernels["phase"].str.fullmatch(r"case:\w+:\d+ > iter").all()
        ranges = parsed.ranges.set_index("range")
        assert ranges.loc["case:flash:512", "kernels"] == 6 == ranges.loc["case:flash:512 > iter", "kernels"]
        assert ranges[["instances", "wall_ns", "busy_ns"]].isna().all(axis=None)


def test_advice_is_kept_with_its_estimate_where_it_has_one(parser):
    metrics = parser.parse(DETAILS).metrics
    rules = metrics[metrics["metric"].str.startswith("rule:")]
    assert rules.loc[rules["metric"] == "rule:SOLBottleneck", "value"].isna().all()
    limited = rules[rules["metric"] == "rule:TheoreticalOccupancy"]
    assert limited["value"].between(0, 100).all() and set(limited["unit"]) == {"% local"}


def test_the_text_page_is_read_too(parser, shared_data):
    path = shared_data / "ncu" / "gpu-mode__lectures" / "triton_profile.txt"
    assert parser.sniff(path)
    parsed = reader.parse(parser, path)
    assert (parsed.origin.launches, parsed.origin.total_ns) == (2, 5920 + 11550)
    square = parsed.kernels[parsed.kernels["kernel"] == "square_kernel_0d1d234"].iloc[0]
    assert (square["process"], square["device"], square["stream"]) == (5311, 0, 7)
    own = parsed.metrics[parsed.metrics["subject"] == "square_kernel_0d1d234"].set_index("metric")
    assert own.loc["launch__registers_per_thread", "value"] == 20
    assert own.loc["gpc__cycles_elapsed.avg.per_second", ["value", "unit"]].tolist() == [2.37e9, "Hz"]
    assert own.loc["launch__waves_per_multiprocessor", "value"] == 1.19


def test_one_kernel_has_one_name_in_nsys_ncu_and_torch(parser, shared_data):
    """The same program under three tools, of which ncu's CSV shortens names and Kineto demangles otherwise."""
    nsys = plugins.load_module(plugins.builtin_folder("parsers") / "nsys_sqlite.py").parse(
        shared_data / "h200" / "attn_h200.sqlite"
    )
    torch = plugins.load_module(plugins.builtin_folder("parsers") / "torch_trace.py").parse(
        shared_data / "h200" / "attn_trace.json.gz"
    )
    ncu = parser.parse(RAW)
    names = {tool: set(p.kernels.loc[p.kernels["kind"] == "kernel", "kernel"]) for tool, p in
             {"nsys": nsys, "torch": torch, "ncu": ncu}.items()}  # fmt: skip
    assert set(parser.parse(DETAILS).kernels["kernel"]) == names["ncu"]
    assert names["ncu"] <= names["nsys"] and len(names["ncu"]) == 19
    # Only the torch trace holds the making of the inputs.
    made_inputs = {name for name in names["torch"] if kernel_classes.classes([name]) == ["random"]}
    assert names["torch"] - made_inputs <= names["nsys"] and len(made_inputs) == 1


# --- spellings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "value", "ns"),
    [("nsecond", "1,500", 1500), ("usecond", "1.5", 1500), ("msecond", "0.25", 250_000), ("second", "1", 1e9),
     ("ns", "1500", 1500), ("us", "1,234.50", 1_234_500), ("ms", "2", 2e6), ("s", "0.5", 5e8)],
)  # fmt: skip
def test_durations_of_every_spelling_become_nanoseconds(parser, printed, unit, value, ns):
    parsed = parser.parse(printed(f"{LONG}\n{duration(0, unit, value)}\n"))
    assert parsed.origin.total_ns == ns


@pytest.mark.parametrize(
    ("unit", "factor", "base"),
    [("Kbyte", 1e3, "byte"), ("Mbyte", 1e6, "byte"), ("Gbyte/second", 1e9, "byte/s"), ("Tbyte/s", 1e12, "byte/s"),
     ("byte/second", 1, "byte/s"), ("byte/nsecond", 1e9, "byte/s"), ("cycle/nsecond", 1e9, "Hz"), ("Ghz", 1e9, "Hz"),
     ("Kbyte/block", 1e3, "byte/block"), ("%", 1, "%"), ("", 1, "1"), ("inst/cycle", 1, "inst/cycle"),
     ("register/thread", 1, "register/thread"), ("cycle/usecond", 1e6, "Hz"), ("hz", 1, "Hz")],
)  # fmt: skip
def test_units_become_base_units(unit, factor, base):
    assert ncu.convert_unit(2.0, unit) == (2.0 * factor, base)


def test_numbers_of_a_european_locale_are_recognised_by_the_unambiguous_ones(parser, printed):
    """ncu 2025.1 on a Windows with a comma for the decimal point: 117.344 ns are 117344."""
    dram = [row(n, "dram__bytes.sum", "byte", "27.595.520") for n in (0, 1)]
    parsed = parser.parse(printed("\n".join([LONG, duration(0, "ns", "117.344"), duration(1, "ns", "0,5"), *dram])))
    assert parsed.origin.total_ns == 117_344.5 and values(parsed)["dram__bytes.sum"] == 27_595_520


def test_numbers_that_could_be_of_either_locale_are_read_as_english(parser, printed):
    assert parser.parse(printed(f"{LONG}\n{duration(0, 'ns', '1,234')}")).origin.total_ns == 1234


def test_messages_and_output_of_the_program_stand_anywhere_among_the_rows(parser, printed):
    noise = '==PROF== Profiling "k" - 0: 0%....50%....100% - 9 passes'
    lines = [
        noise,
        'said "hello, world',
        "5, 6, 7",
        LONG,
        duration(0, "ns", "10"),
        'loss "nan',
        "3,4",
        duration(1, "ns", "5"),
        noise,
    ]
    parsed = parser.parse(printed("\n".join(lines)))
    assert (parsed.origin.launches, parsed.origin.total_ns) == (2, 15)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks_and_windows_line_ends_are_removed(parser, printed, encoding):
    path = printed(f"==PROF== hello\r\n{LONG}\r\n{duration(0, 'ns', '10')}\r\n".encode(encoding))
    assert parser.sniff(path) and parser.parse(path).origin.total_ns == 10


def test_an_error_of_ncu_in_a_file_with_kernels_becomes_a_note(parser, printed):
    parsed = parser.parse(printed(f"==ERROR== LaunchFailed\n{LONG}\n{duration(0, 'ns', '10')}"))
    assert parsed.origin.launches == 1 and parsed.origin.notes == ("ncu ended with 'LaunchFailed'",)


def test_several_captures_in_one_file_are_not_mixed_up(parser, printed):
    one = f"{LONG}\n{duration(0, 'ns', '10')}"
    assert parser.parse(printed(f"{one}\n{one}\n")).origin.launches == 2


def test_processes_with_the_same_ids_stay_apart(parser, printed):
    second = duration(0, "ns", "5").replace('"7","app"', '"8","app"')
    parsed = parser.parse(printed(f"{LONG}\n{duration(0, 'ns', '10')}\n{second}"))
    assert parsed.kernels["process"].tolist() == [7, 8] and parsed.origin.total_ns == 15


def test_processes_of_two_hosts_with_the_same_ids_stay_apart(parser, printed):
    rows = (duration(0, "us", value).replace('"host"', f'"{host}"') for host, value in (("h1", "10"), ("h2", "20")))
    parsed = parser.parse(printed("\n".join([LONG, *rows])))
    assert (parsed.origin.launches, parsed.origin.total_ns) == (2, 30e3)


def test_each_row_of_the_raw_page_is_one_launch(parser, printed):
    """Two containers of one host can have a process and an ID in common."""
    kernel = '"0","7","app","host","k(int)","1","13"'
    text = f'{HEADER},"gpu__time_duration.sum"\n"","","","","","","","ns"\n{kernel},"1,000"\n{kernel},"2,500"\n'
    parsed = parser.parse(printed(text))
    assert (parsed.origin.launches, parsed.origin.total_ns) == (2, 3500)


def test_text_of_a_rule_over_several_lines_ends_where_its_quote_ends(parser, printed):
    header = f'{LONG},"Rule Name","Rule Type","Rule Description","Estimated Speedup Type","Estimated Speedup"'
    rule = row(0, "", "", "") + ',"Tail","OPT","two\nlines, and ""quotes""","global","12.5"'
    parsed = parser.parse(printed("\n".join([header, duration(0, "ns", "10"), rule, duration(1, "ns", "5")])))
    assert parsed.origin.total_ns == 15 and values(parsed)["rule:Tail"] == 12.5


def test_start_end_ranges_and_named_domains_and_colons_in_names_are_kept(parser, printed):
    push = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    start = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    header = LONG.replace('"Kernel Name"', f'"{push}","{start}","Kernel Name"')
    none = ":none" * 6
    pushed = f'9  ""<default domain>:profpipe:a=1{none}""  ""mine:fwd:2:uint64:7:ARGB:0:none:none""'
    nested = duration(0, "ns", "10").replace('"k(int)"', f'"{pushed}","1 ""<default domain>:run{none}""","k(int)"')
    parsed = parser.parse(printed(f"{header}\n{nested}"))
    assert parsed.kernels[["case", "phase"]].values.tolist() == [["a=1", "fwd:2"]]
    assert parsed.ranges[["case", "range"]].values.tolist() == [["", "run"], ["a=1", ""], ["a=1", "fwd:2"]]


def test_all_metrics_requested_on_the_command_line_are_kept(parser, printed):
    requested = row(0, "l1tex__data_bank_reads.sum", "", "42", section="Command line profiler metrics")
    unrequested = row(0, "l1tex__data_bank_writes.sum", "", "43")
    parsed = parser.parse(printed("\n".join([LONG, duration(0, "ns", "10"), requested, unrequested])))
    assert values(parsed) == {"gpu__time_duration.sum": 10, "l1tex__data_bank_reads.sum": 42}


def test_a_metric_is_the_mean_over_the_launches_of_a_kernel(parser, printed):
    ipc = "sm__inst_executed.avg.per_cycle_active"
    lines = [row(n, ipc, "inst/cycle", f"{value}.5") for n, value in enumerate((10, 20, 60))]
    metrics = parser.parse(printed("\n".join([LONG, *lines]))).metrics.set_index("metric")
    assert metrics.loc[ipc, ["value", "n"]].tolist() == [30.5, 3]


def test_a_launch_whose_time_was_not_measured_leaves_the_sum_missing(parser, printed):
    lines = [
        LONG,
        duration(0, "ns", "10"),
        row(1, "Registers Per Thread", "", "32"),
        duration(2, "ns", "5", kernel="other"),
    ]
    parsed = parser.parse(printed("\n".join(lines)))
    assert parsed.origin.launches == 3 and parsed.origin.total_ns is None
    times = dict(zip(parsed.kernels["kernel"], parsed.kernels["total_ns"].isna(), strict=True))
    assert times == {"k(int)": True, "other": False}
    assert "1 of 3 launches has no gpu__time_duration" in parsed.origin.notes[0]


# --- refused files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "NVreg_Restrict"),
        ("==PROF== Connected to process 1 (nvidia-smi)\n==PROF== Disconnected from process 1\n", "without a kernel"),
        ("==ERROR== Unknown Error on device 0.\n", "Unknown Error on device 0"),
        ("==WARNING== No kernels were profiled.\n", "filters"),
        (LONG + "\n", "no row of a kernel"),
        (f'{LONG.replace("Metric Value", "Minimum")},"Invocations"\n', "print-summary"),
        ("==PROF== Disconnected\n    Metric Name   Metric Unit  Minimum  Maximum  Average\n", "print-summary"),
    ],
)  # fmt: skip
def test_output_without_a_kernel_is_refused_with_the_message_of_ncu(parser, printed, text, word):
    path = printed(text)
    assert parser.sniff(path)
    with pytest.raises(UnreadableFile, match=word):
        parser.parse(path)


def test_a_row_that_ends_early_is_refused(parser, printed):
    text = gzip.decompress(RAW.read_bytes())
    for lost in (20, 4000):
        with pytest.raises(UnreadableFile, match="cut or damaged in line 78"):
            parser.parse(printed(text[:-lost]))
    with pytest.raises(UnreadableFile, match="cut or damaged"):
        parser.parse(printed(RAW.read_bytes()[:5000]))


@pytest.mark.parametrize(
    "header", [LONG.replace(',"Kernel', ",Kernel]]Kernel"), f'"ID,{LONG[5:]}'], ids=["no name", "no header"]
)
def test_a_damaged_header_is_refused(parser, printed, header):
    path = printed(f"{header}\n{duration(0, 'ns', '350')}\n")
    assert parser.sniff(path)
    with pytest.raises(UnreadableFile, match="cut or damaged in line 2"):
        parser.parse(path)
