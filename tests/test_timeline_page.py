"""The timeline of report.html: what is drawn equals the tables, and a real browser zooms and explains it."""

import contextlib
import gzip
import json
import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from browser import opened
from nsys_exports import Export

from profpipe.analysis import analyze
from profpipe.analysis.timeline import MOST_BOXES, LaneKind, find_timelines
from profpipe.cli import main
from profpipe.report.scales import coloured_keys
from profpipe.results import schema, store
from profpipe.results.schema import STEP_PREFIX

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">'\"&amp;\u202e" + "k" * 10_000


def ingested(path, folder):
    if path.suffix == ".gz":
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        path = folder / path.stem
    assert main(["ingest", str(path), "--out", str(folder / "tables")]) == 0
    return folder / "tables"


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """The folder with the tables and the page of a loop whose steps are known."""
    return ingested(DATA / "nsys-2025.3.1/loops/evals.sqlite.gz", tmp_path_factory.mktemp("steps"))


def data_of(page):
    """The data of each timeline in a page."""
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]


def test_the_boxes_of_the_page_have_the_sums_of_the_table(steps):
    (drawn,) = data_of((steps / "report.html").read_text())
    timeline = store.load(steps)[0].timeline
    found: Counter[tuple[str, str]] = Counter()
    counts: Counter[str] = Counter()
    for lane in drawn["lanes"]:
        for _, duration, _, key, *_ in lane["boxes"]:
            found[lane["kind"], drawn["keys"][key]] += duration
            counts[lane["kind"]] += 1
    operations = timeline[timeline["kind"].isin(schema.KINDS)]
    # Classes without a colour are one.
    classes = operations["kernel_class"].where(operations["kernel_class"].isin(list(coloured_keys())), "other")
    assert set(operations["kernel_class"]) > set(classes) - {"other"}
    for name, ns in operations["duration_ns"].groupby(classes).sum().items():
        assert found["stream", name] == ns
    for cause in ("idle_launch", "idle_blocked", "idle_other"):
        assert found["idle", f"step_{cause}"] == timeline.loc[timeline["kind"] == cause, "duration_ns"].sum()
    assert counts["stream"] == len(operations)
    assert counts["host"] == timeline["kind"].isin(["launch", "wait"]).sum()


def test_the_legend_of_the_timeline_has_the_order_of_the_bars(steps):
    page = (steps / "report.html").read_text()
    bars, timeline, *_ = (
        re.findall(r'data-series="([^"]*)"', legend) for legend in re.findall(r'class="legend".*?</div>', page)
    )
    both = [key for key in bars if key in timeline]
    assert len(both) > 5 and both == [key for key in timeline if key in bars]
    # Classes without a colour are one kind, and lines of code have a lane.
    assert timeline[-4:] == ["other", "memset", "step_idle_launch", "step_idle_other"]


def shifted(folder):
    """The page of a loop whose GPU has a clock that is 300 us behind that of the recording."""
    path = folder / "shifted.sqlite"
    path.write_bytes(gzip.decompress((DATA / "nsys-2025.3.1/loops/evals.sqlite.gz").read_bytes()))
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for kind in ("KERNEL", "MEMCPY", "MEMSET"):
            database.execute(f"update CUPTI_ACTIVITY_KIND_{kind} set start = start - 300000, end = end - 300000")
    return (ingested(path, folder) / "report.html").read_text()


def lags(page):
    """The ns from the beginning of its launch to that of each operation."""
    (drawn,) = data_of(page)
    lanes = (lane for lane in drawn["lanes"] if lane["kind"] == "stream")
    return [box[0] - box[6] for lane in lanes for box in lane["boxes"] if len(box) > 6 and box[6] is not None]


def test_operations_stand_after_their_launches_where_the_clocks_differ(steps, tmp_path):
    recorded, page = (steps / "report.html").read_text(), shifted(tmp_path)
    least = min(lags(recorded))
    assert least > 0 and "The clock of the GPU" not in recorded
    # The least of the delays before is none now, and the others are less by as much.
    assert min(lags(page)) == 0 and max(lags(page)) == max(lags(recorded)) - least
    assert f"the lanes of the GPU stand {300 - least / 1e3:.1f} us later than recorded" in page


