"""Reports of Nsight Compute, read by the ncu-report package.

``sdpa_h200.ncu-rep`` is a recorded report without the blocks of device code and four of its six kernels.
"""

import json
import random
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fuzzing import mutated

from profpipe import plugins
from profpipe.errors import UnreadableFile
from profpipe.ingest import ncu, reader
from profpipe.ingest.ncu import Choice
from profpipe.results import schema

pytest.importorskip("ncu_report", reason="the package ncu-report is not installed")

Write = Callable[[bytes], Path]

A10G = "ncu/AveryClapp__ESMM-Research/profile_190k.ncu-rep"
H200 = "h200/sdpa_basic.ncu-rep"
SMALL = Path(__file__).parent / "data" / "ncu-2025.3" / "sdpa_h200.ncu-rep"


@pytest.fixture
def written(tmp_path):
    def write(data):
        path = tmp_path / "capture.ncu-rep"
        path.write_bytes(data)
        return path

    return write


def blocks(data):
    """The header of the file and its blocks. A kill cuts the file between or within blocks."""
    (length,) = struct.unpack_from("<I", data, 4)
    found, at = [data[: 8 + length]], 8 + length
    parser = plugins.load_module(plugins.builtin_folder("parsers") / "ncu_report.py")
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        end = at + 4 + length + dict(parser._numbers(data[at + 4 : at + 4 + length])).get(5, 0)
        found.append(data[at:end])
        at = end
    return found


def test_a_report_says_which_ncu_wrote_it_and_on_which_gpu(parser, shared_data):
    h200, a10g = parser.parse(shared_data / H200), parser.parse(shared_data / A10G)
    assert (h200.origin.tool_version, h200.origin.device) == ("2025.3.1", "NVIDIA H200")
    assert (a10g.origin.tool_version, a10g.origin.device) == ("2023.1.1", "NVIDIA A10G")
    assert h200.kernels["kernel_family"].tolist() == ["fa2", "cudnn", "cutlass_fmha"]
    assert (h200.kernels["device"] == 0).all() and (h200.kernels["stream"] == 7).all()


def test_a_kernel_without_a_duration_is_counted_and_its_time_is_missing(parser, shared_data):
    parsed = parser.parse(shared_data / A10G)
    assert parsed.kernels["calls"].tolist() == [1, 1, 1, 1]
    assert parsed.kernels["total_ns"].isna().tolist() == [False, False, False, True]
    assert parsed.origin.attributed_ns is None and "1 of 4 launches" in parsed.origin.notes[0]


