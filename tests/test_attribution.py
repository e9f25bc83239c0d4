"""Where launches belong: generated captures against a slow, obvious reference."""

import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from nsys_exports import Export, thread_id

from profpipe import plugins
from profpipe.ingest import attribution, bounds, groupby, launch_tables
from profpipe.ingest.operations import Spans
from profpipe.results import schema


@dataclass(frozen=True)
class Range:
    pid: int
    tid: int
    start: int
    end: int
    name: str


@dataclass(frozen=True)
class Launch:
    """A call (from ``start`` to ``end``; no thread: not in the file) and when its kernel ran."""

    pid: int
    tid: int | None
    start: int
    end: int
    kernel_start: int
    kernel_end: int
    is_kernel: bool


# --- the reference ---------------------------------------------------------------------------------------------------


def in_order(ranges):
    return sorted(ranges, key=lambda r: (r.start, -r.end))


def around(launch, ranges, tid):
    """The ranges of thread ``tid`` that the call lies in, outermost first; not one that ends as another opens."""
    own = in_order(r for r in ranges if (r.pid, r.tid) == (launch.pid, tid))
    return [
        r
        for place, r in enumerate(own)
        if r.start <= launch.start
        and launch.end <= r.end
        and not any(later.start == r.end == launch.start for later in own[place + 1 :])
    ]


def has_case(found):
    return any(r.name.startswith("profpipe:") for r in found)


def path_of(launch, ranges, launches):
    """(names of the ranges around the launch, whether they are another thread's)."""
    if launch.tid is None:
        return [], False
    return below_other_threads(launch, around(launch, ranges, launch.tid), ranges, launches)


def path_of_range(r, ranges, launches):
    """The names of the ranges that are open when ``r`` opens, and its own."""
    thread = in_order(q for q in ranges if (q.pid, q.tid) == (r.pid, r.tid))
    before = thread[: next(i for i, q in enumerate(thread) if q is r)]
    own = [q for q in before if q.end > r.start] + [r]
    opening = Launch(r.pid, r.tid, r.start, r.start, 0, 0, is_kernel=False)
    return below_other_threads(opening, own, ranges, launches)[0]


def below_other_threads(launch, own, ranges, launches):
    """(names of ``own`` and of the ranges of another thread that they stand below, whether there are such)."""
    if has_case(own):
        return [r.name for r in own], False
    best: list[Range] = []
    best_key: tuple[bool, bool, int] | None = None
    for tid in sorted({r.tid for r in ranges if r.pid == launch.pid} - {launch.tid}):
        found = around(launch, ranges, tid)
        if not found or (own and not has_case(found)):
            continue
        works = any((k.pid, k.tid) == (launch.pid, tid) and k.is_kernel for k in launches)
        key = (has_case(found), works, found[-1].start)
        if best_key is None or key > best_key:
            best, best_key = found, key
    return [r.name for r in [*best, *own]], bool(best)


def union(intervals):
    return len({ns for start, end in intervals for ns in range(start, end)})


def range_rows(ranges, launches):
    rows: dict[tuple[int, str, str], dict[str, Any]] = defaultdict(
        lambda: {"instances": 0, "wall_ns": 0, "kernels": 0, "kernel_ns": 0, "intervals": []}
    )
    for r in ranges:
        row = rows[(r.pid, *schema.split_path(path_of_range(r, ranges, launches)))]
        row["instances"] += 1
        row["wall_ns"] += r.end - r.start
    for launch in launches:
        path, _ = path_of(launch, ranges, launches)
        if launch.is_kernel:
            for key in {(launch.pid, *schema.split_path(path[: i + 1])) for i in range(len(path))}:
                rows[key]["kernels"] += 1
                rows[key]["kernel_ns"] += launch.kernel_end - launch.kernel_start
                rows[key]["intervals"].append((launch.kernel_start, launch.kernel_end))
    return {
        key: {**{k: v for k, v in row.items() if k != "intervals"}, "busy_ns": union(row["intervals"])}
        for key, row in rows.items()
    }