def test_a_single_operation_before_its_launch_moves_no_others(steps):
    tables = store.load(steps)[0]
    rows = tables.timeline.copy()
    first = rows.index[rows["launched_ns"].notna()][0]
    rows.loc[first, "launched_ns"] = rows.loc[first, "start_ns"] + 5e4
    (own,) = find_timelines(rows, tables.steps)
    assert (own.shift_ns, own.early_ns) == (0.0, 5e4)


def events(ranks, number):
    """A timeline with ``number`` kernels of two classes on each rank, with gaps between them."""
    rows: list[dict[str, Any]] = []
    for rank in range(ranks):
        place = {"profiler": "nsys", "case": "c", "rank": rank, "process": rank, "device": rank, "step": 5}
        rows.append({**place, "kind": "step", "start_ns": 0, "duration_ns": 100 * number})
        for n in range(number):
            of = {"name": f"k{n % 3}", "kernel_class": ("gemm", "add")[n % 2], "stream": 7}
            rows.append({**place, **of, "kind": "kernel", "start_ns": 100 * n, "duration_ns": 60 + n % 7})
            rows.append({**place, "kind": "idle_other", "start_ns": 100 * n + 60 + n % 7, "duration_ns": 40 - n % 7})
    return schema.frame(schema.TIMELINE, rows)


def boxes(timeline):
    return sum(len(lane.events) for rank in timeline.ranks for lane in rank.lanes)


def test_very_many_boxes_are_merged_and_their_sums_stay():
    rows = events(ranks=3, number=8000)
    (timeline,) = find_timelines(rows, schema.empty(schema.STEPS))
    assert boxes(timeline) <= MOST_BOXES and timeline.merged_below_ns > 0
    for rank in timeline.ranks:
        own = rows[(rows["rank"] == rank.rank) & (rows["kind"] == "kernel")]
        (lane,) = (lane for lane in rank.lanes if lane.kind is LaneKind.STREAM)
        sums = own.groupby("kernel_class")["duration_ns"].agg(["size", "sum"])
        assert lane.totals == {key: (n, ns) for key, n, ns in sums.itertuples()}
        assert sum(event.count for event in lane.events) == len(own)
        assert sum(event.busy_ns for event in lane.events) == own["duration_ns"].sum()


def test_few_boxes_are_drawn_one_by_one():
    (timeline,) = find_timelines(events(ranks=2, number=1000), schema.empty(schema.STEPS))
    assert boxes(timeline) == 4000 and timeline.merged_below_ns == 0


def test_of_very_many_cases_the_first_ones_have_a_timeline(tmp_path):
    export = Export()
    for n in range(60):
        for pid, device in ((1, 0), (2, 1)):
            export.range(1000 * n, 1000 * n + 900, f"profpipe:n={n}", pid=pid, tid=pid)
            export.call(1000 * n + 10, 1000 * n + 12, 2 * n + pid, pid=pid, tid=pid)
            export.kernel(1000 * n + 50, 1000 * n + 90, 2 * n + pid, pid=pid, deviceId=device)
    folder = ingested(export.write_sqlite(tmp_path / "x.sqlite"), tmp_path)
    data = store.load(folder)[0]
    assert data.timeline["case"].nunique() == 60 and set(data.timeline["rank"]) == {0, 1}
    page = (folder / "report.html").read_text()
    assert len(data_of(page)) == 50 and "the timelines of the first 50 cases" in page


def test_processes_of_a_case_without_steps_have_no_rank_and_a_timeline_each():
    rows = events(ranks=3, number=10).assign(rank=pd.array([None] * 63, dtype="Int64"))
    (timeline,) = find_timelines(rows, schema.empty(schema.STEPS))
    assert [(rank.rank, rank.process) for rank in timeline.ranks] == [(0, 0), (1, 1), (2, 2)]