def test_metrics_are_those_that_answer_a_question_in_base_units(parser):
    metrics = parser.parse(SMALL).metrics
    flash = metrics[metrics["subject"].str.startswith("pytorch_flash::")].set_index("metric")
    wanted = {
        "gpu__time_duration.sum": (784_000, "ns"),
        "launch__shared_mem_per_block": (66_560, "byte/block"),
        "launch__registers_per_thread": (255, "register/thread"),
        "sm__maximum_warps_per_active_cycle_pct": (12.5, "%"),
        "rule:LaunchConfiguration": (25, "%"),
        "rule:TheoreticalOccupancy": (87.5, "% local"),
    }
    assert {name: tuple(flash.loc[name, ["value", "unit"]]) for name in wanted} == wanted
    assert (flash["n"] == 1).all() and len(flash) < 60
    assert flash.loc["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "value"] > 50


def test_of_spellings_of_one_metric_the_first_that_is_there_is_kept():
    old, new = "dram__bytes_read.sum", "dram__bytes_op_read.sum"
    assert list(ncu.chosen([new])) == [new]
    assert list(ncu.chosen([new, old, "sm__nonsense.sum"])) == [old]
    stall = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
    assert list(ncu.chosen([stall])) == [stall]


def test_a_kernel_has_the_name_that_nsys_gives_it(parser, shared_data):
    nsys = plugins.load_module(plugins.builtin_folder("parsers") / "nsys_sqlite.py")
    other = set(nsys.parse(shared_data / "h200" / "sdpa_capture_range.sqlite").kernels["kernel"])
    assert set(parser.parse(shared_data / H200).kernels["kernel"]) <= other


def test_the_path_is_start_end_ranges_then_push_pop_ranges_domain_by_domain(parser):
    """No recorded report holds NVTX: a stand-in for ncu's INvtxState, whose answers PROFILERS.md section 8 records."""

    def domain(started, pushed):
        return SimpleNamespace(start_end_ranges=lambda: started, push_pop_ranges=lambda: pushed)

    domains = {4: domain((), ("theirs",)), 0: domain(("run",), ("profpipe:a=1", "forward"))}
    state = SimpleNamespace(domains=lambda: tuple(domains), domain_by_id=domains.__getitem__)
    assert parser._path(state) == ("run", "profpipe:a=1", "forward", "theirs")
    assert schema.split_path(parser._path(state)) == ("a=1", "forward > theirs")
    assert parser._path(None) == ()


def test_launches_in_a_case_are_attributed_to_it_and_the_sums_agree():
    def launch(ns, *path, kind="kernel"):
        return ncu.Launch("k", path=path, kind=kind, values={"gpu__time_duration.sum": (ns, "ns")})

    launches = [launch(1, "profpipe:a"), launch(2, "profpipe:a", "fwd"), launch(4), launch(8, kind="graph")]
    parsed = ncu.sum_up(launches, schema.Origin(tool="ncu"), schema.Placement.NVTX_STATE)
    assert (parsed.origin.launches, parsed.origin.total_ns) == (3, 7)
    assert (parsed.origin.attributed_ns, parsed.origin.unattributed_ns) == (3, 4)
    assert parsed.ranges[["case", "range", "kernels", "kernel_ns"]].values.tolist() == [
        ["a", "", 2, 3],
        ["a", "fwd", 1, 2],
    ]
    assert "1 results are of whole graphs" in parsed.origin.notes[0]


def test_a_report_that_was_cut_is_refused_wherever_it_was_cut(parser, written):
    """The package reads the first of the two kernels out of some of these, and says nothing."""
    data = SMALL.read_bytes()
    for length in (4, 5, 9, 40, 200, 80_000, len(data) - 50_000, len(data) - 1):
        path = written(data[:length])
        assert parser.sniff(path)
        with pytest.raises(UnreadableFile, match=r"cut or damaged \("):
            parser.parse(path)


def test_a_report_of_whole_blocks_without_a_result_is_refused(parser, written):
    header, first, *_ = blocks(SMALL.read_bytes())
    with pytest.raises(UnreadableFile, match="without a kernel"):
        parser.parse(written(header + first))


def test_a_report_that_announces_more_results_than_can_be_read_is_refused(parser, written):
    *rest, last = blocks(SMALL.read_bytes())
    no_source_one_result = b"\x08\x00\x10\x01"
    assert last[4:8] == no_source_one_result
    with pytest.raises(UnreadableFile, match=r"damaged: of its 3 results"):
        parser.parse(written(b"".join([*rest, last[:4] + b"\x08\x00\x10\x02" + last[8:]])))


def test_a_report_newer_than_the_package_is_refused_with_both_versions(parser, monkeypatch):
    """A stand-in for an old package, for only one version can be installed."""
    context = SimpleNamespace(get_version=lambda: "2024.3.0")
    monkeypatch.setitem(sys.modules, "ncu_report", SimpleNamespace(load_report=lambda _: context))
    with pytest.raises(
        UnreadableFile, match=r"of 2025\.3\.1, newer than the package ncu-report 2024\.3\.0.*pip install -U"
    ):
        parser.parse(SMALL)


def test_without_the_package_a_report_is_refused_with_two_ways_out(parser, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(UnreadableFile, match=r"is missing.*pip install -U 'ncu-report>=2025\.3'.*ncu --import"):
        parser.parse(SMALL)


def test_the_package_is_not_loaded_before_a_report_is_read(parser):
    assert "ncu_report" not in vars(parser)


def test_mutated_reports_are_refused_or_add_up(parser, written):
    dice, refused = random.Random(20260714), 0
    for _ in range(60):
        try:
            reader.parse(parser, written(mutated(SMALL.read_bytes(), dice, bytes(range(256)), ends=0.3)))
        except UnreadableFile:
            refused += 1
    assert 0 < refused < 60


# --- guided ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def guided_report(tmp_path, shared_data):
    """The recorded report, two launches of each of three kernels, with a guide.json of these choices beside it."""

    def write(*choices, report=shared_data / H200):
        path = tmp_path / f"capture{report.suffix}"
        shutil.copyfile(report, path)
        (tmp_path / "guide.json").write_text(ncu.to_json(choices))
        return path

    return write


FLASH = (
    "pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, 0, 0, cutlass::half_t, "
    "Flash_kernel_traits<128, 128, 64, 4, cutlass::half_t>>, 0, 0, 0, 0, 1, 1, 0, 0>"
)
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0"
GRID, BLOCK = "32x2x16", "128x1x1"


def test_of_a_guided_report_only_the_chosen_launches_count(parser, guided_report):
    """ncu profiled launches 3 and 7 of each kernel, so the report has the third launch first and the seventh second."""
    path = guided_report(
        Choice("", FLASH, 3, GRID, BLOCK, (3, 5), 9, 0.625), Choice("", CUDNN, 7, "132x1x1", "384x1x1")
    )
    parsed = parser.parse(path)
    assert parsed.kernels.set_index("kernel")["total_ns"].to_dict() == {FLASH: 784000, CUDNN: 423264}
    assert (parsed.origin.launches, parsed.origin.total_ns) == (2, 784000 + 423264)
    assert set(parsed.metrics["subject"]) == {FLASH, CUDNN} and (parsed.metrics["n"] == 1).all()
    flash, cudnn, left_out = parsed.origin.details
    assert flash.startswith("launch 3 of 9 of pytorch_flash::flash_fwd_kernel<")
    assert flash.endswith(f"(grid {GRID}), of the shape with 62 % of that kernel's time (2 launches)")
    assert cudnn.startswith("launch 7 of cudnn") and cudnn.endswith("does not distinguish its launches)")
    assert left_out.startswith("launches left out: 4,") and parsed.origin.read_with == ("guide.json",)
    assert not parsed.origin.notes


def test_single_launches_have_their_grids_and_are_those_that_count(parser, guided_report, shared_data):
    every = parser.single_launches(shared_data / H200)
    assert [(launch.grid, launch.block) for launch in every[:2]] == [(GRID, BLOCK)] * 2
    assert [launch.duration_ns for launch in every if launch.name == FLASH] == [784000, 783040]
    (one,) = parser.single_launches(guided_report(Choice("", FLASH, 2, GRID, BLOCK), Choice("", "gone", 1)))
    assert one.duration_ns == 783040


def test_a_launch_that_ncu_counted_differently_gives_a_note_and_a_launch_of_the_same_shape_is_read(
    parser, guided_report
):
    third = guided_report(Choice("", FLASH, 9, GRID, BLOCK), Choice("", CUDNN, 1), Choice("", "k", 4))
    parsed = parser.parse(third)
    assert parsed.kernels.set_index("kernel")["total_ns"][FLASH] == 784000
    assert any("launch 9 was chosen" in note and "another launch of its shape" in note for note in parsed.origin.notes)
    assert any(note.startswith("not in the report: k,") for note in parsed.origin.notes)
    other = parser.parse(guided_report(Choice("", FLASH, 1, "1x1x1", BLOCK)))
    assert any(f"one of grid {GRID}" in note for note in other.origin.notes)


def test_a_guide_that_names_nothing_in_the_report_leaves_it_whole(parser, guided_report):
    parsed = parser.parse(guided_report(Choice("", "k", 1)))
    assert parsed.origin.launches == 6 and "every launch is kept" in parsed.origin.notes[0]


def test_a_damaged_guide_is_refused_and_the_guide_of_another_tool_is_ignored(parser, guided_report):
    path = guided_report(Choice("", FLASH, 1))
    other_types = {"case": 0, "kernel": 5, "invocation": "1", "alike": [""], "share": "a half", "launches": "9"}
    choices = [{"case": "", "kernel": FLASH, "alike": [], name: value} for name, value in other_types.items()]
    damaged = [json.dumps({"profpipe_guide": 1, "kernels": [choice]}) for choice in choices]
    for text in ("{", '{"profpipe_guide": 1}', '{"profpipe_guide": 1, "kernels": [{"name": "k"}]}', *damaged):
        path.with_name("guide.json").write_text(text)
        with pytest.raises(UnreadableFile, match=r"guide\.json beside it cannot be read"):
            parser.parse(path)
    path.with_name("guide.json").write_text('{"chapters": []}')
    assert parser.parse(path).origin.launches == 6


def test_of_the_cases_of_a_guide_only_those_in_the_report_are_missed(tmp_path):
    """After a crash the cases that were left are in another report of the same folder."""
    duration = {"gpu__time_duration.sum": (5.0, "ns")}
    launches = [ncu.Launch("a", path=("profpipe:n=1",), values=duration) for _ in range(2)]
    guide = (Choice("n=1", "a", 2), Choice("n=2", "b", 1))
    (tmp_path / "guide.json").write_text(ncu.to_json(guide))
    (one,), origin = ncu.select(tmp_path / "report.ncu-rep", launches, schema.Origin())
    assert one is launches[1] and not origin.notes


def test_what_ncu_printed_of_a_guided_is_read_with_its_guide(guided_report):
    printed = Path(__file__).parent / "data" / "ncu-2025.3" / "attention_h200.raw.csv.gz"
    csv = plugins.load_module(plugins.builtin_folder("parsers") / "ncu_csv.py")
    names = csv.parse(printed).kernels.groupby("kernel")["calls"].sum()
    name, calls = names.idxmax(), int(names.max())
    case = csv.parse(printed).kernels.set_index("kernel").loc[[name], "case"].iloc[0]
    parsed = csv.parse(guided_report(Choice(case, name, 2), Choice(case, "k", 1), report=printed))
    assert calls > 1 and parsed.origin.launches == 1