# --- generated captures ----------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["profpipe:a", "profpipe:b", "forward", "backward", "softmax"])
#: A few threads of two processes, which share thread ids; few nanoseconds, so that everything touches and crosses.
RANGES = st.lists(
    st.builds(
        lambda pid, tid, start, length, name: Range(pid, tid, start, start + length, name),
        st.integers(1, 2), st.integers(1, 3), st.integers(-30, 40), st.integers(0, 40), NAMES,
    ),
    max_size=12,
)  # fmt: skip
LAUNCHES = st.lists(
    st.builds(
        lambda pid, tid, start, length, delay, lasts, kernel: Launch(
            pid, tid, start, start + length, start + delay, start + delay + lasts, kernel
        ),
        st.integers(1, 2), st.one_of(st.none(), st.integers(1, 3)), st.integers(-30, 70), st.integers(0, 4),
        st.integers(0, 30), st.integers(1, 20), st.booleans(),
    ),
    max_size=12,
)  # fmt: skip


def arrays(ranges, launches):
    names = sorted({r.name for r in ranges})
    as_int64 = lambda values: np.array(list(values), dtype=np.int64)  # noqa: E731
    return (
        Spans(
            start=as_int64(r.start for r in ranges),
            end=as_int64(r.end for r in ranges),
            thread=as_int64(thread_id(r.pid, r.tid) for r in ranges),
            process=as_int64(r.pid for r in ranges),
            name=as_int64(names.index(r.name) for r in ranges),
            names=names,
        ),
        attribution.Launches(
            start=as_int64(k.start for k in launches),
            end=as_int64(k.end for k in launches),
            thread=as_int64(
                attribution.NO_THREAD if k.tid is None else thread_id(k.pid, k.tid) for k in launches
            ),
            process=as_int64(k.pid for k in launches),
            is_kernel=np.array([k.is_kernel for k in launches], dtype=bool),
        ),
    )  # fmt: skip


def as_rows(frame):
    columns = ["instances", "wall_ns", "kernels", "kernel_ns", "busy_ns"]
    return {
        (row["process"], row["case"], row["range"]): {column: float(row[column]) for column in columns}
        for row in frame.to_dict("records")
    }


@settings(max_examples=100)
@example(  # one iteration of the case inside another range, one not, and their kernels at the same time
    ranges=[Range(1, 1, -1, 0, "profpipe:b"), Range(1, 1, 0, 0, "profpipe:a"), Range(1, 1, 0, 1, "profpipe:a")],
    launches=[Launch(1, 1, 0, 0, 0, 1, True), Launch(1, 1, 0, 1, 0, 1, True)],
    offset=0,
)
@given(ranges=RANGES, launches=LAUNCHES, offset=st.sampled_from([0, -(10**12), 1_700_000_000_000_000_000]))
def test_launches_and_ranges_are_as_the_reference_says(ranges, launches, offset):
    # The reference ignores the offset, since no clock's origin may matter.
    given_ranges, given_launches = arrays(ranges, launches)
    for values in (given_ranges.start, given_ranges.end, given_launches.start, given_launches.end):
        values += offset
    placed = attribution.attribute(given_ranges, given_launches)
    expected = [path_of(launch, ranges, launches) for launch in launches]
    assert [(placed.paths.names_of(p), bool(t)) for p, t in zip(placed.path, placed.by_time, strict=True)] == expected
    start = np.array([k.kernel_start for k in launches], dtype=np.int64) + offset
    end = np.array([k.kernel_end for k in launches], dtype=np.int64) + offset
    frame = launch_tables.range_rows(given_ranges, given_launches, placed, start, end, np.asarray)
    assert as_rows(frame) == range_rows(ranges, launches)


@pytest.mark.slow
@settings(max_examples=20)
@given(ranges=RANGES, launches=LAUNCHES, per_graph=st.integers(1, 3), shuffled=st.randoms(use_true_random=False))
def test_a_whole_export_is_read_as_the_reference_says(ranges, launches, per_graph, shuffled):
    """Through the file: ids shared by processes, graphs with several kernels a launch, rows in any order."""
    parser = plugins.load_module(plugins.builtin_folder("parsers") / "nsys_sqlite.py")
    launches = [k for k in launches if k.is_kernel]
    export, expected = Export(), {}
    export.string("nothing")
    shuffled.shuffle(ranges)
    for r in ranges:
        export.range(r.start, r.end, r.name, pid=r.pid, tid=r.tid)
    for number, k in enumerate(launches):
        # Both processes count from 1, so that their ids collide.
        correlation = 1 + sum(1 for other in launches[:number] if other.pid == k.pid)
        if k.tid is not None:
            export.call(k.start, k.end, correlation, pid=k.pid, tid=k.tid)
        for node in range(per_graph):
            name = f"kernel{number}node{node}"
            # Each on a stream by itself: two of one stream do not overlap.
            stream = per_graph * number + node
            export.kernel(k.kernel_start, k.kernel_end, correlation, name, pid=k.pid, streamId=stream)
            expected[name] = schema.split_path(path_of(k, ranges, launches)[0])
    for table, rows in export.rows.items():
        # Of two ranges with one begin and one end the file's order says which is the outer one.
        if table != "NVTX_EVENTS":
            shuffled.shuffle(rows)
    with tempfile.TemporaryDirectory() as folder:
        parsed = parser.parse(export.write_sqlite(Path(folder) / "x.sqlite"))
    found = {row["kernel"]: (row["case"], row["phase"]) for row in parsed.kernels.to_dict("records")}
    assert found == expected
    origin = parsed.origin
    total = per_graph * sum(k.kernel_end - k.kernel_start for k in launches)
    in_cases = parsed.kernels.loc[parsed.kernels["case"] != "", "total_ns"].sum()
    assert (origin.launches, origin.total_ns) == (per_graph * len(launches), total)
    assert (origin.attributed_ns, origin.unattributed_ns) == (in_cases, total - in_cases)
    for key, row in range_rows(ranges, launches).items():
        assert as_rows(parsed.ranges)[key]["kernels"] == per_graph * row["kernels"]
        assert as_rows(parsed.ranges)[key]["busy_ns"] == row["busy_ns"]