def test_the_largest_gaps_are_named_with_what_runs_around_them(tmp_path):
    export = Export()
    for n in range(6):
        at = 10_000 * n
        export.range(at, at + 9000, f"{STEP_PREFIX}marker:{n}")
        export.launch(at + 100, 3 * n + 1, "first", lasts=500)
        export.call(at + 590, at + 3000, 900 + n, name="cudaDeviceSynchronize_v3020")
        export.launch(at + 3200, 3 * n + 2, "second", lasts=500)
        export.launch(at + 4500, 3 * n + 3, "third", lasts=500)
    folder = ingested(export.write_sqlite(tmp_path / "x.sqlite"), tmp_path)
    (workload,) = analyze.analyze(*store.load(folder)).workloads
    (timeline,) = workload.timelines
    gaps = timeline.ranks[0].gaps
    assert [(gap.duration_ns, gap.cause, gap.after, gap.before, gap.wait) for gap in gaps] == [
        (5100, "idle_launch", "third", "", ""),
        (2600, "idle_blocked", "first", "second", "cudaDeviceSynchronize"),
        (800, "idle_launch", "second", "third", ""),
    ]
    page = (folder / "report.html").read_text()
    (drawn,) = data_of(page)
    numbered = [(drawn["lanes"][lane]["kind"], start) for lane, start in drawn["numbered"]]
    assert numbered == [("idle", gap.start_ns) for gap in gaps]
    assert "Largest gaps" in page and "Largest gaps" not in (folder / "SUMMARY.md").read_text()


def middle_of(element):
    box = element.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


#: The part of a timeline that an address names.
ZOOM = re.compile(r"zoom\.[^=]*=(\d+)-(\d+)")


@pytest.mark.slow
def test_a_browser_zooms_and_moves_the_timeline(steps):
    from playwright.sync_api import expect

    with opened(steps / "report.html") as page:
        canvas = page.locator("figure.timeline canvas")
        canvas.scroll_into_view_if_needed()

        def view():
            return tuple(map(float, (canvas.get_attribute("data-from"), canvas.get_attribute("data-to"))))

        whole = view()
        page.mouse.move(*middle_of(canvas))
        scrolled = page.evaluate("scrollY")
        assert scrolled > 0
        page.mouse.wheel(0, -300)
        page.wait_for_function("before => scrollY < before", arg=scrolled)
        assert view() == whole, "without the focus the wheel scrolls the page"
        canvas.scroll_into_view_if_needed()
        middle = middle_of(canvas)
        page.mouse.click(middle[0], canvas.bounding_box()["y"] + 5)
        page.mouse.wheel(0, -300)
        expect(canvas).not_to_have_attribute("data-from", "0")
        near = view()
        assert near[1] - near[0] < whole[1] - whole[0]
        page.mouse.move(*middle)
        page.mouse.down()
        page.mouse.move(middle[0] - 100, middle[1], steps=3)
        page.mouse.up()
        assert view()[0] > near[0] and view()[1] - view()[0] == pytest.approx(near[1] - near[0], abs=2)
        page.keyboard.press("0")
        assert view() == whole
        page.keyboard.press("+")
        assert view()[1] - view()[0] == pytest.approx(0.6 * whole[1], rel=0.01)
        page.locator("figure.timeline [data-action=all]").click()
        assert view() == whole
        page.locator("figure.timeline [data-action=gap]").click()
        shown = view()
        # On a slow machine the address has an earlier part first.
        page.wait_for_url(lambda url: (found := ZOOM.search(url)) and abs(int(found[1]) - shown[0]) <= 2)
        address = page.url
        page.goto("about:blank")
        page.goto(address)
        again = page.locator("figure.timeline canvas")
        assert float(again.get_attribute("data-from")) == pytest.approx(shown[0], abs=2)


