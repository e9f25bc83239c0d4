"""Who holds the memory of the GPU: at the peak, over two steps, and where an allocation failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from profpipe.analysis.findings import WorkloadFindings
from profpipe.analysis.memory import CaseMemory, find_fit, find_leading, find_memory
from profpipe.job import Status
from profpipe.report import document as doc
from profpipe.report.labels import case_text, fill, plural
from profpipe.report.units import percent, size_unit
from profpipe.results.schema import FAILED, UNUSED_MEMORY

#: Rows of a table, and cases that stand on the long page.
_MOST_HOLDERS, _MOST_BLOCKS, _CASES = 14, 10, 12
#: A row has at least this share of the memory in use; smaller ones of a part are one row.
_LEAST_HOLDER = 0.001
#: Parts that a sentence names, and the share of the memory in use from which something is named.
_MOST_PARTS, _LEAST = 4, 0.01

_NAMES: Mapping[str, str] = {
    "optimizer": "optimizer states",
    "kept": "tensors kept between calls",
    "workspace": "cuBLAS workspaces",
    "temporary": "temporary tensors",
    "other": "other tensors",
    "cached": "cached, free",
    "fragmented": "free between blocks",
    "outside": "other processes and contexts",
}
_PASSES = {"forward": "forward pass", "backward": "backward pass", "optimizer": "step of the optimizer"}
#: The parts from below, with their colours: those of kernel classes.
_KEYS: Mapping[str, str] = {
    "parameters": "attention", "optimizer": "optimizer", "workspace": "memset", "other": "rest", "gradients": "copy",
    "kept": "conv", "activations": "gemm", "temporary": "elementwise",
}  # fmt: skip
_ADVICE: Mapping[str, str] = {
    "checkpoint": "Checkpointing of {} would free up to SIZE.",
    "bfloat16": "Autocast to {} would free up to SIZE of activations.",
    "expandable": "torch has SIZE free, in pieces of at most PIECE, which are too small. {} can join them.",
    "outside": "Other processes and CUDA contexts hold SIZE of the GPU.",
}


def _name(part: Any) -> str:
    return _NAMES.get(part, str(part))


def _size(size: float) -> str:
    return size_unit([size]).with_name(size)


def _code(text: str, around: str = "{}") -> doc.Text:
    return fill(around, doc.Code(text)) if text else ""


def _memories(workload: WorkloadFindings) -> list[CaseMemory]:
    table = workload.recorded.tables.memory
    memories = (find_memory(table, case.id) for case in workload.cases if len(table))
    return [memory for memory in memories if memory is not None]


def remarks(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield what ran out of memory and what would help, what grows, who holds the peak, and what would fit."""
    memories = _memories(workload)
    status = {case.id: case.status for case in workload.cases}
    names = {case.id: fill("{}: ", case_text(case)) if len(status) > 1 else "" for case in workload.cases}
    failed = [memory for memory in memories if len(memory.at("failure"))]
    # What a program caught was no failure; a file says nothing of its program.
    caught = [memory for memory in failed if workload.declared and status[memory.case] != Status.OOM]
    for memory in failed:
        yield from _describe_failure(memory, names[memory.case]) if memory not in caught else ()
    for memory in memories:
        growth = memory.at("growth").sort_values("bytes", ascending=False)
        if len(growth):
            places = dict.fromkeys(growth[["place", "name"]].iloc[0])
            total, most = _size(growth["bytes"].sum()), _size(growth["bytes"].iloc[0])
            said = f"{{}}Each step leaves {total} behind, {most} of it from {{}}."
            yield fill(said, names[memory.case], doc.join(map(_code, places), last=", called at "))
    yield from name_peak(workload)
    for memory in caught:
        then = " before the program did" if status[memory.case] in FAILED else ", and the program went on"
        said = f"{{}}{plural(int(memory.at('asked')['blocks'].iloc[0]), 'allocation')} failed{then}. The last: {{}}"
        yield fill(said, names[memory.case], next(_describe_failure(memory, "")))
    yield from _describe_fit(workload, [memory for memory in memories if memory.at("failure").empty])