# --- what no random capture holds ------------------------------------------------------------------------------------


def test_a_hundred_thousand_nested_and_leaked_ranges_take_no_quadratic_time():
    ranges = [Range(1, 1, i, 10**9, "request") for i in range(200)]
    ranges += [Range(1, 1, 1000 + 10 * i, 1005 + 10 * i, f"op{i % 7}") for i in range(100_000)]
    launches = [Launch(1, 1, 1001 + 10 * i, 1002 + 10 * i, 0, 1, True) for i in range(0, 100_000, 100)]
    placed = attribution.attribute(*arrays(ranges, launches))
    assert len(placed.paths) == 1 + bounds.DEEPEST
    assert {placed.paths.depth[p] for p in placed.path} == {bounds.DEEPEST}


def test_a_range_that_opens_when_another_ends_is_not_nested_in_it():
    ranges = [
        Range(1, 1, 0, 30, "step"),
        Range(1, 1, 0, 10, "forward"),
        Range(1, 1, 10, 20, "backward"),
        Range(1, 1, 20, 20, "mark"),
        Range(1, 1, 20, 30, "optimizer"),
    ]
    launches = [Launch(1, 1, at, at, 40, 50, True) for at in (9, 10, 20, 30)]
    placed = attribution.attribute(*arrays(ranges, launches))
    opened = [placed.paths.names_of(node) for node in placed.range_path]
    optimizer = ["step", "optimizer"]
    assert opened == [["step"], ["step", "forward"], ["step", "backward"], [*optimizer, "mark"], optimizer]
    launched = [placed.paths.names_of(node) for node in placed.path]
    assert launched == [["step", "forward"], ["step", "backward"], [*optimizer, "mark"], optimizer]


def test_a_range_that_a_hook_opens_in_another_thread_stands_with_its_launches_below_the_case():
    ranges = [
        Range(1, 1, 0, 100, "epoch"),
        Range(1, 1, 1, 99, "profpipe:c=1"),
        Range(1, 2, 0, 100, "thread"),
        Range(1, 2, 5, 90, "hook"),
        Range(2, 2, 5, 90, "hook"),
    ]
    launches = [Launch(1, 2, 10, 20, 30, 50, True)]
    given_ranges, given_launches = arrays(ranges, launches)
    placed = attribution.attribute(given_ranges, given_launches)
    ran = np.array([30], dtype=np.int64), np.array([50], dtype=np.int64)
    rows = as_rows(launch_tables.range_rows(given_ranges, given_launches, placed, *ran, np.asarray))
    hook = {"instances": 1, "wall_ns": 85, "kernels": 1, "kernel_ns": 20, "busy_ns": 20}
    assert rows[1, "c=1", "thread > hook"] == hook
    # Ranges of another process, and ranges that open before the case, do not belong to it.
    assert {key: row["instances"] for key, row in rows.items() if not key[1]} == {
        (1, "", "epoch"): 1,
        (1, "", "thread"): 1,
        (2, "", "hook"): 1,
    }


def test_unions_of_times_too_far_apart_to_be_shifted_are_still_right():
    group = np.repeat(np.arange(600), 2)
    start = np.tile([0, 2**52], 600).astype(np.int64)
    assert groupby.union(group, start, start + 10, 600).tolist() == [20.0] * 600