@pytest.mark.slow
def test_a_browser_explains_what_the_pointer_and_the_keys_reach(steps):
    data = store.load(steps)[0].timeline
    longest = data[data["kind"] == "kernel"].nlargest(1, "duration_ns").iloc[0]
    with opened(steps / "report.html") as page:
        canvas = page.locator("figure.timeline canvas")
        canvas.scroll_into_view_if_needed()
        place = page.evaluate(
            """([start, length]) => {
              const timeline = document.querySelector("canvas").timeline;
              const isIt = (box) => box[0] === start && box[1] === length;
              const lane = timeline.data.lanes.find((each) => each.boxes.some(isIt));
              return [timeline.x(start + length / 2), lane.y + lane.height / 2];
            }""",
            [longest["start_ns"], longest["duration_ns"]],
        )
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + place[0], box["y"] + place[1])
        tip = page.locator("#tip").text_content()
        assert longest["name"][:200] in tip and longest["kernel_class"] in tip and "before it ran" in tip
        page.mouse.click(box["x"] + place[0], box["y"] + place[1])
        assert longest["name"][:200] in page.locator("figure.timeline .readout").text_content()
        page.keyboard.press("ArrowRight")
        after = page.locator("figure.timeline .readout").text_content()
        assert after and longest["name"][:200] not in after
        page.locator("figure.timeline [data-action=gap]").click()
        assert page.locator("figure.timeline .readout").text_content().startswith("idle: ")
        # A box of several gaps has no number, and is not among the largest gaps.
        gaps = """([count]) => {
          const timeline = document.querySelector("canvas").timeline;
          timeline.numbered[0].box[4] = count;
          timeline.layOut();
          timeline.draw();
          return [timeline.gaps.length, timeline.numbered.filter((gap) => gap.box).length];
        }"""
        number = page.evaluate("document.querySelector('canvas').timeline.gaps.length")
        assert page.evaluate(gaps, [3]) == [number - 1, 4]
        button = page.locator("figure.timeline .legend button").first
        button.click()
        assert button.get_attribute("aria-pressed") == "true" and "series=" in page.url
        assert page.evaluate("document.querySelector('canvas').timeline.faded") == button.get_attribute("data-series")


@pytest.mark.slow
def test_of_several_cases_the_chosen_one_is_drawn(tmp_path):
    export = Export()
    for n in range(9):
        at = 10_000 * n
        export.range(at, at + 9000, f"profpipe:impl={'abc'[n % 3]}")
        export.launch(at + 100, 2 * n + 1, f"kernel of {'abc'[n % 3]}", lasts=500)
        export.launch(at + 700, 2 * n + 2, "after", lasts=500)
    folder = ingested(export.write_sqlite(tmp_path / "x.sqlite"), tmp_path)
    with opened(folder / "report.html") as page:
        choice = page.locator(".choice", has=page.locator("figure.timeline"))
        assert choice.locator("canvas:visible").count() == 1
        choice.locator("select").first.select_option(index=2)
        shown = choice.locator("canvas:visible")
        shown.focus()
        page.keyboard.press("ArrowRight")
        text = choice.locator(".readout:visible").text_content()
        assert "kernel of c" in text and shown.get_attribute("width") != "300"
        of_case = page.locator("dialog.page", has=page.get_by_role("heading", name="b", include_hidden=True))
        page.goto(f"{(folder / 'report.html').as_uri()}#{of_case.first.get_attribute('id')}")
        page.locator("dialog[open] a", has_text="What ran when").click()
        assert page.locator("dialog[open]").count() == 0
        page.locator("canvas:visible").focus()
        page.keyboard.press("ArrowRight")
        assert "kernel of b" in choice.locator(".readout:visible").text_content()


@pytest.mark.slow
def test_names_from_outside_run_nothing_in_a_browser(tmp_path):
    export = Export()
    for n in range(6):
        export.range(1000 * n, 1000 * n + 900, f"{STEP_PREFIX}marker:{n}")
        export.launch(1000 * n + 100, n + 1, HOSTILE, lasts=500)
    folder = ingested(export.write_sqlite(tmp_path / "x.sqlite"), tmp_path)
    with opened(folder / "report.html") as page:
        canvas = page.locator("figure.timeline canvas")
        canvas.scroll_into_view_if_needed()
        canvas.focus()
        page.keyboard.press("ArrowRight")
        text = page.locator("figure.timeline .readout").text_content()
        assert "</script><img src=x onerror=" in text and len(text) < 1000
        assert page.title() != "owned" and page.locator("img[src=x]").count() == 0