def name_peak(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield who holds most of the peak; of several cases of the highest one, with its case and pass."""
    texts = {case.id: case_text(case) for case in workload.cases}
    for memory in sorted(_memories(workload), key=lambda memory: -memory.sum_parts("peak").sum())[:1]:
        part, name, place, share = find_leading(memory)
        total = memory.sum_parts("peak").sum()
        # The passes are those of two steps, and the peak may be elsewhere.
        passes = memory.at("pass")
        at_peak = [_PASSES[of] for of in passes.loc[passes["bytes"] == total, "part"] if of in _PASSES]
        during = f", in the {at_peak[0]}" if at_peak else ""
        peak, hold = _size(total), "holds" if part == "rounding" else "hold"
        held = f"{_name(part)}{{}} {hold} {percent(share)} %{{}}."
        said = fill(held, _code(name, " of {}"), _code(place, " ({})"))
        if len(texts) == 1:
            yield fill(f"At the peak of {peak} {{}}", said)
        else:
            yield fill(f"The highest peak of memory is {peak}{during} ({{}}): {{}}", texts[memory.case], said)


def _describe_failure(memory: CaseMemory, name: doc.Text) -> Iterator[doc.Text]:
    """Yield what asked for memory that was not there, and what held it; then what would have left room."""
    asked, parts, facts = memory.at("asked").iloc[-1], memory.sum_parts("failure"), memory.facts
    held = [f"{_name(part)} {_size(size)}" for part, size in parts[:_MOST_PARTS].items() if size > _LEAST * parts.sum()]
    during = f" in the {_PASSES[asked['part']]}" if asked["part"] in _PASSES else ""
    who = doc.join([doc.Code(text) for text in (asked["name"], asked["place"]) if text], last=" at ")
    left = f", and {_size(facts['free'])} of {_size(facts['capacity'])} were free" if "free" in facts else ""
    said = f"{{}}Out of memory{during}: {{}} asked for {_size(asked['bytes'])}{left}. Held: {{}}."
    yield fill(said, name, who, doc.join(held))
    advice = memory.at("advice").sort_values("bytes", ascending=False)
    for row in advice[advice["bytes"] >= max(_LEAST * parts.sum(), asked["bytes"])].to_dict("records"):
        said = _ADVICE[row["part"]].replace("SIZE", _size(row["bytes"])).replace("PIECE", _size(facts["largest"]))
        yield fill(said, doc.Code(row["name"])) if row["name"] else said


def _describe_fit(workload: WorkloadFindings, memories: list[CaseMemory]) -> Iterator[doc.Text]:
    params = {case.id: dict(case.params) for case in workload.cases}
    for axis in dict.fromkeys(axis for memory in memories for axis in params[memory.case]):
        values = [(float(value), m) for m in memories if isinstance(value := params[m.case].get(axis), (int, float))]
        others = {tuple(pair for pair in params[memory.case].items() if pair[0] != axis) for memory in memories}
        if len(others) == 1 and (fit := find_fit(values)):
            grows = doc.join(f"{_name(part)} {_size(size)}" for part, size in list(fit.growing.items())[:_MOST_PARTS])
            fits = f"{fit.least} to {fit.most}" if fit.most > fit.least else fit.least
            said = f"The largest {axis} that fits is {fits}: {_size(max(fit.fixed, 0.0))} do not grow with it, and"
            yield fill(f"{said} one more takes {_size(fit.slope)} ({{}}).", grows)


def compare_peaks(parts: pd.DataFrame) -> Iterator[doc.Block]:
    """Yield what the peaks of A and B are, and the part that differs most; then all parts."""
    more = (parts["b"] - parts["a"]).sort_values(key=abs, ascending=False, kind="stable")
    a, b = (_size(parts[side].sum()) for side in ("a", "b"))
    change = f", {_name(more.index[0])} {size_unit([more.iloc[0]]).signed().with_name(more.iloc[0])} of it"
    change = change if more.iloc[0] else ", and no part differs"
    yield doc.Paragraph(doc.Strong(f"The peak of the memory is {a} in A and {b} in B{change}."))
    unit = size_unit([parts.sum().max()])
    columns = [doc.label("part"), *(doc.number(id, title, unit) for id, title in (("a", "A"), ("b", "B")))]
    columns.append(doc.number("difference", "B - A", unit.signed()))
    rows = ([_name(part), *parts.loc[part, ["a", "b"]], more[part]] for part in more.index)
    yield doc.make_table("memory", columns, rows)


def memory(workload: WorkloadFindings) -> doc.Section:
    """Return what holds the memory of a failed case or at the highest peak, of others folded; empty without memory."""
    memories = sorted(_memories(workload), key=lambda of: (of.at("failure").empty, -of.sum_parts("peak").sum()))
    texts = {case.id: case_text(case) for case in workload.cases}
    first = (block for of_case in memories[:1] for block in (*_tables(of_case), _draw(workload, of_case)))
    passes = _compare_passes(_memories(workload), texts)
    name = [doc.Paragraph(doc.Strong(texts[memories[0].case]))] if memories[1:] else []
    others = (doc.Details(texts[of_case.case], _tables(of_case)) for of_case in memories[1:_CASES])
    blocks = [*name, *first, passes, *others]
    note = "Rows with a share add up to what torch's allocator gave out. A line is that of the row's largest block."
    return doc.make_section("memory_peak", "Who holds the memory", blocks, note, workload.name)


def _tables(memory: CaseMemory) -> tuple[doc.TableBlock, ...]:
    moment, title = ("peak", "At the peak") if memory.at("failure").empty else ("failure", "When an allocation failed")
    total = float(memory.sum_parts(moment).sum())
    rows = memory.at(moment)
    rank, process, device = rows[["rank", "process", "device"]].iloc[0]
    where = f"GPU {device} of {f'process {process}' if pd.isna(rank) else f'rank {rank}'}"
    where = f" ({where}, {'the highest' if moment == 'peak' else 'one'} of {memory.places})" * (memory.places > 1)
    is_unused = rows["part"].isin(UNUSED_MEMORY)
    listed = rows[~is_unused].sort_values("bytes", ascending=False)
    holders = listed[listed["bytes"] >= _LEAST_HOLDER * total][:_MOST_HOLDERS]
    rest = listed.drop(holders.index).groupby("part", as_index=False)[["bytes", "blocks"]].sum()
    columns: doc.Columns[Any] = [
        (doc.label("part"), lambda row: _name(row["part"])),
        (doc.number("size", "", size_unit([total])), lambda row: row["bytes"]),
        (doc.percent("share", ""), lambda row: "" if row["part"] in UNUSED_MEMORY else row["bytes"] / total),
        (doc.words("name", "of"), lambda row: _code(row["name"])),
        (doc.words("place", "line"), lambda row: _code(row["place"])),
        (doc.count("blocks"), lambda row: row["blocks"] or ""),
    ]
    rest = rest.sort_values("bytes", ascending=False)
    listed = pd.concat([holders, rest, rows[is_unused]]).fillna({"name": "", "place": "", "blocks": 0})
    records, blocks = listed.to_dict("records"), memory.at(f"{moment}_block").to_dict("records")[:_MOST_BLOCKS]
    return (
        doc.table_of(f"{moment} {memory.case}", records, columns, f"{title}: {_size(total)} in use{where}"),
        doc.table_of(
            f"{moment}_blocks {memory.case}", blocks, columns, "Largest blocks, and the size of one", doc.OnPage.DETAILS
        ),
    )


def _compare_passes(memories: list[CaseMemory], texts: Mapping[str, doc.Text]) -> doc.TableBlock:
    """Return the most in use during each pass of the last steps, the highest of a case in bold."""
    passes = {memory.case: memory.at("pass").set_index("part")["bytes"] for memory in memories}
    recorded = {name for sizes in passes.values() for name in sizes.index}
    names = [name for name in _PASSES if name in recorded]
    unit = size_unit(size for sizes in passes.values() for size in sizes)
    columns = [doc.label("case"), *(doc.number(name, name, unit) for name in ("before", *names))]

    def cell(sizes: pd.Series, name: str) -> doc.TableCell:
        return doc.TableCell(sizes.get(name), is_strong=sizes.get(name) == sizes.max())

    rows = [[texts[case], *(cell(sizes, name) for name in ("before", *names))] for case, sizes in passes.items()]
    title = "Peak by pass; a loss after the forward pass is in none"
    return doc.make_table("passes", columns, rows if names else [], title, doc.OnPage.DETAILS)


def _draw(workload: WorkloadFindings, memory: CaseMemory) -> doc.Chart | None:
    """Return the memory of two steps by part, as areas one above the other; None without two points."""
    points = memory.at("time")
    sizes = points.pivot_table(index="at_ns", columns="part", values="bytes", aggfunc="sum").fillna(0.0)
    if len(sizes) < 2:
        return None
    # Short names: the passes of a step are near to one another.
    notes = points.drop_duplicates("at_ns").set_index("at_ns")["name"].map({of: of for of in _PASSES}).fillna("")
    at_ms = [(float(at) - float(sizes.index[0])) / 1e6 for at in sizes.index]
    series = []
    for part in [part for part in _KEYS if part in sizes.columns]:
        values = zip(at_ms, sizes[part], notes.loc[sizes.index], strict=True)
        series.append(doc.Series(_name(part), _KEYS[part], tuple(doc.Mark(x, y, note=note) for x, y, note in values)))
    x, y = doc.Axis("ms", is_measured=True), doc.Axis("allocated", quantity="byte")
    return doc.Chart(f"{workload.name}-memory", "Memory over time", doc.ChartKind.AREAS, x, y, {"": tuple(series)})
